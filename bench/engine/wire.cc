#include "bench/engine/wire.h"

#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <typename Id>
void AssignIds(const google::protobuf::RepeatedField<int32_t>& from,
               std::vector<Id>* to) {
  to->reserve(static_cast<size_t>(from.size()));
  for (const int32_t id : from) to->push_back(Id{id});
}

absl::StatusOr<ScorerSpec> ScorerFromProto(const v1::EvictionPolicy& proto) {
  using SnapKv = v1::EvictionPolicy::SnapKv;
  ScorerSpec scorer;
  switch (proto.scorer_case()) {
    case v1::EvictionPolicy::kSnapkv: {
      const SnapKv& snapkv = proto.snapkv();
      if (!SnapKv::Pool_IsValid(snapkv.pool()) ||
          !SnapKv::Order_IsValid(snapkv.order()) ||
          !SnapKv::Group_IsValid(snapkv.group())) {
        return Invalid("policy.snapkv: expected known values, got pool ",
                       snapkv.pool(), ", order ", snapkv.order(), ", group ",
                       snapkv.group());
      }
      scorer.kind = ScorerKind::kSnapKv;
      scorer.window = snapkv.window();
      scorer.pool =
          snapkv.pool() == SnapKv::POOL_AVG ? PoolKind::kAvg : PoolKind::kMax;
      scorer.kernel = snapkv.kernel();
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
  return Invalid("policy.scorer: expected a known scorer, got none");
}

absl::StatusOr<EvictionOrder> OrderFromProto(const v1::EvictionOrder& proto) {
  EvictionOrder order;
  order.slot = SequenceSlot{proto.slot()};
  order.cut = proto.cut();
  order.length = proto.length();
  BM_ASSIGN_OR_RETURN(order.policy, PolicyFromProto(proto.policy()));
  BM_ASSIGN_OR_RETURN(order.target, TargetFromProto(proto.target()));
  order.destination_begin = proto.destination_begin();
  order.num_destinations = proto.num_destinations();
  order.page_total = proto.page_total();
  if (order.policy.scorer.kind == ScorerKind::kExternal) {
    order.scores = std::make_shared<const std::vector<float>>(
        proto.scores().begin(), proto.scores().end());
  }
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    order.budgets = std::make_shared<const std::vector<int32_t>>(
        proto.budgets().begin(), proto.budgets().end());
  }
  return order;
}

}  // namespace

void LayoutToProto(const ModelLayout& layout, v1::ModelLayout* proto) {
  proto->set_num_layers(layout.num_layers);
  proto->set_num_heads(layout.num_heads);
  proto->set_num_q_heads(layout.num_q_heads);
  proto->set_head_dim(layout.head_dim);
  proto->set_page_size(layout.page_size);
  proto->set_dtype(layout.dtype == DType::kFloat32 ? v1::DTYPE_FLOAT32
                                                   : v1::DTYPE_BFLOAT16);
  proto->set_num_blocks(layout.num_blocks);
}

absl::StatusOr<EvictionPolicy> PolicyFromProto(
    const v1::EvictionPolicy& proto) {
  EvictionPolicy policy;
  BM_ASSIGN_OR_RETURN(policy.scorer, ScorerFromProto(proto));
  // As in the text form, stages left out are uniform and topk.
  if (proto.has_adakv()) {
    policy.budget.kind = BudgetKind::kAdaKv;
    policy.budget.alpha = proto.adakv().alpha();
  } else if (proto.has_external_budgets()) {
    policy.budget.kind = BudgetKind::kExternal;
  }
  policy.protect.sinks = proto.protect_sinks();
  if (proto.has_protect_recent()) {
    if (proto.protect_recent() < 0) {
      return Invalid("policy.protect_recent: expected >= 0, got ",
                     proto.protect_recent());
    }
    policy.protect.recent = proto.protect_recent();
  }
  if (!v1::EvictionPolicy::Rounding_IsValid(proto.rounding())) {
    return Invalid("policy.rounding: expected a known value, got ",
                   proto.rounding());
  }
  policy.rounding = proto.rounding() == v1::EvictionPolicy::ROUNDING_TOKEN
                        ? Rounding::kToken
                        : Rounding::kPage;
  BM_RETURN_IF_ERROR(policy.Validate());
  return policy;
}

absl::StatusOr<EvictionTarget> TargetFromProto(
    const v1::EvictionTarget& proto) {
  EvictionTarget target;
  switch (proto.target_case()) {
    case v1::EvictionTarget::kKeepRatio: {
      target.kind = EvictionTarget::Kind::kRatio;
      BM_ASSIGN_OR_RETURN(target.ratio, KeepRatio::Parse(proto.keep_ratio()));
      return target;
    }
    case v1::EvictionTarget::kTokensPerHead:
      target.kind = EvictionTarget::Kind::kTokens;
      target.tokens = proto.tokens_per_head();
      if (target.tokens < 1) {
        return Invalid("target.tokens_per_head: expected >= 1, got ",
                       target.tokens);
      }
      return target;
    case v1::EvictionTarget::TARGET_NOT_SET:
      break;
  }
  return Invalid("target: expected keep_ratio or tokens_per_head, got neither");
}

absl::Status PlanFromProto(const v1::StepPlan& proto, StepPlan* plan) {
  plan->Clear();
  plan->id = StepId{proto.step()};
  AssignIds(proto.released(), &plan->released);
  plan->starts.reserve(static_cast<size_t>(proto.starts_size()));
  for (const v1::SequenceStart& start : proto.starts()) {
    plan->starts.push_back({.slot = SequenceSlot{start.slot()},
                            .request = RequestId{start.request()},
                            .token_begin = start.token_begin(),
                            .num_tokens = start.num_tokens(),
                            .num_cached_tokens = start.num_cached_tokens(),
                            .query_window = start.query_window()});
  }
  plan->start_tokens.assign(proto.start_tokens().begin(),
                            proto.start_tokens().end());
  AssignIds(proto.slots(), &plan->slots);
  plan->positions.assign(proto.positions().begin(), proto.positions().end());
  plan->num_tokens.assign(proto.num_tokens().begin(), proto.num_tokens().end());
  plan->samples.assign(proto.samples().begin(), proto.samples().end());
  plan->block_offsets.assign(proto.block_offsets().begin(),
                             proto.block_offsets().end());
  AssignIds(proto.blocks(), &plan->blocks);
  AssignIds(proto.destinations(), &plan->destinations);
  for (const v1::EvictionOrder& message : proto.evictions()) {
    absl::StatusOr<EvictionOrder> order = OrderFromProto(message);
    if (!order.ok()) {
      return Invalid("evictions[", plan->evictions.size(),
                     "]: ", order.status().message());
    }
    plan->evictions.push_back(*std::move(order));
  }
  return absl::OkStatus();
}

void ResultToProto(const StepResult& result, v1::StepResult* proto) {
  proto->set_step(Index(result.id));
  proto->mutable_sampled()->Add(result.sampled.begin(), result.sampled.end());
  for (const EvictionOutcome& outcome : result.evictions) {
    v1::EvictionOutcome* message = proto->add_evictions();
    message->set_ok(outcome.ok);
    message->set_error(outcome.error);
    message->mutable_counts()->Add(outcome.counts.begin(),
                                   outcome.counts.end());
  }
}

}  // namespace blockmgr
