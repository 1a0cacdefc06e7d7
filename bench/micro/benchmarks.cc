#include "bench/micro/benchmarks.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "bench/metrics.h"
#include "bench/micro/memory_workloads.h"
#include "bench/micro/step_workloads.h"

namespace blockmgr {
namespace {

// Steps timed in a run: two are above the 99.9th percentile.
constexpr int32_t kNumSteps = 2048;
// Steps of one workload before it is the other's turn, where two are compared.
constexpr int32_t kTurn = 32;
constexpr int32_t kNumPoolBlocks = 65536;  // 128 GiB of K and V
constexpr int32_t kNumRepeats = 1024;      // one is above that percentile

double PercentileOf(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return Percentile(values, q);
}

Measures Percentiles(std::vector<double> times_us) {
  std::ranges::sort(times_us);
  return {{"p50_us", Percentile(times_us, 50)},
          {"p99_us", Percentile(times_us, 99)},
          {"p99_9_us", Percentile(times_us, 99.9)}};
}

// The same for something done to so many, and what it takes for one.
Measures PercentilesAndEach(const std::vector<double>& times_us,
                            int32_t count) {
  Measures measures = Percentiles(times_us);
  measures.insert(measures.begin(),
                  {"ns_per_block", measures.front().second * 1e3 / count});
  return measures;
}

// The outcome of steps that are the same in every run.
Outcome StepsOutcome(std::vector<double> times_us) {
  Measures measures = Percentiles(times_us);
  measures.emplace_back("p99_9_over_p50", PercentileOf(times_us, 99.9) /
                                              PercentileOf(times_us, 50));
  return {.measures = std::move(measures), .steps_us = std::move(times_us)};
}

// Times of `step`, called `count` times.
std::vector<double> Times(int32_t count, const std::function<double()>& step) {
  std::vector<double> times_us;
  times_us.reserve(count);
  for (int32_t i = 0; i < count; ++i) times_us.push_back(step());
  return times_us;
}

double TimeOf(const std::function<void()>& run) {
  const double begin = ThreadMicroseconds();
  run();
  return ThreadMicroseconds() - begin;
}

// The same for two, by turns.
struct PairedTimes {
  std::vector<double> first_us;
  std::vector<double> second_us;
};
PairedTimes TimesByTurns(int32_t count, const std::function<double()>& first,
                         const std::function<double()>& second) {
  PairedTimes times;
  for (int32_t done = 0; done < count; done += kTurn) {
    const int32_t turn = std::min(kTurn, count - done);
    for (const double time : Times(turn, first)) times.first_us.push_back(time);
    for (const double time : Times(turn, second)) {
      times.second_us.push_back(time);
    }
  }
  return times;
}

Outcome DecodeStep(int32_t num_running, int32_t divisor) {
  const int32_t count = kNumSteps / divisor;
  DecodeWorkload workload(
      {.num_running = num_running / divisor, .max_steps = count});
  return StepsOutcome(Times(count, [&] { return workload.Step(); }));
}

// Five positions and three tokens a sequence.
Outcome DraftStep(int32_t num_running, int32_t divisor) {
  const int32_t count = kNumSteps / divisor;
  DecodeWorkload workload({.num_running = num_running / divisor,
                           .num_drafts = 4,
                           .max_steps = count});
  return StepsOutcome(Times(count, [&] { return workload.Step(); }));
}

// The ratio is to steps of a plain model and requests without an eviction.
Outcome DecodeStepLike(DecodeWorkload::Setting setting, int32_t divisor) {
  const int32_t count = kNumSteps / divisor;
  setting.num_running /= divisor;
  setting.max_steps = count;
  DecodeWorkload plain(
      {.num_running = setting.num_running, .max_steps = count});
  DecodeWorkload other(setting);
  PairedTimes times = TimesByTurns(
      count, [&] { return plain.Step(); }, [&] { return other.Step(); });
  const double ratio =
      PercentileOf(times.second_us, 50) / PercentileOf(times.first_us, 50);
  Outcome outcome = StepsOutcome(std::move(times.second_us));
  outcome.measures.emplace_back("ratio", ratio);
  return outcome;
}

Measures PercentilesAndSlowest(const std::vector<double>& times_us) {
  Measures measures = Percentiles(times_us);
  measures.emplace_back("slowest_us", std::ranges::max(times_us));
  return measures;
}

double StepAndRefill(WaitingWorkload* workload) {
  const double time_us = workload->Step();
  workload->Refill();
  return time_us;
}

Outcome WaitingStep(int32_t num_waiting, int32_t divisor) {
  WaitingWorkload workload({.num_waiting = num_waiting / divisor});
  return {PercentilesAndSlowest(
      Times(kNumSteps / divisor, [&] { return StepAndRefill(&workload); }))};
}

// The ratio is that of the slowest steps, to those with 100 waiting.
Outcome ManyWaitingStep(WaitingWorkload::Setting setting, int32_t divisor) {
  setting.num_waiting = 100 / divisor;
  WaitingWorkload few(setting);
  setting.num_waiting = 10000 / divisor;
  WaitingWorkload many(setting);
  const PairedTimes times = TimesByTurns(
      kNumSteps / divisor, [&] { return StepAndRefill(&few); },
      [&] { return StepAndRefill(&many); });
  Measures measures = PercentilesAndSlowest(times.second_us);
  measures.emplace_back("p50_ratio", PercentileOf(times.second_us, 50) /
                                         PercentileOf(times.first_us, 50));
  measures.emplace_back("ratio", std::ranges::max(times.second_us) /
                                     std::ranges::max(times.first_us));
  return {std::move(measures)};
}

Outcome AllocateAndFree(int32_t divisor) {
  const int32_t num_blocks = kNumPoolBlocks / divisor;
  AllocateWorkload workload(num_blocks);
  return {
      PercentilesAndEach(Times(kNumRepeats / divisor,
                               [&] { return TimeOf([&] { workload.Run(); }); }),
                         num_blocks)};
}

Outcome MatchPrefix(int32_t divisor) {
  MatchWorkload workload(kLongPromptTokens / divisor);
  return {
      PercentilesAndEach(Times(kNumRepeats / divisor,
                               [&] { return TimeOf([&] { workload.Run(); }); }),
                         workload.num_blocks())};
}

// Times a workload that is prepared anew for every run.
template <typename Workload>
std::vector<double> TimesOf(Workload* workload, int32_t count) {
  return Times(count, [&] {
    workload->Prepare();
    const double time_us = TimeOf([&] { workload->Run(); });
    workload->Finish();
    return time_us;
  });
}

Outcome CommitEviction(EvictionWorkload::Setting setting, int32_t divisor) {
  setting.num_tokens = kLongPromptTokens / divisor;
  EvictionWorkload workload(setting);
  return {Percentiles(TimesOf(&workload, kNumRepeats / divisor))};
}

// The same with all that the scheduler does about it.
Outcome EvictionStep(EvictionStepWorkload::Setting setting, int32_t divisor) {
  setting.num_tokens = kLongPromptTokens / divisor;
  EvictionStepWorkload workload(setting);
  return {Percentiles(
      Times(kNumRepeats / divisor, [&] { return workload.Step(); }))};
}

// The ratio is to a pool of an eighth of the size, by turns: what is reclaimed
// is found in no time, but in memory that the caches do not have.
Outcome Reclaim(int32_t divisor) {
  const int32_t num_blocks = kNumPoolBlocks / divisor;
  ReclaimWorkload small(std::max(num_blocks / 8, ReclaimWorkload::kNumTaken));
  ReclaimWorkload large(num_blocks);
  PairedTimes times;
  for (int32_t i = 0; i < kNumRepeats / divisor; ++i) {
    times.first_us.push_back(TimesOf(&small, 1).front());
    times.second_us.push_back(TimesOf(&large, 1).front());
  }
  Measures measures =
      PercentilesAndEach(times.second_us, ReclaimWorkload::kNumTaken);
  measures.emplace_back("ratio", PercentileOf(times.second_us, 50) /
                                     PercentileOf(times.first_us, 50));
  return {std::move(measures)};
}

// Arithmetic that touches no memory and calls nothing: its tail is what the
// machine's own interrupts cost a step of that length.
Outcome Spin(int32_t divisor) {
  constexpr int32_t kMicroseconds = 20;
  volatile uint32_t value = 1;
  const auto spin = [&value](int64_t count) {
    return TimeOf([&] {
      for (int64_t i = 0; i < count; ++i) value = value * 3 + 1;
    });
  };
  constexpr int64_t kTrial = 1 << 20;
  const auto count =
      static_cast<int64_t>(kTrial * (kMicroseconds / spin(kTrial)));
  return StepsOutcome(Times(kNumSteps / divisor, [&] { return spin(count); }));
}

Outcome Metadata(int32_t divisor) {
  MetadataSetting setting;
  setting.num_blocks /= divisor;
  setting.num_tokens /= divisor;
  const MetadataBytes plain = MeasureMetadata(setting);
  setting.with_regions = true;
  const MetadataBytes regions = MeasureMetadata(setting);
  return {{{"bytes_per_block", plain.per_block},
           {"pool_fraction", plain.pool_fraction},
           {"bytes_per_block_with_regions", regions.per_block},
           {"pool_fraction_with_regions", regions.pool_fraction}}};
}

}  // namespace

// The most that the project promises (README.md).
const std::map<std::string, double>& Limits() {
  static const auto& limits = *new std::map<std::string, double>{
      {"decode_step_256.p50_us", 50},
      {"decode_step_256.p99_9_over_p50", 3},
      {"decode_step_256.same_step_p99_9_over_p50", 3},
      {"decode_step_1536.p50_us", 300},
      {"decode_step_1536.p99_9_over_p50", 3},
      {"decode_step_1536.same_step_p99_9_over_p50", 3},
      {"decode_step_256_evictable_after_prefill.ratio", 1.1},
      {"decode_step_256_evictable_every_chunk.ratio", 1.1},
      {"decode_step_256_evictable_decode.ratio", 1.1},
      {"decode_step_256_evictable_pressure.ratio", 1.1},
      {"decode_step_256_heads.ratio", 1.1},
      {"decode_step_256_windows.ratio", 1.37},
      {"waiting_10000.p50_ratio", 2},
      {"waiting_10000.ratio", 2},
      {"waiting_10000_priority.p50_ratio", 2},
      {"waiting_10000_priority.ratio", 2},
      {"waiting_10000_prefix.p50_ratio", 2},
      {"waiting_10000_prefix.ratio", 2},
      {"waiting_10000_fair_share.p50_ratio", 2},
      {"waiting_10000_fair_share.ratio", 2},
      {"waiting_10000_quotas.p50_ratio", 2},
      {"waiting_10000_quotas.ratio", 2},
      {"allocate_free.ns_per_block", 10},
      {"reclaim.ratio", 4},
      {"prefix_match_32k.ns_per_block", 100},
      {"commit_eviction.p50_us", 100},
      {"commit_eviction_cached.p50_us", 100},
      {"commit_eviction_published.p50_us", 100},
      {"commit_eviction_own_blocks.p50_us", 100},
      {"commit_eviction_in_place.p50_us", 100},
      {"eviction_step.p50_us", 100},
      {"eviction_step_cached.p50_us", 100},
      {"eviction_step_published.p50_us", 100},
      {"eviction_step_own_blocks.p50_us", 100},
      {"metadata.pool_fraction", 0.005},
      {"metadata.pool_fraction_with_regions", 0.005},
  };
  return limits;
}

double TailOfMedians(std::span<const Outcome> runs) {
  std::vector<double> medians;
  for (size_t step = 0; step < runs.front().steps_us.size(); ++step) {
    std::vector<double> times_us;
    for (const Outcome& run : runs) times_us.push_back(run.steps_us[step]);
    medians.push_back(PercentileOf(std::move(times_us), 50));
  }
  std::ranges::sort(medians);
  return Percentile(medians, 99.9) / Percentile(medians, 50);
}

std::vector<Benchmark> Benchmarks() {
  std::vector<Benchmark> benchmarks;
  const auto add = [&](std::string name, auto run, auto setting) {
    benchmarks.push_back({std::move(name), [run, setting](int32_t divisor) {
                            return run(setting, divisor);
                          }});
  };
  using Decode = DecodeWorkload::Setting;
  using Waiting = WaitingWorkload::Setting;
  using Eviction = EvictionWorkload::Setting;
  add("decode_step_256", DecodeStep, 256);
  add("decode_step_1536", DecodeStep, 1536);
  for (const auto& [name, mode] :
       {std::pair("after_prefill", EvictionMode::kAfterPrefill),
        std::pair("every_chunk", EvictionMode::kEveryChunk),
        std::pair("decode", EvictionMode::kDecode),
        std::pair("pressure", EvictionMode::kPressure)}) {
    add(absl::StrCat("decode_step_256_evictable_", name), DecodeStepLike,
        Decode{.num_running = 256, .eviction = mode});
  }
  add("decode_step_256_windows", DecodeStepLike,
      Decode{.num_running = 256, .num_window_groups = 1});
  add("decode_step_256_drafts", DraftStep, 256);
  // 5,120 heads instead of 256: nothing is done per head.
  add("decode_step_256_heads", DecodeStepLike,
      Decode{.num_running = 256, .num_layers = 80, .num_heads = 64});
  benchmarks.push_back({"spin_20us", Spin});
  add("waiting_100", WaitingStep, 100);
  add("waiting_10000", ManyWaitingStep, Waiting{});
  add("waiting_10000_priority", ManyWaitingStep,
      Waiting{.policy = SchedulingPolicy::kPriority});
  add("waiting_10000_prefix", ManyWaitingStep,
      Waiting{.policy = SchedulingPolicy::kPrefix});
  add("waiting_10000_fair_share", ManyWaitingStep, Waiting{.fair_share = true});
  // Every tenant runs one at a time, and is passed meanwhile.
  add("waiting_10000_quotas", ManyWaitingStep,
      Waiting{.fair_share = true, .num_tenants = 300, .max_blocks = 26});
  benchmarks.push_back({"allocate_free", AllocateAndFree});
  benchmarks.push_back({"reclaim", Reclaim});
  benchmarks.push_back({"prefix_match_32k", MatchPrefix});
  add("commit_eviction", CommitEviction, Eviction{});
  add("commit_eviction_cached", CommitEviction, Eviction{.cached = true});
  add("commit_eviction_published", CommitEviction,
      Eviction{.cached = true, .published = true});
  add("commit_eviction_own_blocks", CommitEviction, Eviction{.in_place = true});
  add("commit_eviction_in_place", CommitEviction,
      Eviction{.again_in_place = true});
  using Step = EvictionStepWorkload::Setting;
  add("eviction_step", EvictionStep, Step{});
  add("eviction_step_cached", EvictionStep, Step{.prefix_caching = true});
  add("eviction_step_published", EvictionStep,
      Step{.prefix_caching = true, .share_prefix = true});
  add("eviction_step_own_blocks", EvictionStep,
      Step{.compaction = CompactionPreference::kInPlace});
  benchmarks.push_back({"metadata", Metadata});
  return benchmarks;
}

}  // namespace blockmgr
