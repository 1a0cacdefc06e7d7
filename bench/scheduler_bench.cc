// What one step costs the scheduler: Schedule() and Update(), nothing else.
//
// Decode: every running request decodes one token. Waiting: 64 requests run,
// some end and some are admitted in every step, and the queue is kept at its
// length. Times are the thread's CPU time of one step; p50_us, p99_us and
// p999_us are over all steps of a run.

#include <ctime>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "scheduler/scheduler.h"

namespace blockmgr {
namespace {

ModelLayout LargeLayout(int32_t num_blocks) {
  return {.num_layers = 32,
          .num_heads = 8,
          .num_q_heads = 32,
          .head_dim = 128,
          .page_size = 16,
          .dtype = DType::kBFloat16,
          .num_blocks = num_blocks};
}

double ThreadMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 +
         static_cast<double>(now.tv_nsec) * 1e-3;
}

// A scheduler whose engine answers at once, with steps timed.
class Harness {
 public:
  Harness(int32_t num_blocks, const SchedulerOptions& options)
      : scheduler_(*Scheduler::Create(LargeLayout(num_blocks), options)) {}

  void Submit(Request request) {
    request.id = absl::StrCat("r", ++num_submitted_);
    BM_CHECK(scheduler_->Submit(std::move(request)).ok());
  }

  // Microseconds of one step.
  double Step() {
    effects_.Clear();
    const double begin = ThreadMicroseconds();
    BM_CHECK(scheduler_->Schedule(&plan_));
    const double scheduled = ThreadMicroseconds();
    result_.id = plan_.id;
    result_.sampled.assign(plan_.slots.size(), -1);
    for (size_t i = 0; i < plan_.slots.size(); ++i) {
      if (plan_.samples[i] != 0) result_.sampled[i] = 7;
    }
    BM_CHECK(plan_.evictions.empty());
    const double answered = ThreadMicroseconds();
    BM_CHECK(scheduler_->Update(result_, &effects_).ok());
    return ThreadMicroseconds() - answered + scheduled - begin;
  }

  const StepPlan& plan() const { return plan_; }
  const Effects& effects() const { return effects_; }
  Scheduler& scheduler() { return *scheduler_; }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  StepResult result_;
  Effects effects_;
  int64_t num_submitted_ = 0;
};

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

std::vector<int32_t> Prompt(int64_t family, int32_t num_shared, int64_t request,
                            int32_t num_own) {
  std::vector<int32_t> tokens;
  const auto add = [&tokens](int64_t seed, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(
          static_cast<int32_t>(SplitMix64(static_cast<uint64_t>(seed) * 100003 +
                                          static_cast<uint64_t>(i)) %
                               128000));
    }
  };
  add(family, num_shared);
  add(request + 1000000, num_own);
  return tokens;
}

// Args: running sequences; 1: their requests ask for an eviction (that would
// free nothing, so none is ordered).
void DecodeStep(benchmark::State& state) {
  const auto num_running = static_cast<int32_t>(state.range(0));
  SchedulerOptions options;
  options.max_num_seqs = num_running;
  options.max_num_batched_tokens = std::max(2048, num_running);
  options.max_steps_in_flight = 1;
  constexpr int32_t kOutputs = 1024;
  std::vector<double> times;
  std::unique_ptr<Harness> harness;
  int32_t steps_left = 0;
  for ([[maybe_unused]] auto _ : state) {
    if (steps_left == 0) {
      state.PauseTiming();
      harness = std::make_unique<Harness>(num_running * 72 + 1, options);
      for (int32_t i = 0; i < num_running; ++i) {
        Request request;
        // Block boundaries are crossed by different sequences in every step.
        request.prompt = Prompt(0, 0, i, 33 + i % 16);
        request.max_tokens = kOutputs;
        if (state.range(1) != 0) {
          request.eviction.mode = EvictionMode::kAfterPrefill;
          request.eviction.target.kind = EvictionTarget::Kind::kTokens;
          request.eviction.target.tokens = 4096;
        }
        harness->Submit(std::move(request));
      }
      do {
        harness->Step();
      } while (harness->effects().tokens.size() <
               static_cast<size_t>(num_running));
      steps_left = kOutputs / 2;
      state.ResumeTiming();
    }
    times.push_back(harness->Step());
    BM_CHECK(std::ssize(harness->plan().slots) == num_running);
    --steps_left;
  }
  Report(state, std::move(times));
  state.SetItemsProcessed(state.iterations() * num_running);
}
BENCHMARK(DecodeStep)
    ->ArgNames({"running", "evictable"})
    ->ArgsProduct({{256, 1536}, {0, 1}});

// Args: requests that wait; SchedulingPolicy; 1: eight tenants share fairly.
void WaitingStep(benchmark::State& state) {
  const auto num_waiting = static_cast<int32_t>(state.range(0));
  SchedulerOptions options;
  // As many run however much they share, so that steps compare.
  options.max_num_seqs = 72;
  options.policy = static_cast<SchedulingPolicy>(state.range(1));
  options.fair_share = state.range(2) != 0;
  options.max_steps_in_flight = 1;
  // About 64 requests fit: admission is limited by blocks.
  Harness harness(64 * 24, options);
  int64_t request_number = 0;
  const auto fill = [&] {
    while (harness.scheduler().stats().num_waiting < num_waiting) {
      const int64_t number = request_number++;
      Request request;
      request.prompt = Prompt(number % 97, 128, number, 128);
      request.max_tokens = 32 + static_cast<int32_t>(number * 7 % 97);
      request.priority = static_cast<int32_t>(number % 5);
      if (options.fair_share) {
        request.scope.tenant = absl::StrCat("tenant", number % 8);
      }
      harness.Submit(std::move(request));
    }
  };
  fill();
  for (int32_t i = 0; i < 100; ++i) {
    harness.Step();
    fill();
  }
  std::vector<double> times;
  int64_t num_runs = 0;
  for ([[maybe_unused]] auto _ : state) {
    times.push_back(harness.Step());
    num_runs += std::ssize(harness.plan().slots);
    state.PauseTiming();
    fill();
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
