#include "scheduler/tenants.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Service is counted in parts of a token, so that weights up to 1000 divide
// with an error below a tenth of a percent.
constexpr int64_t kServiceScale = 1'000'000;

absl::Status OverQuota(const std::string& tenant, const char* quota,
                       int64_t limit, int64_t used, int64_t more) {
  return absl::ResourceExhaustedError(
      absl::StrCat("tenant '", tenant, "' is over its quota ", quota,
                   ": expected at most ", limit, ", got ", used, " + ", more));
}

}  // namespace

const TenantLimits& Tenants::LimitsOf(const std::string& name) const {
  const auto own = options_.tenants.find(name);
  return own == options_.tenants.end() ? options_.tenant_limits : own->second;
}

int32_t Tenants::FindPlace() const {
  if (std::ssize(tenants_) < options_.max_tenants) {
    return static_cast<int32_t>(tenants_.size());
  }
  int32_t place = -1;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    if (tenants_[i].num_requests > 0) continue;
    if (place < 0 || tenants_[i].service < tenants_[place].service) {
      place = static_cast<int32_t>(i);
    }
  }
  return place;
}

absl::Status Tenants::CheckSubmit(const std::string& name,
                                  const TenantDemand& demand) const {
  const TenantLimits& limits = LimitsOf(name);
  const auto found = names_.find(name);
  if (found == names_.end() && FindPlace() < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "tenant '", name, "' is one too many: expected at most ",
        options_.max_tenants, " with requests at a time (max_tenants)"));
  }
  static const Tenant unknown;
  const Tenant& tenant =
      found == names_.end() ? unknown : tenants_[Index(found->second)];
  if (limits.max_requests > 0 && tenant.num_requests >= limits.max_requests) {
    return OverQuota(name, "max_requests", limits.max_requests,
                     tenant.num_requests, 1);
  }
  if (limits.max_queued_tokens > 0 &&
      tenant.queued_tokens + demand.prompt_tokens > limits.max_queued_tokens) {
    return OverQuota(name, "max_queued_tokens", limits.max_queued_tokens,
                     tenant.queued_tokens, demand.prompt_tokens);
  }
  if (limits.max_blocks > 0 && demand.peak_blocks > limits.max_blocks) {
    return OverQuota(name, "max_blocks", limits.max_blocks, 0,
                     demand.peak_blocks);
  }
  return absl::OkStatus();
}

TenantId Tenants::Submit(const std::string& name, const TenantDemand& demand) {
  const auto found = names_.find(name);
  TenantId id = kNoTenant;
  if (found != names_.end()) {
    id = found->second;
  } else {
    const int32_t place = FindPlace();
    BM_CHECK(place >= 0);
    id = TenantId{place};
    if (place == std::ssize(tenants_)) tenants_.emplace_back();
    Tenant& entry = tenants_[place];
    if (entry.known) names_.erase(entry.name);
    entry = Tenant{};
    entry.name = name;
    entry.limits = LimitsOf(name);
    entry.known = true;
    names_.emplace(name, id);
  }
  Tenant& tenant = tenants_[Index(id)];
  ++tenant.num_requests;
  tenant.queued_tokens += demand.prompt_tokens;
  queued_tokens_ += demand.prompt_tokens;
  queued_records_ += demand.num_records;
  return id;
}

void Tenants::Admit(TenantId id, const TenantDemand& demand, bool first) {
  Tenant& tenant = tenants_[Index(id)];
  tenant.reserved_blocks += demand.peak_blocks;
  if (first) LeaveQueue(demand, &tenant);
}

void Tenants::LeaveQueue(const TenantDemand& demand, Tenant* tenant) {
  tenant->queued_tokens -= demand.prompt_tokens;
  queued_tokens_ -= demand.prompt_tokens;
  queued_records_ -= demand.num_records;
  BM_CHECK(tenant->queued_tokens >= 0);
}

void Tenants::Reserve(TenantId id, int64_t change) {
  Tenant& tenant = tenants_[Index(id)];
  tenant.reserved_blocks += change;
  BM_CHECK(tenant.reserved_blocks >= 0);
}

void Tenants::Finish(TenantId id, const TenantDemand& demand,
                     bool was_admitted) {
  Tenant& tenant = tenants_[Index(id)];
  if (!was_admitted) LeaveQueue(demand, &tenant);
  --tenant.num_requests;
  BM_CHECK(tenant.num_requests >= 0);
}

int64_t Tenants::ServiceOf(TenantId id, int64_t tokens) const {
  return tokens * kServiceScale / tenants_[Index(id)].limits.weight;
}

void Tenants::Lift(TenantId id, const int64_t* least) {
  Tenant& tenant = tenants_[Index(id)];
  tenant.service =
      std::max(tenant.service, least == nullptr ? last_service_ : *least);
}

std::vector<TenantUse> Tenants::Uses() const {
  std::vector<TenantUse> uses;
  uses.reserve(options_.tenants.size() + 1);
  TenantUse others{.name = "*"};
  const auto add = [](const Tenant& tenant, TenantUse* use) {
    use->num_requests += tenant.num_requests;
    use->queued_tokens += tenant.queued_tokens;
    use->reserved_blocks += tenant.reserved_blocks;
  };
  for (const Tenant& tenant : tenants_) {
    if (!options_.tenants.contains(tenant.name)) add(tenant, &others);
  }
  for (const auto& [name, limits] : options_.tenants) {
    TenantUse& use = uses.emplace_back(TenantUse{.name = name});
    const auto found = names_.find(name);
    if (found != names_.end()) add(tenants_[Index(found->second)], &use);
  }
  uses.push_back(std::move(others));
  return uses;
}

uint64_t Tenants::StateHash() const {
  uint64_t hash = static_cast<uint64_t>(last_service_);
  for (const Tenant& tenant : tenants_) {
    for (const int64_t value :
         {int64_t{tenant.num_requests}, tenant.queued_tokens,
          tenant.reserved_blocks, tenant.service}) {
      hash = SplitMix64(hash ^ static_cast<uint64_t>(value));
    }
  }
  return hash;
}

void Tenants::CheckInvariants() const {
  BM_CHECK(names_.size() == tenants_.size());
  BM_CHECK(std::ssize(tenants_) <= options_.max_tenants);
  int64_t queued_tokens = 0;
  for (const auto& [name, id] : names_) {
    const Tenant& tenant = tenants_[Index(id)];
    BM_CHECK(tenant.name == name);
    BM_CHECK(tenant.num_requests >= 0);
    BM_CHECK(tenant.queued_tokens >= 0);
    BM_CHECK(tenant.reserved_blocks >= 0);
    BM_CHECK(tenant.num_requests > 0 || tenant.queued_tokens == 0);
    BM_CHECK(tenant.num_requests > 0 || tenant.reserved_blocks == 0);
    queued_tokens += tenant.queued_tokens;
  }
  BM_CHECK(queued_tokens_ == queued_tokens);
  BM_CHECK(queued_records_ >= 0);
  BM_CHECK(queued_tokens_ > 0 || queued_records_ == 0);
}

}  // namespace blockmgr
