#include "wire/request_wire.h"

#include <memory>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "wire/message_fields.h"
#include "wire/policy_wire.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxIdBytes = 128;

void ToProto(const SchedulerStats& stats, v1::GetStatsResponse* proto) {
#define BM_SET(kind, type, name, metric, help) proto->set_##name(stats.name);
  BM_SCHEDULER_STATS(BM_SET)
#undef BM_SET
#define BM_SET(kind, type, name, metric, help) \
  proto->set_##name(stats.blocks.name);
  BM_BLOCK_STATS(BM_SET)
#undef BM_SET
  for (const TenantUse& use : stats.tenants) {
    v1::TenantUse* added = proto->add_tenants();
    added->set_name(use.name);
    added->set_num_requests(use.num_requests);
    added->set_queued_tokens(use.queued_tokens);
    added->set_reserved_blocks(use.reserved_blocks);
  }
}

}  // namespace

absl::Status CheckId(absl::string_view field, const std::string& id) {
  if (id.empty() || id.size() > kMaxIdBytes) {
    return Invalid(field, ": expected 1..", kMaxIdBytes, " bytes, got ",
                   id.size());
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<RequestEviction> EvictionFromProto(
    const v1::RequestEviction& proto) {
  RequestEviction eviction;
  absl::Status status;
  MessageReader reader(proto, "eviction", &status);
  reader.Enum("mode", eviction.mode);
  VisitRequestEviction(eviction, reader);
  BM_RETURN_IF_ERROR(status);
  if (eviction.mode == EvictionMode::kNone) {
    if (proto.ByteSizeLong() == 0) return eviction;
    // Nobody who asks for an eviction wants none.
    return Invalid(
        "eviction.mode: expected one of the modes with the eviction's other "
        "fields, got EVICTION_MODE_NONE");
  }
  BM_ASSIGN_OR_RETURN(eviction.policy, FromProto(proto.policy()));
  BM_ASSIGN_OR_RETURN(eviction.target, FromProto(proto.target()));
  if (eviction.policy.scorer.kind == ScorerKind::kExternal ||
      eviction.policy.budget.kind == BudgetKind::kExternal) {
    return Invalid(
        "eviction.policy: external scores and budgets come with "
        "EvictionService, not with the request");
  }
  return eviction;
}

}  // namespace

absl::Status NamePrompt(const absl::Status& status, absl::string_view field) {
  absl::string_view rest = status.message();
  if (!absl::ConsumePrefix(&rest, "prompt") ||
      !(absl::StartsWith(rest, ":") || absl::StartsWith(rest, "["))) {
    return status;
  }
  return {status.code(), absl::StrCat(field, rest)};
}

absl::StatusOr<Request> FromProto(const v1::SubmitRequest& proto) {
  BM_RETURN_IF_ERROR(CheckId("client_session", proto.client_session()));
  BM_RETURN_IF_ERROR(CheckId("request_id", proto.request_id()));
  Request request;
  request.id = proto.request_id();
  if (proto.prompt_token_ids().empty()) {
    return Invalid("prompt_token_ids: expected at least one token, got none");
  }
  BM_RETURN_IF_ERROR(TokensFromProto(
      "prompt_token_ids", proto.prompt_token_ids(), &request.prompt));
  if (proto.max_tokens() < 1) {
    return Invalid("max_tokens: expected at least 1, got ", proto.max_tokens());
  }
  request.max_tokens = proto.max_tokens();
  BM_RETURN_IF_ERROR(TokensFromProto("stop_token_ids", proto.stop_token_ids(),
                                     &request.stop_token_ids));
  request.priority = proto.priority();
  request.fork_of = proto.fork_of();
  request.scope.tenant = proto.tenant();
  request.scope.lora = proto.lora();
  request.scope.cache_salt = proto.cache_salt();
  for (const v1::MediaItem& item : proto.media()) {
    request.scope.media.push_back(
        {.begin = item.begin(), .length = item.length(), .hash = item.hash()});
  }
  request.engine_data = proto.engine_data();
  if (proto.has_sampling()) {
    BM_ASSIGN_OR_RETURN(request.sampling, FromProto(proto.sampling()));
  }
  for (const v1::RetentionWish& wish : proto.retention()) {
    RetentionWish& out = request.retention.emplace_back();
    out.begin = wish.begin();
    out.end = wish.end();
    if (wish.has_priority()) out.priority = wish.priority();
    out.duration_ms = wish.duration_ms();
  }
  BM_ASSIGN_OR_RETURN(request.eviction, EvictionFromProto(proto.eviction()));
  return request;
}

absl::StatusOr<EvictionCommand> FromProto(const v1::EvictRequest& proto) {
  BM_RETURN_IF_ERROR(CheckId("request_id", proto.request_id()));
  EvictionCommand command;
  BM_ASSIGN_OR_RETURN(command.policy, FromProto(proto.policy()));
  BM_ASSIGN_OR_RETURN(command.target, FromProto(proto.target()));
  if (proto.cut() < 0) {
    return Invalid("cut: expected at least 0, got ", proto.cut());
  }
  command.cut = proto.cut();
  const bool external = command.policy.budget.kind == BudgetKind::kExternal;
  if (external != !proto.budgets().empty()) {
    return Invalid("budgets: expected ", external ? "values" : "none",
                   " with the budget of this policy, got ",
                   proto.budgets().size());
  }
  if (!external) return command;
  for (int i = 0; i < proto.budgets().size(); ++i) {
    if (proto.budgets(i) < 0) {
      return Invalid("budgets[", i, "]: expected at least 0, got ",
                     proto.budgets(i));
    }
  }
  command.budgets = std::make_shared<const std::vector<int32_t>>(
      proto.budgets().begin(), proto.budgets().end());
  return command;
}

void ToProto(const RequestEviction& eviction, v1::RequestEviction* proto) {
  if (eviction.mode == EvictionMode::kNone) return;
  MessageWriter writer(proto);
  writer.Enum("mode", eviction.mode);
  VisitRequestEviction(eviction, writer);
  ToProto(eviction.policy, proto->mutable_policy());
  ToProto(eviction.target, proto->mutable_target());
}

void ToProto(const EvictionEffect& effect, v1::EvictResponse* proto) {
  proto->set_cut(effect.cut);
  proto->set_evicted_entries(effect.evicted_entries);
  proto->set_freed_blocks(effect.freed_blocks);
  proto->set_freed_bytes(effect.freed_bytes);
  proto->mutable_kept_entries()->Add(effect.kept_entries.begin(),
                                     effect.kept_entries.end());
}

void ToProto(const CoreStats& stats, v1::GetStatsResponse* proto) {
  proto->set_engine_attached(stats.engine_attached);
  proto->set_engine_name(stats.engine_name);
  if (stats.layout.has_value()) ToProto(*stats.layout, proto->mutable_layout());
  proto->set_epoch(stats.epoch);
  proto->set_generation(stats.generation);
  ToProto(stats.scheduler, proto);
  proto->set_running_request_seconds(stats.running_request_seconds);
  proto->set_clock_seconds(stats.clock_seconds);
  proto->set_max_running(stats.max_running);
  proto->set_max_used_blocks(stats.max_used_blocks);
  proto->set_peaks_since_seconds(stats.peaks_since_seconds);
}

void FromProto(const v1::GetStatsResponse& proto, SchedulerStats* stats) {
#define BM_GET(kind, type, name, metric, help) stats->name = proto.name();
  BM_SCHEDULER_STATS(BM_GET)
#undef BM_GET
#define BM_GET(kind, type, name, metric, help) \
  stats->blocks.name = proto.name();
  BM_BLOCK_STATS(BM_GET)
#undef BM_GET
}

}  // namespace blockmgr
