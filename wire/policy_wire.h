// The words that daemon and engines share, between C++ and proto/: model
// layout, eviction policy, eviction target.
//
// Pure functions, thread-safe. FromProto's errors are InvalidArgument and name
// the field, what was expected and what came; what it returns is valid.
// FromProto(ToProto(x)) == x for every valid x whose unused fields hold their
// defaults. ToProto fills an empty message.
#ifndef WIRE_POLICY_WIRE_H_
#define WIRE_POLICY_WIRE_H_

#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "proto/blockmgr/v1/common.pb.h"

namespace blockmgr {

absl::StatusOr<ModelLayout> FromProto(const v1::ModelLayout& proto);
void ToProto(const ModelLayout& layout, v1::ModelLayout* proto);

// Stages left out: no default for the scorer, uniform, topk; fields left out
// have their defaults.
absl::StatusOr<EvictionPolicy> FromProto(const v1::EvictionPolicy& proto);
void ToProto(const EvictionPolicy& policy, v1::EvictionPolicy* proto);

absl::StatusOr<EvictionTarget> FromProto(const v1::EvictionTarget& proto);
void ToProto(const EvictionTarget& target, v1::EvictionTarget* proto);

}  // namespace blockmgr

#endif  // WIRE_POLICY_WIRE_H_
