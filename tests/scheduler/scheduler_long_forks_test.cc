// Thousands of forks that wait: each starts with what the one that it is a fork
// of has computed of their common tokens, or computes all when that is gone;
// and all end.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/long_queue.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::Contains;

// Without a prefix cache: what is not shared is computed.
class LongForks {
 public:
  LongForks() {
    queue_.on_finish = [this](const long_queue::Live& live) {
      running_.erase(live.request.id);
      ++num_finished_;
    };
  }

  RequestId Submit(const Request& request) {
    const RequestId id = queue_.Submit(request);
    const Request& named = queue_.waiting().at(id).request;
    requests_[id] = named;
    return id;
  }
  // What a fork has of its own.
  struct Own {
    int32_t num_kept = INT32_MAX;      // of its parent's prompt, at most
    std::vector<int32_t> tokens = {};  // behind those
    int32_t max_tokens = 1;
  };
  RequestId SubmitFork(RequestId parent, const Own& own) {
    Request fork = requests_.at(parent);
    fork.fork_of = fork.id;
    fork.prompt.resize(
        std::min(fork.prompt.size(), static_cast<size_t>(own.num_kept)));
    fork.prompt.insert(fork.prompt.end(), own.tokens.begin(), own.tokens.end());
    fork.max_tokens = own.max_tokens;
    return Submit(fork);
  }

  // Ids of those started.
  std::vector<RequestId> Step() {
    std::vector<RequestId> started =
        queue_.Step([this](RequestId id) { CheckStart(id); });
    const StepPlan& plan = queue_.plan();
    for (const SequenceStart& start : plan.starts) {
      slots_[start.slot] = start.request;
    }
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      num_computed_[requests_.at(slots_.at(plan.slots[i])).id] =
          plan.positions[i] + plan.num_tokens[i];
    }
    return started;
  }

  void Finish() {
    while (queue_.scheduler().has_unfinished_requests() &&
           !testing::Test::HasFailure()) {
      Step();
    }
    queue_.scheduler().CheckInvariants();
    const SchedulerStats stats = queue_.scheduler().stats();
    EXPECT_EQ(num_finished_, std::ssize(requests_));
    EXPECT_EQ(stats.num_preemptions, 0u);
    EXPECT_EQ(stats.num_forks, num_shared_);
    // The last output is never an input.
    uint64_t num_tokens = 0;
    for (const auto& [id, request] : requests_) {
      num_tokens += request.prompt.size() + request.max_tokens - 1;
    }
    EXPECT_EQ(stats.num_computed_tokens, num_tokens - num_saved_);
  }

  uint64_t num_shared() const { return num_shared_; }
  uint64_t num_alone() const { return num_alone_; }  // after their parents

 private:
  static SchedulerOptions Options() {
    SchedulerOptions options = long_queue::LongOptions(SchedulingPolicy::kFcfs);
    options.max_num_seqs = 64;
    options.max_model_len = 4096;
    // So that steps look at forks while a prompt is computed.
    options.long_prefill_token_threshold = 128;
    return options;
  }

  // All output sevens. The last token of a prompt is always computed.
  int32_t CountCommon(const Request& parent, const Request& fork) const {
    std::vector<int32_t> known = parent.prompt;
    known.resize(
        std::max(known.size(), size_t{1} + num_computed_.at(parent.id)), 7);
    const auto last = fork.prompt.end() - 1;
    return static_cast<int32_t>(std::ranges::mismatch(fork.prompt.begin(), last,
                                                      known.begin(),
                                                      known.end())
                                    .in1 -
                                fork.prompt.begin());
  }

  void CheckStart(RequestId id) {
    const Request& request = requests_.at(id);
    const auto start =
        std::ranges::find(queue_.plan().starts, id, &SequenceStart::request);
    const int32_t num_cached = start->num_cached_tokens;
    if (running_.contains(request.fork_of)) {
      const Request& parent = *running_.at(request.fork_of);
      const int32_t num_common = CountCommon(parent, request);
      EXPECT_EQ(num_cached, std::min(num_common, num_computed_.at(parent.id)));
      // A few tokens are computed sooner than waited for.
      EXPECT_GE(num_cached, num_common - long_queue::kPageSize);
      num_saved_ += num_cached;
      ++num_shared_;
    } else {
      EXPECT_EQ(num_cached, 0);
      num_alone_ += request.fork_of.empty() ? 0 : 1;
    }
    running_[request.id] = &request;
  }

  long_queue::LongQueue queue_{50'000, Options(),
                               [](const long_queue::Live&) { return 0; }};
  std::map<RequestId, Request> requests_;          // all that were submitted
  std::map<std::string, const Request*> running_;  // by name
  std::map<std::string, int32_t> num_computed_;    // and answered, likewise
  std::map<SequenceSlot, RequestId> slots_;
  int64_t num_finished_ = 0;
  uint64_t num_shared_ = 0;
  uint64_t num_alone_ = 0;
  uint64_t num_saved_ = 0;  // tokens
};

// More than a step looks at.
TEST(LongForksTest, ThousandsOfSamplesComputeOnePrompt) {
  LongForks forks;
  const RequestId leader = forks.Submit(MakeRequest("", 1500, 600));
  for (int32_t i = 0; i < 4000; ++i) {
    forks.SubmitFork(leader, {.max_tokens = 3});
  }
  forks.Finish();
  EXPECT_EQ(forks.num_shared(), 4000u);
}

TEST(LongForksTest, ForksOfManyLeadersShareOrComputeAlone) {
  uint64_t num_shared = 0;
  uint64_t num_alone = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    LongForks forks;
    std::vector<RequestId> leaders;
    // The first ends long before all of its forks have started.
    for (const int32_t num_outputs : {20, 300, 900, 900}) {
      leaders.push_back(forks.Submit(
          MakeRequest("", random.Between(50, num_outputs + 100), num_outputs,
                      static_cast<int32_t>(leaders.size()))));
    }
    for (int32_t i = 0; i < 3000; ++i) {
      LongForks::Own own{.tokens = std::vector<int32_t>(random.Between(0, 3),
                                                        random.Between(6, 7)),
                         .max_tokens = random.Between(1, 6)};
      if (random.Between(0, 3) == 0) own.num_kept = random.Between(2, 900);
      forks.SubmitFork(leaders[random.Between(0, 3)], own);
    }
    forks.Finish();
    num_shared += forks.num_shared();
    num_alone += forks.num_alone();
  }
  EXPECT_GT(num_shared, 3000u);
  EXPECT_GT(num_alone, 1000u);
}

// Who waits for nobody does not wait behind forks.
TEST(LongForksTest, OthersPassThousandsOfWaitingForks) {
  LongForks forks;
  const RequestId leader = forks.Submit(MakeRequest("", 1500, 300));
  for (int32_t i = 0; i < 2000; ++i) {
    forks.SubmitFork(leader, {.max_tokens = 2});
  }
  const RequestId other = forks.Submit(MakeRequest("", 10, 2, 1));
  EXPECT_THAT(forks.Step(), Contains(other));
  forks.Finish();
  EXPECT_EQ(forks.num_shared(), 2000u);
}

}  // namespace
}  // namespace blockmgr
