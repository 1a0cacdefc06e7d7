// Random requests, commands, losses and delays on tiny pools: whatever happens,
// every request ends and outputs what it does alone.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

constexpr uint64_t kSeedsPerGroup = kBrief ? 500 : 3000;
// So few seeds may miss some of what the many see.
constexpr uint64_t kMinReusedTokens = kSeedsPerGroup / (kBrief ? 4 : 1);
constexpr uint64_t kMinPrefixWaits = kSeedsPerGroup / (kBrief ? 50 : 10);

// A failed check aborts; this tells which seed it was.
uint64_t current_seed = 0;

void PrintSeed(int) {
  std::fprintf(stderr, "aborted in seed %llu\n",
               static_cast<unsigned long long>(current_seed));
}

// What a group of seeds switches on.
struct Faults {
  bool evictions = false;  // after_prefill
  bool commands = false;
  bool cancels = false;
  bool losses = false;  // of the engine, and of blocks
  bool refusals = false;
  bool other_choices = false;  // the engine keeps others on replay
  bool windows = false;        // layer groups
};

class Swarm {
 public:
  Swarm(uint64_t seed, const Faults& faults)
      : random_(seed),
        faults_(faults),
        layout_(RandomLayout()),
        options_(RandomOptions()),
        canary_(RandomCanary(seed)),
        driver_(layout_, options_, canary_) {
    has_tenants_ = random_.OneIn(4);
    for (int32_t i = 0; i < 3; ++i) {
      base_prompts_.emplace_back();
      for (int32_t j = 0; j < 80; ++j) {
        base_prompts_.back().push_back(random_.Between(0, 3));
      }
    }
  }

  void Run() {
    int32_t to_submit = random_.Between(2, 9);
    int32_t ticks = random_.Between(20, 150);
    while (driver_.ok() && (to_submit > 0 || --ticks > 0)) {
      if (to_submit > 0 && random_.OneIn(3)) {
        --to_submit;
        Submit();
      } else {
        Tick();
      }
    }
    driver_.Finish();
    // Shared blocks are promised once: who has lost some needs more than that.
    if (driver_.scheduler().options().admission ==
            AdmissionPolicy::kGuaranteed &&
        !faults_.commands && stats().num_refused_evictions == 0) {
      EXPECT_LE(stats().num_preemptions, stats().num_cut_requests);
    }
  }

  SchedulerStats stats() { return driver_.scheduler().stats(); }
  bool ok() const { return driver_.ok() && !testing::Test::HasFailure(); }

 private:
  ModelLayout RandomLayout() {
    ModelLayout layout;
    layout.num_layers = random_.Between(1, 2);
    layout.num_heads = random_.Between(1, 3);
    layout.num_q_heads = layout.num_heads;
    layout.head_dim = 8;
    layout.page_size = random_.Pick<int32_t>({1, 2, 16});
    layout.dtype = DType::kFloat32;
    layout.num_blocks = random_.Between(2, random_.OneIn(4) ? 64 : 12);
    if (!faults_.windows) return layout;
    const auto window = [this, &layout] {
      return random_.Between(layout.page_size, 4 * layout.page_size);
    };
    if (!faults_.evictions && !faults_.commands && random_.OneIn(4)) {
      layout.window = window();
      return layout;
    }
    for (int32_t i = random_.Between(1, 3); i > 0; --i) {
      layout.group_windows.push_back(window());
    }
    layout.num_blocks *= layout.num_groups();
    return layout;
  }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options;
    options.max_num_seqs = random_.Between(1, 8);
    options.max_num_batched_tokens =
        random_.Between(std::max(4, options.max_num_seqs), 64);
    options.max_model_len = 512;
    options.long_prefill_token_threshold =
        random_.OneIn(3) ? random_.Between(1, 20) : 0;
    options.watermark = random_.Pick<double>({0.0, 0.01, 0.1, 0.5});
    options.max_steps_in_flight = random_.Between(1, 4);
    options.query_window = random_.Between(0, 6);
    options.enable_prefix_caching = !random_.OneIn(3);
    options.reuse_partial_blocks = random_.OneIn(2);
    options.compaction = random_.OneIn(2) ? CompactionPreference::kInPlace
                                          : CompactionPreference::kFreshFirst;
    options.policy = random_.Pick<SchedulingPolicy>(
        {SchedulingPolicy::kFcfs, SchedulingPolicy::kFcfs,
         SchedulingPolicy::kPriority, SchedulingPolicy::kPrefix});
    options.prefix_aging = random_.Between(1, 8);
    options.max_bypasses = random_.Between(0, 3);
    options.min_prefix_wait_tokens = random_.Pick<int32_t>({0, 1, 1, 4});
    options.max_prefix_wait_steps = random_.Between(0, 6);
    options.admission = random_.Pick<AdmissionPolicy>(
        {AdmissionPolicy::kWatermark, AdmissionPolicy::kWatermark,
         AdmissionPolicy::kGuaranteed, AdmissionPolicy::kMaxUtilization});
    if (random_.OneIn(3)) options.chunk_policy = ChunkPolicy::kEqualProgress;
    if (options.long_prefill_token_threshold > 0 && random_.OneIn(2)) {
      options.max_long_prefills = random_.Between(1, 2);
    }
    options.num_host_blocks = random_.Pick<int32_t>({0, 0, 3, 100});
    options.fair_share = random_.OneIn(3);
    options.num_speculative_tokens =
        random_.OneIn(2) ? random_.Between(1, 8) : 0;
    options.tenants["b"].weight = 3;
    EXPECT_TRUE(options.Validate().ok());
    return options;
  }

  CanaryOptions RandomCanary(uint64_t seed) {
    return {.seed = seed,
            .vocabulary = random_.OneIn(2) ? 4 : 1000,
            .same_choice_on_replay = !faults_.other_choices,
            .refuse_one_in = faults_.refusals ? 4 : 0,
            .max_drafts = random_.Between(0, 6),
            .wrong_draft_one_in = random_.Between(1, 8)};
  }

  EvictionPolicy RandomPolicy() {
    EvictionPolicy policy;
    policy.scorer.kind =
        random_.OneIn(2) ? ScorerKind::kSnapKv : ScorerKind::kStreaming;
    policy.scorer.window = random_.Between(1, 5);
    policy.scorer.sinks = random_.Between(0, 3);
    policy.budget.kind =
        random_.OneIn(2) ? BudgetKind::kUniform : BudgetKind::kAdaKv;
    policy.rounding = random_.OneIn(2) ? Rounding::kPage : Rounding::kToken;
    if (random_.OneIn(3)) policy.protect.recent = random_.Between(0, 4);
    return policy;
  }

  EvictionTarget RandomTarget() {
    EvictionTarget target;
    if (random_.OneIn(2)) {
      target.ratio = {.numerator = random_.Between(1, 10), .denominator = 10};
    } else {
      target.kind = EvictionTarget::Kind::kTokens;
      target.tokens = random_.Between(1, 8);
    }
    return target;
  }

  Request RandomRequest() {
    Request request;
    request.id = absl::StrCat("r", ++num_requests_);
    const int32_t capacity =
        (layout_.num_blocks / layout_.num_groups() - 1) * layout_.page_size;
    const int32_t longest =
        std::min(random_.OneIn(3) ? 60 : 12, capacity / 2 + 2);
    const std::vector<int32_t>& base = random_.Pick(base_prompts_);
    request.prompt.assign(base.begin(),
                          base.begin() + random_.Between(1, longest));
    if (random_.OneIn(2)) request.prompt.back() = random_.Between(0, 1000);
    request.max_tokens = random_.Between(
        1, random_.OneIn(4) ? 8 : std::clamp(capacity - longest / 2, 8, 60));
    if (random_.OneIn(3)) {
      request.stop_token_ids = {random_.Between(0, 3), random_.Between(0, 999)};
    }
    // Tenants share no blocks: many of them, and hits would be rare.
    if (has_tenants_) {
      request.scope.tenant = random_.Pick<std::string>({"", "a", "b"});
    }
    request.priority = random_.Between(-1, 1);
    if (faults_.evictions && !random_.OneIn(3)) {
      request.eviction.mode = EvictionMode::kAfterPrefill;
      request.eviction.policy = RandomPolicy();
      request.eviction.target = RandomTarget();
    }
    return request;
  }

  void Submit() {
    const Request request = RandomRequest();
    const auto num_prompt = static_cast<int32_t>(request.prompt.size());
    const bool evicts = request.eviction.mode == EvictionMode::kAfterPrefill;
    const int32_t usable = layout_.num_blocks - 1;
    const bool fits = CeilDiv(num_prompt + request.max_tokens - 1,
                              layout_.page_size) <= usable;
    const bool prompt_fits = CeilDiv(num_prompt, layout_.page_size) <= usable;
    const absl::StatusOr<RequestId> id = driver_.Submit(request);
    if (id.ok()) {
      EXPECT_TRUE(fits || (evicts && prompt_fits) || layout_.window > 0);
      ids_.push_back(*id);
    } else if (layout_.has_windows() &&
               absl::IsResourceExhausted(id.status())) {
      // All groups have to fit.
    } else if (absl::IsResourceExhausted(id.status())) {
      EXPECT_FALSE(fits) << id.status();
    } else {
      EXPECT_TRUE(evicts) << id.status();  // the window
    }
  }

  void Evict() {
    if (ids_.empty()) return;
    EvictionCommand command;
    command.policy = RandomPolicy();
    command.target = RandomTarget();
    const int32_t num_heads = layout_.pages_per_block();
    if (random_.OneIn(2)) {
      command.cut =
          layout_.page_size * random_.Between(1, 30 / layout_.page_size + 1);
    }
    if (command.cut > 0 && random_.OneIn(2)) {
      command.policy.scorer.kind = ScorerKind::kExternal;
      command.scores =
          std::make_shared<std::vector<float>>(num_heads * command.cut, 1.0f);
    }
    if (random_.OneIn(3)) {
      command.policy.budget.kind = BudgetKind::kExternal;
      std::vector<int32_t> budgets(num_heads);
      for (int32_t& budget : budgets) budget = random_.Between(0, 12);
      budgets.back() = std::max(budgets.back(), 1);
      command.budgets =
          std::make_shared<std::vector<int32_t>>(std::move(budgets));
    }
    (void)driver_.Evict(random_.Pick(ids_), std::move(command));
  }

  void LoseBlocks() {
    std::vector<BlockId> blocks;
    for (int32_t i = random_.Between(1, 3); i > 0; --i) {
      blocks.push_back(BlockId{random_.Between(1, layout_.num_blocks - 1)});
    }
    driver_.engine().LoseBlocks(blocks);
  }

  void Tick() {
    if (faults_.commands && random_.OneIn(4)) return Evict();
    if (faults_.cancels && random_.OneIn(15) && !ids_.empty()) {
      (void)driver_.Cancel(random_.Pick(ids_));
      return;
    }
    if (faults_.losses && random_.OneIn(25)) return driver_.LoseEngine();
    if (faults_.losses && random_.OneIn(10)) return LoseBlocks();
    if (random_.OneIn(40)) {
      driver_.scheduler().ResetPrefixCache();
      return;
    }
    if (driver_.engine().num_queued() == 0 || random_.OneIn(2)) {
      driver_.Issue();
    } else {
      driver_.Answer();
    }
  }

  SeededRandom random_;
  const Faults faults_;
  const ModelLayout layout_;
  const SchedulerOptions options_;
  const CanaryOptions canary_;
  SchedulerDriver driver_;
  std::vector<std::vector<int32_t>> base_prompts_;
  std::vector<RequestId> ids_;
  int32_t num_requests_ = 0;
  bool has_tenants_ = false;
};

void RunSeeds(uint64_t first_seed, const Faults& faults) {
  std::signal(SIGABRT, PrintSeed);
  uint64_t num_preemptions = 0;
  uint64_t num_cached = 0;
  uint64_t num_recomputed = 0;
  uint64_t num_evictions = 0;
  uint64_t num_passes = 0;
  uint64_t num_prefix_waits = 0;
  uint64_t num_cut_requests = 0;
  uint64_t num_swap_ins = 0;
  uint64_t num_accepted = 0;
  uint64_t num_rejected = 0;
  for (uint64_t seed = first_seed; seed < first_seed + kSeedsPerGroup; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    current_seed = seed;
    Swarm swarm(seed, faults);
    swarm.Run();
    if (!swarm.ok()) return;
    const SchedulerStats stats = swarm.stats();
    num_preemptions += stats.num_preemptions;
    num_cached += stats.num_cached_tokens;
    num_recomputed += stats.num_recomputed_tokens;
    num_evictions += stats.num_evictions;
    num_passes += stats.num_passes;
    num_prefix_waits += stats.num_prefix_waits;
    num_cut_requests += stats.num_cut_requests;
    num_swap_ins += stats.num_swap_ins;
    num_accepted += stats.num_accepted_tokens;
    num_rejected += stats.num_draft_tokens - stats.num_accepted_tokens;
  }
  // The swarm is worth its name. With windows less is there to be reused.
  const uint64_t windowed = faults.windows ? 2 : 1;
  EXPECT_GT(num_preemptions, kSeedsPerGroup / 10);
  EXPECT_GT(num_cached, kMinReusedTokens / windowed);
  EXPECT_GT(num_recomputed, kMinReusedTokens / windowed);
  EXPECT_GT(num_passes, kSeedsPerGroup / 10);
  EXPECT_GT(num_prefix_waits, kMinPrefixWaits);
  EXPECT_GT(num_swap_ins, kSeedsPerGroup / 40 / windowed);
  EXPECT_GT(num_accepted, kSeedsPerGroup);
  EXPECT_GT(num_rejected, kSeedsPerGroup);
  if (faults.losses) {
    EXPECT_GT(num_cut_requests, kSeedsPerGroup / 4);
  }
  if (faults.evictions) {
    EXPECT_GT(num_evictions, kSeedsPerGroup / 4);
  }
}

TEST(SchedulerSwarmTest, PlainRequestsOutputWhatTheyDoAlone) {
  RunSeeds(1'000'000, {});
}

TEST(SchedulerSwarmTest, PlainRequestsSurviveCancelsAndLosses) {
  RunSeeds(2'000'000, {.cancels = true, .losses = true});
}

TEST(SchedulerSwarmTest, EvictedRequestsOutputWhatTheyDoAlone) {
  RunSeeds(3'000'000, {.evictions = true});
}

TEST(SchedulerSwarmTest, CommandsAreCarriedOutAndReplayed) {
  RunSeeds(4'000'000, {.evictions = true, .commands = true});
}

TEST(SchedulerSwarmTest, SurvivesEverythingAtOnce) {
  RunSeeds(5'000'000, {.evictions = true,
                       .commands = true,
                       .cancels = true,
                       .losses = true,
                       .refusals = true});
}

TEST(SchedulerSwarmTest, WindowsSurviveCancelsAndLosses) {
  RunSeeds(7'000'000, {.cancels = true, .losses = true, .windows = true});
}

TEST(SchedulerSwarmTest, WindowsSurviveEverythingAtOnce) {
  RunSeeds(8'000'000, {.evictions = true,
                       .commands = true,
                       .cancels = true,
                       .losses = true,
                       .refusals = true,
                       .windows = true});
}

TEST(SchedulerSwarmTest, SurvivesAnEngineThatChoosesOthersOnReplay) {
  RunSeeds(6'000'000, {.evictions = true,
                       .commands = true,
                       .losses = true,
                       .other_choices = true});
}

}  // namespace
}  // namespace blockmgr
