#include "blockmgr/compaction.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"
#include "tests/blockmgr/naive_layout.h"
#include "tests/blockmgr/region_history.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr int32_t kNumEvictions = 30'000 / kCaseDivisor;

// What a slot holds: whose entry, of which position. Unwritten slots hold an
// entry that nobody has.
struct Entry {
  NaiveHead head{-1, -1};
  int32_t position = -1;
};
using Memory = std::vector<Entry>;  // by SlotIndex

Memory FillMemory(const RegionHistory& history) {
  const ModelLayout& layout = history.layout();
  Memory memory(layout.num_pages() * layout.page_size);
  for (const NaiveHead& head : history.heads()) {
    for (const auto& held : history.HeldBelow(head, history.length())) {
      memory[history.slot_index(held.slot)] = {head, held.position};
    }
  }
  return memory;
}

// Checks what CompactionMoves promises of its groups.
void ExpectSoundGroups(const ModelLayout& layout,
                       const std::set<int32_t>& writable,
                       const CompactionMoves& moves) {
  std::set<SlotIndex> written;
  std::set<SlotIndex> read;
  size_t begin = 0;
  for (const int64_t end : moves.group_ends) {
    ASSERT_GT(end, std::ssize(written)) << "a group without moves";
    std::set<SlotIndex> destinations;
    for (; begin < static_cast<size_t>(end); ++begin) {
      const SlotMove& move = moves.moves[begin];
      EXPECT_NE(move.source, move.destination);
      EXPECT_FALSE(written.contains(move.source))
          << "an earlier group has overwritten a source";
      EXPECT_TRUE(read.insert(move.source).second) << "read twice";
      destinations.insert(move.destination);
      const PageId page{
          static_cast<int32_t>(move.destination / layout.page_size)};
      EXPECT_TRUE(writable.contains(Index(layout.page_block(page))))
          << "a block is written that is no destination";
    }
    written.merge(destinations);
    EXPECT_EQ(std::ssize(written), end) << "written twice";
  }
  EXPECT_EQ(begin, moves.moves.size());
  if (moves.in_place) return;
  for (const SlotIndex slot : written) {
    EXPECT_FALSE(read.contains(slot)) << "read and written, not in place";
  }
}

// Executes the moves: each group with all its sources first, in any order.
void RunMoves(CompactionMoves moves, std::mt19937_64& random, Memory* memory) {
  auto begin = moves.moves.begin();
  for (const int64_t group_end : moves.group_ends) {
    const auto end = moves.moves.begin() + group_end;
    std::shuffle(begin, end, random);
    const Memory before = *memory;
    for (; begin != end; ++begin) {
      (*memory)[begin->destination] = before[begin->source];
    }
  }
}

void ExpectIndexIsSortedTruth(const RegionHistory& history, int32_t cut,
                              const EntryIndex& index) {
  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
  for (const NaiveHead& head : history.heads()) {
    std::map<int32_t, SlotIndex> by_position;
    for (const auto& held : history.HeldBelow(head, cut)) {
      by_position[held.position] = history.slot_index(held.slot);
    }
    for (const auto& [position, slot] : by_position) {
      positions.push_back(position);
      slots.push_back(slot);
    }
    offsets.push_back(std::ssize(slots));
  }
  EXPECT_EQ(index.offsets, offsets);
  EXPECT_EQ(index.positions, positions);
  EXPECT_EQ(index.slots, slots);
}

// After all moves every head finds exactly what it kept, in position order.
void ExpectKept(const RegionHistory& history, const RandomEviction& eviction,
                const RaggedRegion& region, const CompactionPlan& plan,
                const Memory& memory) {
  const ModelLayout& layout = history.layout();
  ASSERT_EQ(std::ssize(plan.positions), region.num_entries());
  size_t slot = 0;
  for (const NaiveHead& head : history.heads()) {
    const int32_t i = layout.head_index(head.first, head.second);
    std::vector<int32_t> found;
    for (int32_t place = 0; place < eviction.kept[i]; ++place, ++slot) {
      const Entry& entry = memory[layout.slot(
          region.pages(i)[place / layout.page_size], place % layout.page_size)];
      EXPECT_EQ(entry.head, head);
      EXPECT_EQ(entry.position, plan.positions[slot]);
      found.push_back(entry.position);
    }
    EXPECT_EQ(found, eviction.kept_positions.at(head));
  }
}

TEST(CompactionTest, MovesKeepExactlyTheKeptEntries) {
  const auto num_wanted = static_cast<int32_t>(CountCases(kNumEvictions));
  int32_t num_evictions = 0;
  for (uint64_t seed = 1; num_evictions < num_wanted; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RegionHistory history(random, RandomInt(random, 1, 6));
    const ModelLayout& layout = history.layout();
    const int32_t rounds = RandomInt(random, 1, 4);
    for (int32_t round = 0; round < rounds; ++round) {
      const RandomEviction eviction = history.NextEviction(random);
      const CacheView view = history.view(eviction, RandomChance(random, 0.5));
      RaggedRegion next = RaggedRegion::LayOut(
          layout, view, eviction.destinations, eviction.kept, eviction.cut);
      const EntryIndex entries =
          IndexEntries(layout, view, history.region_positions(), eviction.cut);
      ExpectIndexIsSortedTruth(history, eviction.cut, entries);
      CompactionPlan plan =
          PlanCompaction(layout, entries, eviction.keep, next);
      Memory memory = FillMemory(history);
      ExpectSoundGroups(layout, eviction.writable, plan.moves);
      RunMoves(plan.moves, random, &memory);
      ExpectKept(history, eviction, next, plan, memory);
      ASSERT_FALSE(HasFailure());
      ++num_evictions;
      history.Advance(eviction, std::move(next), std::move(plan.positions));
      history.Grow(RandomInt(random, 1, 3));
    }
  }
}

// What a window has left behind is not there.
TEST(CompactionTest, IndexBeginsWhereAWindowDoes) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 2,
                           .num_q_heads = 2,
                           .head_dim = 8,
                           .page_size = 4,
                           .dtype = DType::kFloat32,
                           .num_blocks = 9};
  const std::vector<BlockId> tail = {BlockId{5}, BlockId{3}};
  // Positions 8 to 15, of which those from 10 on are asked for.
  const EntryIndex without =
      IndexEntries(layout, {nullptr, tail, 8}, {}, 15, 10);
  EXPECT_EQ(without.offsets, (std::vector<int64_t>{0, 5, 10}));
  EXPECT_EQ(
      std::vector(without.positions.begin(), without.positions.begin() + 5),
      (std::vector<int32_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(without.slots[0], layout.slot(layout.page_id(0, BlockId{5}, 0), 2));
  // Behind a region of three entries of each head.
  const std::vector<BlockId> fresh = {BlockId{7}};
  const std::vector<int32_t> kept = {3, 3};
  const RaggedRegion region = RaggedRegion::LayOut(layout, {}, fresh, kept, 8);
  const std::vector<int32_t> positions = {1, 4, 6, 2, 5, 7};
  const EntryIndex over =
      IndexEntries(layout, {&region, tail}, positions, 10, 5);
  EXPECT_EQ(over.positions, (std::vector<int32_t>{6, 8, 9, 5, 7, 8, 9}));
}

TEST(CompactionTest, IndexOfAnEmptyCacheIsEmpty) {
  const EntryIndex index = IndexEntries(TwoByTwo(), {}, {}, 0);
  EXPECT_THAT(index.offsets, Each(0));
  EXPECT_THAT(index.slots, IsEmpty());
}

}  // namespace
}  // namespace blockmgr
