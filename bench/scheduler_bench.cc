// Measures the scheduler's time for one step (bench/micro/step_workloads.h).
//
// Times are the thread's CPU time of one step; p50_us, p99_us and p999_us are
// over all steps of a run.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/micro/step_workloads.h"

namespace blockmgr {
namespace {

void Report(benchmark::State& state, std::vector<double> times) {
  std::ranges::sort(times);
  const auto at = [&times](double fraction) {
    return times[static_cast<size_t>(fraction *
                                     static_cast<double>(times.size() - 1))];
  };
  state.counters["p50_us"] = at(0.5);
  state.counters["p99_us"] = at(0.99);
  state.counters["p999_us"] = at(0.999);
  state.counters["max_us"] = times.back();
}

void RunSteps(benchmark::State& state, const DecodeWorkload::Setting& setting) {
  std::vector<double> times;
  std::unique_ptr<DecodeWorkload> workload;
  for ([[maybe_unused]] auto _ : state) {
    if (workload == nullptr || workload->steps_left() == 0) {
      state.PauseTiming();
      workload = std::make_unique<DecodeWorkload>(setting);
      state.ResumeTiming();
    }
    times.push_back(workload->Step());
  }
  Report(state, std::move(times));
  state.SetItemsProcessed(state.iterations() * setting.num_running *
                          (1 + setting.num_drafts / 2));
}

// Args: running sequences; 1: their requests ask for an eviction; window groups
// of the model.
void DecodeStep(benchmark::State& state) {
  RunSteps(state, {.num_running = static_cast<int32_t>(state.range(0)),
                   .eviction = state.range(1) != 0 ? EvictionMode::kAfterPrefill
                                                   : EvictionMode::kNone,
                   .num_window_groups = static_cast<int32_t>(state.range(2))});
}
BENCHMARK(DecodeStep)
    ->ArgNames({"running", "evictable", "windows"})
    ->ArgsProduct({{256, 1536}, {0, 1}, {0}})
    ->ArgsProduct({{256, 1536}, {0}, {1, 6}});

// Args: running sequences; drafts of each that a step verifies.
void DraftStep(benchmark::State& state) {
  RunSteps(state, {.num_running = static_cast<int32_t>(state.range(0)),
                   .num_drafts = static_cast<int32_t>(state.range(1))});
}
BENCHMARK(DraftStep)
    ->ArgNames({"running", "drafts"})
    ->ArgsProduct({{256, 1536}, {4}});

// Args: requests that wait; SchedulingPolicy; 1: eight tenants share fairly.
void WaitingStep(benchmark::State& state) {
  WaitingWorkload workload(
      {.num_waiting = static_cast<int32_t>(state.range(0)),
       .policy = static_cast<SchedulingPolicy>(state.range(1)),
       .fair_share = state.range(2) != 0});
  std::vector<double> times;
  int64_t num_runs = 0;
  for ([[maybe_unused]] auto _ : state) {
    times.push_back(workload.Step());
    num_runs += workload.num_running();
    state.PauseTiming();
    workload.Refill();
    state.ResumeTiming();
  }
  Report(state, std::move(times));
  state.counters["running"] =
      static_cast<double>(num_runs) / static_cast<double>(state.iterations());
}
BENCHMARK(WaitingStep)
    ->ArgNames({"waiting", "policy", "fair"})
    ->ArgsProduct({{100, 10000}, {0, 1, 2}, {0, 1}});

}  // namespace
}  // namespace blockmgr
