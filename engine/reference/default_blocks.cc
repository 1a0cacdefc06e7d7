#include "engine/reference/default_blocks.h"

#include <algorithm>

#include "blockmgr/base/model_layout.h"

namespace blockmgr {
namespace {

// As many sequences as long as the model's context fit into the pool.
constexpr int64_t kSequences = 8;
// Beyond its window, a layer holds what one step adds to a sequence.
constexpr int64_t kStepTokens = 2048;

}  // namespace

int32_t DefaultBlocks(const ModelShape& shape, int32_t page_size, DType dtype,
                      int64_t memory_bytes) {
  const ModelLayout layout = MakeLayout(shape, page_size, dtype, 2);
  const int64_t context = shape.context_tokens;
  int64_t blocks = 0;
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    const int64_t window = layout.window_of(group);
    const int64_t tokens =
        window == 0 ? context : std::min(context, window + kStepTokens);
    blocks += (tokens + page_size - 1) / page_size + 1;
  }
  const int64_t room = memory_bytes / 2 / layout.block_bytes();
  // The null block, too.
  return static_cast<int32_t>(
      std::clamp<int64_t>(blocks * kSequences + 1, 2,
                          std::clamp<int64_t>(room, 2, int64_t{1} << 30)));
}

}  // namespace blockmgr
