// Conversions of model layouts, eviction policies and eviction targets to the
// messages of proto/blockmgr/v1/common.proto and back.
//
// Thread-safe: pure functions. FromProto returns a valid value, or
// InvalidArgument that names the field, what was expected and what came.
// ToProto fills an empty message. FromProto(ToProto(x)) == x for every valid x
// whose unused fields have their defaults.
#ifndef WIRE_POLICY_WIRE_H_
#define WIRE_POLICY_WIRE_H_

#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "proto/blockmgr/v1/common.pb.h"

namespace blockmgr {

absl::StatusOr<ModelLayout> FromProto(const v1::ModelLayout& proto);
void ToProto(const ModelLayout& layout, v1::ModelLayout* proto);

// A message must have a scorer. Without a budget stage the budget is uniform,
// and without a selector stage the selector is topk. Other fields that are left
// out have their defaults.
absl::StatusOr<EvictionPolicy> FromProto(const v1::EvictionPolicy& proto);
void ToProto(const EvictionPolicy& policy, v1::EvictionPolicy* proto);

absl::StatusOr<EvictionTarget> FromProto(const v1::EvictionTarget& proto);
void ToProto(const EvictionTarget& target, v1::EvictionTarget* proto);

}  // namespace blockmgr

#endif  // WIRE_POLICY_WIRE_H_
