// WaitingQueue: the requests that wait, each tenant's in order of place, and
// the tenants in order of service.
//
// A request's place decides where it is, so that a preempted request that comes
// back with its old place is where it was. Without fair share all tenants have
// equal service, so that their requests mix in order of place.
//
// Nobody is held up by those who cannot start anyway: a tenant at its quota is
// barred and in no walk, and what a whole kind of requests lacks (a lane) is
// said once in a walk, which then gives none of that kind.
//
// Cost: O(log requests) for a change, O(log tenants) for a step of a walk:
// nothing sorts, and nothing looks at all that wait. Only Insert, a tenant that
// is new and first walks allocate. Thread-compatible.
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
  // A tenant that waits, with the place of its first request.
  struct Head {
    int64_t service = 0;
    WaitingPlace place;
    TenantId tenant = kNoTenant;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
    friend auto operator<=>(const Head&, const Head&) = default;
  };
  // Trees whose nodes can be taken out and put back elsewhere.
  using Entries = std::set<Entry>;
  using Heads = std::set<Head>;

 public:
  int32_t size() const { return num_requests_; }
  bool empty() const { return num_requests_ == 0; }
  bool Waits(TenantId tenant) const { return first(tenant) != nullptr; }
  // The least service of tenants that wait, barred ones too; null without any.
  // O(barred tenants), which all have something running. Valid until the
  // next change.
  const int64_t* least_service() const;
  // The request that a walk gives first; null when empty.
  const RequestState* front() const;
  // The first of a tenant, barred or not; null: it does not wait.
  const RequestState* first(TenantId tenant) const {
    return Index(tenant) < std::ssize(tenants_) ? tenants_[Index(tenant)].first
                                                : nullptr;
  }

  // By request->tenant, lane and place, which must not change while it is in
  // the queue. REQUIRES: no other has this place.
  void Insert(RequestState* request);
  void Erase(RequestState* request);
  // The same request at another place, which it is given.
  void Move(RequestState* request, const WaitingPlace& place);
  // How much the tenant has been served, whether or not it waits; 0 at first.
  void SetService(TenantId tenant, int64_t service);
  // A barred tenant keeps its requests, and no walk gives them.
  void SetBarred(TenantId tenant, bool barred);
  bool IsBarred(TenantId tenant) const {
    return Index(tenant) < std::ssize(tenants_) &&
           tenants_[Index(tenant)].is_barred();
  }

  // All requests from the first on, but for those of barred tenants. The queue
  // must not change meanwhile.
  class Walk {
   public:
    explicit Walk(const WaitingQueue& queue);
    // Begins again, with the memory of the last time.
    void Restart();
    // Null at the end.
    const RequestState* Next();
    // The tenant of the last request gives no more in this walk.
    void SkipTenant() { skip_ = true; }
    // Nor do any requests whose lane has one of these bits. O(1), and once more
    // for each tenant whose turn it would be.
    void Bar(uint8_t lanes) { barred_lanes_ |= lanes; }
    // The tenant of the last request counts as served by so much more.
    void Serve(int64_t service) { current_.service += service; }

   private:
    struct Cursor {
      int64_t service = 0;
      TenantId tenant = kNoTenant;
      std::array<Entries::const_iterator, kNumLanes> entries;
      int32_t lane = 0;  // of the next one
      Head head() const { return {service, entries[lane]->place, tenant}; }
    };
    // Finds the tenant's next one; false: there is none that may be given.
    bool FindLane(Cursor* cursor) const;
    void PutBack(Cursor cursor);

    const WaitingQueue& queue_;
    Heads::const_iterator next_head_;
    std::vector<Cursor> begun_;  // heap, first on top
    Cursor current_;             // of the last request
    bool skip_ = true;
    uint8_t barred_lanes_ = 0;
  };

  // In order of place within each tenant, for audits and hashes. O(requests).
  std::vector<const RequestState*> All() const;
  void CheckInvariants() const;

 private:
  struct Tenant {
    std::array<Entries, kNumLanes> lanes;
    Head head;                      // its service, and the place of `first`
    RequestState* first = nullptr;  // of all lanes
    int32_t barred_index = -1;      // into barred_; -1: it is not
    bool is_barred() const { return barred_index >= 0; }
    bool has_head() const { return first != nullptr && !is_barred(); }
  };
  // Looks for the tenant's first request again, and moves its head if it is
  // another one, or elsewhere.
  void RefreshFirst(Tenant* tenant);
  // The same tenant, with another head, which is where it belongs.
  void MoveHead(Tenant* tenant, const Head& head);
  Tenant& At(TenantId tenant);  // made if there is none

  std::vector<Tenant> tenants_;  // by TenantId
  Heads heads_;                  // of tenants that are not barred
  // Unordered: what they are served while they are is as good as free.
  std::vector<TenantId> barred_;
  int32_t num_requests_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_WAITING_QUEUE_H_
