#include "blockmgr/base/model_layout.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();

ModelLayout SmallLayout() {
  return {.num_layers = 3,
          .num_heads = 2,
          .num_q_heads = 8,
          .head_dim = 16,
          .page_size = 4,
          .dtype = DType::kBFloat16,
          .num_blocks = 5};
}

// Llama-3.1-8B in 32 GiB of bf16.
ModelLayout LargeLayout() {
  return {.num_layers = 32,
          .num_heads = 8,
          .num_q_heads = 32,
          .head_dim = 128,
          .page_size = 16,
          .dtype = DType::kBFloat16,
          .num_blocks = 16384};
}

TEST(ModelLayoutTest, AcceptsLayoutsOfRealModels) {
  EXPECT_OK(SmallLayout().Validate());
  EXPECT_OK(LargeLayout().Validate());
}

TEST(ModelLayoutTest, AcceptsLayoutsAtTheLimits) {
  ModelLayout layout = SmallLayout();
  layout.num_layers = 1 << 10;
  layout.num_heads = layout.num_q_heads = 1 << 10;
  layout.group_windows = {4, 1 << 30};
  EXPECT_OK(layout.Validate());
  layout.group_windows.clear();
  layout.window = 1 << 30;
  EXPECT_OK(layout.Validate());
}

TEST(ModelLayoutTest, DefaultLayoutIsRefused) {
  EXPECT_THAT(ModelLayout{}.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

struct BadField {
  std::string field;
  std::string got;
  std::function<void(ModelLayout&)> spoil;
};

TEST(ModelLayoutTest, MessageNamesTheFieldAndWhatCame) {
  using L = ModelLayout;
  const std::vector<BadField> cases = {
      {"num_layers", "got 0", [](L& l) { l.num_layers = 0; }},
      {"num_heads", "got -1", [](L& l) { l.num_heads = -1; }},
      {"num_q_heads", "got 0", [](L& l) { l.num_q_heads = 0; }},
      {"num_q_heads", "got 7", [](L& l) { l.num_q_heads = 7; }},
      {"num_q_heads", "got 1", [](L& l) { l.num_q_heads = 1; }},
      {"head_dim", "got -16", [](L& l) { l.head_dim = -16; }},
      {"head_dim", "(head_dim 12)", [](L& l) { l.head_dim = 12; }},
      {"page_size", "got 0", [](L& l) { l.page_size = 0; }},
      {"page_size", "at most 16384, got 16385",
       [](L& l) { l.page_size = 16385; }},
      {"head_dim", "at most 16384, got 20000",
       [](L& l) { l.head_dim = 20000; }},
      // Block 0 is the null block: a pool of one block has nothing to give.
      {"num_blocks", "got 1", [](L& l) { l.num_blocks = 1; }},
      {"num_shards", "got 0", [](L& l) { l.num_shards = 0; }},
      {"num_shards", "a divisor of num_heads (2), got 3",
       [](L& l) { l.num_shards = 3; }},
      {"num_shards", "a divisor of num_heads (2), got 4",
       [](L& l) { l.num_shards = 4; }},
      {"num_blocks", "got 3 * 2147483647 * 2",
       [](L& l) { l.num_blocks = kInt32Max; }},
      {"num_q_heads", "at most 1048576, got 3 * 349526",
       [](L& l) { l.num_q_heads = 349526; }},
      // The product of all factors overflows 64 bits.
      {"num_q_heads", "got 2147483647 * 2147483647",
       [](L& l) {
         l.num_layers = l.num_heads = l.num_q_heads = l.num_blocks = kInt32Max;
       }},
      // A length of one token more would overflow 32 bits.
      {"window", "(4), at most 1073741824, got 2147483647",
       [](L& l) { l.window = kInt32Max; }},
      {"window", "got 3", [](L& l) { l.window = 3; }},
      {"group_windows[1]", "(4), at most 1073741824, got 2147483647",
       [](L& l) {
         l.group_windows = {8, kInt32Max};
       }},
      {"group_windows[0]", "got 3", [](L& l) { l.group_windows = {3}; }},
  };
  for (const BadField& bad : cases) {
    SCOPED_TRACE(absl::StrCat(bad.field, ", ", bad.got));
    ModelLayout layout = SmallLayout();
    bad.spoil(layout);
    EXPECT_THAT(layout.Validate(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith(absl::StrCat(bad.field, ":")),
                               HasSubstr("expected"), HasSubstr(bad.got))));
  }
}

TEST(ModelLayoutTest, RowsOf16BytesDependOnTheType) {
  ModelLayout layout = SmallLayout();
  layout.head_dim = 4;
  layout.dtype = DType::kFloat32;
  EXPECT_OK(layout.Validate());
  layout.dtype = DType::kBFloat16;
  EXPECT_THAT(layout.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          StartsWith("head_dim:")));
}

// The number of pages must stay below 2^31, whatever the factors.
TEST(ModelLayoutTest, PageIdsFillInt32ButDoNotExceedIt) {
  constexpr std::pair<int32_t, int32_t> kShapes[] = {
      {1, 1}, {2, 1}, {1, 2}, {3, 7}, {32, 8}, {80, 8}, {61, 128}};
  for (const auto& [num_layers, num_heads] : kShapes) {
    SCOPED_TRACE(absl::StrCat(num_layers, " x ", num_heads));
    const int64_t most_blocks =
        ((int64_t{1} << 31) - 1) / (int64_t{num_layers} * num_heads);
    ModelLayout layout = SmallLayout();
    layout.num_layers = num_layers;
    layout.num_heads = num_heads;
    layout.num_q_heads = num_heads;
    layout.num_blocks = static_cast<int32_t>(most_blocks);
    EXPECT_OK(layout.Validate());
    EXPECT_LT(layout.num_pages(), int64_t{1} << 31);
    const PageId last = layout.page_id(
        num_layers - 1, BlockId{layout.num_blocks - 1}, num_heads - 1);
    EXPECT_EQ(Index(last), layout.num_pages() - 1);
    if (most_blocks == kInt32Max) continue;
    ++layout.num_blocks;
    EXPECT_THAT(layout.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            StartsWith("num_blocks:")));
  }
}

TEST(ModelLayoutTest, BytesFollowFromTheShape) {
  const ModelLayout layout = LargeLayout();
  EXPECT_EQ(layout.group_size(), 4);
  EXPECT_EQ(layout.pages_per_block(), 256);
  EXPECT_EQ(layout.row_bytes(), 256);
  EXPECT_EQ(layout.page_bytes(), 8 << 10);
  EXPECT_EQ(layout.block_bytes(), 2 << 20);
  EXPECT_EQ(layout.token_bytes(), 128 << 10);
  EXPECT_EQ(layout.pool_bytes(), int64_t{32} << 30);
  EXPECT_EQ(layout.num_pages(), 256 * 16384);
}

TEST(ModelLayoutTest, PageIdsAreDenseAndLayerByLayer) {
  const ModelLayout layout = SmallLayout();
  int32_t expected = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int32_t block = 0; block < layout.num_blocks; ++block) {
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        const PageId page = layout.page_id(layer, BlockId{block}, head);
        EXPECT_EQ(Index(page), expected++);
        EXPECT_EQ(layout.page_layer(page), layer);
        EXPECT_EQ(layout.page_block(page), BlockId{block});
        EXPECT_EQ(layout.page_head(page), head);
      }
    }
  }
  EXPECT_EQ(expected, layout.num_pages());
}

TEST(ModelLayoutTest, HeadIndicesAreDenseAndLayerByLayer) {
  const ModelLayout layout = SmallLayout();
  int32_t expected = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int32_t head = 0; head < layout.num_heads; ++head) {
      EXPECT_EQ(layout.head_index(layer, head), expected++);
    }
  }
  EXPECT_EQ(expected, layout.pages_per_block());
}

TEST(ModelLayoutTest, SlotsDoNotWrapAt32Bits) {
  ModelLayout layout = SmallLayout();
  layout.num_layers = layout.num_heads = layout.num_q_heads = 1;
  layout.num_blocks = kInt32Max;
  layout.page_size = 256;
  ASSERT_OK(layout.Validate());
  EXPECT_EQ(layout.slot(PageId{kInt32Max - 1}, 255),
            ((int64_t{1} << 31) - 2) * 256 + 255);
}

TEST(ModelLayoutTest, FirstPageLeavesWhatTheLastTokenNeedsAgain) {
  ModelLayout layout = SmallLayout();
  layout.group_windows = {8, 12};
  EXPECT_EQ(layout.FirstPage(0, 1000), 0);
  EXPECT_EQ(layout.FirstPage(1, 8), 0);
  // The query at position 11 attends to positions 4 to 11.
  EXPECT_EQ(layout.FirstPage(1, 11), 0);
  EXPECT_EQ(layout.FirstPage(1, 12), 1);
  EXPECT_EQ(layout.FirstPage(2, 15), 0);
  EXPECT_EQ(layout.FirstPage(2, 16), 1);
}

TEST(ModelLayoutTest, TextNamesTheNumbers) {
  EXPECT_EQ(SmallLayout().ToString(),
            "3 layers, 2 heads (8 q_heads), head_dim 16, page_size 4, "
            "bfloat16, 5 blocks");
  ModelLayout half = SmallLayout();
  half.dtype = DType::kFloat16;
  EXPECT_EQ(half.ToString(),
            "3 layers, 2 heads (8 q_heads), head_dim 16, page_size 4, "
            "float16, 5 blocks");
}

TEST(ModelLayoutTest, LayoutsThatDifferInAnyFieldAreUnequal) {
  const ModelLayout layout = SmallLayout();
  const std::vector<std::function<void(ModelLayout&)>> changes = {
      [](ModelLayout& l) { ++l.num_layers; },
      [](ModelLayout& l) { ++l.num_heads; },
      [](ModelLayout& l) { ++l.num_q_heads; },
      [](ModelLayout& l) { ++l.head_dim; },
      [](ModelLayout& l) { ++l.page_size; },
      [](ModelLayout& l) { l.dtype = DType::kFloat32; },
      [](ModelLayout& l) { ++l.num_blocks; },
      [](ModelLayout& l) { ++l.num_shards; }};
  EXPECT_EQ(layout, SmallLayout());
  for (const auto& change : changes) {
    ModelLayout other = layout;
    change(other);
    EXPECT_NE(layout, other) << other.ToString();
  }
}

TEST(ModelLayoutTest, ShardsPartTheHeads) {
  ModelLayout layout = LargeLayout();
  for (const int32_t num_shards : {1, 2, 4, 8}) {
    SCOPED_TRACE(num_shards);
    layout.num_shards = num_shards;
    ASSERT_OK(layout.Validate());
    // Every (layer, head) is in one shard, and has one place there.
    std::set<int32_t> seen;
    for (int32_t shard = 0; shard < num_shards; ++shard) {
      int32_t place = 0;
      for (int32_t layer = 0; layer < 32; ++layer) {
        for (int32_t head = 0; head < 8; ++head) {
          if (head / (8 / num_shards) != shard) continue;
          EXPECT_EQ(layout.shard_of(head), shard);
          EXPECT_EQ(layout.shard_head_index(shard, place), layer * 8 + head);
          seen.insert(layer * 8 + head);
          ++place;
        }
      }
      EXPECT_EQ(place, layout.shard_pages_per_block());
    }
    EXPECT_EQ(std::ssize(seen), layout.pages_per_block());
  }
}

TEST(ModelLayoutTest, AShardIsAModelOfItsHeads) {
  ModelLayout layout = LargeLayout();
  EXPECT_EQ(layout.ShardLayout(), layout);
  layout.num_shards = 4;
  ModelLayout expected = LargeLayout();
  expected.num_heads = 2;
  expected.num_q_heads = 8;
  EXPECT_EQ(layout.ShardLayout(), expected);
  EXPECT_OK(layout.ShardLayout().Validate());
  EXPECT_EQ(layout.ShardLayout().group_size(), layout.group_size());
  // Bytes of a block are of all shards together.
  EXPECT_EQ(layout.block_bytes(), LargeLayout().block_bytes());
  EXPECT_EQ(4 * layout.ShardLayout().block_bytes(), layout.block_bytes());
  EXPECT_EQ(layout.ToString(), LargeLayout().ToString() + ", 4 shards");
}

TEST(KvPoolLayoutTest, PageContiguousRowsTileThePool) {
  const ModelLayout layout = SmallLayout();
  const KvPoolLayout pool = KvPoolLayout::PageContiguous(layout);
  std::set<int64_t> rows;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int32_t block = 0; block < layout.num_blocks; ++block) {
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        const int64_t page = Index(layout.page_id(layer, BlockId{block}, head));
        for (int32_t offset = 0; offset < layout.page_size; ++offset) {
          const int64_t row =
              pool.row_offset(layer, BlockId{block}, head, offset);
          // Inside the page: K rows first, in order of tokens.
          EXPECT_EQ(row,
                    page * layout.page_bytes() + offset * layout.row_bytes());
          EXPECT_TRUE(rows.insert(row).second);
          EXPECT_TRUE(rows.insert(row + pool.kv_stride).second);
        }
      }
    }
  }
  int64_t expected = 0;
  for (const int64_t row : rows) {
    EXPECT_EQ(row, expected);
    expected += layout.row_bytes();
  }
  EXPECT_EQ(expected, layout.pool_bytes());
}

// Where an index of a tensor of this shape is, in rows: row-major.
int64_t RowMajor(const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& index) {
  int64_t row = 0;
  for (size_t i = 0; i < shape.size(); ++i) row = row * shape[i] + index[i];
  return row;
}

TEST(KvPoolLayoutTest, TensorsOfEnginesAreRowMajor) {
  const ModelLayout layout = SmallLayout();
  const int64_t blocks = layout.num_blocks;
  const int64_t heads = layout.num_heads;
  const int64_t tokens = layout.page_size;
  for (const KvTensorOrder order : kAllKvTensorOrders) {
    SCOPED_TRACE(static_cast<int>(order));
    const KvPoolLayout pool = KvPoolLayout::Of(layout, order);
    const auto row_of = [&](int64_t block, int64_t head, int64_t token,
                            int64_t is_value) {
      switch (order) {
        case KvTensorOrder::kPages:
          return RowMajor({blocks, heads, 2, tokens},
                          {block, head, is_value, token});
        case KvTensorOrder::kHnd:
          return RowMajor({blocks, 2, heads, tokens},
                          {block, is_value, head, token});
        case KvTensorOrder::kNhd:
          return RowMajor({blocks, 2, tokens, heads},
                          {block, is_value, token, head});
        case KvTensorOrder::kHndApart:
          return RowMajor({2, blocks, heads, tokens},
                          {is_value, block, head, token});
        case KvTensorOrder::kNhdApart:
          return RowMajor({2, blocks, tokens, heads},
                          {is_value, block, token, head});
        case KvTensorOrder::kHndPairs:
          return RowMajor({blocks, heads, tokens, 2},
                          {block, head, token, is_value});
        case KvTensorOrder::kNhdPairs:
          return RowMajor({blocks, tokens, heads, 2},
                          {block, token, head, is_value});
      }
      return int64_t{-1};
    };
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (int32_t block = 0; block < blocks; ++block) {
        for (int32_t head = 0; head < heads; ++head) {
          for (int32_t token = 0; token < tokens; ++token) {
            const int64_t key =
                pool.row_offset(layer, BlockId{block}, head, token);
            const int64_t first = layer * blocks * heads * 2 * tokens;
            ASSERT_EQ(key, layout.row_bytes() *
                               (first + row_of(block, head, token, 0)));
            ASSERT_EQ(
                key + pool.kv_stride,
                layout.row_bytes() * (first + row_of(block, head, token, 1)));
          }
        }
      }
    }
  }
}

TEST(KvPoolLayoutTest, LastRowOfALargePoolEndsThePool) {
  const ModelLayout layout = LargeLayout();
  const KvPoolLayout pool = KvPoolLayout::PageContiguous(layout);
  const int64_t last_k_row =
      pool.row_offset(layout.num_layers - 1, BlockId{layout.num_blocks - 1},
                      layout.num_heads - 1, layout.page_size - 1);
  EXPECT_EQ(last_k_row + pool.kv_stride + layout.row_bytes(),
            layout.pool_bytes());
}

}  // namespace
}  // namespace blockmgr
