#include "kernels/cuda/host/device_selector.h"

#include <algorithm>
#include <bit>
#include <span>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "kernels/cuda/host/select_problem.h"

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

SelectProblem DeviceSelector::AddSelection(const SelectBatch& batch,
                                           SelectionArrays* arrays) {
  CallMemory& memory = *pool_.memory;
  const EntriesView& entries = batch.entries;
  SelectProblem problem = MakeSelectProblem(batch.policy);
  problem.page_size = batch.shape.page_size;
  problem.num_heads = batch.shape.num_layers * batch.shape.num_heads;
  problem.num_scopes = static_cast<int32_t>(scopes_.size());
  problem.divide_from = DivideFrom(entries.offsets.data(), problem.num_heads);
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
  arrays->zeros = memory.Work<uint32_t>(num_groups * (int64_t{kRadixBins} + 1));
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
  problem->counters =
      problem->histograms +
      (int64_t{problem->num_scopes} + problem->num_heads) * kRadixBins;
  problem->ties = memory.Device(arrays.ties);
  problem->budgets = memory.Device(arrays.budgets);
  problem->survivors = memory.Device(arrays.survivors);
  problem->num_nan = memory.Device(arrays.num_nan);
}

KeepSets DeviceSelector::Select(const SelectBatch& batch) {
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

}  // namespace blockmgr
