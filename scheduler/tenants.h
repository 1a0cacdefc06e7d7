// Tenants: the quotas, the use and the service of each tenant.
//
// Quotas limit three counts. They follow from the live requests of the tenant:
//
//   num_requests      requests that wait or run
//   queued_tokens     prompt tokens of requests that were never admitted
//   reserved_blocks   blocks that running requests hold and will still take
//
// Service is the virtual token counter of Sheng et al. (arXiv 2401.00588): a
// prompt token counts once, when its request is admitted, and an output token
// counts twice. The sum is divided by the tenant's weight. When a tenant that
// had no waiting request submits one, its service is raised to the least
// service of the tenants that wait. If none waits, it is raised to the service
// of the tenant that left the queue last. So a tenant gains nothing by being
// idle.
//
// Cost: O(1); O(tenants) for a new tenant when the table is full.
// Thread-compatible.
#ifndef SCHEDULER_TENANTS_H_
#define SCHEDULER_TENANTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "scheduler/scheduler_options.h"

namespace blockmgr {

enum class TenantId : int32_t {};
inline constexpr TenantId kNoTenant{-1};

// The service of a token. An output token costs more than a prompt token,
// because a step computes it alone and reads the whole context for it. The
// values are those of arXiv 2401.00588, section 5.1.
inline constexpr int64_t kPromptTokenService = 1;
inline constexpr int64_t kOutputTokenService = 2;

// TenantDemand is what a request adds to the counts of its tenant.
struct TenantDemand {
  int32_t prompt_tokens = 0;
  int32_t peak_blocks = 0;
  int32_t num_records = 0;  // compression points and media of a queued request
};

class Tenants {
 public:
  // `options` is borrowed and must outlive this.
  explicit Tenants(const SchedulerOptions& options) : options_(options) {}

  // Checks whether the tenant's quotas allow one more request.
  // ResourceExhausted names the quota that would be exceeded.
  absl::Status CheckSubmit(const std::string& name,
                           const TenantDemand& demand) const;
  // Counts a request that starts to wait. REQUIRES: CheckSubmit is OK.
  TenantId Submit(const std::string& name, const TenantDemand& demand);
  const TenantLimits& limits(TenantId tenant) const {
    return tenants_[Index(tenant)].limits;
  }
  // Returns whether the tenant's running requests may reserve `blocks` more.
  bool MayReserve(TenantId tenant, int64_t blocks) const {
    const Tenant& entry = tenants_[Index(tenant)];
    return entry.limits.max_blocks == 0 ||
           entry.reserved_blocks + blocks <= entry.limits.max_blocks;
  }
  // Reserves the peak of a request that starts to run. `first` is true if the
  // request was never admitted before. Then its prompt leaves queued_tokens.
  void Admit(TenantId tenant, const TenantDemand& demand, bool first);
  // Changes the blocks that the tenant's running requests reserve. When a
  // request stops running, the caller gives back all that it reserves.
  void Reserve(TenantId tenant, int64_t change);
  // Counts a request that ends. REQUIRES: it has no blocks reserved.
  void Finish(TenantId tenant, const TenantDemand& demand, bool was_admitted);

  // Returns the tenant's service, in millionths of a token at weight 1. The
  // tenant with the least service is served first.
  int64_t service(TenantId tenant) const {
    return tenants_[Index(tenant)].service;
  }
  // Returns what serving so many tokens adds to the tenant's service.
  int64_t ServiceOf(TenantId tenant, int64_t tokens) const;
  void Serve(TenantId tenant, int64_t tokens) {
    tenants_[Index(tenant)].service += ServiceOf(tenant, tokens);
  }
  // Raises the service of a tenant that had no waiting request and now has one.
  // `least` is the least service of the tenants that wait. If none waits,
  // `least` is null, and the service of the tenant that left the queue last
  // counts instead.
  void Lift(TenantId tenant, const int64_t* least);
  // Remembers the tenant's service when its last waiting request has left.
  void Leave(TenantId tenant) { last_service_ = service(tenant); }

  int32_t size() const { return static_cast<int32_t>(names_.size()); }
  int64_t reserved_blocks(TenantId tenant) const {
    return tenants_[Index(tenant)].reserved_blocks;
  }
  int64_t queued_tokens(TenantId tenant) const {
    return tenants_[Index(tenant)].queued_tokens;
  }
  // Returns the sum over all tenants.
  int64_t queued_tokens() const { return queued_tokens_; }
  int64_t queued_records() const { return queued_records_; }
  int32_t num_requests(TenantId tenant) const {
    return tenants_[Index(tenant)].num_requests;
  }
  // Returns the use of every tenant that the options name, in their order, and
  // last the sum of all other tenants, under the name "*". So the number of
  // entries does not depend on the names that clients send. O(tenants).
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
  // Returns the index of an entry for a new tenant: a new entry, or the entry
  // of the least served tenant without requests. Returns -1 if there is none.
  int32_t FindPlace() const;
  // Takes a prompt out of queued_tokens, and its records out of
  // queued_records_.
  void LeaveQueue(const TenantDemand& demand, Tenant* tenant);

  const SchedulerOptions& options_;
  std::vector<Tenant> tenants_;  // indexed by TenantId
  absl::flat_hash_map<std::string, TenantId> names_;
  int64_t queued_tokens_ = 0;   // the sum over all tenants
  int64_t queued_records_ = 0;  // the sum over all tenants
  // The service of the tenant that left the queue last.
  int64_t last_service_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_TENANTS_H_
