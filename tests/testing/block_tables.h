// Block tables as engines have them.
#ifndef TESTS_TESTING_BLOCK_TABLES_H_
#define TESTS_TESTING_BLOCK_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/group_cache.h"

namespace blockmgr {

// Returns the group's blocks by page, from page 0 on.
inline std::vector<BlockId> BlocksByPage(const GroupCache& cache) {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<size_t>(cache.tail_end()));
  for (int32_t i = 0; i < cache.tail_end(); ++i) {
    blocks.push_back(cache.block(i));
  }
  return blocks;
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_BLOCK_TABLES_H_
