#include "engine/reference/default_blocks.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kEnough = std::numeric_limits<int64_t>::max();

// As of llama-3.1-8b: 128 KiB of bf16 a token.
ModelShape LargeShape() {
  return {.num_layers = 32,
          .num_q_heads = 32,
          .num_heads = 8,
          .head_dim = 128,
          .context_tokens = 131072};
}

TEST(DefaultBlocksTest, EightSequencesOfTheContextFit) {
  // 8 * (131,072 / 16 + 1), and the null block.
  EXPECT_EQ(DefaultBlocks(LargeShape(), 16, DType::kBFloat16, kEnough), 65545);
  ModelShape windows = LargeShape();
  windows.windows = {1024, 0};
  // Two groups of 16 layers. One has a window and a step of 2,048 tokens.
  EXPECT_EQ(DefaultBlocks(windows, 16, DType::kBFloat16, kEnough),
            65545 + 8 * (3072 / 16 + 1));
}

TEST(DefaultBlocksTest, ThePoolLeavesHalfOfTheMemory) {
  // 2 MiB a block.
  EXPECT_EQ(DefaultBlocks(LargeShape(), 16, DType::kBFloat16, 32 * kGiB),
            16 * 512);
  EXPECT_EQ(DefaultBlocks(LargeShape(), 16, DType::kFloat32, 32 * kGiB),
            16 * 256);
  EXPECT_EQ(DefaultBlocks(LargeShape(), 16, DType::kBFloat16, 0), 2);
}

TEST(DefaultBlocksTest, TheLongestContextOverflowsNothing) {
  ModelShape shape;
  shape.context_tokens = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(DefaultBlocks(shape, 1, DType::kBFloat16, kEnough), 1 << 30);
}

}  // namespace
}  // namespace blockmgr
