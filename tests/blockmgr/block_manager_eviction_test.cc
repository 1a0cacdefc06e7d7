// Evictions, through the public calls of BlockManager.

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BlockManagerEvictionTest : public ManagerTest {
 protected:
  // Destinations of an order of [0, cut); empty and refused when too few.
  std::vector<BlockId> Order(SequenceSlot slot, int32_t cut, int64_t page_total,
                             int32_t num_fresh) {
    std::vector<BlockId> destinations;
    ordered_ = manager_->ReserveEviction(
        slot, {.cut = cut, .page_total = page_total, .num_fresh = num_fresh},
        &destinations);
    manager_->CheckInvariants();
    return destinations;
  }
  EvictionReceipt Evict(SequenceSlot slot, const std::vector<int32_t>& counts) {
    const EvictionReceipt receipt = manager_->CommitEviction(slot, 0, counts);
    manager_->CheckInvariants();
    return receipt;
  }
  const std::vector<BlockId>& tail(SequenceSlot slot) const {
    return manager_->sequence(slot).first().tail;
  }

  bool ordered_ = false;
};

TEST_F(BlockManagerEvictionTest, CopyLeavesTheOldBlocksToTheCache) {
  const std::vector<int32_t> prompt = Prompt(1, 17);
  const SequenceSlot slot = Compute(prompt);
  const std::vector<BlockId> old = tail(slot);
  const std::vector<BlockId> destinations = Order(slot, 16, 8, 2);
  ASSERT_TRUE(ordered_);
  EXPECT_EQ(manager_->num_available(), 2);
  EXPECT_EQ(manager_->NumReleasable(slot), 7);
  const EvictionReceipt receipt = Evict(slot, {8, 8, 8, 8});
  EXPECT_EQ(receipt.evicted_entries, 4 * (16 - 8));
  EXPECT_EQ(receipt.freed_blocks, 2);
  EXPECT_EQ(manager_->sequence(slot).first().region->blocks, destinations);
  EXPECT_EQ(manager_->sequence(slot).cut(), 16);
  EXPECT_THAT(tail(slot), ElementsAre(old[4]));
  EXPECT_EQ(manager_->stats().cached_blocks, 4);
  EXPECT_EQ(Match(prompt).blocks.size(), 4u);
}

TEST_F(BlockManagerEvictionTest, InPlaceTakesOwnBlocksAndTheirCacheEntries) {
  const std::vector<int32_t> prompt = Prompt(1, 17);
  const SequenceSlot slot = Compute(prompt);
  const std::vector<BlockId> old = tail(slot);
  EXPECT_THAT(Order(slot, 16, 8, 0), ElementsAre(old[0], old[1]));
  EXPECT_THAT(Match(prompt).blocks, IsEmpty());
  EXPECT_EQ(Evict(slot, {8, 8, 8, 8}).freed_blocks, 2);
  EXPECT_THAT(manager_->sequence(slot).first().region->blocks,
              ElementsAre(old[0], old[1]));
  EXPECT_EQ(manager_->num_available(), 6);
}

TEST_F(BlockManagerEvictionTest, BlocksOutsideTheCacheAreTakenFirst) {
  const std::vector<int32_t> prompt = Prompt(1, 16);
  const SequenceSlot first = manager_->Open({}, {});
  const SequenceSlot second = manager_->Open({}, {});
  ASSERT_TRUE(Reserve(first, 16));
  ASSERT_TRUE(Reserve(second, 16));
  // The second finds its first two blocks in the cache, and adds the others.
  Commit(first, prompt, 8);
  Commit(second, prompt, 16);
  const std::vector<BlockId> old = tail(second);
  EXPECT_THAT(Order(second, 16, 12, 0), ElementsAre(old[0], old[1], old[2]));
  EXPECT_EQ(Match(prompt).blocks.size(), 2u);
}

TEST_F(BlockManagerEvictionTest, CountsAreChecked) {
  const SequenceSlot slot = Compute(Prompt(1, 17));
  Order(slot, 8, 5, 2);
  const auto validate = [&](const std::vector<int32_t>& counts) {
    return manager_->ValidateCounts(slot, 0, counts);
  };
  using enum absl::StatusCode;
  EXPECT_OK(validate({8, 4, 4, 4}));
  EXPECT_OK(validate({0, 0, 0, 0}));
  EXPECT_THAT(validate({4, 4, 4}),
              StatusIs(kInvalidArgument, HasSubstr("expected 4")));
  EXPECT_THAT(validate({4, 4, 9, 4}),
              StatusIs(kInvalidArgument,
                       HasSubstr("[layer 1, head 0]: expected 0 to 8, got 9")));
  EXPECT_THAT(validate({4, -1, 4, 4}),
              StatusIs(kInvalidArgument, HasSubstr("[layer 0, head 1]")));
  EXPECT_THAT(validate({8, 5, 4, 4}),
              StatusIs(kInvalidArgument, HasSubstr("at most 5 pages, got 6")));
}

using BlockManagerEvictionDeathTest = BlockManagerEvictionTest;

TEST_F(BlockManagerEvictionDeathTest, BrokenRequirementsAbort) {
  const SequenceSlot slot = Compute(Prompt(1, 8));
  ASSERT_TRUE(Reserve(slot, 8));
  EXPECT_DEATH(Order(slot, 6, 4, 1), "check failed");
  EXPECT_DEATH(Order(slot, 20, 4, 1), "check failed");
  Order(slot, 12, 4, 1);
  EXPECT_DEATH(Order(slot, 12, 4, 1), "check failed");
  EXPECT_DEATH(manager_->Abort(slot, 5), "check failed");
  // Positions 8 to 11 are not settled.
  EXPECT_DEATH(Evict(slot, {4, 4, 4, 4}), "check failed");
}

}  // namespace
}  // namespace blockmgr
