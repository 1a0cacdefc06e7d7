// Preempted at random steps, by urgent requests that come and take the pool:
// every output, and every logit to the last bit, is that of a run of one at a
// time, in which nobody is preempted, no prefix is shared, nor by forks, no
// token is drafted, no step is issued ahead and survivors are copied to fresh
// blocks.
//
// Scheduler and engine are called directly, so that there is time for many
// seeds. A seed draws the model (some with windows, some in two shards), the
// jobs, how they are scheduled and when the urgent requests come.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"
#include "tests/testing/case_count.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

constexpr int32_t kPageSize = 8;
constexpr int32_t kNumJobs = 8;
constexpr int32_t kNumForks = 4;
constexpr int32_t kNumUrgent = 8;
constexpr int32_t kPlentyOfBlocks = 1000;
constexpr int32_t kPrefixTokens = 40;

// One of first, first + 1, ..., last.
int32_t Draw(int32_t first, int32_t last, std::mt19937_64* random) {
  return first + static_cast<int32_t>((*random)() %
                                      static_cast<uint64_t>(last - first + 1));
}

// A request, and the turn of a run that it comes before.
struct TimedJob {
  int32_t turn = 0;
  Request request;
};

// A request that goes on from the first outputs of a job, as soon as that has
// them; with another token in place of the last one, or as the job does.
struct Fork {
  size_t job = 0;
  int32_t num_outputs = 0;
  int32_t other = 0;  // is added to that token
  Request request;    // without its prompt
};

struct Work {
  std::vector<TimedJob> jobs;  // in order of their turns
  std::vector<Fork> forks;
};

struct Outcome {
  std::map<std::string, std::vector<int32_t>> outputs;
  // By request, then by position. A draft that was not accepted leaves its
  // logits until the right token is computed.
  std::map<std::string, std::map<int32_t, std::vector<float>>> logits;
  SchedulerStats stats;
  int32_t num_turns = 0;
  int32_t peak_blocks = 0;
  // Of those that were preempted.
  uint64_t num_preempted = 0;
  uint64_t num_in_prefill = 0;
  uint64_t num_compressed = 0;
  // Of those that began as forks, on what is left of a compression.
  uint64_t num_over_regions = 0;
};

// One run. A turn issues a step; or answers one where none can be issued.
class DirectLine {
 public:
  explicit DirectLine(const LineOptions& options)
      : engine_(MakeEngine(options, options.num_blocks,
                           options.scheduler.max_num_seqs)) {
    SchedulerOptions scheduler_options = options.scheduler;
    scheduler_options.engine.num_host_blocks = options.num_host_blocks;
    scheduler_options.engine.num_scorer_states = options.num_scorer_states;
    scheduler_options.engine.query_stats = Fingerprints(options.query_stats);
    auto scheduler =
        Scheduler::Create(engine_->tables().layout(), scheduler_options);
    EXPECT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    TinyObserver observer;
    observer.on_logits = [this](SequenceSlot slot, int32_t position,
                                std::span<const float> logits) {
      const auto found = live_.find(engine_->tables().row(slot).request);
      if (found == live_.end()) return;  // cancelled
      outcome_.logits[found->second.id][position].assign(logits.begin(),
                                                         logits.end());
    };
    engine_->set_observer(std::move(observer));
  }

  const ModelLayout& layout() const { return scheduler_->layout(); }

  Outcome Serve(const Work& work, const std::vector<Request>& urgent,
                std::mt19937_64* random) {
    constexpr int32_t kMaxTurns = 20'000;  // only a hung run has so many
    auto job = work.jobs.begin();
    while (!HasFailure() && (job != work.jobs.end() || !live_.empty())) {
      for (; job != work.jobs.end() && job->turn <= outcome_.num_turns; ++job) {
        Submit(job->request);
        outcome_.outputs[job->request.id] = {};
      }
      SubmitForks(work);
      ComeOrGo(urgent, random);
      if (!Issue() && !plans_.empty()) Answer();
      scheduler_->CheckInvariants();
      EXPECT_LT(++outcome_.num_turns, kMaxTurns);
    }
    while (!HasFailure() && !plans_.empty()) Answer();
    outcome_.stats = scheduler_->stats();
    EXPECT_EQ(outcome_.num_preempted, outcome_.stats.num_preemptions);
    EXPECT_EQ(outcome_.stats.blocks.used_blocks, 0);
    EXPECT_EQ(outcome_.stats.used_host_blocks, 0);
    return std::move(outcome_);
  }

 private:
  static bool HasFailure() { return ::testing::Test::HasFailure(); }

  RequestId Submit(const Request& request) {
    const auto id = scheduler_->Submit(request);
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) return RequestId{0};
    live_[*id] = request;
    return *id;
  }

  void SubmitForks(const Work& work) {
    for (const Fork& fork : work.forks) {
      const Request& parent = work.jobs[fork.job].request;
      const auto outputs = outcome_.outputs.find(parent.id);
      if (outputs == outcome_.outputs.end() ||
          std::ssize(outputs->second) < fork.num_outputs ||
          outcome_.outputs.contains(fork.request.id)) {
        continue;
      }
      Request request = fork.request;
      request.fork_of = parent.id;
      request.prompt = parent.prompt;
      request.prompt.insert(request.prompt.end(), outputs->second.begin(),
                            outputs->second.begin() + fork.num_outputs);
      request.prompt.back() =
          (request.prompt.back() + fork.other) % kVocabulary;
      Submit(request);
      outcome_.outputs[request.id] = {};
    }
  }

  // An urgent request may come when none is there. It may be cancelled when it
  // has driven somebody out, who can then be back before the steps in flight
  // are over.
  void ComeOrGo(const std::vector<Request>& urgent, std::mt19937_64* random) {
    const uint64_t num_now = scheduler_->stats().num_preemptions;
    const bool preempted = num_now > std::exchange(num_seen_, num_now);
    if (!live_.contains(urgent_)) {
      if (num_urgent_ == urgent.size() || Draw(0, 4, random) > 0) return;
      urgent_ = Submit(urgent[num_urgent_++]);
    } else if (preempted && Draw(0, 1, random) == 0) {
      live_.erase(urgent_);
      Effects effects;
      EXPECT_TRUE(scheduler_->Cancel(urgent_, &effects).ok());
    }
  }

  bool Issue() {
    StepPlan plan;
    if (!scheduler_->Schedule(&plan)) return false;
    plans_.push_back(std::move(plan));
    outcome_.peak_blocks =
        std::max(outcome_.peak_blocks, scheduler_->num_used_blocks());
    return true;
  }

  void Answer() {
    CountPreemptions(plans_.front());
    StepResult result;
    const absl::Status run = engine_->Run(plans_.front(), &result);
    ASSERT_TRUE(run.ok()) << run;
    for (const SequenceStart& start : plans_.front().starts) {
      const bool is_fork =
          start.source != kNoSequenceSlot && start.source != start.slot;
      if (is_fork &&
          engine_->tables().row(start.slot).groups[0].region.cut > 0) {
        ++outcome_.num_over_regions;
      }
    }
    plans_.pop_front();
    Effects effects;
    const absl::Status update = scheduler_->Update(result, &effects);
    ASSERT_TRUE(update.ok()) << update;
    for (const TokenEffect& effect : effects.tokens) {
      std::vector<int32_t>& output =
          outcome_.outputs[live_.at(effect.request).id];
      EXPECT_EQ(effect.index, std::ssize(output));
      output.push_back(effect.token);
    }
    for (const FinishEffect& effect : effects.finished) {
      EXPECT_EQ(effect.reason, FinishReason::kLength) << effect.status;
      live_.erase(effect.request);
    }
    for (const EvictionEffect& effect : effects.evictions) {
      EXPECT_TRUE(effect.status.ok()) << effect.status;
    }
  }

  // Who is to leave its slot and has not ended is preempted.
  void CountPreemptions(const StepPlan& plan) {
    for (const SequenceSlot slot : plan.released) {
      const SequenceTable& row = engine_->tables().row(slot);
      const auto found = live_.find(row.request);
      if (found == live_.end()) continue;
      ++outcome_.num_preempted;
      if (row.num_computed < std::ssize(found->second.prompt)) {
        ++outcome_.num_in_prefill;
      }
      if (row.groups[0].region.cut > 0) ++outcome_.num_compressed;
    }
  }

  std::unique_ptr<TinyEngine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<StepPlan> plans_;  // in flight
  std::map<RequestId, Request> live_;
  size_t num_urgent_ = 0;  // that have come
  RequestId urgent_{0};    // the last of them
  uint64_t num_seen_ = 0;  // preemptions
  Outcome outcome_;
};

// What the evictions of one run have in common.
struct Evictions {
  EvictionMode mode = EvictionMode::kNone;
  BudgetTable table;
  bool shared_by_table = false;  // those of sharers
  int32_t shared_kind = 0;       // of kEvictions
};

constexpr const char* kEvictions[] = {
    "snapkv(window=8) | adakv(alpha=0.2) | topk", "keydiff | adakv",
    "expected_attention(n_future=16)", "h2o | adakv",
    "expected_attention(n_future=16,stats=measured)"};

// Sharers are all compressed where the tokens that they have in common end, so
// that it does not matter whose compressed prefix one of them finds.
RequestEviction DrawEviction(const Evictions& evictions, bool shares,
                             std::mt19937_64* random) {
  RequestEviction eviction;
  if (evictions.mode == EvictionMode::kNone) return eviction;
  eviction.mode = evictions.mode;
  const int32_t kind = shares ? evictions.shared_kind : Draw(0, 5, random);
  eviction.policy = *ParsePolicy(kEvictions[kind % 5]);
  if (kind == 5 || (shares && evictions.shared_by_table)) {
    UseTable(evictions.table, &eviction);
  }
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = shares ? 16 : Draw(10, 24, random);
  if (evictions.mode != EvictionMode::kAfterPrefill) {
    eviction.compress_every = kPageSize * (shares ? 1 : Draw(1, 3, random));
  }
  eviction.share_prefix = shares;
  if (shares) eviction.share_multiple = kPrefixTokens;
  return eviction;
}

// Two of five begin alike, and share that compressed where there is eviction;
// two begin like some others, and share that as it is.
std::vector<TimedJob> DrawJobs(EvictionMode mode, const ModelLayout& layout,
                               std::mt19937_64* random) {
  const Evictions evictions = {
      .mode = mode,
      .table = SkewedTable(layout, static_cast<uint32_t>((*random)())),
      .shared_by_table = Draw(0, 1, random) > 0,
      .shared_kind = 4 * Draw(0, 1, random)};
  std::vector<std::vector<int32_t>> prefixes(4);
  for (int32_t i = 0; i < 3; ++i) {
    prefixes[i] = RandomTokens(kPrefixTokens, random);
  }
  std::vector<TimedJob> jobs(kNumJobs);
  int32_t turn = 0;
  for (TimedJob& job : jobs) {
    Request& request = job.request;
    const int32_t prefix = std::max(0, Draw(-1, 3, random));
    const bool shares = prefix == 0;
    request.prompt = prefixes[prefix];
    const int32_t least = prefix == 3 ? 20 : 1;
    const int32_t most = prefix == 3 ? 120 : shares ? kPrefixTokens : 80;
    const std::vector<int32_t> own =
        RandomTokens(Draw(least, most, random), random);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.id = absl::StrCat("job", &job - jobs.data());
    request.max_tokens = Draw(8, 24, random);
    request.priority = Draw(0, 2, random);
    request.eviction = DrawEviction(evictions, shares, random);
    job.turn = turn;
    turn += Draw(0, 6, random);
  }
  return jobs;
}

// Samples and beams of some of the jobs. A job with drafts has four more
// outputs after a step at most: it has not ended when its forks come.
std::vector<Fork> DrawForks(const std::vector<TimedJob>& jobs,
                            std::mt19937_64* random) {
  std::vector<Fork> forks(kNumForks);
  for (Fork& fork : forks) {
    fork.job = static_cast<size_t>(Draw(0, kNumJobs - 1, random));
    const int32_t most = jobs[fork.job].request.max_tokens - 5;
    if (Draw(0, 2, random) > 0) fork.num_outputs = Draw(1, most, random);
    if (fork.num_outputs > 0) fork.other = Draw(0, 1, random);
    fork.request.id = absl::StrCat("fork", &fork - forks.data());
    fork.request.max_tokens = Draw(4, 16, random);
    fork.request.priority = Draw(0, 2, random);
  }
  return forks;
}

LineOptions FreshOptions(std::mt19937_64* random) {
  static const auto& windows =
      *new std::vector<std::vector<int32_t>>{{}, {}, {}, {20, 0}, {12, 0, 40}};
  const int32_t model = Draw(0, 4, random);
  const uint64_t weights = (*random)();
  LineOptions options{.model = windows[model].empty()
                                   ? SmallModel(weights)
                                   : SmallWindowModel(weights, windows[model]),
                      .num_blocks = kPlentyOfBlocks,
                      .page_size = kPageSize,
                      .scheduler = SmallScheduler(false, 1),
                      .num_scorer_states = 3};
  if (Draw(0, 3, random) == 0) options.num_shards = 2;
  const ModelShape& shape = options.model->shape();
  options.query_stats =
      MeasuredQueryStats(shape.num_layers, shape.num_q_heads, shape.head_dim,
                         static_cast<uint32_t>(weights));
  options.scheduler.policy = SchedulingPolicy::kPriority;
  options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
  return options;
}

// A pool that the jobs hardly fit in, and what should not matter.
LineOptions ContestedOptions(LineOptions options, const Outcome& calm,
                             std::mt19937_64* random) {
  SchedulerOptions& scheduler = options.scheduler;
  // Every job fits alone, with a table for each group of layers.
  const auto least =
      static_cast<int32_t>(24 + 8 * options.model->shape().windows.size());
  options.num_blocks =
      std::max(least, calm.peak_blocks * Draw(60, 100, random) / 100);
  scheduler.max_steps_in_flight = Draw(1, 4, random);
  scheduler.enable_prefix_caching = Draw(0, 4, random) > 0;
  scheduler.reuse_partial_blocks = Draw(0, 1, random) > 0;
  scheduler.long_prefill_token_threshold = 16 * Draw(0, 2, random);
  if (Draw(0, 1, random) > 0) {
    scheduler.chunk_policy = ChunkPolicy::kEqualProgress;
  }
  if (Draw(0, 2, random) == 0) {
    scheduler.compaction = CompactionPreference::kInPlace;
  }
  if (Draw(0, 2, random) == 0) {
    scheduler.num_speculative_tokens = 3;
    options.max_drafts = 4;
  }
  return options;
}

// Each takes most of a pool, as soon as its prompt is computed.
std::vector<Request> DrawUrgent(int32_t num_blocks, std::mt19937_64* random) {
  const int32_t num_tokens = num_blocks * kPageSize;
  std::vector<Request> urgent(kNumUrgent);
  for (Request& request : urgent) {
    request.id = absl::StrCat("urgent", &request - urgent.data());
    request.prompt =
        RandomTokens(Draw(num_tokens / 2, num_tokens * 2 / 3, random), random);
    request.max_tokens = 1;
    request.priority = -1;
  }
  return urgent;
}

void ExpectSame(const Outcome& outcome, const Outcome& fresh) {
  for (const auto& [id, output] : fresh.outputs) {
    EXPECT_EQ(outcome.outputs.at(id), output) << id;
    const auto& logits = outcome.logits.at(id);
    for (const auto& [position, row] : fresh.logits.at(id)) {
      ASSERT_TRUE(logits.contains(position)) << id << " at " << position;
      EXPECT_TRUE(logits.at(position) == row)
          << "other logits of " << id << " at position " << position;
    }
  }
}

template <typename Count>
uint64_t Sum(const std::vector<Outcome>& runs, Count count) {
  uint64_t sum = 0;
  for (const Outcome& run : runs) sum += count(run);
  return sum;
}

// Enough was preempted, in prefill and later, swapped and shared; or equal
// outputs would show nothing.
void ExpectAllWays(const std::vector<Outcome>& runs, bool evicts, bool swaps) {
  const uint64_t num_runs = runs.size();
  const auto in_prefill = Sum(runs, [](auto& x) { return x.num_in_prefill; });
  const auto all = Sum(runs, [](auto& x) { return x.num_preempted; });
  EXPECT_GE(all, 3 * num_runs);
  EXPECT_GE(Sum(runs, [](auto& x) { return x.num_preempted > 0; }),
            num_runs * 4 / 5);
  EXPECT_GE(in_prefill, num_runs);
  EXPECT_GE(all - in_prefill, num_runs);
  const auto swap_ins = Sum(runs, [](auto& x) { return x.stats.num_swap_ins; });
  if (swaps) {
    EXPECT_GE(swap_ins, num_runs);
  }
  EXPECT_GE(Sum(runs, [](auto& x) { return x.stats.num_cached_tokens; }),
            kPageSize * num_runs);
  EXPECT_GT(Sum(runs, [](auto& x) { return x.stats.num_accepted_tokens; }), 0u);
  EXPECT_GE(Sum(runs, [](auto& x) { return x.stats.num_forks; }), num_runs);
  if (!evicts) return;
  EXPECT_GE(Sum(runs, [](auto& x) { return x.num_over_regions; }),
            num_runs / 2);
  EXPECT_GE(Sum(runs, [](auto& x) { return x.num_compressed; }), num_runs);
  EXPECT_GT(Sum(runs, [](auto& x) { return x.stats.num_cached_region_tokens; }),
            0u);
}

struct ModeCase {
  EvictionMode mode;
  const char* name;
  friend void PrintTo(const ModeCase& mode, std::ostream* out) {
    *out << mode.name;
  }
};

class RandomPreemptionsTest : public ::testing::TestWithParam<ModeCase> {};

INSTANTIATE_TEST_SUITE_P(
    Modes, RandomPreemptionsTest,
    ::testing::Values(ModeCase{EvictionMode::kNone, "None"},
                      ModeCase{EvictionMode::kAfterPrefill, "AfterPrefill"},
                      ModeCase{EvictionMode::kEveryChunk, "EveryChunk"},
                      ModeCase{EvictionMode::kDecode, "Decode"}),
    [](const auto& mode) { return mode.param.name; });

TEST_P(RandomPreemptionsTest, OutputsEqualThoseOfARunThatIsNeverPreempted) {
  const EvictionMode mode = GetParam().mode;
  const uint64_t num_seeds = CountCases(SlowCases(50));
  std::map<bool, std::vector<Outcome>> runs;  // by whether they swap
  for (uint64_t seed = 0; seed < num_seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const LineOptions calm_options = FreshOptions(&random);
    LineOptions fresh_options = calm_options;
    fresh_options.scheduler.max_num_seqs = 1;
    DirectLine line(fresh_options);
    Work work;
    work.jobs = DrawJobs(mode, line.layout(), &random);
    work.forks = DrawForks(work.jobs, &random);
    const Outcome fresh = line.Serve(work, {}, &random);
    ASSERT_FALSE(HasFailure());
    ASSERT_EQ(fresh.stats.num_preemptions, 0u);
    ASSERT_EQ(fresh.stats.num_forks, 0u);
    ASSERT_EQ(fresh.outputs.size(), size_t{kNumJobs + kNumForks});
    const Outcome calm = DirectLine(calm_options).Serve(work, {}, &random);
    ASSERT_FALSE(HasFailure());
    ExpectSame(calm, fresh);
    for (const bool swaps : {false, true}) {
      SCOPED_TRACE(swaps ? "swap" : "replay");
      LineOptions options = ContestedOptions(calm_options, calm, &random);
      if (swaps) options.num_host_blocks = Draw(10, 100, &random);
      runs[swaps].push_back(DirectLine(options).Serve(
          work, DrawUrgent(options.num_blocks, &random), &random));
      ASSERT_FALSE(HasFailure());
      ExpectSame(runs[swaps].back(), fresh);
    }
  }
  for (const auto& [swaps, outcomes] : runs) {
    SCOPED_TRACE(swaps ? "swap" : "replay");
    ExpectAllWays(outcomes, mode != EvictionMode::kNone, swaps);
  }
}

}  // namespace
}  // namespace blockmgr
