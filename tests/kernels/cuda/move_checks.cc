#include "tests/kernels/cuda/move_checks.h"

#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "kernels/backend.h"
#include "kernels/cuda/row_mover.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/simt.h"
#include "tests/blockmgr/region_history.h"
#include "tests/kernels/cuda/select_runner.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

simt::Schedule ScheduleOf(uint64_t seed) {
  return {static_cast<simt::Schedule::Order>(seed % 3), seed};
}

std::string Compare(const std::vector<SlotMove>& want,
                    const SharedVector<RowMove>& got, int64_t count) {
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
  SharedVector<RowMove> phases[2];
  SharedVector<int64_t> num_moves = {-1, -1};
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

std::string ComparePlan(const ModelLayout& layout, const RaggedRegion& next,
                        const CompactionPlan& want, const DevicePlan& got) {
  const std::string first =
      Compare(want.moves.phase1, got.phases[0], got.num_moves[0]);
  if (!first.empty()) return absl::StrCat("phase 1: ", first);
  const std::string second =
      Compare(want.moves.phase2, got.phases[1], got.num_moves[1]);
  if (!second.empty()) return absl::StrCat("phase 2: ", second);
  return ComparePositions(layout, next, want.positions, got.region_positions);
}

// Runs the device's plan; what differs from `want`, or "".
std::string CheckPlan(const ModelLayout& layout, const EntryIndex& entries,
                      const KeepSets& keep, const RaggedRegion& next,
                      const CompactionPlan& want,
                      const simt::Schedule& schedule, DevicePlan* plan) {
  const int32_t num_heads = layout.pages_per_block();
  const SharedVector<uint32_t> survivors = Survivors(entries, keep, num_heads);
  SharedVector<int64_t> kept_offsets = {0};
  for (int32_t head = 0; head < num_heads; ++head) {
    kept_offsets.push_back(kept_offsets.back() + next.kept()[head]);
  }
  SharedVector<int32_t> pages;
  for (const PageId page : next.page_list()) pages.push_back(Index(page));
  // The region's own kept entries may be none: no empty arrays.
  const int64_t num_kept = kept_offsets.back() + 1;
  SharedVector<int32_t> page_places(layout.num_pages(), -1);
  auto strays = Poisoned<int64_t>(num_kept);
  auto stray_positions = Poisoned<int32_t>(num_kept);
  SharedVector<uint32_t> filled(SurvivorWords(num_kept, num_heads));
  auto counts = Poisoned<int32_t>(2 * num_heads);
  SharedVector<uint32_t> error = {0};
  const auto offsets = Shared(entries.offsets);
  const auto slots = Shared(entries.slots);
  const auto positions = Shared(entries.positions);
  const auto page_offsets = Shared(next.page_offsets());
  const auto kept = Shared(next.kept());
  plan->region_positions =
      Poisoned<int32_t>(std::ssize(pages) * layout.page_size);
  const auto held = Shared(next.held_pages());
  for (SharedVector<RowMove>& phase : plan->phases) {
    phase = Poisoned<RowMove>(num_kept);
  }
  const SelectMoves moves = {
      .num_heads = num_heads,
      .page_size = layout.page_size,
      .offsets = offsets.data(),
      .slots = slots.data(),
      .positions = positions.data(),
      .survivors = survivors.data(),
      .page_offsets = page_offsets.data(),
      .pages = pages.data(),
      .held_pages = held.data(),
      .kept = kept.data(),
      .kept_offsets = kept_offsets.data(),
      .num_pages = layout.num_pages(),
      .error = error.data(),
      .page_places = page_places.data(),
      .strays = strays.data(),
      .stray_positions = stray_positions.data(),
      .filled = filled.data(),
      .counts = counts.data(),
      .moves = {plan->phases[0].data(), plan->phases[1].data()},
      .num_moves = plan->num_moves.data(),
      .region_positions = plan->region_positions.data()};
  std::string failure = RunKernels(schedule, [&](DeviceRuntime& device) {
                          device.PlanMoves(moves);
                        }).error;
  if (!failure.empty()) return failure;
  if (error[0] != 0) return absl::StrCat("error word ", error[0]);
  for (const int32_t place : page_places) {
    if (place != -1) return "page_places is not -1 again";
  }
  for (const uint32_t word : filled) {
    if (word != 0) return "filled is not zero again";
  }
  return ComparePlan(layout, next, want, *plan);
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
  TestPool pool(layout, KvTensorOrder::kNhdApart);
  pool.CopyFrom(**backend);
  for (size_t i = 0; i < entries.slots.size(); ++i) {
    pool.positions()[entries.slots[i]] = entries.positions[i];
  }
  (*backend)->Move(want.moves);
  SharedVector<uint32_t> error = {0};
  for (int phase = 0; phase < 2; ++phase) {
    const MoveRows move = {.pool = pool.view(),
                           .rows = {.count = std::ssize(plan.phases[phase]),
                                    .device_count = &plan.num_moves[phase]},
                           .moves = plan.phases[phase].data(),
                           .error = error.data()};
    std::string failure =
        RunKernels(ScheduleOf(random()), [&](DeviceRuntime& device) {
          device.Move(move);
        }).error;
    if (!failure.empty()) return failure;
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
    std::string difference = CheckPlan(layout, entries, eviction.keep, next,
                                       plan, ScheduleOf(seed + round), &device);
    if (!difference.empty()) return difference;
    history.Advance(eviction, std::move(next), std::move(plan.positions));
    history.Grow(RandomInt(random, 1, 3));
  }
  return "";
}

std::string CheckLong(uint64_t seed) {
  std::mt19937_64 random(seed);
  const ModelLayout layout = {.num_layers = 2,
                              .num_heads = 2,
                              .num_q_heads = 2,
                              .head_dim = 8,
                              .page_size = 16,
                              .dtype = DType::kFloat32,
                              .num_blocks = 260};
  std::vector<BlockId> tail;
  for (int32_t block = 1; block < 189; ++block) tail.push_back(BlockId{block});
  // More than a block takes in a turn; a head keeps more than that, too.
  constexpr int32_t kEntries = 16 * 188;
  const CacheView view{.tail_blocks = tail};
  const EntryIndex entries = IndexEntries(layout, view, {}, kEntries);
  KeepSets keep = {.offsets = {0}, .ranks = {}};
  std::vector<int32_t> kept;
  for (int32_t head = 0; head < 4; ++head) {
    const double ratio = std::array{0.9, 0.05, 0.5, 0.0}[(head + seed) % 4];
    for (int32_t rank = 0; rank < kEntries; ++rank) {
      if (RandomChance(random, ratio)) keep.ranks.push_back(rank);
    }
    keep.offsets.push_back(std::ssize(keep.ranks));
    kept.push_back(
        static_cast<int32_t>(keep.offsets.back() - keep.offsets[head]));
  }
  // Own blocks from the middle, then fresh ones.
  std::vector<BlockId> destinations(tail.begin() + 40, tail.begin() + 90);
  for (int32_t block = 189; block < 259; ++block) {
    destinations.push_back(BlockId{block});
  }
  const RaggedRegion next =
      RaggedRegion::LayOut(layout, view, destinations, kept, kEntries);
  const CompactionPlan plan = PlanCompaction(layout, entries, keep, next);
  DevicePlan device;
  std::string difference =
      CheckPlan(layout, entries, keep, next, plan, ScheduleOf(seed), &device);
  if (!difference.empty()) return difference;
  return CheckCarriedOut(layout, entries, next, plan, device, random);
}

}  // namespace blockmgr
