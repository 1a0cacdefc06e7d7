// Evictions of a BlockManager whose heads are split among shards.

#include <cstdint>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two layers of four heads in two shards, four tokens per page: a shard has
// four pages of a block.
class BlockManagerShardsTest : public ::testing::Test {
 protected:
  static ModelLayout Layout() {
    return {.num_layers = 2,
            .num_heads = 4,
            .num_q_heads = 4,
            .head_dim = 8,
            .page_size = 4,
            .dtype = DType::kFloat32,
            .num_blocks = 12,
            .num_shards = 2};
  }

  // A sequence of 16 settled tokens and one more block.
  SequenceSlot Compute() {
    const SequenceSlot slot = manager_.Open({}, {});
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    const TokenDemand demand{slot, 17};
    EXPECT_TRUE(manager_.Reserve(std::span(&demand, 1), &offsets, &blocks));
    manager_.Commit(slot, 17, {}, {});
    return slot;
  }
  std::vector<BlockId> Order(SequenceSlot slot, int64_t page_total,
                             int32_t num_fresh,
                             const std::vector<int64_t>& by_shard = {}) {
    std::vector<BlockId> destinations;
    EXPECT_TRUE(manager_.ReserveEviction(slot,
                                         {.cut = 16,
                                          .page_total = page_total,
                                          .num_fresh = num_fresh,
                                          .shard_page_totals = by_shard},
                                         &destinations));
    manager_.CheckInvariants();
    return destinations;
  }

  BlockManager manager_{Layout(), 4, false};
};

TEST_F(BlockManagerShardsTest, TheShardWithMostPagesSettlesTheBlocks) {
  const SequenceSlot slot = Compute();
  EXPECT_EQ(Order(slot, 4, 1).size(), 1u);
  manager_.AbortEviction(slot, 0);
  // Nine pages of one shard take three blocks, whatever the other needs.
  EXPECT_EQ(Order(slot, 9, 3, {2, 9}).size(), 3u);
}

TEST_F(BlockManagerShardsTest, EveryShardHasItsOwnTotal) {
  const SequenceSlot slot = Compute();
  Order(slot, 4, 1, {3, 4});
  const uint64_t hash = manager_.StateHash();
  //  layer 0:  shard 0, shard 1;  layer 1:  shard 0, shard 1
  EXPECT_OK(manager_.ValidateCounts(slot, 0, {{4, 4, 4, 4, 4, 0, 4, 4}}));
  EXPECT_THAT(
      manager_.ValidateCounts(slot, 0, {{4, 4, 0, 0, 4, 4, 0, 0}}),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          HasSubstr("counts: expected at most 3 pages in shard 0, got 4")));
  EXPECT_THAT(
      manager_.ValidateCounts(slot, 0, {{0, 0, 16, 0, 0, 0, 0, 1}}),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          HasSubstr("counts: expected at most 4 pages in shard 1, got 5")));
  // All together have room for the pages of one that has too many.
  EXPECT_THAT(manager_.ValidateCounts(slot, 0, {{0, 0, 4, 4, 0, 0, 4, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("shard 1, got 5")));
  EXPECT_EQ(manager_.StateHash(), hash);
}

TEST_F(BlockManagerShardsTest, NoPageServesAHeadOfAnotherShard) {
  const SequenceSlot slot = Compute();
  const std::vector<BlockId> blocks = Order(slot, 4, 1);
  // One head of each shard takes all of its shard's pages.
  manager_.CommitEviction(slot, 0, {{16, 0, 0, 16, 0, 0, 0, 0}});
  manager_.CheckInvariants();
  const RaggedRegion region = manager_.DeriveRegion(slot, 0);
  const auto page = [&](int32_t layer, int32_t head) {
    return Layout().page_id(layer, blocks[0], head);
  };
  EXPECT_THAT(region.pages(0),
              ElementsAre(page(0, 0), page(0, 1), page(1, 0), page(1, 1)));
  EXPECT_THAT(region.pages(3),
              ElementsAre(page(0, 3), page(0, 2), page(1, 2), page(1, 3)));
}

TEST_F(BlockManagerShardsTest, ABlockStaysForTheShardThatUsesIt) {
  const SequenceSlot slot = Compute();
  const std::vector<BlockId> blocks = Order(slot, 8, 2);
  // Shard 0 keeps nothing; shard 1 needs pages of both blocks.
  const EvictionReceipt receipt =
      manager_.CommitEviction(slot, 0, {{0, 0, 8, 4, 0, 0, 4, 4}});
  manager_.CheckInvariants();
  EXPECT_EQ(receipt.freed_blocks, 2);
  EXPECT_EQ(receipt.evicted_entries, 8 * 16 - 20);
  EXPECT_EQ(manager_.sequence(slot).first().region->blocks, blocks);
}

TEST_F(BlockManagerShardsTest, ABlockThatNoShardUsesIsGivenBack) {
  const SequenceSlot slot = Compute();
  const std::vector<BlockId> blocks = Order(slot, 8, 2);
  manager_.CommitEviction(slot, 0, {{4, 4, 4, 0, 4, 0, 4, 4}});
  manager_.CheckInvariants();
  EXPECT_THAT(manager_.sequence(slot).first().region->blocks,
              ElementsAre(blocks[0]));
}

TEST_F(BlockManagerShardsTest, BytesAreOfAllShards) {
  EXPECT_EQ(Layout().block_bytes(), 2 * Layout().ShardLayout().block_bytes());
}

}  // namespace
}  // namespace blockmgr
