// LongQueue: a scheduler with thousands of requests waiting, an engine that
// answers at once, and the naive queue beside it: a list of all that wait, of
// which the first is found by a look at every one.
#ifndef TESTS_SCHEDULER_LONG_QUEUE_H_
#define TESTS_SCHEDULER_LONG_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "scheduler/scheduler_impl.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr::long_queue {

inline constexpr int32_t kNumWaiting = 10'000;
inline constexpr int32_t kPageSize = 4;

// What the test knows of a request that has not ended.
struct Live {
  Request request;
  int32_t topic = 0;
  uint64_t submit_step = 0;
  bool has_run = false;

  int32_t num_prompt() const {
    return static_cast<int32_t>(request.prompt.size());
  }
  // Alone: the last output is never an input.
  int32_t peak_blocks() const {
    return CeilDiv(num_prompt() + request.max_tokens - 1, kPageSize);
  }
};

// A scheduler with an engine that answers at once, and the naive queue: all
// that wait, by age.
class LongQueue {
 public:
  // Less is served first; of equal ones the oldest.
  using Rank = std::function<int64_t(const Live&)>;

  LongQueue(int32_t num_usable, const SchedulerOptions& options, Rank rank)
      : scheduler_(SmallLayout(kPageSize, num_usable), options),
        rank_(std::move(rank)) {}

  SchedulerImpl& scheduler() { return scheduler_; }
  const std::map<RequestId, Live>& waiting() const { return waiting_; }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Of the step that is issued next.
  uint64_t step() const { return step_; }
  // Starts of requests that had been preempted.
  int32_t num_restarts() const { return num_restarts_; }

  // Gives it a name.
  absl::StatusOr<RequestId> TrySubmit(Live live) {
    live.request.id = absl::StrCat(++num_submitted_);
    live.submit_step = step_;
    absl::StatusOr<RequestId> id = scheduler_.Submit(live.request);
    if (id.ok()) waiting_.emplace(*id, std::move(live));
    return id;
  }
  RequestId Submit(Live live) {
    const absl::StatusOr<RequestId> id = TrySubmit(std::move(live));
    EXPECT_THAT(id, IsOk());
    return id.value_or(RequestId{0});
  }
  RequestId Submit(Request request) {
    return Submit(Live{.request = std::move(request)});
  }

  // Whoever the rank says is first of those that `may_start`.
  template <typename MayStart>
  RequestId First(MayStart may_start) const {
    RequestId first{0};
    int64_t least = 0;
    for (const auto& [id, live] : waiting_) {
      if (!may_start(live)) continue;
      const int64_t rank = rank_(live);
      if (first == RequestId{0} || rank < least) {
        first = id;
        least = rank;
      }
    }
    return first;
  }
  RequestId First() const {
    return First([](const Live&) { return true; });
  }

  // Issues a step, and calls on_start(id) of each that it starts, in order,
  // while that still waits; then the engine answers. Ids of those started.
  template <typename OnStart>
  std::vector<RequestId> Step(OnStart on_start) {
    std::vector<RequestId> started;
    EXPECT_TRUE(scheduler_.Schedule(&plan_));
    ++step_;
    for (const SequenceSlot slot : plan_.released) {
      const auto left = running_.find(slots_.at(slot));
      slots_.erase(slot);
      if (left == running_.end()) continue;  // it has ended
      waiting_.insert(running_.extract(left));
    }
    for (const SequenceStart& start : plan_.starts) {
      slots_[start.slot] = start.request;
      started.push_back(start.request);
      on_start(start.request);
      auto node = waiting_.extract(start.request);
      EXPECT_FALSE(node.empty());
      if (node.empty()) continue;
      num_restarts_ += node.mapped().has_run ? 1 : 0;
      node.mapped().has_run = true;
      running_.insert(std::move(node));
    }
    Answer();
    return started;
  }
  // The same; each must be the first.
  std::vector<RequestId> Step() {
    return Step([this](RequestId id) { EXPECT_EQ(id, First()); });
  }
  // Steps until somebody starts, who must be the first.
  RequestId NextStart() {
    while (true) {
      const std::vector<RequestId> started = Step();
      if (!started.empty()) return started.front();
    }
  }

  // Of the last step.
  const StepPlan& plan() const { return plan_; }
  // That the next answer reports.
  std::vector<BlockId> lost_blocks;
  // What an answer brings, if anybody wants to know.
  std::function<void(const Live&)> on_token;
  std::function<void(const Live&)> on_finish;

 private:
  void Answer() {
    StepResult result = AnswerTo(plan_);
    result.lost_blocks.swap(lost_blocks);
    Effects effects;
    EXPECT_THAT(scheduler_.Update(result, &effects), IsOk());
    for (const TokenEffect& effect : effects.tokens) {
      if (on_token) on_token(running_.at(effect.request));
    }
    for (const FinishEffect& effect : effects.finished) {
      if (on_finish) on_finish(running_.at(effect.request));
      running_.erase(effect.request);
    }
  }

  SchedulerImpl scheduler_;
  StepPlan plan_;
  const Rank rank_;
  std::map<RequestId, Live> waiting_;
  std::map<RequestId, Live> running_;
  std::map<SequenceSlot, RequestId> slots_;
  uint64_t step_ = 1;
  int32_t num_submitted_ = 0;
  int32_t num_restarts_ = 0;
};

inline SchedulerOptions LongOptions(SchedulingPolicy policy) {
  SchedulerOptions options = PlainOptions();
  options.policy = policy;
  options.max_num_batched_tokens = 512;
  options.min_prefix_wait_tokens = 0;
  return options;
}

}  // namespace blockmgr::long_queue

#endif  // TESTS_SCHEDULER_LONG_QUEUE_H_
