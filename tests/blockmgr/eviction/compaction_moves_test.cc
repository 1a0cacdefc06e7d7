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
using ::testing::SizeIs;

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

// Head 0 borrows page 12; its entry 3 stays. Head 1's page 13 is fresh.
TEST_F(CompactionMovesTest, SurvivorsStandInPositionOrder) {
  CompactionMoves moves;
  moves.moves.push_back({1, 2});  // of a call before
  moves.group_ends = {1, 2, 3, 4};
  EXPECT_THAT(PlaceSurvivors(layout_, compaction(), &moves),
              ElementsAre(10, 13, 14, 15, 11));
  EXPECT_THAT(moves.moves, ElementsAre(SlotMove{4, 8}, SlotMove{12, 24},
                                       SlotMove{13, 25}, SlotMove{7, 26}));
  EXPECT_THAT(moves.group_ends, ElementsAre(3, 4));
  // No slot is written that is read: the one on page 4 that is read stays.
  EXPECT_FALSE(moves.in_place);
}

// Head 1 keeps its pages 7 and 3, and its entries leave page 5 before head 0
// borrows it.
TEST_F(CompactionMovesTest, HeadsThatBorrowComeLast) {
  keep_ = {.offsets = {0, 3, 5}, .ranks = {1, 2, 3, 2, 4}};
  const std::vector<int32_t> page_offsets = {0, 2, 3};
  const std::vector<PageId> pages = {PageId{4}, PageId{5}, PageId{7}};
  const std::vector<int32_t> held_pages = {1, 1};
  Compaction compaction = this->compaction();
  compaction.page_offsets = page_offsets;
  compaction.pages = pages;
  compaction.held_pages = held_pages;
  CompactionMoves moves;
  EXPECT_THAT(PlaceSurvivors(layout_, compaction, &moves),
              ElementsAre(11, 12, 13, 12, 14));
  EXPECT_THAT(moves.moves,
              ElementsAre(SlotMove{10, 14}, SlotMove{14, 15},  // head 1
                          SlotMove{5, 8}, SlotMove{8, 9}, SlotMove{9, 10}));
  EXPECT_THAT(moves.group_ends, ElementsAre(2, 5));
  EXPECT_TRUE(moves.in_place);
}

TEST_F(CompactionMovesTest, CopiesToFreshPagesAreNotInPlace) {
  const std::vector<PageId> pages = {PageId{11}, PageId{12}, PageId{13}};
  Compaction compaction = this->compaction();
  compaction.pages = pages;
  CompactionMoves moves;
  PlaceSurvivors(layout_, compaction, &moves);
  EXPECT_THAT(moves.moves, SizeIs(5));
  EXPECT_FALSE(moves.in_place);
}

TEST_F(CompactionMovesTest, PositionsAreToBeHadWithoutMoves) {
  EXPECT_THAT(PlaceSurvivors(layout_, compaction(), nullptr),
              ElementsAre(10, 13, 14, 15, 11));
}

TEST_F(CompactionMovesTest, HeadsThatMoveNothingHaveNoGroup) {
  keep_ = {.offsets = {0, 2, 2}, .ranks = {2, 3}};
  CompactionMoves moves;
  EXPECT_THAT(PlaceSurvivors(layout_, compaction(), &moves),
              ElementsAre(12, 13));
  EXPECT_THAT(moves.moves, IsEmpty());
  EXPECT_THAT(moves.group_ends, IsEmpty());
}

TEST_F(CompactionMovesTest, ListsWithoutRoomAbort) {
  keep_ = {.offsets = {0, 5, 5}, .ranks = {0, 1, 2, 3, 4}};
  EXPECT_DEATH(PlaceSurvivors(layout_, compaction(), nullptr), "kept");
}

}  // namespace
}  // namespace blockmgr
