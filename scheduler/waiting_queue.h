// WaitingQueue: the requests that wait for admission.
//
// A walk gives the requests of the tenant with the least service first, and the
// requests of one tenant in order of their places. A preempted request keeps
// its place and returns to it. Without fair share all tenants have equal
// service, so requests of all tenants come in order of place.
//
// Requests that cannot start do not hold up others. A tenant at its quota is
// barred, and walks skip it. Requests that need the same scarce thing stand in
// one lane (RequestState::lane). When that thing is used up, the caller bars
// the lane for the rest of the walk.
//
//   tenant A (service 10)   lane 0: r3 r7    lane 1: r5
//   tenant B (service 12)   lane 0: r4       lane 1:
//   a walk gives            r3, r5, r7, r4
//
// Cost: O(log requests) for a change, O(log tenants) for a step of a walk. Only
// Insert, new tenants and the first walks allocate. Thread-compatible.
#ifndef SCHEDULER_WAITING_QUEUE_H_
#define SCHEDULER_WAITING_QUEUE_H_

#include <array>
#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "scheduler/request_state.h"

namespace blockmgr {

class WaitingQueue {
 private:
  struct Entry {
    WaitingPlace place;
    RequestState* request = nullptr;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.place < b.place;
    }
  };
  // A tenant with waiting requests, and the place of its first request.
  struct Head {
    int64_t service = 0;
    WaitingPlace place;
    TenantId tenant = kNoTenant;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
    friend auto operator<=>(const Head&, const Head&) = default;
  };
  // Trees, whose nodes can be moved to another place without an allocation.
  using Entries = std::set<Entry>;
  using Heads = std::set<Head>;

 public:
  int32_t size() const { return num_requests_; }
  bool empty() const { return num_requests_ == 0; }
  bool Waits(TenantId tenant) const { return first(tenant) != nullptr; }
  // Returns the least service of all tenants with waiting requests, barred or
  // not. Returns null if no request waits. Valid until the next change.
  // O(barred tenants).
  const int64_t* least_service() const;
  // Returns the request that a walk gives first. Returns null if no tenant
  // waits, or if all that wait are barred.
  const RequestState* front() const;
  // Returns the first request of a tenant, barred or not. Returns null if the
  // tenant has no waiting request.
  const RequestState* first(TenantId tenant) const {
    return Index(tenant) < std::ssize(tenants_) ? tenants_[Index(tenant)].first
                                                : nullptr;
  }

  // Adds a request. Its tenant, lane and place must not change while it is in
  // the queue. REQUIRES: no other request has its place.
  void Insert(RequestState* request);
  void Erase(RequestState* request);
  // Sets the place of a request in the queue and moves the request there.
  void Move(RequestState* request, const WaitingPlace& place);
  // Sets the service of a tenant, whether or not it has waiting requests. A new
  // tenant has service 0.
  void SetService(TenantId tenant, int64_t service);
  // Bars a tenant, or lets it in again. A barred tenant keeps its requests, but
  // walks do not give them.
  void SetBarred(TenantId tenant, bool barred);
  bool IsBarred(TenantId tenant) const {
    return Index(tenant) < std::ssize(tenants_) &&
           tenants_[Index(tenant)].is_barred();
  }

  // Walk gives the waiting requests one by one, without those of barred
  // tenants. The queue must not change during a walk.
  class Walk {
   public:
    explicit Walk(const WaitingQueue& queue);
    // Begins a new walk and reuses the memory of the last one.
    void Restart();
    // Returns the next request, or null at the end.
    const RequestState* Next();
    // Skips the other requests of the tenant of the last request given.
    void SkipTenant() { skip_ = true; }
    // Skips all further requests whose lane has one of these bits. O(1), plus
    // O(log tenants) later for each tenant whose next request is skipped.
    void Bar(uint8_t lanes) { barred_lanes_ |= lanes; }
    // Adds to the service of the last request's tenant, for this walk only.
    void Serve(int64_t service) { current_.service += service; }

   private:
    struct Cursor {
      int64_t service = 0;
      TenantId tenant = kNoTenant;
      std::array<Entries::const_iterator, kNumLanes> entries;
      int32_t lane = 0;  // the lane of the tenant's next request
      Head head() const { return {service, entries[lane]->place, tenant}; }
    };
    // Finds the tenant's next request outside barred lanes. Returns false if
    // there is none.
    bool FindLane(Cursor* cursor) const;
    void PutBack(Cursor cursor);

    const WaitingQueue& queue_;
    Heads::const_iterator next_head_;
    std::vector<Cursor> begun_;  // tenants begun, heap, next one on top
    Cursor current_;             // the place of the last request given
    bool skip_ = true;
    uint8_t barred_lanes_ = 0;
  };

  // Returns all waiting requests, tenant by tenant, in order of place within
  // each tenant. For audits and hashes. O(requests * log requests).
  std::vector<const RequestState*> All() const;
  void CheckInvariants() const;

 private:
  struct Tenant {
    std::array<Entries, kNumLanes> lanes;
    Head head;                      // has the place of `first`
    RequestState* first = nullptr;  // first request of all lanes
    // The index into barred_. -1 if the tenant is not barred.
    int32_t barred_index = -1;
    bool is_barred() const { return barred_index >= 0; }
    bool has_head() const { return first != nullptr && !is_barred(); }
  };
  // Finds the tenant's first request after a change, and adapts its head.
  void RefreshFirst(Tenant* tenant);
  // Sets the tenant's head, and moves it to its new place in heads_.
  void MoveHead(Tenant* tenant, const Head& head);
  // Returns the tenant, and adds it if it is new.
  Tenant& At(TenantId tenant);

  std::vector<Tenant> tenants_;  // indexed by TenantId
  Heads heads_;                  // tenants that wait and are not barred
  // In no order, so that changing the service of a barred tenant is O(1).
  std::vector<TenantId> barred_;
  int32_t num_requests_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_WAITING_QUEUE_H_
