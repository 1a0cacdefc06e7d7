// Who is preempted, and that it is worth it. In random mixes of shared
// prefixes, compressed pasts and swaps, and where forks lose what they share,
// it is compared with a look at all who run by what each has to compute again.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

// All that a plan says of who runs where.
auto PlanOf(const SchedulerDriver& driver) {
  const StepPlan& plan = driver.plan();
  std::vector<std::pair<RequestId, int32_t>> starts;
  for (const SequenceStart& start : plan.starts) {
    starts.emplace_back(start.request, start.num_cached_tokens);
  }
  return std::tuple(plan.id, plan.released, starts, plan.slots, plan.positions,
                    plan.num_tokens, plan.block_offsets, plan.blocks);
}

// A plan that is not made changes nothing, whatever was weighed for it:
// victims, admissions, waits. The driver compares hashes; and another
// scheduler, which is never asked in vain, makes the same plans to the end.
TEST(TrialTest, SchedulingThatGivesNoStepHasNoSideEffects) {
  int32_t num_trials = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SchedulerOptions options = CachingOptions(4);
    options.max_bypasses = 3;
    options.min_prefix_wait_tokens = 1;
    options.fair_share = true;
    options.policy = static_cast<SchedulingPolicy>(seed % 3);
    SchedulerDriver driver(SmallLayout(1, 16), options);
    SchedulerDriver twin(SmallLayout(1, 16), options);
    uint64_t random = seed;
    for (int32_t i = 0; i < 8; ++i) {
      random = SplitMix64(random);
      Request request =
          MakeRequest(absl::StrCat(i), 2 + static_cast<int32_t>(random % 6), 8,
                      static_cast<int32_t>(random / 64 % 2));
      request.scope.tenant = random / 1024 % 2 == 0 ? "a" : "b";
      Submit(&twin, request);
      Submit(&driver, std::move(request));
    }
    while (driver.ok() && driver.scheduler().has_unfinished_requests()) {
      if (driver.Issue()) {
        ASSERT_TRUE(twin.Issue());
        ASSERT_EQ(PlanOf(driver), PlanOf(twin));
        continue;
      }
      // Refused with room for one more step: it was thought about.
      if (driver.engine().num_queued() < options.max_steps_in_flight) {
        const uint64_t before = driver.scheduler().StateHash();
        EXPECT_FALSE(driver.Issue());
        EXPECT_EQ(driver.scheduler().StateHash(), before);
        ++num_trials;
      }
      driver.Answer();
      twin.Answer();
    }
  }
  EXPECT_GT(num_trials, 100);
}

// A loaded engine: requests arrive as fast as blocks allow, and a bit faster.
struct LoadOptions {
  uint64_t seed = 0;
  AdmissionPolicy admission = AdmissionPolicy::kWatermark;
  bool prefix_caching = true;
};

// The most preemptions of one request; `total` counts those of all.
int32_t MostPreemptions(const LoadOptions& load, uint64_t* total) {
  SeededRandom random(load.seed);
  SchedulerOptions options;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 256;
  options.admission = load.admission;
  options.enable_prefix_caching = load.prefix_caching;
  SchedulerImpl scheduler(SmallLayout(16, 160), options);
  StepPlan plan;
  Effects effects;
  int32_t most = 0;
  int32_t num_submitted = 0;
  while (num_submitted < 200 || scheduler.has_unfinished_requests()) {
    if (num_submitted < 200 && scheduler.stats().num_waiting < 8) {
      const int32_t num_prompt = random.Between(20, 400);
      const int32_t max_tokens = random.Between(10, 300);
      Request request = MakeRequest(absl::StrCat(num_submitted++), num_prompt,
                                    max_tokens, random.Between(0, 40));
      EXPECT_THAT(scheduler.Submit(std::move(request)), IsOk());
    }
    if (!scheduler.Schedule(&plan)) continue;
    EXPECT_THAT(scheduler.Update(AnswerTo(plan), &effects), IsOk());
    for (const FinishEffect& effect : effects.finished) {
      most = std::max(most, effect.num_preemptions);
    }
    effects.Clear();
  }
  *total += scheduler.stats().num_preemptions;
  return most;
}

// rbln-ai/inference-sim #963: a healthy trace had at most 4 per request. vllm
// 25538: two that do not fit together in the end take turns a few times.
TEST(PreemptionBoundTest, NobodyIsPreemptedMoreThanEightTimes) {
  for (const AdmissionPolicy admission :
       {AdmissionPolicy::kWatermark, AdmissionPolicy::kGuaranteed,
        AdmissionPolicy::kMaxUtilization}) {
    uint64_t total = 0;
    int32_t most = 0;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const int32_t worst = MostPreemptions({.seed = seed,
                                             .admission = admission,
                                             .prefix_caching = seed % 2 == 0},
                                            &total);
      EXPECT_LE(worst, 8);
      most = std::max(most, worst);
    }
    if (admission == AdmissionPolicy::kGuaranteed) {
      EXPECT_EQ(total, 0u);
    } else {
      EXPECT_GT(total, 50u);
    }
    RecordProperty(absl::StrCat("most_of_policy_", static_cast<int>(admission)),
                   most);
    RecordProperty(absl::StrCat("of_policy_", static_cast<int>(admission)),
                   static_cast<int>(total));
  }
}

// Copying what an eviction keeps is a preference; that the others run is not.
TEST(VictimTest, NobodyIsPreemptedForCopies) {
  SchedulerOptions options = PlainOptions();
  options.compaction = CompactionPreference::kFreshFirst;
  SchedulerDriver driver(SmallLayout(4, 17), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 32, 8));
  const RequestId b = Submit(&driver, MakeRequest("b", 23, 8, 1));
  driver.Step();
  driver.Step();
  // Two blocks are left: as many as the copy takes, and b needs one.
  ASSERT_EQ(driver.scheduler().stats().blocks.free_blocks, 2);
  ASSERT_OK(driver.Evict(a, RecencyCommand(8)).status());
  driver.Step();
  EXPECT_EQ(driver.CountTokensInPlan(b), 1);
  ASSERT_EQ(driver.plan().evictions.size(), 1u);
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0u);
  driver.Finish();
  EXPECT_EQ(driver.served(b).finish->num_preemptions, 0);
}

// In the step in which "a" takes the last blocks, and is compressed, there are
// none for "b": a step later there are, without "c" having left.
TEST(VictimTest, NobodyIsPreemptedForWhatAnOrderOfThisStepGivesBack) {
  SchedulerOptions options = PlainOptions();
  options.admission = AdmissionPolicy::kMaxUtilization;
  options.long_prefill_token_threshold = 4;
  SchedulerDriver driver(SmallLayout(1, 18), options);
  Request a = MakeRequest("a", 12, 3);
  a.eviction = Recency(4);
  const RequestId ids[] = {Submit(&driver, a),
                           Submit(&driver, MakeRequest("b", 2, 5, 1)),
                           Submit(&driver, MakeRequest("c", 2, 5, 2))};
  for (int32_t i = 0; i < 3; ++i) driver.Step();
  // 12 of "a"; 3 and 3, which wait.
  EXPECT_EQ(driver.served(ids[1]).outputs.size(), 2u);
  EXPECT_EQ(driver.served(ids[2]).outputs.size(), 2u);
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0u);
}

// The same where "b" shares what "a" leaves: nothing is given back, and waiting
// for it would be in vain.
TEST(VictimTest, WhatSomebodyKeepsIsNotWaitedFor) {
  SchedulerOptions options = CachingOptions();
  options.admission = AdmissionPolicy::kMaxUtilization;
  SchedulerDriver driver(SmallLayout(1, 19), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 12, 6));
  driver.Step();
  const RequestId b = Submit(&driver, MakeRequest("b", 13, 3));
  const RequestId c = Submit(&driver, MakeRequest("c", 4, 3, 2));
  driver.Step();
  ASSERT_EQ(driver.scheduler().stats().blocks.free_blocks, 1);
  ASSERT_OK(driver.Evict(a, RecencyCommand(1)).status());
  driver.Step();
  ASSERT_EQ(driver.plan().evictions.size(), 1u);
  EXPECT_EQ(driver.CountTokensInPlan(a), 1);
  EXPECT_EQ(driver.CountTokensInPlan(b), 1);
  driver.Finish();
  EXPECT_EQ(driver.served(b).finish->num_preemptions, 0);
  EXPECT_EQ(driver.served(c).finish->num_preemptions, 1);
}

// One that runs, with nothing in flight.
struct Runner {
  RequestId id{0};
  int32_t priority = 0;
  bool is_spared = false;
  int32_t cost = 0;          // tokens to compute again
  int32_t num_needed = 0;    // blocks for its next step
  std::set<BlockId> blocks;  // that it holds
};

// What a choice is made without.
struct Blindness {
  bool to_past = false;    // of those who have been preempted often
  bool to_blocks = false;  // that a victim would give
};

// What was shown.
struct Tally {
  int32_t num_preemptions = 0;
  int32_t num_not_last = 0;    // steps that preempted, but not the most recent
  int32_t num_compressed = 0;  // who could have been chosen
  int32_t num_sharers = 0;     // of blocks, likewise
  uint64_t num_swap_ins = 0;
  int32_t num_passed_spared = 0;  // choices of others, for that alone
  int32_t num_passed_empty = 0;   // likewise, who had no block of their own
  int32_t num_empty = 0;          // choices of them, as nobody else was left
};

// A scheduler, every step of which is judged.
class JudgedRun {
 public:
  JudgedRun(const ModelLayout& layout, const SchedulerOptions& options,
            Tally* tally)
      : tally_(tally), layout_(layout), options_(options) {}

  SchedulerDriver& driver() { return driver_; }
  int32_t num_preemptions(RequestId id) { return preemptions_[id]; }

  // Blocks that those who run will hold together, if all of them are completed
  // and nobody is compressed.
  int32_t CountBlocksInTheEnd() {
    std::set<BlockId> held;
    int32_t num_more = 0;
    for (const Runner& runner : Runners()) {
      const Request& request = driver_.served(runner.id).request;
      const auto length =
          static_cast<int32_t>(request.prompt.size()) + request.max_tokens - 1;
      num_more += CeilDiv(length, layout_.page_size) -
                  static_cast<int32_t>(runner.blocks.size());
      held.insert(runner.blocks.begin(), runner.blocks.end());
    }
    return num_more + static_cast<int32_t>(held.size());
  }

  // False: everything has ended, or something is wrong.
  bool Step() {
    if (!driver_.ok() || !driver_.scheduler().has_unfinished_requests() ||
        testing::Test::HasFailure()) {
      return false;
    }
    const std::vector<Runner> runners = Runners();
    const std::set<RequestId> expected = Victims(runners);
    if (!driver_.Issue()) return false;
    std::set<RequestId> preempted;
    for (const Runner& runner : runners) {
      if (driver_.SlotOf(runner.id) != kNoSequenceSlot) continue;
      preempted.insert(runner.id);
      ++preemptions_[runner.id];
    }
    EXPECT_EQ(preempted, expected);
    Count(runners, expected);
    NoteStarts();
    driver_.Answer();
    return true;
  }

  // Runs everything.
  void Finish() {
    while (Step()) {
    }
    tally_->num_swap_ins += driver_.scheduler().stats().num_swap_ins;
    if (!testing::Test::HasFailure()) driver_.CheckQuiescent();
  }

 private:
  const SequenceCache* SequenceOf(RequestId id) {
    const SequenceSlot slot = driver_.SlotOf(id);
    if (driver_.served(id).finish || slot == kNoSequenceSlot) return nullptr;
    return &driver_.scheduler().manager().sequence(slot);
  }

  // A compressed past that comes back from the host tier is not in the cache,
  // unless it was found there.
  void NoteStarts() {
    for (const SequenceStart& start : driver_.plan().starts) {
      if (start.swap != kNoSwap && start.region == kNoRegion) {
        came_back_alone_.insert(start.request);
      } else {
        came_back_alone_.erase(start.request);
      }
    }
  }

  // What it computes again, if it comes back at once: not the whole pages that
  // it has published, but for the last token; all, when its past is compressed
  // and cannot be found.
  int32_t CostOf(RequestId id, const Served& served,
                 const SequenceCache& sequence) const {
    const bool is_found = options_.enable_prefix_caching &&
                          (sequence.first().region == nullptr ||
                           (served.request.eviction.share_prefix &&
                            !sequence.first().region->blocks.empty() &&
                            !came_back_alone_.contains(id)));
    if (!is_found) return sequence.num_settled;
    const auto known = static_cast<int32_t>(served.request.prompt.size() +
                                            served.outputs.size());
    const int32_t page_size = layout_.page_size;
    return sequence.num_settled -
           std::min(sequence.num_settled / page_size * page_size, known - 1);
  }

  std::vector<Runner> Runners() {
    std::vector<Runner> runners;
    for (const auto& [id, served] : driver_.all()) {
      const SequenceCache* sequence = SequenceOf(id);
      if (sequence == nullptr) continue;
      Runner& runner = runners.emplace_back();
      runner.id = id;
      runner.priority = options_.policy == SchedulingPolicy::kPriority
                            ? served.request.priority
                            : 0;
      runner.is_spared = preemptions_[id] >= 2;
      runner.cost = CostOf(id, served, *sequence);
      const auto known = static_cast<int32_t>(served.request.prompt.size() +
                                              served.outputs.size());
      runner.num_needed = CeilDiv(known, layout_.page_size) -
                          CeilDiv(sequence->num_settled, layout_.page_size);
      runner.blocks = {sequence->first().tail.begin(),
                       sequence->first().tail.end()};
      if (sequence->first().region != nullptr) {
        const std::vector<BlockId>& region = sequence->first().region->blocks;
        runner.blocks.insert(region.begin(), region.end());
      }
    }
    // Of equal priority by age, as they are.
    std::ranges::stable_sort(runners, {}, &Runner::priority);
    return runners;
  }

  // Blocks that nobody else holds.
  static int32_t CountOwn(const Runner& runner,
                          const std::vector<Runner>& runners) {
    return static_cast<int32_t>(
        std::ranges::count_if(runner.blocks, [&](BlockId block) {
          return std::ranges::count_if(runners, [&](const Runner& other) {
                   return other.blocks.contains(block);
                 }) == 1;
        }));
  }

  // Of those behind `index` who have not been chosen: the first to go. Itself,
  // when there is nobody else.
  size_t Choose(size_t index, const std::vector<Runner>& runners,
                const std::set<RequestId>& victims,
                const Blindness& blindness = {}) const {
    const bool by_recency =
        options_.admission == AdmissionPolicy::kMaxUtilization;
    std::vector<std::tuple<bool, int32_t, bool, int32_t, int64_t>> order;
    for (size_t i = index + 1; i < runners.size(); ++i) {
      const Runner& runner = runners[i];
      if (victims.contains(runner.id)) continue;
      const bool gives_nothing =
          !blindness.to_blocks && CountOwn(runner, runners) == 0;
      const bool is_weighed = !by_recency && !gives_nothing;
      order.emplace_back(gives_nothing, is_weighed ? -runner.priority : 0,
                         is_weighed && !blindness.to_past && runner.is_spared,
                         is_weighed ? runner.cost : 0,
                         -static_cast<int64_t>(i));
    }
    if (order.empty()) return index;
    return static_cast<size_t>(-std::get<4>(*std::ranges::min_element(order)));
  }

  std::set<RequestId> Victims(const std::vector<Runner>& runners) {
    const BlockManager& manager = driver_.scheduler().manager();
    std::set<RequestId> victims;
    int32_t num_available = manager.num_available();
    for (size_t i = 0; i < runners.size(); ++i) {
      const Runner& runner = runners[i];
      while (!victims.contains(runner.id) &&
             runner.num_needed > num_available) {
        const size_t victim = Choose(i, runners, victims);
        if (victims.size() + 1 == runners.size()) {
          // It is alone: all that others had is there.
          num_available =
              manager.num_usable() - static_cast<int32_t>(runner.blocks.size());
          break;
        }
        CountChoice(i, victim, runners, victims);
        victims.insert(runners[victim].id);
        num_available += CountOwn(runners[victim], runners);
      }
      if (!victims.contains(runner.id)) num_available -= runner.num_needed;
    }
    return victims;
  }

  void CountChoice(size_t index, size_t victim,
                   const std::vector<Runner>& runners,
                   const std::set<RequestId>& victims) {
    const auto differs_without = [&](const Blindness& blindness) {
      return Choose(index, runners, victims, blindness) != victim ? 1 : 0;
    };
    tally_->num_passed_spared += differs_without({.to_past = true});
    tally_->num_passed_empty += differs_without({.to_blocks = true});
    tally_->num_empty += CountOwn(runners[victim], runners) == 0 ? 1 : 0;
  }

  void Count(const std::vector<Runner>& runners,
             const std::set<RequestId>& victims) {
    if (victims.empty()) return;
    tally_->num_preemptions += static_cast<int32_t>(victims.size());
    tally_->num_not_last += victims.contains(runners.back().id) ? 0 : 1;
    for (const Runner& runner : runners) {
      const bool is_compressed = !driver_.served(runner.id).recorded.empty();
      tally_->num_compressed += is_compressed ? 1 : 0;
      const bool shares = CountOwn(runner, runners) < std::ssize(runner.blocks);
      tally_->num_sharers += shares ? 1 : 0;
    }
  }

  Tally* const tally_;
  const ModelLayout layout_;
  const SchedulerOptions options_;
  SchedulerDriver driver_{layout_, options_};
  std::map<RequestId, int32_t> preemptions_;
  std::set<RequestId> came_back_alone_;
};

class Mix {
 public:
  Mix(uint64_t seed, Tally* tally) : random_(seed), tally_(tally) {
    for (int32_t i = random_.Between(6, 14); i > 0; --i) Submit();
  }

  void Run() { run_.Finish(); }

 private:
  ModelLayout RandomLayout() {
    const int32_t page_size = random_.Between(1, 4);
    return SmallLayout(page_size, CeilDiv(random_.Between(52, 80), page_size));
  }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options = PlainOptions();
    // All that is known of a request is computed in one step.
    options.max_num_batched_tokens = 2048;
    options.enable_prefix_caching = !random_.OneIn(4);
    options.min_prefix_wait_tokens = random_.OneIn(2) ? 1 : 0;
    options.engine.num_host_blocks = random_.OneIn(2) ? 60 : 0;
    options.compaction = random_.OneIn(2) ? CompactionPreference::kInPlace
                                          : CompactionPreference::kFreshFirst;
    if (random_.OneIn(2)) options.policy = SchedulingPolicy::kPriority;
    if (random_.OneIn(5)) options.admission = AdmissionPolicy::kMaxUtilization;
    return options;
  }

  void Submit() {
    const auto topic = random_.Between(0, 2);
    Request request =
        MakeRequest(absl::StrCat(++num_requests_), random_.Between(1, 25),
                    random_.Between(1, 25), topic);
    if (random_.OneIn(2)) request.prompt.back() = 50'000 + num_requests_;
    request.priority = random_.Between(0, 1);
    if (random_.OneIn(2)) {
      request.eviction = Recency(random_.Between(1, 8));
      request.eviction.share_prefix = random_.OneIn(2);
    }
    blockmgr::Submit(&run_.driver(), std::move(request));
  }

  SeededRandom random_;
  Tally* const tally_;
  int32_t num_requests_ = 0;
  const ModelLayout layout_ = RandomLayout();
  JudgedRun run_{layout_, RandomOptions(), tally_};
};

// Two requests of low priority, the shorter of which others preempt twice. Then
// a request and forks of it come before them, and the engine loses a block that
// those share. Shared blocks are promised once: to compute them each for itself
// they need more than there is, although all who run could be completed.
class Loss {
  static constexpr int32_t kNumBlocks = 68;

 public:
  Loss(uint64_t seed, Tally* tally) : random_(seed), tally_(tally) {}

  void Run() {
    Submit(Between(6, 9), 14, 1);
    const RequestId spared = Submit(Between(2, 4), 14, 1);
    while (run_.num_preemptions(spared) < 2 && run_.Step()) {
      const SchedulerStats stats = driver().scheduler().stats();
      if (stats.num_waiting == 0 && stats.num_running == 2) SubmitLarge();
    }
    // There is room for what it begins with when the other one comes back, but
    // not to complete both.
    if (random_.OneIn(2)) Submit(Between(4, 8), 24, 1);
    while (driver().SlotOf(spared) == kNoSequenceSlot && StepBeside(spared)) {
    }
    LoseSharedBlock(spared);
    run_.Finish();
  }

 private:
  SchedulerDriver& driver() { return run_.driver(); }
  int32_t Between(int32_t low, int32_t high) {
    return random_.Between(low, high);
  }

  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.max_num_batched_tokens = 2048;
    options.policy = SchedulingPolicy::kPriority;
    return options;
  }

  // Of whole blocks, and outputs for as many.
  RequestId Submit(int32_t num_blocks, int32_t num_more, int32_t priority) {
    ++num_requests_;
    Request request =
        MakeRequest(absl::StrCat(num_requests_), num_blocks * page_size_,
                    num_more * page_size_, num_requests_);
    request.priority = priority;
    return blockmgr::Submit(&driver(), std::move(request));
  }

  // Who is spared comes back for good: with it, and beside it, run only those
  // who can be completed.
  bool StepBeside(RequestId spared) {
    if (!run_.Step()) return false;
    if (run_.num_preemptions(spared) >= 2 &&
        driver().SlotOf(spared) != kNoSequenceSlot) {
      EXPECT_LE(run_.CountBlocksInTheEnd(), kNumBlocks);
    }
    return true;
  }

  // It leaves too little for the others.
  void SubmitLarge() {
    const int32_t num_left = driver().scheduler().manager().num_available();
    Submit(std::max(1, num_left - Between(3, 5)), 4, 0);
  }

  void SubmitFork(const Served& parent) {
    Request fork = parent.request;
    fork.id = absl::StrCat(++num_requests_);
    fork.fork_of = parent.request.id;
    fork.prompt.insert(fork.prompt.end(), parent.outputs.begin(),
                       parent.outputs.end());
    fork.max_tokens = Between(1, 2 * page_size_);
    fork.priority = random_.OneIn(3) ? 1 : 0;
    fork.eviction = {};
    blockmgr::Submit(&driver(), std::move(fork));
  }

  void LoseSharedBlock(RequestId spared) {
    const RequestId id = Submit(Between(12, 16), 4, 0);
    const Served& leader = driver().served(id);
    const int32_t num_outputs = Between(1, 3 * page_size_);
    while (std::ssize(leader.outputs) < num_outputs && StepBeside(spared)) {
    }
    for (int32_t i = Between(3, 5); i > 0; --i) SubmitFork(leader);
    StepBeside(spared);
    const SequenceSlot slot = driver().SlotOf(id);
    if (slot == kNoSequenceSlot) return;
    const SequenceCache& sequence =
        driver().scheduler().manager().sequence(slot);
    driver().engine().LoseBlocks({sequence.first().tail[Between(1, 3)]});
  }

  SeededRandom random_;
  Tally* const tally_;
  const int32_t page_size_ = random_.Between(1, 4);
  JudgedRun run_{SmallLayout(page_size_, kNumBlocks), Options(), tally_};
  int32_t num_requests_ = 0;
};

TEST(VictimChoiceTest, IsWhoHasLeastToComputeAgain) {
  Tally tally;
  for (uint64_t seed = 1;
       seed <= SlowCases(300) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Mix(seed, &tally).Run();
  }
  EXPECT_GT(tally.num_preemptions, SlowFloor(500));
  EXPECT_GT(tally.num_not_last, SlowFloor(80));
  EXPECT_GT(tally.num_compressed, SlowFloor(500));
  EXPECT_GT(tally.num_sharers, SlowFloor(500));
  EXPECT_GT(static_cast<int64_t>(tally.num_swap_ins), SlowFloor(200));
}

TEST(VictimChoiceTest, PassesWhoIsSparedAndWhoGivesNothing) {
  Tally tally;
  for (uint64_t seed = 1;
       seed <= SlowCases(300) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Loss(seed, &tally).Run();
  }
  EXPECT_GT(tally.num_passed_spared, SlowFloor(50));
  EXPECT_GT(tally.num_passed_empty, SlowFloor(50));
  EXPECT_GT(tally.num_empty, SlowFloor(100));
}

}  // namespace
}  // namespace blockmgr
