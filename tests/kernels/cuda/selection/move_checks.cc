#include "tests/kernels/cuda/selection/move_checks.h"

#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "kernels/backend.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/simt.h"
#include "tests/blockmgr/region_history.h"
#include "tests/kernels/cuda/selection/select_runner.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

simt::Schedule ScheduleOf(uint64_t seed) {
  return {static_cast<simt::Schedule::Order>(seed % 3), seed};
}

// What the device planned. Moves are head after head, as kept_offsets say.
struct DevicePlan {
  SharedVector<int64_t> kept_offsets = {0};
  SharedVector<RowMove> moves;
  SharedVector<int32_t> region_positions;
};

SharedVector<uint32_t> Survivors(const EntryIndex& entries,
                                 const KeepSets& keep, int32_t num_heads) {
  SharedVector<uint32_t> survivors(
      SurvivorWords(entries.offsets.back(), num_heads));
  for (int32_t head = 0; head < num_heads; ++head) {
    for (int64_t k = keep.offsets[head]; k < keep.offsets[head + 1]; ++k) {
      const int32_t rank = keep.ranks[k];
      survivors[SurvivorWord(entries.offsets[head], head) + rank / 32] |=
          1u << (rank % 32);
    }
  }
  return survivors;
}

// Positions of the new region: list by list, in whole pages.
std::string ComparePositions(const ModelLayout& layout,
                             const RaggedRegion& next,
                             const std::vector<int32_t>& want,
                             const SharedVector<int32_t>& got) {
  size_t entry = 0;
  for (int32_t head = 0; head < layout.pages_per_block(); ++head) {
    const int64_t begin = int64_t{next.page_offsets()[head]} * layout.page_size;
    const int64_t end =
        int64_t{next.page_offsets()[head + 1]} * layout.page_size;
    for (int64_t i = begin; i < end; ++i) {
      // 0xFF in all bytes where nothing was written.
      const int32_t expected =
          i - begin < next.kept()[head] ? want[entry++] : -1;
      if (got[i] != expected) {
        return absl::StrCat("place ", i - begin, " of head ", head,
                            " is of position ", got[i], ", expected ",
                            expected);
      }
    }
  }
  return "";
}

// The i-th survivor of a head goes to the i-th slot of its list.
std::string CompareMoves(const ModelLayout& layout, const EntryIndex& entries,
                         const KeepSets& keep, const RaggedRegion& next,
                         const SharedVector<RowMove>& got) {
  size_t move = 0;
  for (int32_t head = 0; head < layout.pages_per_block(); ++head) {
    for (int32_t place = 0; place < next.kept()[head]; ++place, ++move) {
      const int32_t rank = keep.ranks[keep.offsets[head] + place];
      const SlotIndex source = entries.slots[entries.offsets[head] + rank];
      const SlotIndex destination = layout.slot(
          next.pages(head)[place / layout.page_size], place % layout.page_size);
      if (got[move].source != source || got[move].destination != destination) {
        return absl::StrCat("move ", move, " is from ", got[move].source,
                            " to ", got[move].destination, ", expected from ",
                            source, " to ", destination);
      }
    }
  }
  return "";
}

// Runs the device's plan, in chunks of chunk_entries or, if it is 0, in whole
// heads; what differs from `want`, or "".
std::string CheckPlan(const ModelLayout& layout, const EntryIndex& entries,
                      const KeepSets& keep, const RaggedRegion& next,
                      const CompactionPlan& want, int32_t chunk_entries,
                      const simt::Schedule& schedule, DevicePlan* plan) {
  const int32_t num_heads = layout.pages_per_block();
  plan->kept_offsets = {0};
  const SharedVector<uint32_t> survivors = Survivors(entries, keep, num_heads);
  for (int32_t head = 0; head < num_heads; ++head) {
    plan->kept_offsets.push_back(plan->kept_offsets.back() + next.kept()[head]);
  }
  SharedVector<int32_t> pages;
  for (const PageId page : next.page_list()) pages.push_back(Index(page));
  const auto offsets = Shared(entries.offsets);
  const auto slots = Shared(entries.slots);
  const auto positions = Shared(entries.positions);
  const auto page_offsets = Shared(next.page_offsets());
  const auto kept = Shared(next.kept());
  plan->region_positions =
      Poisoned<int32_t>(std::ssize(pages) * layout.page_size);
  // The region's own kept entries may be none: no empty arrays.
  plan->moves = Poisoned<RowMove>(plan->kept_offsets.back() + 1);
  SharedVector<uint32_t> error = {0};
  SelectMoves moves = {.num_heads = num_heads,
                       .page_size = layout.page_size,
                       .offsets = offsets.data(),
                       .slots = slots.data(),
                       .positions = positions.data(),
                       .survivors = survivors.data(),
                       .page_offsets = page_offsets.data(),
                       .pages = pages.data(),
                       .num_pages = std::ssize(pages),
                       .kept = kept.data(),
                       .move_offsets = plan->kept_offsets.data(),
                       .moves = plan->moves.data(),
                       .num_moves = plan->kept_offsets.back(),
                       .region_positions = plan->region_positions.data(),
                       .error = error.data()};
  SharedVector<int32_t> chunks;
  if (chunk_entries > 0) {
    chunks = SharedSplits(offsets, chunk_entries, 1);
    moves.chunks = {chunks.data(), chunks.back()};
    moves.chunk_entries = chunk_entries;
  }
  std::string failure =
      RunKernel(schedule, &DeviceRuntime::PlanMoves, moves).error;
  if (failure.empty() && error[0] != 0) {
    failure = absl::StrCat("error word ", error[0]);
  }
  if (failure.empty()) {
    failure = CompareMoves(layout, entries, keep, next, plan->moves);
  }
  if (!failure.empty()) return failure;
  if (plan->moves.back().source != -1) return "a move behind the last";
  return ComparePositions(layout, next, want.positions, plan->region_positions);
}

// Carries the device's plan out by way of staging, a random number of whole
// heads at a time, the heads that borrow no page first, on a pool of random
// rows. What differs from the CPU's compaction, or "".
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
  TestPool pool(layout, KvTensorOrder::kNhdApart);
  pool.CopyFrom(**backend);
  for (size_t i = 0; i < entries.slots.size(); ++i) {
    pool.positions()[entries.slots[i]] = entries.positions[i];
  }
  (*backend)->Move(want.moves);
  SharedVector<uint32_t> error = {0};
  SharedVector<RowMove> moves;
  std::vector<int64_t> ends;
  for (const bool borrows : {false, true}) {
    for (int32_t head = 0; head < layout.pages_per_block(); ++head) {
      const bool has_borrowed =
          next.held_pages()[head] < std::ssize(next.pages(head));
      if (has_borrowed != borrows) continue;
      moves.insert(moves.end(), plan.moves.begin() + plan.kept_offsets[head],
                   plan.moves.begin() + plan.kept_offsets[head + 1]);
      ends.push_back(std::ssize(moves));
    }
  }
  SharedVector<simt::Vector16> staged(std::ssize(moves) * 2 *
                                      layout.row_bytes() / 16);
  SharedVector<int32_t> staged_positions(std::ssize(moves));
  int64_t begin = 0;
  for (const int64_t end : ends) {
    if (end != ends.back() && RandomInt(random, 0, 1) == 0) continue;
    const MoveRows move = {.pool = pool.pool(),
                           .rows = {.count = end - begin},
                           .moves = moves.data() + begin,
                           .staged = reinterpret_cast<char*>(staged.data()),
                           .staged_positions = staged_positions.data(),
                           .error = error.data()};
    std::string failure =
        RunKernel(ScheduleOf(random()), &DeviceRuntime::Move, move).error;
    if (!failure.empty()) return failure;
    begin = end;
  }
  if (error[0] != 0) return absl::StrCat("error word ", error[0]);
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

}  // namespace

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
        CheckPlan(layout, entries, eviction.keep, next, plan,
                  seed % 2 == 0 ? 0 : 32, ScheduleOf(seed + round), &device);
    if (!difference.empty()) return difference;
    history.Advance(eviction, std::move(next), std::move(plan.positions));
    history.Grow(RandomInt(random, 1, 3));
  }
  return "";
}

std::string CheckLong(uint64_t seed) {
  std::mt19937_64 random(seed);
  // More entries than a block of threads takes in a turn.
  constexpr int32_t kBlocks = 540;
  constexpr int32_t kEntries = 16 * kBlocks;
  static_assert(kEntries > 32 * static_cast<int32_t>(kSelectThreads));
  const ModelLayout layout = {.num_layers = 1,
                              .num_heads = 2,
                              .num_q_heads = 2,
                              .head_dim = 8,
                              .page_size = 16,
                              .dtype = DType::kFloat32,
                              .num_blocks = kBlocks + 81};
  std::vector<BlockId> tail;
  for (int32_t block = 1; block <= kBlocks; ++block) {
    tail.push_back(BlockId{block});
  }
  const CacheView view{.tail_blocks = tail};
  const EntryIndex entries = IndexEntries(layout, view, {}, kEntries);
  KeepSets keep = {.offsets = {0}, .ranks = {}};
  std::vector<int32_t> kept;
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    const double ratio = std::array{0.3, 0.05, 0.0}[(head + seed) % 3];
    for (int32_t rank = 0; rank < kEntries; ++rank) {
      if (RandomChance(random, ratio)) keep.ranks.push_back(rank);
    }
    keep.offsets.push_back(std::ssize(keep.ranks));
    kept.push_back(
        static_cast<int32_t>(keep.offsets.back() - keep.offsets[head]));
  }
  // Own blocks from the middle, then fresh ones.
  std::vector<BlockId> destinations(tail.begin() + 100, tail.begin() + 140);
  for (int32_t block = kBlocks + 1; block <= kBlocks + 80; ++block) {
    destinations.push_back(BlockId{block});
  }
  const RaggedRegion next =
      RaggedRegion::LayOut(layout, view, destinations, kept, kEntries);
  const CompactionPlan plan = PlanCompaction(layout, entries, keep, next);
  DevicePlan device;
  std::string difference = CheckPlan(layout, entries, keep, next, plan, 0,
                                     ScheduleOf(seed), &device);
  for (const int32_t chunk_entries : {128, 2048}) {
    if (!difference.empty()) return difference;
    difference = CheckPlan(layout, entries, keep, next, plan, chunk_entries,
                           ScheduleOf(seed), &device);
  }
  if (!difference.empty()) return difference;
  return CheckCarriedOut(layout, entries, next, plan, device, random);
}

}  // namespace blockmgr
