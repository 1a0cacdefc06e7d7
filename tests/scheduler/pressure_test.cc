// EvictionMode::kPressure: squeezed before anybody is preempted, not before
// blocks are short.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/case_count.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

Request PressureRequest(const std::string& id, int32_t num_prompt,
                        int32_t max_tokens, int32_t keep, int32_t topic) {
  Request request = MakeRequest(id, num_prompt, max_tokens, topic);
  request.eviction = Recency(keep);
  request.eviction.mode = EvictionMode::kPressure;
  return request;
}

class PressureTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() { return PlainOptions(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, PressureTest, testing::Values(1, 2, 4));

// Four requests that grow to 25 blocks each in a pool of 60: without eviction
// some are preempted, squeezed ones are not.
TEST_P(PressureTest, SqueezesInsteadOfPreempting) {
  for (const bool squeezed : {false, true}) {
    SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 4; ++i) {
      Request request = PressureRequest(std::to_string(i), 20, 80, 8, 1 + i);
      if (!squeezed) request.eviction = RequestEviction();
      const RequestId id = Submit(&driver, request);
      ids.push_back(id);
    }
    driver.Finish();
    const SchedulerStats stats = driver.scheduler().stats();
    for (const RequestId id : ids) {
      EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
    }
    if (squeezed) {
      EXPECT_EQ(stats.num_preemptions, 0u);
      EXPECT_GT(stats.num_squeezes, 0u);
      EXPECT_EQ(stats.num_evictions, stats.num_squeezes);
    } else {
      EXPECT_GT(stats.num_preemptions, 0u);
      EXPECT_EQ(stats.num_squeezes, 0u);
    }
  }
}

TEST_P(PressureTest, MakesRoomForThoseWhoKeepEverything) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  const RequestId squeezed =
      Submit(&driver, PressureRequest("a", 80, 100, 8, 1));
  const RequestId whole = Submit(&driver, MakeRequest("b", 40, 100, 2));
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0u);
  EXPECT_THAT(driver.served(squeezed).recorded, Not(IsEmpty()));
  EXPECT_THAT(driver.served(whole).recorded, IsEmpty());
}

// What a squeeze is to give back may stay where it is: nobody is admitted on
// it, to be preempted when the engine refuses.
TEST_P(PressureTest, WhatASqueezeIsToGiveBackIsPromisedToNobody) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 16;
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options,
                         {.refuse_one_in = 1});
  const RequestId squeezed =
      Submit(&driver, PressureRequest("a", 123, 90, 8, 1));
  driver.RunUntil([&] { return !driver.served(squeezed).outputs.empty(); });
  // b's prompt just fits beside a; c's would not, though b is gone.
  const RequestId leaves = Submit(&driver, MakeRequest("b", 118, 1, 2));
  ASSERT_TRUE(driver.Issue());
  while (driver.scheduler().stats().num_squeezes == 0) {
    driver.Answer();
    ASSERT_TRUE(driver.Issue());
  }
  ASSERT_THAT(driver.Cancel(leaves), IsOk());
  const RequestId comes = Submit(&driver, MakeRequest("c", 160, 1, 3));
  driver.Issue();
  driver.Drain();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0u);
  for (const RequestId id : {squeezed, comes}) {
    EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
  }
  driver.CheckQuiescent();
}

TEST_P(PressureTest, AnEngineThatRefusesIsNotAskedAgain) {
  SchedulerDriver driver(SmallLayout(4, 41, 2, 2), Options(),
                         {.refuse_one_in = 1});
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 2; ++i) {
    const RequestId id =
        Submit(&driver, PressureRequest(std::to_string(i), 30, 90, 8, 1 + i));
    ids.push_back(id);
  }
  driver.Drain();
  for (const RequestId id : ids) {
    EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
    EXPECT_LE(driver.served(id).evictions.size(), 1u);
  }
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0u);
  driver.CheckQuiescent();
}

// Random mixes in small pools. What all that run need for as many steps as can
// be in flight, and one more, is found by squeezes as long as one is worth
// making: nobody is preempted beside one. What only the prefix cache holds is
// as good as free; what two requests share is nobody's to give. Nor is anybody
// squeezed while there are blocks.
class PressureJudge {
 public:
  explicit PressureJudge(uint64_t seed)
      : random_(seed),
        most_in_flight_(1 + static_cast<int32_t>(seed % 4)),
        caches_(random_.Between(0, 1) > 0),
        num_shards_(random_.Between(1, 2)),
        driver_(Layout(random_.Between(24, 60)), Options()) {
    driver_.AllowOtherReplaysOfLess();
  }

  void Run() {
    const int32_t num_requests = random_.Between(3, 9);
    int32_t num_made = 0;
    while (driver_.ok() && (num_made < num_requests ||
                            driver_.scheduler().has_unfinished_requests())) {
      if (num_made < num_requests && random_.Between(1, 4) == 1) {
        SubmitRandom(++num_made);
      }
      const bool issued = Issue();
      const int32_t in_flight = driver_.scheduler().num_steps_in_flight();
      if (in_flight == most_in_flight_ || (in_flight > 0 && !issued)) {
        driver_.Answer();
      }
    }
    driver_.CheckQuiescent();
  }
  SchedulerStats stats() { return driver_.scheduler().stats(); }
  int32_t num_shared_squeezes() const { return num_shared_squeezes_; }
  int32_t num_preempting_steps() const { return num_preempting_steps_; }
  int32_t num_spent_steps() const { return num_spent_steps_; }

 private:
  static constexpr int32_t kPage = 4;
  struct Squeeze {
    SequenceSlot slot = kNoSequenceSlot;
    int32_t released = 0;
    bool has_steps = false;    // to come: else its blocks come anyway
    bool needs_block = false;  // with its next step
  };

  ModelLayout Layout(int32_t num_usable) const {
    ModelLayout layout = SmallLayout(kPage, num_usable, 2, 2);
    layout.num_shards = num_shards_;
    return layout;
  }
  SchedulerOptions Options() const {
    SchedulerOptions options = PlainOptions(most_in_flight_);
    options.enable_prefix_caching = caches_;
    options.max_num_batched_tokens = 1024;  // never too few
    return options;
  }
  void SubmitRandom(int32_t number) {
    const int32_t num_prompt = random_.Between(1, 40);
    const int32_t max_tokens = random_.Between(1, 95 - num_prompt);
    Request request = PressureRequest(std::to_string(number), num_prompt,
                                      max_tokens, kPage * random_.Between(1, 4),
                                      caches_ ? random_.Between(1, 3) : number);
    if (random_.Between(1, 3) == 1) request.eviction = RequestEviction();
    // A beam of somebody, whose eviction it has.
    std::vector<RequestId> live;
    for (const auto& [id, served] : driver_.all()) {
      if (!served.finish.has_value()) live.push_back(id);
    }
    RequestEviction eviction = request.eviction;
    if (!live.empty() && random_.Between(1, 3) == 1) {
      const auto last = static_cast<int32_t>(live.size()) - 1;
      const RequestId parent = live[random_.Between(0, last)];
      const Served& served = driver_.served(parent);
      request.fork_of = served.request.id;
      request.prompt = served.request.prompt;
      request.prompt.insert(request.prompt.end(), served.outputs.begin(),
                            served.outputs.end());
      const auto length = static_cast<int32_t>(request.prompt.size());
      request.max_tokens = random_.Between(1, 96 - length);
      request.eviction = RequestEviction();
      eviction = evictions_.at(parent);
    }
    evictions_[Submit(&driver_, std::move(request))] = eviction;
  }

  // Blocks before `cut` that no other request had before the step.
  int32_t CountOwn(const SequenceCache& sequence, int32_t cut) const {
    const auto is_own = [&](BlockId block) {
      const auto found = holders_.find(block);
      return found == holders_.end() || found->second == 1;
    };
    const int32_t num_tail = (cut - sequence.cut()) / kPage;
    const auto own = std::ranges::count_if(
        std::span(sequence.first().tail).first(static_cast<size_t>(num_tail)),
        is_own);
    if (sequence.first().region == nullptr ||
        !std::ranges::all_of(sequence.first().region->blocks, is_own)) {
      return static_cast<int32_t>(own);
    }
    return static_cast<int32_t>(own +
                                std::ssize(sequence.first().region->blocks));
  }

  // What is its own of all pages before that of the next token, but those it
  // keeps; 0 if that is less than an eighth of its blocks, or if it would keep
  // some on blocks that it does not have.
  int32_t CountReleased(RequestId id, const SequenceCache& sequence) const {
    const RequestEviction& eviction = evictions_.at(id);
    const int32_t computed = sequence.num_reserved;
    if (eviction.mode != EvictionMode::kPressure ||
        sequence.first().pending != nullptr ||
        computed < std::ssize(driver_.served(id).request.prompt)) {
      return 0;
    }
    const int32_t cut = computed / kPage * kPage;
    const int32_t kept = std::min(eviction.target.tokens, cut) / kPage;
    const int32_t released = CountOwn(sequence, cut) - kept;
    const int32_t num_blocks =
        static_cast<int32_t>(sequence.first().tail.size()) +
        sequence.first().num_region_blocks();
    return 8 * released >= num_blocks ? std::max(0, released) : 0;
  }

  // Destinations of an order that the sequence did not have.
  int32_t CountFresh(const EvictionOrder& order,
                     const SequenceCache& sequence) {
    std::set<BlockId> held(sequence.first().tail.begin(),
                           sequence.first().tail.end());
    if (sequence.first().region != nullptr) {
      held.insert(sequence.first().region->blocks.begin(),
                  sequence.first().region->blocks.end());
    }
    const auto destinations =
        std::span(driver_.plan().destinations)
            .subspan(order.destination_begin, order.num_destinations);
    return static_cast<int32_t>(std::ranges::count_if(
        destinations, [&](BlockId block) { return !held.contains(block); }));
  }

  void CountHolders() {
    holders_.clear();
    for (const auto& [id, served] : driver_.all()) {
      const SequenceSlot slot = driver_.SlotOf(id);
      if (served.finish.has_value() || slot == kNoSequenceSlot) continue;
      const SequenceCache& sequence =
          driver_.scheduler().manager().sequence(slot);
      for (const BlockId block : sequence.first().tail) ++holders_[block];
      if (sequence.first().region == nullptr) continue;
      for (const BlockId block : sequence.first().region->blocks) {
        ++holders_[block];
      }
    }
  }

  // The blocks that are lacking before a step, and what squeezes would give.
  int32_t Look(std::map<RequestId, Squeeze>* squeezes) {
    const BlockManagerStats blocks = driver_.scheduler().stats().blocks;
    int32_t lacking =
        -blocks.free_blocks - blocks.cached_blocks - blocks.fenced_blocks;
    CountHolders();
    for (const auto& [id, served] : driver_.all()) {
      const SequenceSlot slot = driver_.SlotOf(id);
      if (served.finish.has_value() || slot == kNoSequenceSlot) continue;
      const SequenceCache& sequence =
          driver_.scheduler().manager().sequence(slot);
      const auto num_prompt =
          static_cast<int32_t>(served.request.prompt.size());
      const auto known =
          num_prompt + static_cast<int32_t>(served.outputs.size());
      const int32_t last = num_prompt + served.request.max_tokens - 1;
      const int32_t end = std::min(
          last, std::max(known, sequence.num_reserved + 1) + most_in_flight_);
      lacking +=
          std::max(0, CeilDiv(end - sequence.cut(), kPage) -
                          static_cast<int32_t>(sequence.first().tail.size()));
      if (sequence.first().pending != nullptr) lacking -= ordered_.at(slot);
      const int32_t released = CountReleased(id, sequence);
      if (released == 0) continue;
      (*squeezes)[id] = {slot, released, sequence.num_reserved < last,
                         sequence.num_reserved % kPage == 0};
    }
    return lacking;
  }

  // Whether two requests had a block in common before the step.
  bool HasShared() const {
    return std::ranges::any_of(
        holders_, [](const auto& block) { return block.second > 1; });
  }

  bool Issue() {
    std::map<RequestId, Squeeze> squeezes;
    int32_t lacking = Look(&squeezes);
    const SchedulerStats before = stats();
    if (!driver_.Issue()) return false;
    if (stats().num_squeezes > before.num_squeezes) {
      EXPECT_GT(lacking, 0);
      num_shared_squeezes_ += HasShared() ? 1 : 0;
    }
    if (stats().num_preemptions > before.num_preemptions) {
      ++num_preempting_steps_;
      num_spent_steps_ += squeezes.empty() ? 1 : 0;
    }
    std::set<SequenceSlot> orders;
    for (const EvictionOrder& order : driver_.plan().evictions) {
      orders.insert(order.slot);
      // Replays, too. What is copied to other blocks comes back whole.
      const SequenceCache& sequence =
          driver_.scheduler().manager().sequence(order.slot);
      const int32_t num_own = CountOwn(sequence, order.cut);
      const int64_t kept = order.page_total /
                           driver_.scheduler().layout().shard_pages_per_block();
      ordered_[order.slot] =
          num_own - static_cast<int32_t>(kept) + CountFresh(order, sequence);
    }
    bool is_left = false;
    for (const auto& [id, squeeze] : squeezes) {
      // A squeeze rides on a step, which may find no block for its own token;
      // who is preempted, or has no step to come, gives back more.
      const bool is_over = driver_.SlotOf(id) != squeeze.slot;
      if (orders.contains(squeeze.slot) || !squeeze.has_steps || is_over ||
          (squeeze.needs_block && driver_.CountTokensInPlan(id) == 0)) {
        lacking -= squeeze.released;
      } else {
        is_left = true;
      }
    }
    EXPECT_FALSE(is_left && lacking > 0) << lacking << " blocks are lacking";
    return true;
  }

  SeededRandom random_;
  const int32_t most_in_flight_;
  const bool caches_;
  const int32_t num_shards_;
  SchedulerDriver driver_;
  std::map<RequestId, RequestEviction> evictions_;  // forks have their own
  std::map<BlockId, int32_t> holders_;              // before the step
  std::map<SequenceSlot, int32_t> ordered_;         // blocks, by the last order
  int32_t num_preempting_steps_ = 0;
  int32_t num_spent_steps_ = 0;      // of those, without any squeeze to make
  int32_t num_shared_squeezes_ = 0;  // beside shared blocks
};

TEST(PressureJudgeTest, NoSqueezeIsLeftWhileBlocksAreLacking) {
  int64_t num_squeezes = 0;
  int64_t num_forks = 0;
  int64_t num_cached_tokens = 0;
  int32_t num_shared_squeezes = 0;
  int32_t num_preempting_steps = 0;
  int32_t num_spent_steps = 0;
  for (uint64_t seed = 1;
       seed <= SlowCases(600) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PressureJudge judge(seed);
    judge.Run();
    num_squeezes += static_cast<int64_t>(judge.stats().num_squeezes);
    num_forks += static_cast<int64_t>(judge.stats().num_forks);
    num_cached_tokens += static_cast<int64_t>(judge.stats().num_cached_tokens);
    num_shared_squeezes += judge.num_shared_squeezes();
    num_preempting_steps += judge.num_preempting_steps();
    num_spent_steps += judge.num_spent_steps();
  }
  EXPECT_GT(num_squeezes, SlowFloor(1000));
  EXPECT_GT(num_forks, SlowFloor(400));
  EXPECT_GT(num_cached_tokens, SlowFloor(10000));
  EXPECT_GT(num_shared_squeezes, SlowFloor(300));
  EXPECT_GT(num_preempting_steps, SlowFloor(100));
  EXPECT_GT(num_spent_steps, SlowFloor(20));
}

// A squeeze that would free less than an eighth is not worth reading the rest.
TEST(PressureGainTest, IsNotSpentOnTrifles) {
  SchedulerOptions options = PlainOptions();
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
  for (int32_t i = 0; i < 4; ++i) {
    Request request = PressureRequest(std::to_string(i), 20, 80, 0, 1 + i);
    request.eviction.target = EvictionTarget();
    request.eviction.target.ratio = *KeepRatio::Parse("0.95");
    EXPECT_THAT(driver.Submit(request), IsOk());
  }
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_squeezes, 0u);
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0u);
}

TEST(PressureSubmitTest, PromisesNothing) {
  SchedulerDriver driver(SmallLayout(4, 10, 2, 2), PlainOptions());
  // Ten blocks hold forty positions; the last output takes none.
  EXPECT_THAT(driver.Submit(PressureRequest("a", 30, 11, 4, 1)), IsOk());
  EXPECT_THAT(driver.Submit(PressureRequest("b", 30, 12, 4, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  Request request = PressureRequest("c", 20, 4, 4, 1);
  request.eviction.share_prefix = true;
  EXPECT_THAT(
      driver.Submit(request),
      IsInvalid("expected a mode that compresses the prompt, got pressure"));
  driver.Drain();
}

}  // namespace
}  // namespace blockmgr
