// DescribeGguf: what the engine tells gateways of a model from a GGUF file.
#ifndef ENGINE_REFERENCE_SERVED_GGUF_H_
#define ENGINE_REFERENCE_SERVED_GGUF_H_

#include <string>

#include <absl/status/statusor.h>

#include "blockmgr/served_model.h"
#include "engine/gguf/gguf_file.h"

namespace blockmgr {

// Returns the facts, with the name of the file at `path` without its ending, in
// UTF-8. `tokenizer_error` says why there is no tokenizer; empty: there is one.
// Errs with NotFound if the file does not say what model it is.
absl::StatusOr<ServedModel> DescribeGguf(const GgufFile& file,
                                         const std::string& path,
                                         std::string* tokenizer_error);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_SERVED_GGUF_H_
