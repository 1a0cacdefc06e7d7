// Placed survivors, by hand. What random ones come to, over regions of every
// shape, is tests/blockmgr/compaction_test.cc.
#include "blockmgr/eviction/compaction_moves.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two heads of one layer, of six candidates each in pages of two. Head 0 has
// pages 2, 4 and 6 and keeps its page 4; head 1 has 3, 5 and 7 and keeps none.
class CompactionMovesTest : public ::testing::Test {
 protected:
  Compaction compaction() const {
    return {.offsets = offsets_,
            .slots = slots_,
            .positions = positions_,
            .keep = &keep_,
            .page_offsets = page_offsets_,
            .pages = pages_,
            .held_pages = held_pages_};
  }

  const ModelLayout layout_ = {.num_layers = 1,
                               .num_heads = 2,
                               .num_q_heads = 2,
                               .head_dim = 8,
                               .page_size = 2,
                               .num_blocks = 8};
  const std::vector<int64_t> offsets_ = {0, 6, 12};
  const std::vector<SlotIndex> slots_ = {4, 5, 8,  9,  12, 13,
                                         6, 7, 10, 11, 14, 15};
  const std::vector<int32_t> positions_ = {10, 11, 12, 13, 14, 15,
                                           10, 11, 12, 13, 14, 15};
  KeepSets keep_ = {.offsets = {0, 4, 5}, .ranks = {0, 3, 4, 5, 1}};
  const std::vector<int32_t> page_offsets_ = {0, 2, 3};
  const std::vector<PageId> pages_ = {PageId{4}, PageId{12}, PageId{13}};
  const std::vector<int32_t> held_pages_ = {1, 0};
};

// Head 0's hole on its own page is filled before the others.
TEST_F(CompactionMovesTest, StraysGoToHolesInOrder) {
  CompactionMoves moves;
  moves.phase1.push_back({1, 2});  // of a call before
  EXPECT_THAT(PlaceSurvivors(layout_, compaction(), &moves),
              ElementsAre(10, 13, 14, 15, 11));
  EXPECT_THAT(moves.phase1, ElementsAre(SlotMove{4, 8}));
  EXPECT_THAT(moves.phase2,
              ElementsAre(SlotMove{12, 24}, SlotMove{13, 25}, SlotMove{7, 26}));
}

TEST_F(CompactionMovesTest, PositionsAreToBeHadWithoutMoves) {
  EXPECT_THAT(PlaceSurvivors(layout_, compaction(), nullptr),
              ElementsAre(10, 13, 14, 15, 11));
}

// A slot of a page that the list has, behind the last in use, is a stray's.
TEST_F(CompactionMovesTest, SlotsBehindTheLastInUseAreNotTheRegions) {
  keep_ = {.offsets = {0, 1, 1}, .ranks = {3}};
  CompactionMoves moves;
  EXPECT_THAT(PlaceSurvivors(layout_, compaction(), &moves), ElementsAre(13));
  EXPECT_THAT(moves.phase1, ElementsAre(SlotMove{9, 8}));
  EXPECT_THAT(moves.phase2, IsEmpty());
}

TEST_F(CompactionMovesTest, ListsWithoutRoomAbort) {
  keep_ = {.offsets = {0, 5, 5}, .ranks = {0, 1, 2, 3, 4}};
  EXPECT_DEATH(PlaceSurvivors(layout_, compaction(), nullptr), "kept");
}

}  // namespace
}  // namespace blockmgr
