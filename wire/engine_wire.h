// Conversions of what an engine tells of itself and of its model.
//
// Thread-safe: pure functions. The errors are InvalidArgument and name the
// field. ToProto fills an empty message.
#ifndef WIRE_ENGINE_WIRE_H_
#define WIRE_ENGINE_WIRE_H_

#include <absl/status/statusor.h>

#include "blockmgr/engine_abilities.h"
#include "blockmgr/served_model.h"
#include "proto/blockmgr/v1/engine.pb.h"

namespace blockmgr {

// FromProto checks sampling_fields and end_token_ids.
// SchedulerOptions::Validate checks the other ranges. ToProto sets the fields
// of abilities only.
absl::StatusOr<EngineAbilities> FromProto(const v1::AttachRequest& proto);
void ToProto(const EngineAbilities& abilities, v1::AttachRequest* proto);

absl::StatusOr<ServedModel> FromProto(const v1::ServedModel& proto);
void ToProto(const ServedModel& model, v1::ServedModel* proto);

}  // namespace blockmgr

#endif  // WIRE_ENGINE_WIRE_H_
