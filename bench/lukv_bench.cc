// Times LU-KV's offline solver next to sorting the gains once: the budgets
// of 100 ratios for every head of a large model.
//
// Gains come in three shapes. `noise`: the scorer's order says nothing; few
// large blocks. `typical`: they fall, with noise. `oracle`: they never rise;
// every gain may be its own block, the worst case.
//
// --tokens sets the gains per head (default: small enough for a smoke run;
// 32768 is a long calibration text). Items are gains.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/lukv_solver.h"

namespace blockmgr {
namespace {

// The heads of Llama-3.1-8B: 32 layers of 8.
constexpr int64_t kNumHeads = 256;
constexpr int64_t kNumRatios = 100;

enum class Shape : int64_t { kNoise, kTypical, kOracle };

std::vector<float> MakeGains(Shape shape, int64_t tokens) {
  std::mt19937 random(1);
  std::lognormal_distribution<float> lognormal(0.0f, 1.0f);
  std::vector<float> gains(kNumHeads * tokens);
  for (int64_t head = 0; head < kNumHeads; ++head) {
    const auto begin = gains.begin() + head * tokens;
    // Heads differ in how fast they fall.
    const float rate =
        shape == Shape::kTypical
            ? static_cast<float>(1 + head % 16) / static_cast<float>(tokens)
            : 0.0f;
    for (int64_t i = 0; i < tokens; ++i) {
      begin[i] = std::exp(-rate * static_cast<float>(i)) * lognormal(random);
    }
    if (shape == Shape::kOracle) {
      std::sort(begin, begin + tokens, std::greater<>());
    }
  }
  return gains;
}

// The yardstick: all gains sorted, and read once.
void SortAndSum(benchmark::State& state) {
  const int64_t tokens = state.range(1);
  const std::vector<float> gains =
      MakeGains(static_cast<Shape>(state.range(0)), tokens);
  double sum = 0.0;
  while (state.KeepRunning()) {
    state.PauseTiming();
    std::vector<float> sorted = gains;
    state.ResumeTiming();
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    sum = std::accumulate(sorted.begin(), sorted.end(), 0.0);
    benchmark::DoNotOptimize(sum);
  }
  state.SetItemsProcessed(state.iterations() * kNumHeads * tokens);
  state.counters["sum"] = sum;
}

void SolveAllRatios(benchmark::State& state) {
  const int64_t tokens = state.range(1);
  const std::vector<float> gains =
      MakeGains(static_cast<Shape>(state.range(0)), tokens);
  std::vector<int64_t> offsets;
  std::vector<int64_t> totals;
  for (int64_t head = 0; head <= kNumHeads; ++head) {
    offsets.push_back(head * tokens);
  }
  for (int64_t i = 1; i <= kNumRatios; ++i) {
    totals.push_back(std::ssize(gains) * i / kNumRatios);
  }
  const auto min = static_cast<int32_t>(tokens / kNumRatios);
  const std::vector<int32_t> min_units(kNumHeads, min);
  std::vector<int32_t> budgets;
  while (state.KeepRunning()) {
    const LuKvSolver solver(offsets, gains, min_units);
    budgets = solver.BudgetsForAll(totals);
    benchmark::DoNotOptimize(budgets.data());
  }
  // Everything is kept at the last ratio.
  BM_CHECK(budgets.back() == tokens);
  state.SetItemsProcessed(state.iterations() * std::ssize(gains));
  state.counters["budget"] = budgets[kNumRatios / 2 * kNumHeads];
}

void Register(int64_t tokens) {
  for (const Shape shape : {Shape::kNoise, Shape::kTypical, Shape::kOracle}) {
    constexpr const char* kNames[] = {"noise", "typical", "oracle"};
    const auto index = static_cast<int64_t>(shape);
    const std::string suffix = std::string("/") + kNames[index];
    benchmark::RegisterBenchmark(("SortAndSum" + suffix).c_str(), SortAndSum)
        ->Args({index, tokens});
    benchmark::RegisterBenchmark(("SolveAllRatios" + suffix).c_str(),
                                 SolveAllRatios)
        ->Args({index, tokens});
  }
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int64_t tokens = 128;
  const std::string flag = "--tokens=";
  if (argc == 2 && std::string(argv[1]).starts_with(flag)) {
    tokens = std::atoll(argv[1] + flag.size());
    --argc;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (tokens < 1 || tokens > (int64_t{1} << 20)) {
    std::cerr << "--tokens: expected 1 to 2^20, got " << tokens << "\n";
    return 1;
  }
  Register(tokens);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) { return blockmgr::Main(argc, argv); }
