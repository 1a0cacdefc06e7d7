// Tenants: what each may use, what it uses, and how much it has been served.
//
// Quotas count requests: num_requests (waiting and running), queued_tokens (of
// prompts that have not been admitted yet) and reserved_blocks (of those that
// run: what they have and will still take). All of it
// follows from the requests; nothing here expires by itself.
//
// Service is counted as in the virtual token counter of Sheng et al. (arXiv
// 2401.00588): prompt tokens as admitted, output tokens twice, divided by the
// tenant's weight. Whoever comes back with no request waiting is lifted to the
// least served of those that wait (or, without any, to the last one that did),
// so that being idle earns nothing.
//
// Cost: O(1), but O(tenants) for a new one when the table is full. Thread-
// compatible.
#ifndef SCHEDULER_TENANTS_H_
#define SCHEDULER_TENANTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "scheduler/scheduler_options.h"

namespace blockmgr {

enum class TenantId : int32_t {};
inline constexpr TenantId kNoTenant{-1};

// An output token costs more than a prompt token: it is computed alone, and
// carries the whole context (arXiv 2401.00588, section 5.1: 1 and 2).
inline constexpr int64_t kPromptTokenService = 1;
inline constexpr int64_t kOutputTokenService = 2;

// What a request brings to its tenant.
struct TenantDemand {
  int32_t prompt_tokens = 0;
  int32_t peak_blocks = 0;
};

class Tenants {
 public:
  // `options` is borrowed and must outlive this.
  explicit Tenants(const SchedulerOptions& options) : options_(options) {}

  // Whether one more request is within the tenant's quotas; ResourceExhausted
  // names the quota that is not. Changes nothing.
  absl::Status CheckSubmit(const std::string& name,
                           const TenantDemand& demand) const;
  // The request waits from now on. REQUIRES: CheckSubmit.
  TenantId Submit(const std::string& name, const TenantDemand& demand);
  const TenantLimits& limits(TenantId tenant) const {
    return tenants_[Index(tenant)].limits;
  }
  // Whether it may run beside those of its tenant that do.
  bool MayReserve(TenantId tenant, int64_t blocks) const {
    const Tenant& entry = tenants_[Index(tenant)];
    return entry.limits.max_blocks == 0 ||
           entry.reserved_blocks + blocks <= entry.limits.max_blocks;
  }
  // It runs, and reserves its peak; `first`: for the first time, so that its
  // prompt leaves the queue.
  void Admit(TenantId tenant, const TenantDemand& demand, bool first);
  // One that runs reserves so many blocks more, or, below 0, fewer; all of them
  // are given back when it stops running.
  void Reserve(TenantId tenant, int64_t change);
  // It ends. REQUIRES: it has nothing reserved.
  void Finish(TenantId tenant, const TenantDemand& demand, bool was_admitted);

  // Service, in tokens by weight, scaled; less is served first.
  int64_t service(TenantId tenant) const {
    return tenants_[Index(tenant)].service;
  }
  // What serving so many tokens adds to it.
  int64_t ServiceOf(TenantId tenant, int64_t tokens) const;
  void Serve(TenantId tenant, int64_t tokens) {
    tenants_[Index(tenant)].service += ServiceOf(tenant, tokens);
  }
  // The tenant has something waiting again. `least`: the least service of the
  // others that wait; none: nobody does.
  void Lift(TenantId tenant, const int64_t* least);
  // The tenant's last waiting request has left the queue.
  void Leave(TenantId tenant) { last_service_ = service(tenant); }

  int32_t size() const { return static_cast<int32_t>(names_.size()); }
  int64_t reserved_blocks(TenantId tenant) const {
    return tenants_[Index(tenant)].reserved_blocks;
  }
  int64_t queued_tokens(TenantId tenant) const {
    return tenants_[Index(tenant)].queued_tokens;
  }
  int64_t queued_tokens() const { return queued_tokens_; }  // of all
  int32_t num_requests(TenantId tenant) const {
    return tenants_[Index(tenant)].num_requests;
  }
  // Of every tenant that the options name, in order, then of the others: as
  // many as are configured, whatever names clients send. O(tenants).
  std::vector<TenantUse> Uses() const;
  uint64_t StateHash() const;
  // For tests.
  void CheckInvariants() const;

 private:
  struct Tenant {
    std::string name;
    TenantLimits limits;
    int32_t num_requests = 0;
    int64_t queued_tokens = 0;
    int64_t reserved_blocks = 0;
    int64_t service = 0;
    bool known = false;
  };
  const TenantLimits& LimitsOf(const std::string& name) const;
  // Index of an entry for a new tenant: unused, or that of the idle tenant that
  // has been served least. -1: all have requests.
  int32_t FindPlace() const;
  // A prompt does, admitted or not.
  void LeaveQueue(const TenantDemand& demand, Tenant* tenant);

  const SchedulerOptions& options_;
  std::vector<Tenant> tenants_;  // by TenantId
  absl::flat_hash_map<std::string, TenantId> names_;
  int64_t queued_tokens_ = 0;  // of all tenants
  int64_t last_service_ = 0;   // of the last tenant to leave the queue
};

}  // namespace blockmgr

#endif  // SCHEDULER_TENANTS_H_
