// WaitingQueue: the requests that wait, each tenant's in order of place, and
// the tenants in order of service.
//
// A request's place decides where it is, so that a preempted request that comes
// back with its old place is where it was. Without fair share all tenants have
// equal service, so that their requests mix in order of place.
//
// Cost: O(log requests) for a change, O(log tenants) for a step of a walk:
// nothing sorts, and nothing looks at all that wait. Thread-compatible.
#ifndef SCHEDULER_WAITING_QUEUE_H_
#define SCHEDULER_WAITING_QUEUE_H_

#include <compare>
#include <cstdint>
#include <vector>

#include <absl/container/btree_set.h>

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
    friend auto operator<=>(const Head&, const Head&) = default;
  };
  using Entries = absl::btree_set<Entry>;
  using Heads = absl::btree_set<Head>;

 public:
  int32_t size() const { return num_requests_; }
  bool empty() const { return num_requests_ == 0; }
  bool Waits(TenantId tenant) const {
    return Index(tenant) < std::ssize(tenants_) &&
           !tenants_[Index(tenant)].entries.empty();
  }
  // The least service of tenants that wait; null without any. Valid until the
  // next change.
  const int64_t* least_service() const {
    return heads_.empty() ? nullptr : &heads_.begin()->service;
  }
  // The request that a walk gives first; null when empty.
  RequestState* front() const;

  // By request->tenant and request->place, which must not change while it is
  // in the queue. REQUIRES: no other has this place.
  void Insert(RequestState* request);
  void Erase(RequestState* request);
  // The same request at another place, which it is given.
  void Move(RequestState* request, const WaitingPlace& place);
  // How much the tenant has been served, whether or not it waits; 0 at first.
  void SetService(TenantId tenant, int64_t service);

  // All requests from the first on. The queue must not change meanwhile.
  class Walk {
   public:
    explicit Walk(const WaitingQueue& queue);
    // Null at the end.
    RequestState* Next();
    // The tenant of the last request gives no more in this walk.
    void SkipTenant() { skip_ = true; }
    // The tenant of the last request counts as served by so much more.
    void Serve(int64_t service) { current_.service += service; }

   private:
    struct Cursor {
      int64_t service = 0;
      TenantId tenant = kNoTenant;
      Entries::const_iterator entry;
      Head head() const { return {service, entry->place, tenant}; }
    };
    void PutBack();

    const WaitingQueue& queue_;
    Heads::const_iterator next_head_;
    std::vector<Cursor> begun_;  // heap, first on top
    Cursor current_;             // of the last request
    bool skip_ = true;
  };

  // In order of place within each tenant, for audits and hashes. O(requests).
  std::vector<const RequestState*> All() const;
  void CheckInvariants() const;

 private:
  struct Tenant {
    Entries entries;
    int64_t service = 0;
  };
  Head HeadOf(TenantId tenant) const {
    const Tenant& entry = tenants_[Index(tenant)];
    return {entry.service, entry.entries.begin()->place, tenant};
  }

  std::vector<Tenant> tenants_;  // by TenantId
  Heads heads_;
  int32_t num_requests_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_WAITING_QUEUE_H_
