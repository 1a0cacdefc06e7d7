#include "scheduler/server/wire.h"

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <google/protobuf/repeated_field.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxIdBytes = 128;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status Within(absl::string_view field, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(field, ": ", status.message()));
}

// An id type is its number.
template <typename Id, typename Number>
void AddIds(const std::vector<Id>& ids,
            google::protobuf::RepeatedField<Number>* field) {
  field->Reserve(static_cast<int>(ids.size()));
  for (const Id id : ids) field->AddAlreadyReserved(Index(id));
}

template <typename Number>
void AddAll(const std::vector<Number>& values,
            google::protobuf::RepeatedField<Number>* field) {
  field->Add(values.begin(), values.end());
}

absl::Status TokensFromProto(
    absl::string_view field,
    const google::protobuf::RepeatedField<uint32_t>& proto,
    std::vector<int32_t>* tokens) {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  tokens->reserve(static_cast<size_t>(proto.size()));
  for (int i = 0; i < proto.size(); ++i) {
    if (proto[i] > kMax) {
      return Invalid(field, "[", i, "]: expected at most ", kMax, ", got ",
                     proto[i]);
    }
    tokens->push_back(static_cast<int32_t>(proto[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<ScorerSpec> ScorerFromProto(const v1::EvictionPolicy& proto) {
  using SnapKv = v1::EvictionPolicy::SnapKv;
  ScorerSpec scorer;
  switch (proto.scorer_case()) {
    case v1::EvictionPolicy::kSnapkv: {
      const SnapKv& snapkv = proto.snapkv();
      if (!SnapKv::Pool_IsValid(snapkv.pool())) {
        return Invalid("snapkv.pool: unknown value ", snapkv.pool());
      }
      if (!SnapKv::Order_IsValid(snapkv.order())) {
        return Invalid("snapkv.order: unknown value ", snapkv.order());
      }
      if (!SnapKv::Group_IsValid(snapkv.group())) {
        return Invalid("snapkv.group: unknown value ", snapkv.group());
      }
      scorer.kind = ScorerKind::kSnapKv;
      scorer.window = snapkv.window();
      scorer.kernel = snapkv.kernel();
      scorer.pool =
          snapkv.pool() == SnapKv::POOL_AVG ? PoolKind::kAvg : PoolKind::kMax;
      scorer.order = snapkv.order() == SnapKv::ORDER_KVPRESS
                         ? PoolOrder::kKvPress
                         : PoolOrder::kAdaKv;
      scorer.group = snapkv.group() == SnapKv::GROUP_MAX ? GroupReduce::kMax
                                                         : GroupReduce::kMean;
      return scorer;
    }
    case v1::EvictionPolicy::kStreaming:
      scorer.kind = ScorerKind::kStreaming;
      scorer.sinks = proto.streaming().sinks();
      return scorer;
    case v1::EvictionPolicy::kExternalScores:
      scorer.kind = ScorerKind::kExternal;
      return scorer;
    case v1::EvictionPolicy::SCORER_NOT_SET:
      break;
  }
  return Invalid(
      "scorer: expected one of snapkv, streaming, external_scores, got none");
}

BudgetSpec BudgetFromProto(const v1::EvictionPolicy& proto) {
  BudgetSpec budget;
  if (proto.has_adakv()) {
    budget.kind = BudgetKind::kAdaKv;
    budget.alpha = proto.adakv().alpha();
  } else if (proto.has_external_budgets()) {
    budget.kind = BudgetKind::kExternal;
  }
  return budget;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

absl::Status CheckId(absl::string_view field, const std::string& id) {
  if (id.empty() || id.size() > kMaxIdBytes) {
    return Invalid(field, ": expected 1..", kMaxIdBytes, " bytes, got ",
                   id.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelLayout> FromProto(const v1::ModelLayout& proto) {
  ModelLayout layout;
  layout.num_layers = proto.num_layers();
  layout.num_heads = proto.num_heads();
  layout.num_q_heads = proto.num_q_heads();
  layout.head_dim = proto.head_dim();
  layout.page_size = proto.page_size();
  layout.num_blocks = proto.num_blocks();
  switch (proto.dtype()) {
    case v1::DTYPE_FLOAT32:
      layout.dtype = DType::kFloat32;
      break;
    case v1::DTYPE_BFLOAT16:
      layout.dtype = DType::kBFloat16;
      break;
    default:
      return Invalid("layout.dtype: expected float32 (1) or bfloat16 (2), got ",
                     proto.dtype());
  }
  const absl::Status status = layout.Validate();
  if (!status.ok()) return Within("layout", status);
  return layout;
}

void ToProto(const ModelLayout& layout, v1::ModelLayout* proto) {
  proto->set_num_layers(layout.num_layers);
  proto->set_num_heads(layout.num_heads);
  proto->set_num_q_heads(layout.num_q_heads);
  proto->set_head_dim(layout.head_dim);
  proto->set_page_size(layout.page_size);
  proto->set_num_blocks(layout.num_blocks);
  proto->set_dtype(layout.dtype == DType::kFloat32 ? v1::DTYPE_FLOAT32
                                                   : v1::DTYPE_BFLOAT16);
}

absl::StatusOr<EvictionPolicy> FromProto(const v1::EvictionPolicy& proto) {
  EvictionPolicy policy;
  absl::StatusOr<ScorerSpec> scorer = ScorerFromProto(proto);
  if (!scorer.ok()) return Within("policy", scorer.status());
  policy.scorer = *scorer;
  policy.budget = BudgetFromProto(proto);
  policy.protect.sinks = proto.protect_sinks();
  if (proto.has_protect_recent()) {
    if (proto.protect_recent() < 0) {
      return Invalid("policy.protect_recent: expected at least 0, got ",
                     proto.protect_recent());
    }
    policy.protect.recent = proto.protect_recent();
  }
  if (!v1::EvictionPolicy::Rounding_IsValid(proto.rounding())) {
    return Invalid("policy.rounding: unknown value ", proto.rounding());
  }
  policy.rounding = proto.rounding() == v1::EvictionPolicy::ROUNDING_TOKEN
                        ? Rounding::kToken
                        : Rounding::kPage;
  const absl::Status status = policy.Validate();
  if (!status.ok()) return Within("policy", status);
  return policy;
}

void ToProto(const EvictionPolicy& policy, v1::EvictionPolicy* proto) {
  using SnapKv = v1::EvictionPolicy::SnapKv;
  switch (policy.scorer.kind) {
    case ScorerKind::kSnapKv: {
      SnapKv* snapkv = proto->mutable_snapkv();
      snapkv->set_window(policy.scorer.window);
      snapkv->set_kernel(policy.scorer.kernel);
      snapkv->set_pool(policy.scorer.pool == PoolKind::kAvg ? SnapKv::POOL_AVG
                                                            : SnapKv::POOL_MAX);
      snapkv->set_order(policy.scorer.order == PoolOrder::kKvPress
                            ? SnapKv::ORDER_KVPRESS
                            : SnapKv::ORDER_ADAKV);
      snapkv->set_group(policy.scorer.group == GroupReduce::kMax
                            ? SnapKv::GROUP_MAX
                            : SnapKv::GROUP_MEAN);
      break;
    }
    case ScorerKind::kStreaming:
      proto->mutable_streaming()->set_sinks(policy.scorer.sinks);
      break;
    case ScorerKind::kExternal:
      proto->mutable_external_scores();
      break;
  }
  switch (policy.budget.kind) {
    case BudgetKind::kUniform:
      proto->mutable_uniform();
      break;
    case BudgetKind::kAdaKv:
      proto->mutable_adakv()->set_alpha(policy.budget.alpha);
      break;
    case BudgetKind::kExternal:
      proto->mutable_external_budgets();
      break;
  }
  proto->mutable_topk();
  proto->set_protect_sinks(policy.protect.sinks);
  if (policy.protect.recent >= 0) {
    proto->set_protect_recent(policy.protect.recent);
  }
  proto->set_rounding(policy.rounding == Rounding::kToken
                          ? v1::EvictionPolicy::ROUNDING_TOKEN
                          : v1::EvictionPolicy::ROUNDING_PAGE);
}

absl::StatusOr<EvictionTarget> FromProto(const v1::EvictionTarget& proto) {
  EvictionTarget target;
  switch (proto.target_case()) {
    case v1::EvictionTarget::kKeepRatio: {
      const absl::StatusOr<KeepRatio> ratio =
          KeepRatio::Parse(proto.keep_ratio());
      if (!ratio.ok()) return Within("target.keep_ratio", ratio.status());
      target.ratio = *ratio;
      return target;
    }
    case v1::EvictionTarget::kTokensPerHead:
      if (proto.tokens_per_head() < 1) {
        return Invalid("target.tokens_per_head: expected at least 1, got ",
                       proto.tokens_per_head());
      }
      target.kind = EvictionTarget::Kind::kTokens;
      target.tokens = proto.tokens_per_head();
      return target;
    case v1::EvictionTarget::TARGET_NOT_SET:
      break;
  }
  return Invalid("target: expected keep_ratio or tokens_per_head, got none");
}

void ToProto(const EvictionTarget& target, v1::EvictionTarget* proto) {
  if (target.kind == EvictionTarget::Kind::kTokens) {
    proto->set_tokens_per_head(target.tokens);
  } else {
    proto->set_keep_ratio(target.ratio.ToString());
  }
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
  switch (proto.eviction().mode()) {
    case v1::EVICTION_MODE_NONE:
      return request;
    case v1::EVICTION_MODE_AFTER_PREFILL:
      request.eviction.mode = EvictionMode::kAfterPrefill;
      break;
    default:
      return Invalid("eviction.mode: unknown value ", proto.eviction().mode());
  }
  BM_ASSIGN_OR_RETURN(request.eviction.policy,
                      FromProto(proto.eviction().policy()));
  BM_ASSIGN_OR_RETURN(request.eviction.target,
                      FromProto(proto.eviction().target()));
  if (request.eviction.policy.scorer.kind == ScorerKind::kExternal ||
      request.eviction.policy.budget.kind == BudgetKind::kExternal) {
    return Invalid(
        "eviction.policy: external scores and budgets come with "
        "EvictionService, not with the request");
  }
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

void ToProto(const EvictionEffect& effect, v1::EvictResponse* proto) {
  proto->set_cut(effect.cut);
  proto->set_evicted_entries(effect.evicted_entries);
  proto->set_freed_blocks(effect.freed_blocks);
  proto->set_freed_bytes(effect.freed_bytes);
  AddAll(effect.kept_entries, proto->mutable_kept_entries());
}

namespace {

void ToProto(const EvictionOrder& order, v1::EvictionOrder* proto) {
  proto->set_slot(Index(order.slot));
  proto->set_cut(order.cut);
  proto->set_length(order.length);
  ToProto(order.policy, proto->mutable_policy());
  ToProto(order.target, proto->mutable_target());
  proto->set_destination_begin(order.destination_begin);
  proto->set_num_destinations(order.num_destinations);
  proto->set_page_total(order.page_total);
  if (order.scores != nullptr) AddAll(*order.scores, proto->mutable_scores());
  if (order.budgets != nullptr) {
    AddAll(*order.budgets, proto->mutable_budgets());
  }
}

}  // namespace

void ToProto(const StepPlan& plan, v1::StepPlan* proto) {
  proto->set_step(Index(plan.id));
  AddIds(plan.released, proto->mutable_released());
  for (const SequenceStart& start : plan.starts) {
    v1::SequenceStart* added = proto->add_starts();
    added->set_slot(Index(start.slot));
    added->set_request(Index(start.request));
    added->set_token_begin(start.token_begin);
    added->set_num_tokens(start.num_tokens);
    added->set_num_cached_tokens(start.num_cached_tokens);
    added->set_query_window(start.query_window);
  }
  AddAll(plan.start_tokens, proto->mutable_start_tokens());
  AddIds(plan.slots, proto->mutable_slots());
  AddAll(plan.positions, proto->mutable_positions());
  AddAll(plan.num_tokens, proto->mutable_num_tokens());
  proto->mutable_samples()->assign(plan.samples.begin(), plan.samples.end());
  AddAll(plan.block_offsets, proto->mutable_block_offsets());
  AddIds(plan.blocks, proto->mutable_blocks());
  for (const EvictionOrder& order : plan.evictions) {
    ToProto(order, proto->add_evictions());
  }
  AddIds(plan.destinations, proto->mutable_destinations());
}

void FromProto(const v1::StepResult& proto, StepResult* result) {
  result->id = StepId{proto.step()};
  result->sampled.assign(proto.sampled().begin(), proto.sampled().end());
  result->evictions.resize(static_cast<size_t>(proto.evictions().size()));
  for (int i = 0; i < proto.evictions().size(); ++i) {
    const v1::EvictionOutcome& from = proto.evictions(i);
    EvictionOutcome& to = result->evictions[static_cast<size_t>(i)];
    to.ok = from.ok();
    to.error = from.error();
    to.counts.assign(from.counts().begin(), from.counts().end());
  }
}

void ToProto(const CoreStats& stats, v1::GetStatsResponse* proto) {
  proto->set_engine_attached(stats.engine_attached);
  proto->set_engine_name(stats.engine_name);
  if (stats.layout.has_value()) ToProto(*stats.layout, proto->mutable_layout());
  proto->set_epoch(stats.epoch);
  const SchedulerStats& scheduler = stats.scheduler;
  proto->set_num_waiting(scheduler.num_waiting);
  proto->set_num_running(scheduler.num_running);
  proto->set_num_steps_in_flight(scheduler.num_steps_in_flight);
  proto->set_num_steps(scheduler.num_steps);
  proto->set_num_finished(scheduler.num_finished);
  proto->set_num_preemptions(scheduler.num_preemptions);
  proto->set_num_prompt_tokens(scheduler.num_prompt_tokens);
  proto->set_num_cached_tokens(scheduler.num_cached_tokens);
  proto->set_num_computed_tokens(scheduler.num_computed_tokens);
  proto->set_num_recomputed_tokens(scheduler.num_recomputed_tokens);
  proto->set_num_output_tokens(scheduler.num_output_tokens);
  proto->set_num_evictions(scheduler.num_evictions);
  proto->set_evicted_entries(scheduler.evicted_entries);
  proto->set_evicted_blocks(scheduler.evicted_blocks);
  proto->set_evicted_bytes(scheduler.evicted_bytes);
  proto->set_kept_entries_min(scheduler.kept_entries_min);
  proto->set_kept_entries_median(scheduler.kept_entries_median);
  proto->set_kept_entries_max(scheduler.kept_entries_max);
  const BlockManagerStats& blocks = scheduler.blocks;
  proto->set_num_blocks(blocks.num_blocks);
  proto->set_free_blocks(blocks.free_blocks);
  proto->set_cached_blocks(blocks.cached_blocks);
  proto->set_fenced_blocks(blocks.fenced_blocks);
  proto->set_used_blocks(blocks.used_blocks);
  proto->set_reclaimed_blocks(blocks.reclaimed_blocks);
  proto->set_running_request_seconds(stats.running_request_seconds);
  proto->set_clock_seconds(stats.clock_seconds);
  proto->set_max_running(stats.max_running);
  proto->set_max_used_blocks(stats.max_used_blocks);
}

}  // namespace blockmgr
