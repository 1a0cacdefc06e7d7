#include "kernels/cuda/device_selector.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <absl/status/status.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "kernels/cuda/select_problem.h"

namespace blockmgr {
namespace {

// Ranks, from the words of survivors.
KeepSets ReadSurvivors(std::span<const int64_t> offsets,
                       std::span<const uint32_t> survivors) {
  KeepSets keep;
  keep.offsets.push_back(0);
  for (int64_t head = 0; head + 1 < std::ssize(offsets); ++head) {
    const int64_t first_word = SurvivorWord(offsets[head], head);
    const int64_t count = offsets[head + 1] - offsets[head];
    for (int64_t begin = 0; begin < count; begin += 32) {
      uint32_t word = survivors[first_word + begin / 32];
      for (; word != 0; word &= word - 1) {
        keep.ranks.push_back(
            static_cast<int32_t>(begin + std::countr_zero(word)));
      }
    }
    keep.offsets.push_back(std::ssize(keep.ranks));
  }
  return keep;
}

void FillWords(DeviceRuntime* runtime, void* words, uint8_t byte,
               int64_t count) {
  runtime->Fill(static_cast<char*>(words), byte,
                count * int64_t{sizeof(uint32_t)});
}

}  // namespace

DeviceSelector::~DeviceSelector() {
  if (page_places_ != nullptr) {
    pool_.runtime->Free(reinterpret_cast<char*>(page_places_));
  }
}

SelectProblem DeviceSelector::AddSelection(const SelectBatch& batch,
                                           SelectionArrays* arrays) {
  CallMemory& memory = *pool_.memory;
  const EntriesView& entries = batch.entries;
  SelectProblem problem = MakeSelectProblem(batch.policy);
  problem.page_size = batch.shape.page_size;
  problem.num_heads = batch.shape.num_layers * batch.shape.num_heads;
  problem.num_scopes = static_cast<int32_t>(scopes_.size());
  BM_CHECK(std::ssize(entries.offsets) == problem.num_heads + 1);
  const int64_t num_groups = int64_t{problem.num_heads} + problem.num_scopes;
  arrays->scopes = memory.InputOf(std::span<const SelectScope>(scopes_));
  arrays->offsets = memory.InputOf(entries.offsets);
  arrays->chunks =
      AddSplits(&memory, entries.offsets, problem.chunk_entries, 1);
  arrays->positions = memory.InputOf(entries.positions);
  arrays->scores = memory.InputOf(entries.scores);
  arrays->value_norms = memory.InputOf(entries.value_norms);
  arrays->products = memory.InputOf(entries.products);
  arrays->heads = memory.Work<SelectHead>(problem.num_heads);
  arrays->searches = memory.Work<RadixSearch>(num_groups);
  // Side by side: one fill zeroes all.
  arrays->zeros =
      memory.Work<uint32_t>(int64_t{problem.num_scopes} * (kRadixBins + 1) +
                            int64_t{problem.num_heads} * kLastRadixBins);
  const int64_t num_words =
      SurvivorWords(entries.offsets.back(), problem.num_heads);
  arrays->ties = memory.Work<uint32_t>(num_words);
  arrays->budgets = memory.Work<int32_t>(problem.num_heads);
  arrays->survivors = memory.Result<uint32_t>(num_words);
  arrays->num_nan = memory.Result<int64_t>(1);
  return problem;
}

void DeviceSelector::PointTo(const SelectionArrays& arrays,
                             const EntriesView& entries,
                             SelectProblem* problem) const {
  const CallMemory& memory = *pool_.memory;
  problem->scopes = memory.Device(arrays.scopes);
  problem->offsets = memory.Device(arrays.offsets);
  problem->chunks = DeviceSplits(memory, arrays.chunks);
  problem->positions = memory.Device(arrays.positions);
  // streaming has no scores; a sequence without entries has none either.
  const bool scored = !entries.scores.empty() || entries.offsets.back() == 0;
  if (scored) problem->scores = memory.Device(arrays.scores);
  if (!entries.value_norms.empty()) {
    problem->value_norms = memory.Device(arrays.value_norms);
  }
  if (!entries.products.empty()) {
    problem->products = memory.Device(arrays.products);
  }
  problem->heads = memory.Device(arrays.heads);
  problem->searches = memory.Device(arrays.searches);
  problem->histograms = memory.Device(arrays.zeros);
  problem->last_bins =
      problem->histograms + int64_t{problem->num_scopes} * kRadixBins;
  problem->counters =
      problem->last_bins + int64_t{problem->num_heads} * kLastRadixBins;
  problem->ties = memory.Device(arrays.ties);
  problem->budgets = memory.Device(arrays.budgets);
  problem->survivors = memory.Device(arrays.survivors);
  problem->num_nan = memory.Device(arrays.num_nan);
}

absl::StatusOr<KeepSets> DeviceSelector::Select(const SelectBatch& batch) {
  if (batch.policy.parity != Parity::kNone) {
    return absl::UnimplementedError(
        "policy: parity: expected none on a device, got kvpress or released: "
        "they run on the CPU only");
  }
  CallMemory& memory = *pool_.memory;
  scopes_.clear();
  AppendSelectScopes(batch.policy, batch.target, batch.shape, batch.range, 0,
                     &scopes_);
  memory.Begin();
  SelectionArrays arrays;
  SelectProblem problem = AddSelection(batch, &arrays);
  const auto given = memory.InputOf(batch.external);
  pool_.Send();
  PointTo(arrays, batch.entries, &problem);
  problem.given = memory.Device(given);
  FillWords(pool_.runtime, problem.histograms, 0, arrays.zeros.count);
  FillWords(pool_.runtime, problem.num_nan, 0, 2);
  pool_.runtime->Select(problem);
  pool_.Receive();
  KeepSets keep =
      ReadSurvivors(batch.entries.offsets, memory.Host(arrays.survivors));
  keep.num_nan = memory.Host(arrays.num_nan)[0];
  return keep;
}

CallMemory::Array<uint32_t> DeviceSelector::AddSurvivors(
    std::span<const int64_t> offsets, const KeepSets& keep) {
  const int64_t num_heads = std::ssize(offsets) - 1;
  const auto survivors =
      pool_.memory->Input<uint32_t>(SurvivorWords(offsets.back(), num_heads));
  const std::span<uint32_t> words = pool_.memory->Host(survivors);
  std::ranges::fill(words, 0u);
  for (int64_t head = 0; head < num_heads; ++head) {
    const int64_t word = SurvivorWord(offsets[head], head);
    for (int64_t k = keep.offsets[head]; k < keep.offsets[head + 1]; ++k) {
      words[word + keep.ranks[k] / 32] |= 1u << (keep.ranks[k] % 32);
    }
  }
  return survivors;
}

DeviceSelector::MoveArrays DeviceSelector::AddMoves(
    const Compaction& compaction) {
  CallMemory& memory = *pool_.memory;
  const int32_t num_heads = pool_.layout.pages_per_block();
  const KeepSets& keep = *compaction.keep;
  const int64_t num_kept = std::ssize(keep.ranks);
  MoveArrays arrays;
  arrays.survivors = AddSurvivors(compaction.offsets, keep);
  arrays.kept = memory.Input<int32_t>(num_heads);
  std::adjacent_difference(keep.offsets.begin() + 1, keep.offsets.end(),
                           memory.Host(arrays.kept).begin());
  arrays.offsets = memory.InputOf(compaction.offsets);
  arrays.slots = memory.InputOf(compaction.slots);
  arrays.page_offsets = memory.InputOf(compaction.page_offsets);
  arrays.pages = memory.Input<int32_t>(std::ssize(compaction.pages));
  std::ranges::transform(compaction.pages, memory.Host(arrays.pages).begin(),
                         [](PageId page) { return Index(page); });
  arrays.held = memory.InputOf(compaction.held_pages);
  arrays.kept_offsets = memory.InputOf(std::span<const int64_t>(keep.offsets));
  arrays.strays = memory.Work<int64_t>(num_kept);
  arrays.filled = memory.Work<uint32_t>(SurvivorWords(num_kept, num_heads));
  arrays.counts = memory.Work<int32_t>(int64_t{2} * num_heads);
  arrays.moves = memory.Work<RowMove>(2 * num_kept);
  arrays.num_moves = memory.Work<int64_t>(2);
  return arrays;
}

void DeviceSelector::NeedPagePlaces() {
  if (page_places_ != nullptr) return;
  const int64_t num_pages = pool_.layout.num_pages();
  absl::StatusOr<char*> places =
      pool_.runtime->Allocate(num_pages * int64_t{sizeof(int32_t)});
  BM_CHECK(places.ok());
  page_places_ = reinterpret_cast<int32_t*>(*places);
  FillWords(pool_.runtime, page_places_, 0xFF, num_pages);
}

std::vector<int32_t> DeviceSelector::Compact(const Compaction& compaction) {
  CallMemory& memory = *pool_.memory;
  std::vector<int32_t> positions =
      PlaceSurvivors(pool_.layout, compaction, nullptr);
  const int64_t num_kept = std::ssize(positions);
  if (num_kept == 0) return positions;
  NeedPagePlaces();
  memory.Begin();
  const MoveArrays arrays = AddMoves(compaction);
  pool_.Send();
  SelectMoves plan;
  plan.num_heads = pool_.layout.pages_per_block();
  plan.page_size = pool_.layout.page_size;
  plan.offsets = memory.Device(arrays.offsets);
  plan.slots = memory.Device(arrays.slots);
  plan.survivors = memory.Device(arrays.survivors);
  plan.page_offsets = memory.Device(arrays.page_offsets);
  plan.pages = memory.Device(arrays.pages);
  plan.held_pages = memory.Device(arrays.held);
  plan.kept = memory.Device(arrays.kept);
  plan.kept_offsets = memory.Device(arrays.kept_offsets);
  plan.num_pages = pool_.layout.num_pages();
  plan.error = memory.device_error();
  plan.page_places = page_places_;
  plan.strays = memory.Device(arrays.strays);
  plan.filled = memory.Device(arrays.filled);
  plan.counts = memory.Device(arrays.counts);
  plan.num_moves = memory.Device(arrays.num_moves);
  plan.moves[0] = memory.Device(arrays.moves);
  plan.moves[1] = plan.moves[0] + num_kept;
  FillWords(pool_.runtime, plan.filled, 0, arrays.filled.count);
  pool_.runtime->PlanMoves(plan);
  for (int phase = 0; phase < 2; ++phase) {
    MoveRows move;
    move.pool = pool_.pool.view;
    move.rows.count = num_kept;
    move.rows.device_count = plan.num_moves + phase;
    move.moves = plan.moves[phase];
    move.error = memory.device_error();
    pool_.runtime->Move(move);
  }
  return positions;
}

}  // namespace blockmgr
