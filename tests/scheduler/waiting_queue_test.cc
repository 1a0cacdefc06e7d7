#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

class WaitingQueueTest : public testing::Test {
 protected:
  RequestState* Make(int32_t tenant, int64_t rank, uint64_t arrival) {
    states_.push_back(std::make_unique<RequestState>());
    RequestState* state = states_.back().get();
    state->tenant = TenantId{tenant};
    state->place = {.rank = rank, .arrival = arrival};
    return state;
  }
  RequestState* Insert(int32_t tenant, int64_t rank, uint64_t arrival,
                       uint8_t lane = 0) {
    RequestState* state = Make(tenant, rank, arrival);
    state->lane = lane;
    queue_.Insert(state);
    queue_.CheckInvariants();
    return state;
  }
  // Arrivals in order of a whole walk, in which these lanes are barred when so
  // many have been given.
  std::vector<uint64_t> Arrivals(uint64_t when = 0, uint8_t lanes = 0) const {
    std::vector<uint64_t> arrivals;
    WaitingQueue::Walk walk(queue_);
    // One that begins again knows nothing of the time before.
    if (walk.Next() != nullptr) walk.Serve(1000);
    walk.Next();
    walk.Bar(kLongPromptLane | kScorerStateLane);
    walk.Restart();
    if (when == 0) walk.Bar(lanes);
    while (const RequestState* request = walk.Next()) {
      arrivals.push_back(request->place.arrival);
      if (arrivals.size() == when) walk.Bar(lanes);
    }
    return arrivals;
  }

  std::vector<std::unique_ptr<RequestState>> states_;
  WaitingQueue queue_;
};

TEST_F(WaitingQueueTest, ServiceDuringAWalkCounts) {
  Insert(0, 0, 1);
  Insert(0, 0, 2);
  Insert(0, 0, 3);
  Insert(1, 0, 4);
  Insert(1, 0, 5);
  std::vector<uint64_t> arrivals;
  WaitingQueue::Walk walk(queue_);
  while (const RequestState* request = walk.Next()) {
    arrivals.push_back(request->place.arrival);
    walk.Serve(request->tenant == TenantId{0} ? 2 : 3);
  }
  // Services: 0 2 | 3, then 2 4, 3 6.
  EXPECT_THAT(arrivals, ElementsAre(1, 4, 2, 5, 3));
  // The walk has changed nothing.
  EXPECT_THAT(Arrivals(), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(WaitingQueueTest, ASkippedTenantGivesNoMore) {
  Insert(0, 0, 1);
  Insert(0, 0, 2);
  Insert(1, 0, 3);
  WaitingQueue::Walk walk(queue_);
  EXPECT_EQ(walk.Next()->place.arrival, 1);
  walk.SkipTenant();
  EXPECT_EQ(walk.Next()->place.arrival, 3);
  EXPECT_EQ(walk.Next(), nullptr);
  EXPECT_EQ(walk.Next(), nullptr);
}

// Against a sorted list of everything.
TEST_F(WaitingQueueTest, AgreesWithAModel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    uint64_t random = seed;
    const auto below = [&random](uint64_t n) {
      random = SplitMix64(random);
      return random % n;
    };
    queue_ = WaitingQueue();
    std::vector<RequestState*> model;
    std::map<TenantId, int64_t> service;
    std::array<bool, 4> barred = {};
    for (uint64_t arrival = 1; arrival <= 300; ++arrival) {
      const uint64_t kind = below(11);
      const auto tenant = static_cast<int32_t>(below(4));
      if (kind < 5) {
        const auto rank = static_cast<int64_t>(below(5));
        model.push_back(Insert(tenant, rank, arrival,
                               static_cast<uint8_t>(below(kNumLanes))));
      } else if (kind < 8 && !model.empty()) {
        const size_t index = below(model.size());
        queue_.Erase(model[index]);
        model.erase(model.begin() + static_cast<int64_t>(index));
      } else if (kind == 8 && !model.empty()) {
        RequestState* request = model[below(model.size())];
        queue_.Move(request, {.rank = static_cast<int64_t>(below(5)),
                              .arrival = request->place.arrival});
      } else if (kind == 10) {
        barred[tenant] = !barred[tenant];
        queue_.SetBarred(TenantId{tenant}, barred[tenant]);
      } else {
        service[TenantId{tenant}] += static_cast<int64_t>(below(3));
        queue_.SetService(TenantId{tenant}, service[TenantId{tenant}]);
      }
      queue_.CheckInvariants();
      std::ranges::sort(model, {}, [&service](const RequestState* request) {
        return std::tuple(service[request->tenant], request->place.rank,
                          request->place.arrival);
      });
      // After a few of a walk, some lanes give no more.
      const uint64_t when = below(8);
      const auto lanes = static_cast<uint8_t>(below(kNumLanes));
      std::vector<uint64_t> expected;
      const RequestState* front = nullptr;
      std::array<const RequestState*, 4> first = {};  // of each tenant
      for (const RequestState* request : model) {
        const RequestState*& own = first[Index(request->tenant)];
        if (own == nullptr) own = request;
        if (barred[Index(request->tenant)]) continue;
        if (front == nullptr) front = request;
        if (expected.size() >= when && (request->lane & lanes) != 0) continue;
        expected.push_back(request->place.arrival);
      }
      ASSERT_EQ(Arrivals(when, lanes), expected);
      ASSERT_EQ(queue_.size(), std::ssize(model));
      ASSERT_EQ(queue_.front(), front);
      for (int32_t i = 0; i < 4; ++i) {
        ASSERT_EQ(queue_.first(TenantId{i}), first[i]) << i;
        ASSERT_EQ(queue_.Waits(TenantId{i}), first[i] != nullptr) << i;
      }
      ASSERT_EQ(queue_.least_service() == nullptr, model.empty());
      if (model.empty()) continue;
      ASSERT_EQ(*queue_.least_service(), service[model[0]->tenant]);
    }
  }
}

}  // namespace
}  // namespace blockmgr
