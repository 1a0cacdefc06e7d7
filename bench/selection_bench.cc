// Times the choice of survivors next to sorting the scores: Ada-KV's budgets
// and the survivors of one layer of 8 heads, by threshold (radix) select.
//
//   SortScores/N     std::sort of all 8 * N scores, descending
//   AdaKvSelect/N    SelectEntries of `external | adakv | topk`, keep 20 %
//   UniformSelect/N  the same with uniform budgets
//   TopK/N           the best 20 % of one list
//
// Scores are those of a softmax over lognormal logits, heads of different
// sharpness. Items are scores: linear is a constant rate. Compare the times of
// one run.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

constexpr int64_t kNumHeads = 8;

std::vector<float> MakeScores(int64_t per_head) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> scores;
  scores.reserve(static_cast<size_t>(kNumHeads * per_head));
  for (int64_t head = 0; head < kNumHeads; ++head) {
    const float sharpness = 0.5f + 0.5f * static_cast<float>(head);
    for (int64_t i = 0; i < per_head; ++i) {
      scores.push_back(std::exp(sharpness * normal(random)) /
                       static_cast<float>(per_head));
    }
  }
  return scores;
}

void SortScores(benchmark::State& state) {
  const std::vector<float> scores = MakeScores(state.range(0));
  std::vector<float> sorted;
  for (auto _ : state) {
    sorted = scores;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    benchmark::DoNotOptimize(sorted.data());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(scores));
}

void Select(benchmark::State& state, const char* text) {
  const auto per_head = static_cast<int32_t>(state.range(0));
  const std::vector<float> scores = MakeScores(per_head);
  std::vector<int64_t> offsets;
  std::vector<int32_t> positions(scores.size());
  for (int64_t head = 0; head <= kNumHeads; ++head) {
    offsets.push_back(head * per_head);
    if (head == kNumHeads) break;
    std::iota(positions.begin() + head * per_head,
              positions.begin() + (head + 1) * per_head, 0);
  }
  const absl::StatusOr<EvictionPolicy> policy = ParsePolicy(text);
  BM_CHECK(policy.ok());
  EvictionTarget target;
  target.ratio = *KeepRatio::Parse("0.2");
  const HeadShape shape{.num_layers = 1, .num_heads = kNumHeads};
  const EvictionRange range{.cut = per_head, .length = per_head + 1};
  EntriesView entries;
  entries.offsets = offsets;
  entries.positions = positions;
  entries.scores = scores;
  for (auto _ : state) {
    const KeepSets keep =
        SelectEntries(*policy, target, shape, range, entries, {});
    benchmark::DoNotOptimize(keep.ranks.data());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(scores));
}

void AdaKvSelect(benchmark::State& state) {
  Select(state, "external | adakv | topk");
}
void UniformSelect(benchmark::State& state) {
  Select(state, "external | uniform | topk");
}

void TopKOnly(benchmark::State& state) {
  const std::vector<float> scores = MakeScores(state.range(0) / kNumHeads);
  std::vector<int32_t> ranks;
  for (auto _ : state) {
    TopK(scores, std::ssize(scores) / 5, &ranks);
    benchmark::DoNotOptimize(ranks.data());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(scores));
}

BENCHMARK(SortScores)->Arg(4096)->Arg(32768)->Unit(benchmark::kMicrosecond);
BENCHMARK(AdaKvSelect)
    ->Arg(4096)
    ->Arg(32768)
    ->Arg(131072)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(UniformSelect)->Arg(32768)->Unit(benchmark::kMicrosecond);
BENCHMARK(TopKOnly)
    ->Name("TopK")
    ->RangeMultiplier(4)
    ->Range(1 << 12, 1 << 20)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace blockmgr

BENCHMARK_MAIN();
