// Runs the device selection, with its work space poisoned.
#ifndef TESTS_KERNELS_CUDA_SELECTION_SELECT_RUNNER_H_
#define TESTS_KERNELS_CUDA_SELECTION_SELECT_RUNNER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/eviction/select.h"
#include "kernels/cuda/host/select_problem.h"
#include "kernels/cuda/simt.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

template <typename T>
SharedVector<T> Poisoned(int64_t count) {
  SharedVector<T> values(count);
  // Memory of nothing may be null, which memset must not get.
  if (count == 0) return values;
  std::memset(static_cast<void*>(values.data()), 0xFF, count * sizeof(T));
  return values;
}

struct SelectOutcome {
  std::string error;
  SharedVector<int32_t> budgets;
  SharedVector<uint32_t> survivors;
  KeepSets keep;  // from the survivors
};

// The inputs of several sequences of one policy, one after another. Most heads
// have entries behind the cut, too, with scores that nobody may look at.
struct SelectInputs {
  SelectInputs(const std::vector<EvictionCase>& cases, int32_t chunk_entries) {
    std::vector<SelectScope> all_scopes;
    for (const EvictionCase& c : cases) {
      AppendSelectScopes(c.policy, c.target, c.shape, c.range,
                         static_cast<int32_t>(offsets.size()) - 1, &all_scopes);
      const FlatEntries flat(c);
      const EntriesView view = flat.view();
      for (size_t head = 0; head + 1 < view.offsets.size(); ++head) {
        // Arrays without entries would not say which of them there are.
        const auto beyond =
            static_cast<int32_t>(view.positions.empty() ? 0 : head * 5 % 40);
        AppendHead(view.positions, view, head, beyond, c.range.cut, &positions);
        const float score = head % 2 == 0
                                ? std::numeric_limits<float>::infinity()
                                : std::numeric_limits<float>::quiet_NaN();
        AppendHead(view.scores, view, head, beyond, score, &scores);
        AppendHead(view.value_norms, view, head, beyond, score, &value_norms);
        AppendHead(view.products, view, head, beyond, score, &products);
        const int64_t size = view.offsets[head + 1] - view.offsets[head];
        offsets.push_back(offsets.back() + size + beyond);
      }
      given.insert(given.end(), c.external.begin(), c.external.end());
    }
    scopes = Shared(all_scopes);
    chunks = SharedSplits(offsets, chunk_entries, 1);
    has_scores = !cases[0].scores.empty();
    // An array even when every head is empty.
    scores.reserve(1);
  }

  void FillIn(SelectProblem* problem) const {
    problem->num_heads = static_cast<int32_t>(offsets.size()) - 1;
    problem->num_scopes = static_cast<int32_t>(scopes.size());
    problem->scopes = scopes.data();
    problem->offsets = offsets.data();
    problem->positions = positions.data();
    problem->scores = has_scores ? scores.data() : nullptr;
    problem->value_norms = value_norms.empty() ? nullptr : value_norms.data();
    problem->products = products.empty() ? nullptr : products.data();
    problem->given = given.data();
    problem->chunks = {chunks.data(), chunks.back()};
  }

  // Those of a head, and `beyond` of its own behind them; nothing where the
  // policy has none.
  template <typename T>
  static void AppendHead(std::span<const T> from, const EntriesView& view,
                         size_t head, int32_t beyond, T value,
                         SharedVector<T>* to) {
    if (from.empty()) return;
    to->insert(to->end(), from.begin() + view.offsets[head],
               from.begin() + view.offsets[head + 1]);
    to->insert(to->end(), beyond, value);
  }

  SharedVector<SelectScope> scopes;
  SharedVector<int64_t> offsets = {0};
  SharedVector<int32_t> chunks;
  SharedVector<int32_t> positions;
  SharedVector<float> scores;
  SharedVector<float> value_norms;
  SharedVector<float> products;
  SharedVector<int32_t> given;
  bool has_scores = true;
};

// Ranks, from the words of survivors.
inline void ReadSurvivors(std::span<const int64_t> offsets,
                          SelectOutcome* outcome) {
  outcome->keep.offsets = {0};
  for (size_t head = 0; head + 1 < offsets.size(); ++head) {
    const int64_t word =
        SurvivorWord(offsets[head], static_cast<int64_t>(head));
    const int64_t count = offsets[head + 1] - offsets[head];
    for (int64_t i = 0; i < (count + 31) / 32 * 32; ++i) {
      if ((outcome->survivors[word + i / 32] >> (i % 32) & 1u) == 0) continue;
      if (i >= count) outcome->error = "a bit behind the last entry";
      outcome->keep.ranks.push_back(static_cast<int32_t>(i));
    }
    outcome->keep.offsets.push_back(std::ssize(outcome->keep.ranks));
  }
}

// Sequences of one policy, selected in one call: their heads one after another.
inline SelectOutcome SelectOnDevice(const std::vector<EvictionCase>& cases,
                                    int32_t chunk_entries,
                                    const simt::Schedule& schedule,
                                    int32_t divide_from = INT32_MAX) {
  const SelectInputs inputs(cases, chunk_entries);
  SelectProblem problem = MakeSelectProblem(cases[0].policy);
  problem.page_size = cases[0].shape.page_size;
  problem.chunk_entries = chunk_entries;
  problem.divide_from = divide_from;
  inputs.FillIn(&problem);
  const int64_t num_heads = problem.num_heads;
  const int64_t num_groups = num_heads + problem.num_scopes;
  auto heads = Poisoned<SelectHead>(num_heads);
  auto searches = Poisoned<RadixSearch>(num_groups);
  SharedVector<uint32_t> histograms(num_groups * kRadixBins);
  SharedVector<uint32_t> counters(num_groups);
  const int64_t num_words = SurvivorWords(inputs.offsets.back(), num_heads);
  auto ties = Poisoned<uint32_t>(num_words);
  SelectOutcome outcome;
  outcome.budgets = Poisoned<int32_t>(num_heads);
  outcome.survivors = Poisoned<uint32_t>(num_words);
  problem.heads = heads.data();
  problem.searches = searches.data();
  problem.histograms = histograms.data();
  problem.counters = counters.data();
  problem.ties = ties.data();
  problem.budgets = outcome.budgets.data();
  problem.survivors = outcome.survivors.data();
  SharedVector<int64_t> num_nan = {0};
  problem.num_nan = num_nan.data();

  outcome.error = RunKernel(schedule, &DeviceRuntime::Select, problem).error;
  outcome.keep.num_nan = num_nan[0];
  if (!outcome.error.empty()) return outcome;
  const auto is_zero = [](uint32_t value) { return value == 0; };
  if (!std::all_of(histograms.begin(), histograms.end(), is_zero) ||
      !std::all_of(counters.begin(), counters.end(), is_zero)) {
    outcome.error = "work space is not zero again";
    return outcome;
  }
  ReadSurvivors(inputs.offsets, &outcome);
  return outcome;
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SELECTION_SELECT_RUNNER_H_
