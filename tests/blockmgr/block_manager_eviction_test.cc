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

class BlockManagerEvictionTest : public ManagerTest {
 protected:
  // Destinations of an order of [0, cut).
  std::vector<BlockId> Order(SequenceSlot slot, int32_t cut, int64_t page_total,
                             int32_t num_fresh) {
    std::vector<BlockId> destinations;
    EXPECT_TRUE(manager_->ReserveEviction(
        slot, {.cut = cut, .page_total = page_total, .num_fresh = num_fresh},
        &destinations));
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
};

TEST_F(BlockManagerEvictionTest, CopyLeavesTheOldBlocksToTheCache) {
  const std::vector<int32_t> prompt = Prompt(1, 17);
  const SequenceSlot slot = Compute(prompt);
  const std::vector<BlockId> old = tail(slot);
  const std::vector<BlockId> destinations = Order(slot, 16, 8, 2);
  EXPECT_EQ(manager_->num_available(), 2);
  EXPECT_EQ(manager_->CountReleasable(slot), 7);
  const EvictionReceipt receipt = Evict(slot, {8, 8, 8, 8});
  EXPECT_EQ(receipt.evicted_entries, 4 * (16 - 8));
  EXPECT_EQ(receipt.freed_blocks, 2);
  EXPECT_EQ(manager_->sequence(slot).first().region->blocks, destinations);
  EXPECT_EQ(manager_->sequence(slot).cut(), 16);
  EXPECT_THAT(tail(slot), ElementsAre(old[4]));
  EXPECT_EQ(manager_->stats().cached_blocks, 4);
  EXPECT_EQ(Match(prompt).blocks.size(), 4u);
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

// An order in place takes a window's region out of the cache. If the engine
// refuses the order, the sequence keeps that region and publishes it again,
// with a later region of group 0. The earlier one has lost it: when that goes,
// the later one keeps it.
TEST_F(BlockManagerEvictionTest,
       ARegionPublishedAgainIsThatOfTheLaterOneAlone) {
  Make(TwoByTwo(60, 0, {16}));
  const std::vector<int32_t> tokens = Prompt(1, 44);
  const BlockChain chain = Chain(tokens);
  const SequenceSlot slot = manager_->Open(chain, {});
  const auto order = [&](int32_t group, int32_t cut, int64_t page_total,
                         int32_t num_fresh) {
    std::vector<BlockId> destinations;
    ASSERT_TRUE(manager_->ReserveEviction(slot,
                                          {.group = group,
                                           .cut = cut,
                                           .page_total = page_total,
                                           .num_fresh = num_fresh},
                                          &destinations));
  };
  const std::vector<int32_t> counts(4, 4);
  const auto publish = [&](const char* history, int32_t cut) {
    order(0, cut, 4, 1);
    const RegionPublication publication = {
        .name = {.plan = "plan", .history = history, .length = cut + 4},
        .chain = &chain,
        .tokens = tokens};
    const EvictionReceipt receipt =
        manager_->CommitEviction(slot, 0, counts, &publication);
    EXPECT_TRUE(receipt.published);
    manager_->CheckInvariants();
  };
  ASSERT_TRUE(Reserve(slot, 40));
  Commit(slot, tokens, 40);
  order(1, 36, 4, 1);
  manager_->CommitEviction(slot, 1, counts);
  publish("a", 36);
  ASSERT_TRUE(Reserve(slot, 4));
  Commit(slot, tokens, 4);
  const auto all = [](int32_t) { return 44; };
  RegionQuery query = {.plan = "plan",
                       .any_history = true,
                       .max_tokens_over = all,
                       .max_length = 40};
  EXPECT_EQ(manager_->Match(chain, tokens, 44, &query).cut(), 36);
  order(1, 40, 8, 0);  // its region's block and the page behind
  manager_->AbortEviction(slot, 1);
  manager_->CheckInvariants();
  publish("ab", 40);
  EXPECT_EQ(manager_->Match(chain, tokens, 44, &query).cut(), 0);
  manager_->Close(slot);
  // The earlier region is the first to be reclaimed.
  std::vector<RegionId> dropped;
  const SequenceSlot other = manager_->Open({}, {});
  while (dropped.empty()) {
    ASSERT_TRUE(Reserve(other, 4));
    manager_->TakeDroppedRegions(&dropped);
  }
  manager_->CheckInvariants();
  query.max_length = 44;
  EXPECT_EQ(manager_->Match(chain, tokens, 44, &query).cut(), 40);
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

TEST_F(BlockManagerEvictionDeathTest, WhatIsCoveredFollowsFromWhatIsReserved) {
  Make(TwoByTwo(60, 0, {16}), 20);
  const std::vector<int32_t> tokens = Prompt(1, 60);
  const SequenceSlot slot = manager_->Open({}, {});
  ASSERT_TRUE(Reserve(slot, 41));
  Commit(slot, tokens, 41);
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.group = 1, .cut = 40, .page_total = 4, .num_fresh = 1},
      &destinations));
  ASSERT_TRUE(Reserve(slot, 1));
  EXPECT_DEATH(manager_->Commit(slot, 1, tokens, Chain(tokens)), "");
  EXPECT_DEATH(manager_->CutBack(slot, 41), "");
  manager_->Rollback(slot, 1);
  EXPECT_DEATH(manager_->Rollback(slot, 1), "");
}

}  // namespace
}  // namespace blockmgr
