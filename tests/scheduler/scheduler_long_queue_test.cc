// Who starts next while 10,000 requests wait, compared with a look at all of
// them by what scheduler_options.h says of their order.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/long_queue.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using long_queue::kNumWaiting;
using long_queue::kPageSize;
using long_queue::Live;
using long_queue::LongOptions;
using long_queue::LongQueue;

int64_t RankOf(SchedulingPolicy policy, const Live& live) {
  return policy == SchedulingPolicy::kPriority ? live.request.priority : 0;
}

class LongQueueTest : public testing::TestWithParam<SchedulingPolicy> {};

INSTANTIATE_TEST_SUITE_P(Policies, LongQueueTest,
                         testing::Values(SchedulingPolicy::kFcfs,
                                         SchedulingPolicy::kPriority));

// In a pool where many are preempted, who come back to their places: each start
// is of the one that is first then. vLLM #41951: a preempted request that lost
// its place was passed for ever.
TEST_P(LongQueueTest, StartsInOrderThoughManyArePreempted) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    SchedulerOptions options = LongOptions(GetParam());
    options.admission = AdmissionPolicy::kMaxUtilization;
    LongQueue queue(40, options,
                    [](const Live& live) { return RankOf(GetParam(), live); });
    int32_t num_starts = 0;
    while (num_starts < 400 && !HasFailure()) {
      while (queue.num_waiting() < kNumWaiting) {
        Request request =
            MakeRequest("", random.Between(1, 40), random.Between(1, 40));
        request.priority = random.Between(-50, 50);
        queue.Submit(std::move(request));
      }
      num_starts += static_cast<int32_t>(queue.Step().size());
    }
    EXPECT_GT(queue.num_restarts(), 40);
    queue.scheduler().CheckInvariants();
  }
}

// Policy, fair share, max_bypasses.
using BypassCase = std::tuple<SchedulingPolicy, bool, int32_t>;

class BypassBoundTest : public testing::TestWithParam<BypassCase> {
 protected:
  static constexpr int32_t kWaiting = 60;
  // Tokens at most that prompts have in common, Live::topic each. Whoever has
  // computed them runs all the time, so that they stay in the cache.
  static constexpr int32_t kShared = 40;
  static constexpr int32_t kHolderTokens = 460;

  static SchedulerOptions Options() {
    const auto [policy, fair_share, max_bypasses] = GetParam();
    SchedulerOptions options = LongOptions(policy);
    options.fair_share = fair_share;
    options.max_bypasses = max_bypasses;
    options.enable_prefix_caching = policy == SchedulingPolicy::kPrefix;
    options.prefix_aging = 1;
    options.max_num_seqs = 24;
    return options;
  }

  static int64_t RankOf(const Live& live) {
    switch (std::get<SchedulingPolicy>(GetParam())) {
      case SchedulingPolicy::kFcfs:
        return 0;
      case SchedulingPolicy::kPriority:
        return live.request.priority;
      case SchedulingPolicy::kPrefix:
        break;
    }
    const int32_t cached = live.topic / kPageSize * kPageSize;
    return static_cast<int64_t>(live.submit_step) - cached;
  }
  // Less is served first, of equal ones the oldest.
  int64_t OrderOf(const Live& live) {
    const int64_t service =
        std::get<bool>(GetParam()) ? service_[live.request.scope.tenant] : 0;
    return (service << 20) + RankOf(live);
  }

  // A tenant that comes back is lifted to the least served of those that wait.
  void Lift(const std::string& tenant) {
    int64_t least = INT64_MAX;
    for (const auto& [id, live] : queue_.waiting()) {
      if (live.request.scope.tenant == tenant) return;
      least = std::min(least, service_[live.request.scope.tenant]);
    }
    if (least == INT64_MAX) return;
    service_[tenant] = std::max(service_[tenant], least);
  }

  RequestId Submit(int32_t num_shared, int32_t num_own, int32_t max_tokens,
                   int32_t priority) {
    const std::string tenant = absl::StrCat("t", random_.Between(0, 2));
    // The first one is the holder: its tenant alone finds what it has computed.
    if (num_made_ == 0) holder_tenant_ = tenant;
    const int32_t num_found = tenant == holder_tenant_ ? num_shared : 0;
    Live live{.request = MakeRequest("", num_found, max_tokens, 1),
              .topic = num_found};
    for (int32_t i = num_found; i < num_shared + num_own; ++i) {
      live.request.prompt.push_back(1'000'000 + ++num_made_);
    }
    live.request.priority = priority;
    live.request.scope.tenant = tenant;
    Lift(tenant);
    return queue_.Submit(std::move(live));
  }
  // Up to 13 blocks, or, one in eight, up to 43.
  void SubmitRandom() {
    const bool is_big = random_.Between(1, 8) == 1;
    const bool is_hit = random_.Between(1, 2) == 1;
    Submit(is_hit ? random_.Between(1, kShared) : 0,
           random_.Between(1, 12) + (is_big ? 120 : 0), random_.Between(1, 8),
           random_.Between(-3, 3));
  }

  // Passes of those that the step has come to before it starts this one: all
  // that were first by now, though service moves tenants back meanwhile.
  void OnStart(RequestId id) {
    const Live& started = queue_.waiting().at(id);
    const int64_t order = OrderOf(started);
    for (const auto& [other, live] : queue_.waiting()) {
      const int64_t others = OrderOf(live);
      if (others < order || (others == order && other < id)) {
        looked_at_.insert(other);
      }
    }
    looked_at_.erase(id);
    passes_.erase(id);
    for (const RequestId other : looked_at_) {
      ++num_passes_;
      most_ = std::max(most_, ++passes_[other]);
    }
    if (started.has_run) return;
    service_[started.request.scope.tenant] +=
        20 * int64_t{started.num_prompt()};
  }

  std::map<std::string, int64_t> service_;  // twentieths of a token
  LongQueue queue_{180, Options(),
                   [](const Live& live) { return RankOf(live); }};
  SeededRandom random_{7};
  std::set<RequestId> looked_at_;  // by this step, and not started
  std::map<RequestId, int32_t> passes_;
  uint64_t num_passes_ = 0;
  int32_t most_ = 0;
  int32_t num_made_ = 0;
  std::string holder_tenant_;
};

INSTANTIATE_TEST_SUITE_P(
    Policies, BypassBoundTest,
    testing::Combine(testing::Values(SchedulingPolicy::kFcfs,
                                     SchedulingPolicy::kPriority,
                                     SchedulingPolicy::kPrefix),
                     testing::Bool(), testing::Values(0, 1, 5)));

TEST_P(BypassBoundTest, IsReachedAndNeverExceeded) {
  SCOPED_TRACE("seed 7");
  const int32_t max_bypasses = std::get<int32_t>(GetParam());
  queue_.on_token = [this](const Live& live) {
    service_[live.request.scope.tenant] += 40;
  };
  const RequestId holder = Submit(kShared, 1, kHolderTokens, -4);
  for (int32_t i = 0; i < kHolderTokens; ++i) {
    looked_at_.clear();
    queue_.Step([this](RequestId id) { OnStart(id); });
    ASSERT_FALSE(queue_.waiting().contains(holder));
    ASSERT_LE(most_, max_bypasses);
    ASSERT_EQ(queue_.scheduler().stats().num_passes, num_passes_);
    while (queue_.num_waiting() < kWaiting) SubmitRandom();
  }
  EXPECT_EQ(most_, max_bypasses);
  EXPECT_GE(num_passes_, 30u * max_bypasses);
  queue_.scheduler().CheckInvariants();
}

// Prompts of a topic begin alike and end differently; the cache is large.
class LongPrefixQueueTest : public testing::Test {
 protected:
  static constexpr int32_t kAging = 2;

  static SchedulerOptions Options() {
    SchedulerOptions options = LongOptions(SchedulingPolicy::kPrefix);
    options.enable_prefix_caching = true;
    options.prefix_aging = kAging;
    options.max_num_seqs = 1;
    return options;
  }
  explicit LongPrefixQueueTest(int32_t num_usable = 50'000)
      : queue_(num_usable, Options(),
               [this](const Live& live) { return RankOf(live); }) {
    // Its prompt is computed: found by later ones.
    queue_.on_token = [this](const Live& live) {
      int32_t& published = published_[live.topic];
      published = std::max(published, CountShared(live));
    };
  }

  static int32_t LengthOf(const std::pair<const int32_t, int32_t>& entry) {
    return entry.second;
  }
  // In whole pages.
  static int32_t CountShared(const Live& live) {
    return (live.num_prompt() - 1) / kPageSize * kPageSize;
  }
  int32_t CountCached(const Live& live) const {
    const auto found = published_.find(live.topic);
    return found == published_.end()
               ? 0
               : std::min(found->second, CountShared(live));
  }
  int64_t RankOf(const Live& live) const {
    return kAging * static_cast<int64_t>(live.submit_step) - CountCached(live);
  }
  RequestId Submit(int32_t num_shared, int32_t max_tokens, int32_t topic) {
    Live live{.request = MakeRequest("", num_shared, max_tokens, topic),
              .topic = topic};
    live.request.prompt.push_back(100'000'000 + ++num_made_);
    return queue_.Submit(std::move(live));
  }
  // Each goes on longer like what is cached of the first topic.
  std::vector<RequestId> SubmitDeep(int32_t count) {
    std::vector<RequestId> deep;
    deep.reserve(count);
    for (int32_t i = 0; i < count; ++i) {
      deep.push_back(Submit(12 + 4 * i, 1, 1));
    }
    return deep;
  }
  // Requests of as many topics of their own, from 1000 on.
  void SubmitOthers(int32_t count) {
    for (int32_t i = 0; i < count; ++i) Submit(8, 1, 1000 + num_made_);
  }

  std::map<int32_t, int32_t> published_;  // tokens, by topic
  LongQueue queue_;
  int32_t num_made_ = 0;
};

TEST_F(LongPrefixQueueTest, TheLongestCachedPrefixLessAgeIsNext) {
  SCOPED_TRACE("seed 11");
  SeededRandom random(11);
  int32_t num_hits = 0;
  uint64_t most_ahead = 0;
  for (int32_t num_starts = 0; num_starts < 500 && !HasFailure();) {
    while (queue_.num_waiting() < kNumWaiting) {
      // Topics of whom not many wait: all of them are looked at in one Update.
      const int32_t topic =
          published_.empty() || random.Between(0, 1) == 0
              ? random.Between(0, 9999)
              : std::ranges::max_element(published_, {}, LengthOf)->first;
      Submit(random.Between(1, 250), random.Between(1, 2), topic);
    }
    queue_.Step([&](RequestId id) {
      EXPECT_EQ(id, queue_.First());
      ++num_starts;
      const Live& live = queue_.waiting().at(id);
      num_hits += CountCached(live) > 0 ? 1 : 0;
      const uint64_t oldest = queue_.waiting().begin()->second.submit_step;
      most_ahead = std::max(most_ahead, live.submit_step - oldest);
    });
  }
  EXPECT_GT(num_hits, 100);
  EXPECT_GT(most_ahead, 60u);
  EXPECT_LE(most_ahead, 512u / kAging);  // max_model_len / prefix_aging
  queue_.scheduler().CheckInvariants();
}

TEST_F(LongPrefixQueueTest, ALateHitIsNext) {
  Submit(40, 1, 1);
  queue_.Step();
  SubmitOthers(kNumWaiting);
  const RequestId late = Submit(30, 1, 1);
  EXPECT_EQ(queue_.NextStart(), late);
  EXPECT_LT(queue_.NextStart(), late);
}

TEST_F(LongPrefixQueueTest, FollowsWhatIsPublishedWhileItWaits) {
  Submit(40, 3, 1);
  SubmitOthers(kNumWaiting / 2);
  const RequestId deep = Submit(30, 1, 1);
  const RequestId deeper = Submit(39, 1, 1);
  SubmitOthers(kNumWaiting / 2);
  queue_.Step();  // publishes, and runs on
  EXPECT_EQ(queue_.NextStart(), deeper);
  EXPECT_EQ(queue_.NextStart(), deep);
  EXPECT_LT(queue_.NextStart(), deep);
}

// All wait for the last block of one topic: 256 blocks are looked at in an
// Update, for each of them the 16 of a look and those it finds; the last that
// came is the first.
TEST(LongTopicQueueTest, RanksFollowWithinThePromisedUpdates) {
  for (const int32_t num_pages : {2, 10}) {
    const int32_t per_update = CeilDiv(256, 16 + num_pages);
    const int32_t all = CeilDiv(kNumWaiting, per_update);
    for (const int32_t num_updates : {1, 2, 100, all - 1, all}) {
      SCOPED_TRACE(testing::Message() << num_pages << " pages, " << num_updates
                                      << " of " << all << " updates");
      const int32_t num_shared = num_pages * kPageSize;
      SchedulerOptions options = LongOptions(SchedulingPolicy::kPrefix);
      options.enable_prefix_caching = true;
      options.max_num_seqs = 1;
      options.max_model_len = 2048;
      options.long_prefill_token_threshold = num_shared - kPageSize;
      LongQueue queue(1000, options, [](const Live&) { return 0; });
      // Publishes the last block with its second step, and goes on.
      queue.Submit(MakeRequest("", num_shared, num_updates, 1));
      queue.Step();
      std::vector<RequestId> topic;
      topic.reserve(kNumWaiting);
      for (int32_t i = 0; i < kNumWaiting; ++i) {
        Request request = MakeRequest("", num_shared, 1, 1);
        request.prompt.push_back(100'000'000 + i);
        topic.push_back(queue.Submit(std::move(request)));
      }
      for (int32_t i = 0; i < num_updates; ++i) {
        ASSERT_THAT(queue.Step([](RequestId) {}), IsEmpty());
      }
      const int32_t num_known = std::min(kNumWaiting, num_updates * per_update);
      EXPECT_THAT(queue.Step([](RequestId) {}),
                  ElementsAre(topic[kNumWaiting - num_known]));
      if (num_updates < all) continue;
      for (int32_t i = 0; i < 20; ++i) queue.NextStart();
    }
  }
}

// All prefixes that the queue has found are lost, with the engine or by a reset
// of the cache: requests have the places that they had before.
class LostPrefixQueueTest : public LongPrefixQueueTest,
                            public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(LosesEngine, LostPrefixQueueTest, testing::Bool());

TEST_P(LostPrefixQueueTest, FollowsTheLossOfAll) {
  Submit(40, 1, 1);
  SubmitOthers(1);
  SubmitOthers(kNumWaiting);
  const std::vector<RequestId> deep = SubmitDeep(6);
  queue_.Step();
  EXPECT_EQ(queue_.First(), deep.back());
  if (GetParam()) {
    Effects effects;
    queue_.scheduler().LoseEngine(&effects);
  } else {
    EXPECT_EQ(queue_.scheduler().ResetPrefixCache().num_in_use, 0);
  }
  published_.clear();
  for (int32_t i = 0; i < 20; ++i) EXPECT_LT(queue_.NextStart(), deep.front());
}

TEST_F(LongPrefixQueueTest, FollowsTheLossOfBlocks) {
  Submit(40, 1, 1);
  queue_.Step();
  const BlockId third = queue_.plan().blocks[2];
  Submit(8, 2, 2);
  queue_.Step();
  SubmitOthers(kNumWaiting);
  const std::vector<RequestId> deep = SubmitDeep(6);
  EXPECT_EQ(queue_.First(), deep.back());
  queue_.lost_blocks = {third};
  queue_.Step();
  published_[1] = 8;
  for (const RequestId id : deep) EXPECT_EQ(queue_.NextStart(), id);
  EXPECT_LT(queue_.NextStart(), deep.front());
}

class ReclaimedPrefixQueueTest : public LongPrefixQueueTest {
 protected:
  ReclaimedPrefixQueueTest() : LongPrefixQueueTest(30) {}
};

TEST_F(ReclaimedPrefixQueueTest, FollowsWhatIsReclaimed) {
  Submit(20, 1, 1);
  Submit(60, 1, 2);
  queue_.Step();
  queue_.Step();
  SubmitOthers(kNumWaiting);
  const std::vector<RequestId> deep = SubmitDeep(3);
  // It goes on from 15 blocks of the second topic, and needs all others.
  const RequestId big = Submit(119, 1, 2);
  EXPECT_EQ(queue_.NextStart(), big);
  published_.erase(1);
  for (int32_t i = 0; i < 20; ++i) EXPECT_LT(queue_.NextStart(), deep.front());
}

}  // namespace
}  // namespace blockmgr
