#include "scheduler/scheduler_state.h"

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

// What planning is given cannot be changed through any of its doors.
using Const = const SchedulerState&;
static_assert(std::is_same_v<decltype(*std::declval<Const>().running.begin()),
                             const RequestState* const&>);
static_assert(std::is_same_v<decltype(std::declval<Const>().running[0]),
                             const RequestState*>);
static_assert(
    std::is_same_v<decltype(std::declval<Const>().requests.Find(RequestId{1})),
                   const RequestState*>);
static_assert(std::is_same_v<decltype(std::declval<Const>().waiting.front()),
                             const RequestState*>);
static_assert(
    std::is_same_v<decltype(std::declval<Const>().in_flight[0].runs[0].request),
                   const RequestState*>);

RequestState* Add(RequestTable* table, uint64_t id, const char* name) {
  RequestState* request = table->Add(RequestId{id}, name);
  RequestInfo info;
  info.id = name;
  request->info = std::make_shared<const RequestInfo>(std::move(info));
  return request;
}

TEST(RequestTableTest, AReusedObjectKeepsIndexAndIncarnation) {
  RequestTable table;
  Add(&table, 1, "a");
  RequestState* b = Add(&table, 2, "b");
  const size_t index = b->index;
  b->incarnation = 5;
  table.Remove(b);
  RequestState* c = Add(&table, 3, "c");
  EXPECT_EQ(c, b);
  EXPECT_EQ(c->index, index);
  EXPECT_EQ(c->incarnation, 5u);
  EXPECT_EQ(table.num_objects(), 2u);
  EXPECT_EQ(table.Own(std::as_const(c)), c);
}

TEST(SchedulerStateTest, OlderRequestsRunFirst) {
  const SchedulerState state(SmallLayout(4, 16), SchedulerOptions{});
  RequestState a;
  RequestState b;
  a.id = RequestId{1};
  b.id = RequestId{2};
  a.priority = 9;
  EXPECT_TRUE(state.RunsBefore(a, b));
  SchedulerOptions by_priority;
  by_priority.policy = SchedulingPolicy::kPriority;
  const SchedulerState other(SmallLayout(4, 16), by_priority);
  EXPECT_FALSE(other.RunsBefore(a, b));
}

TEST(SchedulerStateTest, LanesAreOfWhatARequestLacks) {
  SchedulerOptions options;
  options.max_long_prefills = 1;
  options.long_prefill_token_threshold = 4;
  SchedulerState state(SmallLayout(4, 16), options);
  RequestState request;
  request.tokens.resize(4);
  EXPECT_EQ(state.LaneOf(request), 0);
  request.tokens.resize(5);
  EXPECT_EQ(state.LaneOf(request), kLongPromptLane);
  // A live parent has computed most of the prompt.
  state.requests.Add(RequestId{1}, "parent");
  request.fork_of = RequestId{1};
  EXPECT_EQ(state.LaneOf(request), 0);
  request.eviction.scorer_state = ScorerState::kQueryStatistics;
  EXPECT_EQ(state.LaneOf(request), kScorerStateLane);
}

}  // namespace
}  // namespace blockmgr
