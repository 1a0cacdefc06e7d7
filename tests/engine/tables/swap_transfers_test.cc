#include "engine/tables/swap_transfers.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/tables/tables_fixture.h"
#include "tests/engine/tables/tables_state_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

class SwapTransfersTest : public TablesStateTest {
 protected:
  absl::StatusOr<std::vector<GroupTransfers>> Out(
      const std::vector<int32_t>& blocks) const {
    std::vector<BlockTransfer> transfers;
    transfers.reserve(blocks.size());
    for (const int32_t block : blocks) {
      transfers.push_back({.block = BlockId{block}, .host = HostBlockId{0}});
    }
    return SplitSwapOut(state_, {.slot = kTestSlot, .num_tokens = 40},
                        transfers);
  }
};

TEST_F(SwapTransfersTest, ARegionLeavesItsBlocksWithPages) {
  Evict(0, 30);
  state_.row(kTestSlot).groups[0].region.blocks = Blocks(30, 3);
  ASSERT_OK_AND_ASSIGN(const std::vector<GroupTransfers> split,
                       Out({30, 32, 3, 12, 13}));
  EXPECT_THAT(split, ElementsAre(GroupTransfers{2, 1}, GroupTransfers{0, 2}));
  EXPECT_THAT(Out({32, 30, 3, 12, 13}), IsRefused("in order, got 30"));
  EXPECT_THAT(Out({3, 11, 12, 13}),
              IsRefused("expected block 12 of group 1, got 11"));
  EXPECT_THAT(Out({3, 12, 13, 14}), IsRefused("got 14 behind them"));
}

TEST_F(SwapTransfersTest, Group0TakesWhatTheOthersLeave) {
  constexpr SwapId kSwap{6};
  state_.swapped[kSwap].regions = {Region(16, 40, 40), TableRegion()};
  SequenceStart start{
      .num_cached_tokens = 40, .swap = kSwap, .num_transfers = 4};
  EXPECT_THAT(SplitSwapIn(state_, start),
              ElementsAre(GroupTransfers{1, 1}, GroupTransfers{0, 2}));
  start.num_transfers = 2;
  EXPECT_THAT(SplitSwapIn(state_, start),
              ElementsAre(GroupTransfers{1, -1}, GroupTransfers{0, 2}));
  start.region = RegionId{5};
  state_.regions[start.region] = {Region(16, 40, 30), Region(16, 40, 31)};
  EXPECT_THAT(SplitSwapIn(state_, start),
              ElementsAre(GroupTransfers{0, 0}, GroupTransfers{0, 2}));
}

}  // namespace
}  // namespace blockmgr
