// Moves made on the device: the list that PlanCompaction makes, move by move,
// and the proof that this test finds bugs.
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "kernels/backend.h"
#include "kernels/cuda/row_mover.cuh"
#include "tests/blockmgr/region_history.h"
#include "tests/kernels/cuda/emulated_pool.h"
#include "tests/kernels/cuda/select_runner.h"

namespace blockmgr {
namespace {

simt::Schedule ScheduleOf(uint64_t seed) {
  return {static_cast<simt::Schedule::Order>(seed % 3), seed};
}

std::string Compare(const std::vector<SlotMove>& want,
                    const std::vector<RowMove>& got, int64_t count) {
  if (count != std::ssize(want)) {
    return absl::StrCat(count, " moves, expected ", want.size());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].source != got[i].source ||
        want[i].destination != got[i].destination) {
      return absl::StrCat("move ", i, " differs");
    }
  }
  return "";
}

// What the device planned.
struct DevicePlan {
  std::vector<RowMove> phases[2];
  std::vector<int64_t> num_moves = {-1, -1};
};

// Runs the device's plan; what differs from `want`, or "".
template <int kBug>
std::string CheckPlan(const ModelLayout& layout, const EntryIndex& entries,
                      const KeepSets& keep, const RaggedRegion& next,
                      const CompactionMoves& want,
                      const simt::Schedule& schedule, DevicePlan* plan) {
  const int32_t num_heads = layout.pages_per_block();
  std::vector<uint32_t> survivors(
      SurvivorWords(entries.offsets.back(), num_heads));
  std::vector<int64_t> kept_offsets = {0};
  std::vector<int32_t> held;
  for (int32_t head = 0; head < num_heads; ++head) {
    for (int64_t k = keep.offsets[head]; k < keep.offsets[head + 1]; ++k) {
      const int32_t rank = keep.ranks[k];
      survivors[SurvivorWord(entries.offsets[head], head) + rank / 32] |=
          1u << (rank % 32);
    }
    kept_offsets.push_back(kept_offsets.back() + next.kept()[head]);
    held.push_back(next.num_held_pages(head));
  }
  std::vector<int32_t> pages;
  for (const PageId page : next.page_list()) pages.push_back(Index(page));
  // The region's own kept entries may be none: no empty arrays.
  const int64_t num_kept = kept_offsets.back() + 1;
  std::vector<int32_t> page_places(layout.num_pages(), -1);
  auto strays = Poisoned<int64_t>(num_kept);
  std::vector<uint32_t> filled(SurvivorWords(num_kept, num_heads));
  auto counts = Poisoned<int32_t>(2 * num_heads);
  uint32_t error = 0;
  for (std::vector<RowMove>& phase : plan->phases) {
    phase = Poisoned<RowMove>(num_kept);
  }
  const SelectMoves moves = {
      .num_heads = num_heads,
      .page_size = layout.page_size,
      .offsets = entries.offsets.data(),
      .slots = entries.slots.data(),
      .survivors = survivors.data(),
      .page_offsets = next.page_offsets().data(),
      .pages = pages.data(),
      .held_pages = held.data(),
      .kept = next.kept().data(),
      .kept_offsets = kept_offsets.data(),
      .num_pages = layout.num_pages(),
      .error = &error,
      .page_places = page_places.data(),
      .strays = strays.data(),
      .filled = filled.data(),
      .counts = counts.data(),
      .moves = {plan->phases[0].data(), plan->phases[1].data()},
      .num_moves = plan->num_moves.data()};
  EmulatedLauncher launcher(schedule);
  RunSelectMoves<kBug>(moves, launcher);
  if (!launcher.error().empty()) return launcher.error();
  if (error != 0) return absl::StrCat("error word ", error);
  for (const int32_t place : page_places) {
    if (place != -1) return "page_places is not -1 again";
  }
  for (const uint32_t word : filled) {
    if (word != 0) return "filled is not zero again";
  }
  const std::string first =
      Compare(want.phase1, plan->phases[0], plan->num_moves[0]);
  if (!first.empty()) return absl::StrCat("phase 1: ", first);
  const std::string second =
      Compare(want.phase2, plan->phases[1], plan->num_moves[1]);
  return second.empty() ? "" : absl::StrCat("phase 2: ", second);
}

// A sequence's life: evictions in place, copies, and mixes of both.
template <int kBug = kNoBug>
std::string CheckHistory(uint64_t seed) {
  std::mt19937_64 random(seed);
  RegionHistory history(random, RandomInt(random, 1, 6));
  const ModelLayout& layout = history.layout();
  for (int32_t round = 0; round < 3; ++round) {
    const RandomEviction eviction = history.NextEviction(random);
    const CacheView view = history.view(eviction, false);
    RaggedRegion next = RaggedRegion::LayOut(
        layout, view, eviction.destinations, eviction.kept, eviction.cut);
    const EntryIndex entries =
        IndexEntries(layout, view, history.region_positions(), eviction.cut);
    CompactionPlan plan = PlanCompaction(layout, entries, eviction.keep, next);
    DevicePlan device;
    std::string difference =
        CheckPlan<kBug>(layout, entries, eviction.keep, next, plan.moves,
                        ScheduleOf(seed + round), &device);
    if (!difference.empty()) return difference;
    history.Advance(eviction, std::move(next), std::move(plan.positions));
    history.Grow(RandomInt(random, 1, 3));
  }
  return "";
}

// Carries the device's plan out, both phases, by the device's own counts, on a
// pool of random rows; what differs from the CPU's compaction, or "".
std::string CheckCarriedOut(const ModelLayout& layout,
                            const EntryIndex& entries, const RaggedRegion& next,
                            const CompactionPlan& want, const DevicePlan& plan,
                            std::mt19937_64& random) {
  auto backend = CreateCpuBackend(layout);
  if (!backend.ok()) return backend.status().ToString();
  std::vector<int64_t> mapping(int64_t{layout.num_blocks} * layout.page_size);
  std::iota(mapping.begin(), mapping.end(), int64_t{0});
  std::vector<float> rows(mapping.size() * layout.num_heads * layout.head_dim);
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (float& x : rows) x = static_cast<float>(RandomInt(random, 0, 1 << 20));
    std::vector<float> values = rows;
    for (float& x : values) x += 0.5f;
    (*backend)->Append({.layer = layer,
                        .slot_mapping = mapping,
                        .keys = rows.data(),
                        .values = values.data()});
  }
  EmulatedPool pool(layout, PoolStrides::kNhd);
  pool.CopyFrom(**backend);
  for (size_t i = 0; i < entries.slots.size(); ++i) {
    pool.positions()[entries.slots[i]] = entries.positions[i];
  }
  (*backend)->Move(want.moves);
  uint32_t error = 0;
  for (int phase = 0; phase < 2; ++phase) {
    const MoveRows move = {.pool = pool.view(),
                           .rows = {.count = std::ssize(plan.phases[phase]),
                                    .device_count = &plan.num_moves[phase]},
                           .moves = plan.phases[phase].data(),
                           .error = &error};
    const simt::LaunchReport report = simt::Launch(
        ScheduleOf(random()),
        {.grid = {RowMoverBlocks(move.rows.count, 5)},
         .threads = kRowMoverThreads},
        RowMover<RowConversion::kNone, MoveSource, MoveDestination>,
        MakeParams(move));
    if (!report.ok()) return report.error;
  }
  if (error != 0) return absl::StrCat("error word ", error);
  size_t place = 0;
  for (int32_t head = 0; head < layout.pages_per_block(); ++head) {
    for (int32_t i = 0; i < next.kept()[head]; ++i, ++place) {
      const SlotIndex slot = layout.slot(next.pages(head)[i / layout.page_size],
                                         i % layout.page_size);
      if (pool.positions()[slot] != want.positions[place]) {
        return absl::StrCat("position of place ", i, " of head ", head);
      }
    }
  }
  return pool.Difference(**backend);
}

// Heads of more entries than a block has threads.
template <int kBug = kNoBug>
std::string CheckLong(uint64_t seed) {
  std::mt19937_64 random(seed);
  const ModelLayout layout = {.num_layers = 2,
                              .num_heads = 2,
                              .num_q_heads = 2,
                              .head_dim = 8,
                              .page_size = 4,
                              .dtype = DType::kFloat32,
                              .num_blocks = 260};
  std::vector<BlockId> tail;
  for (int32_t block = 1; block < 181; ++block) tail.push_back(BlockId{block});
  const CacheView view{.tail_blocks = tail};
  const EntryIndex entries = IndexEntries(layout, view, {}, 720);
  KeepSets keep = {.offsets = {0}, .ranks = {}};
  std::vector<int32_t> kept;
  for (int32_t head = 0; head < 4; ++head) {
    const double ratio = std::array{0.9, 0.05, 0.5, 0.0}[(head + seed) % 4];
    for (int32_t rank = 0; rank < 720; ++rank) {
      if (RandomChance(random, ratio)) keep.ranks.push_back(rank);
    }
    keep.offsets.push_back(std::ssize(keep.ranks));
    kept.push_back(
        static_cast<int32_t>(keep.offsets.back() - keep.offsets[head]));
  }
  // Own blocks from the middle, then fresh ones.
  std::vector<BlockId> destinations(tail.begin() + 40, tail.begin() + 90);
  for (int32_t block = 181; block < 259; ++block) {
    destinations.push_back(BlockId{block});
  }
  const RaggedRegion next =
      RaggedRegion::LayOut(layout, view, destinations, kept, 720);
  const CompactionPlan plan = PlanCompaction(layout, entries, keep, next);
  DevicePlan device;
  std::string difference = CheckPlan<kBug>(
      layout, entries, keep, next, plan.moves, ScheduleOf(seed), &device);
  if (!difference.empty()) return difference;
  return CheckCarriedOut(layout, entries, next, plan, device, random);
}

TEST(SelectMovesTest, EqualTheCpuOverAHistory) {
  for (uint64_t seed = 0; seed < 30 / kEmulatedCaseDivisor; ++seed) {
    ASSERT_EQ(CheckHistory(seed), "") << "seed " << seed;
  }
}

TEST(SelectMovesTest, LongHeadsEqualTheCpuAndAreCarriedOut) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ASSERT_EQ(CheckLong(seed), "") << "seed " << seed;
  }
}

// Two heads of a pool of six pages, with memory of others on both sides of what
// is written per page.
struct MovesOutside {
  static constexpr int32_t kNumPages = 6;
  static constexpr int32_t kGuard = 8;

  MovesOutside() : page_places(kNumPages + 2 * kGuard, -1) {
    std::fill_n(page_places.begin(), kGuard, 0);
    std::fill_n(page_places.end() - kGuard, kGuard, 0);
  }

  void Run() {
    const std::vector<int64_t> offsets = {0, 3, 5};
    const std::vector<uint32_t> survivors = {0b111, 0b11, 0};
    const std::vector<int32_t> page_offsets = {0, 1, 2};
    const std::vector<int32_t> held = {1, 1};
    const std::vector<int32_t> kept = {3, 2};
    std::vector<int64_t> strays(5);
    std::vector<uint32_t> filled(SurvivorWords(5, 2));
    std::vector<int32_t> counts(4);
    const SelectMoves moves = {.num_heads = 2,
                               .page_size = 4,
                               .offsets = offsets.data(),
                               .slots = slots.data(),
                               .survivors = survivors.data(),
                               .page_offsets = page_offsets.data(),
                               .pages = pages.data(),
                               .held_pages = held.data(),
                               .kept = kept.data(),
                               .kept_offsets = offsets.data(),
                               .num_pages = kNumPages,
                               .error = &error,
                               .page_places = page_places.data() + kGuard,
                               .strays = strays.data(),
                               .filled = filled.data(),
                               .counts = counts.data(),
                               .moves = {phases[0].data(), phases[1].data()},
                               .num_moves = num_moves.data()};
    EmulatedLauncher launcher({});
    RunSelectMoves(moves, launcher);
    EXPECT_EQ(launcher.error(), "");
    for (int32_t i = 0; i < std::ssize(page_places); ++i) {
      const bool inside = i >= kGuard && i < kGuard + kNumPages;
      EXPECT_EQ(page_places[i], inside ? -1 : 0) << i - kGuard;
    }
  }
  void ExpectMove(int32_t i, int64_t source, int64_t destination) const {
    EXPECT_EQ(phases[0][i].source, source) << i;
    EXPECT_EQ(phases[0][i].destination, destination) << i;
  }

  // Head 0 has one entry on its page, head 1 both on its own.
  std::vector<int64_t> slots = {20, 4, 21, 12, 13};
  std::vector<int32_t> pages = {1, 3};
  std::vector<int32_t> page_places;
  std::vector<RowMove> phases[2] = {std::vector<RowMove>(5),
                                    std::vector<RowMove>(5)};
  std::vector<int64_t> num_moves = {-1, -1};
  uint32_t error = 0;
};

TEST(SelectMovesTest, SlotsOutsideThePoolAreReported) {
  constexpr int64_t kEnd = MovesOutside::kNumPages * 4;
  for (const int64_t slot : {int64_t{22}, int64_t{-1}, int64_t{-4}, int64_t{-9},
                             kEnd, kEnd + 1, kEnd + 9}) {
    SCOPED_TRACE(slot);
    MovesOutside test;
    test.slots[2] = slot;
    test.Run();
    EXPECT_EQ(test.error, slot == 22 ? 0u : uint32_t{kSlotOutOfPool});
    EXPECT_EQ(test.num_moves, (std::vector<int64_t>{2, 0}));
    test.ExpectMove(0, 20, 5);
    test.ExpectMove(1, slot, 6);
  }
}

TEST(SelectMovesTest, PagesOutsideThePoolAreReportedAndMarkNothing) {
  for (const int32_t page :
       {-1, -5, MovesOutside::kNumPages, MovesOutside::kNumPages + 3}) {
    SCOPED_TRACE(page);
    MovesOutside test;
    test.pages[0] = page;
    test.Run();
    EXPECT_EQ(test.error, uint32_t{kPageOutOfPool});
    EXPECT_EQ(test.num_moves, (std::vector<int64_t>{3, 0}));
    test.ExpectMove(0, 20, int64_t{page} * 4);
    test.ExpectMove(2, 21, int64_t{page} * 4 + 2);
  }
}

bool IsFound(const std::function<std::string(uint64_t)>& check) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    if (!check(seed).empty()) return true;
  }
  return false;
}

TEST(SelectMovesMutationTest, EachPlantedBugIsFound) {
  EXPECT_TRUE(IsFound(CheckHistory<kMovesIgnoreHeldPages>));
  EXPECT_TRUE(IsFound(CheckHistory<kMovesOffByOnePage>));
  EXPECT_TRUE(IsFound(CheckLong<kMovesNoBarrier>));
  EXPECT_TRUE(IsFound(CheckLong<kSelectIgnoresEarlierWarps>));
}

}  // namespace
}  // namespace blockmgr
