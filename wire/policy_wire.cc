#include "wire/policy_wire.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy_fields.h"
#include "wire/message_fields.h"

namespace blockmgr {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

absl::Status Within(absl::string_view field, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(field, ": ", status.message()));
}

// Both oneofs have an `external`, so their fields say of what.
std::string FieldName(absl::string_view stage, absl::string_view oneof) {
  if (stage != "external") return std::string(stage);
  return oneof == "scorer" ? "external_scores" : "external_budgets";
}

const OneofDescriptor* OneofOf(const Message& message,
                               const std::string& oneof) {
  return message.GetDescriptor()->FindOneofByName(oneof);
}

// Sets `kind` to the stage that is set, and returns its message; null and
// untouched when none is.
template <typename Kind>
const Message* ReadStage(const v1::EvictionPolicy& proto,
                         const std::string& oneof, Kind* kind) {
  const Reflection& reflection = *proto.GetReflection();
  const FieldDescriptor* field =
      reflection.GetOneofFieldDescriptor(proto, OneofOf(proto, oneof));
  if (field == nullptr) return nullptr;
  for (size_t i = 0; i < EnumNames<Kind>().size(); ++i) {
    if (FieldName(EnumNames<Kind>()[i], oneof) == field->name()) {
      *kind = static_cast<Kind>(i);
    }
  }
  return &reflection.GetMessage(proto, field);
}

template <typename Kind>
Message* MutableStage(Kind kind, const std::string& oneof,
                      v1::EvictionPolicy* proto) {
  return proto->GetReflection()->MutableMessage(
      proto, FieldOf(*proto, FieldName(EnumName(kind), oneof)));
}

absl::StatusOr<EvictionPolicy> ReadPolicy(const v1::EvictionPolicy& proto) {
  EvictionPolicy policy;
  absl::Status status;
  const Message* stage = ReadStage(proto, "scorer", &policy.scorer.kind);
  if (stage == nullptr) {
    return Invalid("scorer: expected one of ",
                   absl::StrJoin(EnumNames<ScorerKind>(), ", ",
                                 [](std::string* out, absl::string_view name) {
                                   out->append(FieldName(name, "scorer"));
                                 }),
                   ", got none");
  }
  VisitScorer(policy.scorer,
              MessageReader(*stage, EnumName(policy.scorer.kind), &status));
  stage = ReadStage(proto, "budget", &policy.budget.kind);
  if (stage != nullptr) {
    VisitBudget(policy.budget,
                MessageReader(*stage, EnumName(policy.budget.kind), &status));
  }
  stage = ReadStage(proto, "selector", &policy.selector.kind);
  if (stage != nullptr) {
    VisitSelector(
        policy.selector,
        MessageReader(*stage, EnumName(policy.selector.kind), &status));
  }
  VisitProtection(policy.protect,
                  MessageReader(proto.protect(), "protect", &status));
  if (!v1::EvictionPolicy::Rounding_IsValid(proto.rounding())) {
    return Invalid("rounding: unknown value ", proto.rounding());
  }
  policy.rounding = static_cast<Rounding>(proto.rounding());
  BM_RETURN_IF_ERROR(status);
  return policy;
}

v1::DType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return v1::DTYPE_FLOAT32;
    case DType::kBFloat16:
      return v1::DTYPE_BFLOAT16;
    case DType::kFloat16:
      return v1::DTYPE_FLOAT16;
  }
  return v1::DTYPE_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<ModelLayout> FromProto(const v1::ModelLayout& proto) {
  ModelLayout layout;
  layout.num_layers = proto.num_layers();
  layout.num_heads = proto.num_heads();
  layout.num_q_heads = proto.num_q_heads();
  layout.head_dim = proto.head_dim();
  layout.page_size = proto.page_size();
  layout.num_blocks = proto.num_blocks();
  // Engines that know of no shards do not set it.
  if (proto.num_shards() != 0) layout.num_shards = proto.num_shards();
  layout.window = proto.window();
  layout.group_windows.assign(proto.group_windows().begin(),
                              proto.group_windows().end());
  switch (proto.dtype()) {
    case v1::DTYPE_FLOAT32:
      layout.dtype = DType::kFloat32;
      break;
    case v1::DTYPE_BFLOAT16:
      layout.dtype = DType::kBFloat16;
      break;
    case v1::DTYPE_FLOAT16:
      layout.dtype = DType::kFloat16;
      break;
    default:
      return Invalid(
          "layout.dtype: expected float32 (1), bfloat16 (2) or float16 (3), "
          "got ",
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
  proto->set_num_shards(layout.num_shards);
  proto->set_window(layout.window);
  proto->mutable_group_windows()->Assign(layout.group_windows.begin(),
                                         layout.group_windows.end());
  proto->set_dtype(ToProto(layout.dtype));
}

absl::StatusOr<EvictionPolicy> FromProto(const v1::EvictionPolicy& proto) {
  absl::StatusOr<EvictionPolicy> policy = ReadPolicy(proto);
  if (!policy.ok()) return Within("policy", policy.status());
  BM_RETURN_IF_ERROR(policy->Validate());  // its errors name the policy
  return policy;
}

void ToProto(const EvictionPolicy& policy, v1::EvictionPolicy* proto) {
  VisitScorer(policy.scorer,
              MessageWriter(MutableStage(policy.scorer.kind, "scorer", proto)));
  VisitBudget(policy.budget,
              MessageWriter(MutableStage(policy.budget.kind, "budget", proto)));
  VisitSelector(policy.selector, MessageWriter(MutableStage(
                                     policy.selector.kind, "selector", proto)));
  if (policy.protect != Protection()) {
    VisitProtection(policy.protect, MessageWriter(proto->mutable_protect()));
  }
  proto->set_rounding(
      static_cast<v1::EvictionPolicy::Rounding>(policy.rounding));
}

absl::StatusOr<EvictionTarget> FromProto(const v1::EvictionTarget& proto) {
  EvictionTarget target;
  if (!proto.window_keep_ratio().empty()) {
    const absl::StatusOr<KeepRatio> ratio =
        KeepRatio::Parse(proto.window_keep_ratio());
    if (!ratio.ok()) return Within("target.window_keep_ratio", ratio.status());
    target.window_keep_ratio = *ratio;
  }
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
  if (target.evicts_in_windows()) {
    proto->set_window_keep_ratio(target.window_keep_ratio.ToString());
  }
}

}  // namespace blockmgr
