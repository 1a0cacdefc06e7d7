// The pool of a language model, unless somebody says how many blocks it has.
#ifndef ENGINE_REFERENCE_DEFAULT_BLOCKS_H_
#define ENGINE_REFERENCE_DEFAULT_BLOCKS_H_

#include <cstdint>

#include "blockmgr/base/dtype.h"
#include "engine/reference/tiny_model.h"

namespace blockmgr {

// Returns how many blocks 8 sequences of the model's context need, but no more
// than half of `memory_bytes` has room for: a pool fills up with cached
// prefixes, and weights need memory, too. At least 2. REQUIRES: the shape is
// valid, page_size > 0.
int32_t DefaultBlocks(const ModelShape& shape, int32_t page_size, DType dtype,
                      int64_t memory_bytes);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_DEFAULT_BLOCKS_H_
