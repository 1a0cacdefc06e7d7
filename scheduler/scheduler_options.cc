#include "scheduler/scheduler_options.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/require_range.h"

namespace blockmgr {
namespace {

absl::Status ValidateLimits(const std::string& field,
                            const TenantLimits& limits) {
  const auto name = [&field](const char* member) {
    return absl::StrCat(field, ".", member);
  };
  BM_RETURN_IF_ERROR(
      RequireRange(name("max_blocks"), limits.max_blocks, 0, INT32_MAX));
  BM_RETURN_IF_ERROR(
      RequireRange(name("max_requests"), limits.max_requests, 0, INT32_MAX));
  BM_RETURN_IF_ERROR(RequireRange(name("max_queued_tokens"),
                                  limits.max_queued_tokens, 0, INT64_MAX));
  return RequireRange(name("weight"), limits.weight, 1, 1000);
}

}  // namespace

absl::Status SchedulerOptions::CheckLength(int64_t prompt_tokens,
                                           int64_t max_tokens) const {
  BM_RETURN_IF_ERROR(RequireRange("max_tokens", max_tokens, 1, max_model_len));
  if (prompt_tokens + max_tokens <= max_model_len) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "prompt: expected prompt and max_tokens together at most ", max_model_len,
      " (max_model_len), got ", prompt_tokens, " + ", max_tokens));
}

absl::Status SchedulerOptions::Validate() const {
  BM_RETURN_IF_ERROR(RequireRange("max_num_seqs", max_num_seqs, 1, 1 << 20));
  BM_RETURN_IF_ERROR(RequireRange("max_num_batched_tokens",
                                  max_num_batched_tokens, max_num_seqs, 1 << 28,
                                  "from max_num_seqs on"));
  BM_RETURN_IF_ERROR(RequireRange("max_model_len", max_model_len, 2, 1 << 28));
  BM_RETURN_IF_ERROR(RequireRange("prefix_aging", prefix_aging, 1, 1 << 28));
  BM_RETURN_IF_ERROR(RequireRange("max_bypasses", max_bypasses, 0, 1 << 28));
  BM_RETURN_IF_ERROR(RequireRange("min_prefix_wait_tokens",
                                  min_prefix_wait_tokens, 0, 1 << 28));
  BM_RETURN_IF_ERROR(
      RequireRange("max_prefix_wait_steps", max_prefix_wait_steps, 0, 1 << 28));
  BM_RETURN_IF_ERROR(RequireRange("long_prefill_token_threshold",
                                  long_prefill_token_threshold, 0, 1 << 28));
  BM_RETURN_IF_ERROR(
      RequireRange("max_long_prefills", max_long_prefills, 0, 1 << 28));
  if (max_long_prefills > 0 && long_prefill_token_threshold == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_long_prefills: expected a long_prefill_token_threshold above 0, ",
        "which says what is long, got ", max_long_prefills, " without"));
  }
  BM_RETURN_IF_ERROR(
      RequireRange("max_steps_in_flight", max_steps_in_flight, 1, 4));
  BM_RETURN_IF_ERROR(
      RequireRange("num_speculative_tokens", num_speculative_tokens, 0, 1024));
  BM_RETURN_IF_ERROR(RequireRange("max_waiting", max_waiting, 1, 1 << 28));
  BM_RETURN_IF_ERROR(RequireRange("max_waiting_tokens", max_waiting_tokens, 1,
                                  int64_t{1} << 40));
  BM_RETURN_IF_ERROR(
      RequireRange("max_num_blocks", max_num_blocks, 2, 1 << 30));
  BM_RETURN_IF_ERROR(RequireRange("query_window", query_window, 0, 1 << 16));
  BM_RETURN_IF_ERROR(
      RequireRange("num_scorer_states", num_scorer_states, 0, INT32_MAX));
  BM_RETURN_IF_ERROR(
      RequireRange("num_host_blocks", num_host_blocks, 0, 1 << 24));
  if (!(watermark >= 0.0 && watermark < 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "watermark: expected a fraction in [0, 1), got ", watermark));
  }
  BM_RETURN_IF_ERROR(RequireRange("max_tenants", max_tenants, 1, 1 << 20));
  BM_RETURN_IF_ERROR(ValidateLimits("tenant_limits", tenant_limits));
  for (const auto& [name, limits] : tenants) {
    BM_RETURN_IF_ERROR(
        ValidateLimits(absl::StrCat("tenants['", name, "']"), limits));
  }
  return absl::OkStatus();
}

int32_t SchedulerOptions::max_query_window() const {
  const int32_t room = max_num_batched_tokens - max_num_seqs + 1;
  return long_prefill_token_threshold > 0
             ? std::min(room, long_prefill_token_threshold)
             : room;
}

const std::map<std::string, SchedulingPolicy>& SchedulingPolicyNames() {
  static const auto& names = *new std::map<std::string, SchedulingPolicy>{
      {"fcfs", SchedulingPolicy::kFcfs},
      {"priority", SchedulingPolicy::kPriority},
      {"prefix", SchedulingPolicy::kPrefix}};
  return names;
}

const std::map<std::string, AdmissionPolicy>& AdmissionPolicyNames() {
  static const auto& names = *new std::map<std::string, AdmissionPolicy>{
      {"vllm", AdmissionPolicy::kWatermark},
      {"guaranteed", AdmissionPolicy::kGuaranteed},
      {"max_utilization", AdmissionPolicy::kMaxUtilization}};
  return names;
}

const std::map<std::string, ChunkPolicy>& ChunkPolicyNames() {
  static const auto& names = *new std::map<std::string, ChunkPolicy>{
      {"first_come", ChunkPolicy::kFirstCome},
      {"equal_progress", ChunkPolicy::kEqualProgress}};
  return names;
}

absl::Status ParseTenant(const std::string& text, SchedulerOptions* options) {
  const auto error = [&text](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant: expected NAME:LIMIT=N[,LIMIT=N...] with limits ",
                     "weight, max-blocks, max-requests or max-queued-tokens, ",
                     "got '", text, "': ", what));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return error("there is no ':'");
  TenantLimits limits;
  std::set<std::string> seen;
  for (const std::string& item :
       std::vector<std::string>(absl::StrSplit(text.substr(colon + 1), ','))) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    int64_t value = 0;
    if (!absl::SimpleAtoi(parts.second, &value) || value < 0 ||
        (parts.first != "max-queued-tokens" && value > INT32_MAX)) {
      return error(absl::StrCat("'", item, "' is no LIMIT=N"));
    }
    if (!seen.insert(parts.first).second) {
      return error(absl::StrCat("'", parts.first, "' comes twice"));
    }
    if (parts.first == "weight") {
      limits.weight = static_cast<int32_t>(value);
    } else if (parts.first == "max-blocks") {
      limits.max_blocks = static_cast<int32_t>(value);
    } else if (parts.first == "max-requests") {
      limits.max_requests = static_cast<int32_t>(value);
    } else if (parts.first == "max-queued-tokens") {
      limits.max_queued_tokens = value;
    } else {
      return error(absl::StrCat("there is no limit '", parts.first, "'"));
    }
  }
  const std::string name = text.substr(0, colon);
  BM_RETURN_IF_ERROR(
      ValidateLimits(absl::StrCat("tenant '", name, "'"), limits));
  const bool is_new = name == "*"
                          ? options->tenant_limits == TenantLimits()
                          : options->tenants.emplace(name, limits).second;
  if (!is_new) return error(absl::StrCat("'", name, "' comes twice"));
  if (name == "*") options->tenant_limits = limits;
  return absl::OkStatus();
}

}  // namespace blockmgr
