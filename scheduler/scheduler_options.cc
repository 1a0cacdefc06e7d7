#include "scheduler/scheduler_options.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "scheduler/require_range.h"
#include "scheduler/sampling_requests.h"

namespace blockmgr {
namespace {

absl::Status ValidateLimits(const std::string& field,
                            const TenantLimits& limits) {
  RangeChecks checks(absl::StrCat(field, "."));
  VisitTenantLimits(limits, checks);
  return checks.status();
}

// The most tables that an engine may announce, and the most bytes of a text.
// Errors repeat the names.
constexpr size_t kMaxQueryStats = 256;
constexpr size_t kMaxFingerprint = 64;

absl::Status ValidateQueryStats(
    const std::map<std::string, std::string>& query_stats) {
  if (query_stats.size() > kMaxQueryStats) {
    return Invalid("query_stats: expected at most ", kMaxQueryStats,
                   " tables, got ", query_stats.size());
  }
  for (const auto& [name, fingerprint] : query_stats) {
    if (!IsTableName(name)) {
      return Invalid("query_stats: expected ", kTableNameText, ", got '", name,
                     "'");
    }
    if (fingerprint.size() > kMaxFingerprint) {
      return Invalid("query_stats['", name, "']: expected a text of at most ",
                     kMaxFingerprint, " bytes, got ", fingerprint.size());
    }
  }
  return absl::OkStatus();
}

// Returns how users write the name of a limit.
std::string LimitName(absl::string_view field) {
  return absl::StrReplaceAll(field, {{"_", "-"}});
}

// A visitor of TenantLimits that collects the names and meanings of the limits.
struct LimitTexts {
  std::vector<std::string> names;
  std::string meanings;

  template <typename T>
  void Number(absl::string_view field, T /*limit*/,
              std::type_identity_t<T> /*min*/, std::type_identity_t<T> /*max*/,
              const char* help) {
    names.push_back(LimitName(field));
    absl::StrAppend(&meanings, meanings.empty() ? "" : ". ", names.back(), ": ",
                    help);
  }
};

LimitTexts TextsOfLimits() {
  LimitTexts texts;
  const TenantLimits limits;
  VisitTenantLimits(limits, texts);
  return texts;
}

// A visitor of TenantLimits that sets the limit of one name. `problem` is empty
// afterwards, or says why there is nothing to set.
struct LimitSetter {
  const std::string name;
  const int64_t value;
  std::string problem = absl::StrCat("there is no limit '", name, "'");

  template <typename T>
  void Number(absl::string_view field, T& limit, std::type_identity_t<T> min,
              std::type_identity_t<T> max, const char* /*help*/) {
    if (LimitName(field) != name) return;
    const bool fits = value >= min && value <= max;
    problem = fits ? "" : absl::StrCat(name, ": expected ", min, " to ", max);
    if (fits) limit = static_cast<T>(value);
  }
};

}  // namespace

absl::Status SchedulerOptions::CheckLength(int64_t prompt_tokens,
                                           int64_t max_tokens) const {
  BM_RETURN_IF_ERROR(RequireRange("max_tokens", max_tokens, 1, max_model_len));
  if (prompt_tokens + max_tokens <= max_model_len) return absl::OkStatus();
  return Invalid("prompt: expected prompt and max_tokens together at most ",
                 max_model_len, " (max_model_len), got ", prompt_tokens, " + ",
                 max_tokens);
}

absl::Status SchedulerOptions::Validate() const {
  RangeChecks checks;
  VisitSchedulerOptions(*this, checks);
  BM_RETURN_IF_ERROR(checks.status());
  BM_RETURN_IF_ERROR(RequireRange("max_num_batched_tokens",
                                  max_num_batched_tokens, max_num_seqs, 1 << 28,
                                  "from max_num_seqs on"));
  if (max_long_prefills > 0 && long_prefill_token_threshold == 0) {
    return Invalid(
        "max_long_prefills: expected a long_prefill_token_threshold above 0, ",
        "which says what is long, got ", max_long_prefills, " without");
  }
  BM_RETURN_IF_ERROR(ValidateEngineSampling(engine.sampling));
  BM_RETURN_IF_ERROR(ValidateLimits("tenant_limits", tenant_limits));
  for (const auto& [name, limits] : tenants) {
    BM_RETURN_IF_ERROR(
        ValidateLimits(absl::StrCat("tenants['", name, "']"), limits));
  }
  return ValidateQueryStats(engine.query_stats);
}

int32_t SchedulerOptions::max_query_window() const {
  const int32_t room = max_num_batched_tokens - max_num_seqs + 1;
  return long_prefill_token_threshold > 0
             ? std::min(room, long_prefill_token_threshold)
             : room;
}

absl::Status ParseTenant(const std::string& text, SchedulerOptions* options) {
  const auto error = [&text](const std::string& what) {
    std::vector<std::string> names = TextsOfLimits().names;
    const std::string last = names.back();
    names.pop_back();
    return Invalid("tenant: expected NAME:LIMIT=N[,LIMIT=N...] with limits ",
                   absl::StrJoin(names, ", "), " or ", last, ", got '", text,
                   "': ", what);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return error("there is no ':'");
  TenantLimits limits;
  std::set<std::string> seen;
  for (const std::string& item :
       std::vector<std::string>(absl::StrSplit(text.substr(colon + 1), ','))) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    int64_t number = 0;
    if (!absl::SimpleAtoi(parts.second, &number)) {
      return error(absl::StrCat("'", item, "' is no LIMIT=N"));
    }
    LimitSetter setter{.name = parts.first, .value = number};
    VisitTenantLimits(limits, setter);
    if (!setter.problem.empty()) return error(setter.problem);
    if (!seen.insert(parts.first).second) {
      return error(absl::StrCat("'", parts.first, "' comes twice"));
    }
  }
  const std::string name = text.substr(0, colon);
  const bool is_new = name == "*"
                          ? options->tenant_limits == TenantLimits()
                          : options->tenants.emplace(name, limits).second;
  if (!is_new) return error(absl::StrCat("'", name, "' comes twice"));
  if (name == "*") options->tenant_limits = limits;
  return absl::OkStatus();
}

std::string DescribeTenantLimits() { return TextsOfLimits().meanings; }

}  // namespace blockmgr
