// Random requests that are evicted from in windows too, on random hybrid models
// and tiny pools, some of which share what is left: every plan is one the
// engine's tables accept, every request ends with all its tokens, and
// everything is free again.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "engine/reference/sim_engine.h"
#include "scheduler/scheduler.h"
#include "tests/testing/case_count.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr uint64_t kNumSeeds = kBrief ? 100 : 400;

// What a group of seeds switches on.
struct Faults {
  bool refusals = false;  // orders that the engine does not carry out
  bool losses = false;    // of blocks, and of the engine
};

struct Tally {
  int64_t num_window_orders = 0;
  int64_t num_window_commits = 0;
  int64_t num_refused = 0;
  int64_t num_again = 0;           // orders of a group that has a region
  int64_t num_window_regions = 0;  // of others, that sequences begin with
  uint64_t num_preemptions = 0;
  uint64_t num_swap_ins = 0;
  uint64_t num_cached_tokens = 0;
  uint64_t num_cut_requests = 0;
};

class Swarm {
 public:
  Swarm(uint64_t seed, const Faults& faults, Tally* tally)
      : random_(seed),
        faults_(faults),
        model_(RandomModel()),
        layout_(MakeLayout(model_, Between(10, 50) * (1 + CountWindows()))),
        options_(RandomOptions()),
        shared_(RandomSharing()),
        scheduler_(Scheduler::Create(layout_, options_).value()),
        engine_(layout_, model_, seed, options_.engine.num_host_blocks),
        tally_(tally) {}

  void Run() {
    int32_t to_submit = Between(2, 14);
    // Every round of steps in flight, the oldest request goes on.
    int32_t num_ticks = 20'000;
    while ((to_submit > 0 || scheduler_->has_unfinished_requests()) &&
           num_ticks-- > 0) {
      if (to_submit > 0 && OneIn(4)) {
        --to_submit;
        Submit();
      } else if (faults_.losses && OneIn(200)) {
        LoseEngine();
      } else if (in_flight_.empty() || OneIn(2)) {
        Issue();
      } else {
        Answer();
      }
      scheduler_->CheckInvariants();
      if (::testing::Test::HasFailure()) return;
    }
    while (!in_flight_.empty()) Answer();
    CheckQuiescent();
  }

 private:
  struct Step {
    StepPlan plan;
    StepResult result;
  };
  struct Expected {
    int32_t max_tokens = 0;
    int32_t num_tokens = 0;
    bool is_done = false;
  };

  int32_t Between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool OneIn(int32_t n) { return Between(1, n) == 1; }
  template <typename T>
  T Pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(
        Between(0, static_cast<int32_t>(values.size()) - 1))];
  }
  int32_t CountWindows() const {
    return static_cast<int32_t>(model_.group_windows.size());
  }

  SimModel RandomModel() {
    SimModel model;
    model.num_layers = Between(1, 2);
    model.num_heads = Pick<int32_t>({2, 4});
    model.num_q_heads = model.num_heads;
    model.head_dim = 8;
    model.page_size = Pick<int32_t>({2, 16});
    model.num_shards = Between(1, 2);
    for (int32_t i = Between(1, 3); i > 0; --i) {
      model.group_windows.push_back(
          Between(model.page_size, 9 * model.page_size));
    }
    model.num_drafts = OneIn(3) ? Between(1, 4) : 0;
    return model;
  }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options;
    options.max_num_seqs = Between(1, 6);
    options.max_num_batched_tokens = Between(8, 96);
    options.max_model_len = 1024;
    options.max_steps_in_flight = Between(1, 4);
    options.query_window = Between(0, 6);
    options.engine.supports_window_evictions = true;
    options.watermark = Pick<double>({0.0, 0.05});
    options.enable_prefix_caching = !OneIn(3);
    options.compaction = OneIn(2) ? CompactionPreference::kInPlace
                                  : CompactionPreference::kFreshFirst;
    options.admission = Pick<AdmissionPolicy>(
        {AdmissionPolicy::kWatermark, AdmissionPolicy::kGuaranteed,
         AdmissionPolicy::kMaxUtilization});
    options.engine.num_host_blocks = Pick<int32_t>({0, 200});
    options.num_speculative_tokens = model_.num_drafts;
    return options;
  }

  RequestEviction RandomEviction() {
    RequestEviction eviction;
    eviction.mode =
        Pick<EvictionMode>({EvictionMode::kAfterPrefill,
                            EvictionMode::kEveryChunk, EvictionMode::kDecode});
    eviction.policy.scorer.kind = Pick<ScorerKind>(
        {ScorerKind::kStreaming, ScorerKind::kSnapKv, ScorerKind::kKeyDiff});
    eviction.policy.scorer.window = Between(1, 5);
    eviction.policy.scorer.sinks = Between(0, 3);
    eviction.policy.budget.kind =
        OneIn(2) ? BudgetKind::kUniform : BudgetKind::kAdaKv;
    eviction.policy.rounding = OneIn(2) ? Rounding::kPage : Rounding::kToken;
    if (OneIn(3)) eviction.policy.protect.recent = Between(0, 4);
    if (OneIn(2)) {
      eviction.target.ratio = {Between(1, 9), 10};
    } else {
      eviction.target.kind = EvictionTarget::Kind::kTokens;
      eviction.target.tokens = Between(1, 3 * model_.page_size);
    }
    if (!OneIn(4)) eviction.target.window_keep_ratio = {Between(1, 8), 10};
    if (eviction.mode != EvictionMode::kAfterPrefill) {
      eviction.compress_every = model_.page_size * Between(8, 12);
    }
    return eviction;
  }

  // One for all sharers, so that they meet: down to as many tokens each,
  // however long their prompts.
  RequestEviction RandomSharing() {
    RequestEviction eviction = RandomEviction();
    eviction.target.kind = EvictionTarget::Kind::kTokens;
    eviction.target.tokens = Between(1, 2 * model_.page_size);
    eviction.target.window_keep_ratio = {Between(1, 8), 10};
    eviction.share_prefix = true;
    eviction.share_multiple = model_.page_size * Pick<int32_t>({0, 3, 8});
    return eviction;
  }

  void Submit() {
    Request request;
    request.id = absl::StrCat("r", ++num_requests_);
    request.prompt.resize(
        static_cast<size_t>(Between(1, OneIn(2) ? 30 * model_.page_size : 40)));
    const bool shares = OneIn(2);
    const int32_t oddity = shares ? 30 * model_.page_size : 40;
    for (int32_t& token : request.prompt) token = OneIn(oddity) ? 1 : 0;
    request.max_tokens = Between(1, OneIn(3) ? 12 * model_.page_size : 20);
    if (shares) {
      request.eviction = shared_;
    } else if (!OneIn(5)) {
      request.eviction = RandomEviction();
    }
    const int32_t max_tokens = request.max_tokens;
    const absl::StatusOr<RequestId> id = scheduler_->Submit(std::move(request));
    if (id.ok()) {
      expected_[*id] = {.max_tokens = max_tokens};
    } else {
      // More than the pool, or an observation window longer than the prompt.
      EXPECT_TRUE(absl::IsResourceExhausted(id.status()) ||
                  absl::IsInvalidArgument(id.status()))
          << id.status();
    }
  }

  // Whether what the order is for was evicted from before.
  bool HasRegion(const StepPlan& plan, const EvictionOrder& order) const {
    const auto starts = [&](const SequenceStart& start) {
      return start.slot == order.slot;
    };
    return std::ranges::none_of(plan.starts, starts) &&
           engine_.tables()
                   .row(order.slot)
                   .groups[static_cast<size_t>(order.group)]
                   .region.cut > 0;
  }

  void CountRegions(const StepPlan& plan) {
    for (const SequenceStart& start : plan.starts) {
      // Who comes back from the host tier brings its own.
      if (start.region == kNoRegion || start.swap != kNoSwap) continue;
      const auto& groups = engine_.tables().row(start.slot).groups;
      tally_->num_window_regions += std::count_if(
          groups.begin() + 1, groups.end(), [&](const GroupTable& group) {
            // And not one that this step has made.
            return group.region.cut > 0 &&
                   group.region.length <= start.num_cached_tokens;
          });
    }
  }

  void Issue() {
    Step step;
    if (!scheduler_->Schedule(&step.plan)) return;
    StepPlan carried_out = step.plan;
    for (EvictionOrder& order : carried_out.evictions) {
      if (order.group > 0) {
        ++tally_->num_window_orders;
        if (HasRegion(step.plan, order)) ++tally_->num_again;
      }
      // Of another length than the sequence has: it refuses that.
      if (faults_.refusals && OneIn(4)) ++order.length;
    }
    const absl::StatusOr<double> seconds =
        engine_.TryRun(carried_out, &step.result);
    ASSERT_OK(seconds);
    CountRegions(step.plan);
    for (size_t i = 0; i < step.plan.evictions.size(); ++i) {
      const bool is_ok = step.result.evictions[i].ok;
      EXPECT_TRUE(is_ok || faults_.refusals) << step.result.evictions[i].error;
      if (!is_ok) ++tally_->num_refused;
      if (is_ok && step.plan.evictions[i].group > 0) {
        ++tally_->num_window_commits;
      }
    }
    if (faults_.losses && OneIn(30)) {
      step.result.lost_blocks = {BlockId{Between(1, layout_.num_blocks - 1)}};
    }
    in_flight_.push_back(std::move(step));
  }

  void Answer() {
    ASSERT_OK(scheduler_->Update(in_flight_.front().result, &effects_));
    in_flight_.pop_front();
    TakeEffects();
  }

  void LoseEngine() {
    scheduler_->LoseEngine(&effects_);
    engine_.Reset();
    in_flight_.clear();
    TakeEffects();
  }

  void TakeEffects() {
    for (const TokenEffect& effect : effects_.tokens) {
      ++expected_.at(effect.request).num_tokens;
    }
    for (const FinishEffect& effect : effects_.finished) {
      Expected& expected = expected_.at(effect.request);
      expected.is_done = true;
      // What its orders cannot make of it, it does not become.
      if (faults_.refusals && effect.reason == FinishReason::kFailed) {
        expected.max_tokens = expected.num_tokens;
        continue;
      }
      EXPECT_EQ(effect.reason, FinishReason::kLength) << effect.status;
    }
    for (const EvictionEffect& effect : effects_.evictions) {
      EXPECT_TRUE(effect.status.ok() || faults_.refusals) << effect.status;
    }
    effects_.Clear();
  }

  void CheckQuiescent() {
    for (const auto& [id, expected] : expected_) {
      EXPECT_TRUE(expected.is_done) << "request " << Index(id);
      EXPECT_EQ(expected.num_tokens, expected.max_tokens);
    }
    EXPECT_EQ(scheduler_->stats().blocks.used_blocks, 0);
    EXPECT_EQ(scheduler_->ResetPrefixCache().num_in_use, 0);
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.blocks.free_blocks, stats.blocks.num_blocks - 1);
    if (options_.admission == AdmissionPolicy::kGuaranteed &&
        stats.num_refused_evictions == 0) {
      EXPECT_LE(stats.num_preemptions, stats.num_cut_requests);
    }
    tally_->num_preemptions += stats.num_preemptions;
    tally_->num_swap_ins += stats.num_swap_ins;
    tally_->num_cached_tokens += stats.num_cached_tokens;
    tally_->num_cut_requests += stats.num_cut_requests;
  }

  std::mt19937_64 random_;
  const Faults faults_;
  const SimModel model_;
  const ModelLayout layout_;
  const SchedulerOptions options_;
  const RequestEviction shared_;
  const std::unique_ptr<Scheduler> scheduler_;
  SimEngine engine_;
  Tally* const tally_;
  std::deque<Step> in_flight_;
  std::map<RequestId, Expected> expected_;
  Effects effects_;
  int32_t num_requests_ = 0;
};

Tally RunSeeds(uint64_t first_seed, const Faults& faults) {
  Tally tally;
  for (uint64_t seed = first_seed; seed < first_seed + kNumSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Swarm(seed, faults, &tally).Run();
    if (::testing::Test::HasFailure()) break;
  }
  // Or this shows little.
  EXPECT_GE(tally.num_window_commits, static_cast<int64_t>(kNumSeeds));
  EXPECT_GE(tally.num_again, static_cast<int64_t>(kNumSeeds / 10));
  EXPECT_GE(tally.num_preemptions, kNumSeeds / 20);
  EXPECT_GE(tally.num_swap_ins, kNumSeeds / 100);
  EXPECT_GE(tally.num_cached_tokens, kNumSeeds);
  EXPECT_GE(tally.num_window_regions, static_cast<int64_t>(kNumSeeds / 20));
  return tally;
}

TEST(WindowRegionsSwarmTest, EveryRequestEnds) {
  const Tally tally = RunSeeds(0, {});
  EXPECT_EQ(tally.num_window_commits, tally.num_window_orders);
}

TEST(WindowRegionsSwarmTest, EveryRequestEndsThoughOrdersAreRefused) {
  const Tally tally = RunSeeds(10'000, {.refusals = true});
  EXPECT_GE(tally.num_refused, static_cast<int64_t>(kNumSeeds / 10));
}

TEST(WindowRegionsSwarmTest, EveryRequestEndsThoughBlocksAndEnginesAreLost) {
  const Tally tally = RunSeeds(20'000, {.losses = true});
  EXPECT_GE(tally.num_cut_requests, kNumSeeds / 10);
}

}  // namespace
}  // namespace blockmgr
