// Conversions of what an engine tells of its model.
//
// Thread-safe: pure functions.
#ifndef WIRE_MODEL_WIRE_H_
#define WIRE_MODEL_WIRE_H_

#include <absl/status/statusor.h>

#include "blockmgr/served_model.h"
#include "proto/blockmgr/v1/engine.pb.h"

namespace blockmgr {

// The errors are InvalidArgument and name the field.
absl::StatusOr<ServedModel> FromProto(const v1::ServedModel& proto);
// Fills an empty message.
void ToProto(const ServedModel& model, v1::ServedModel* proto);

}  // namespace blockmgr

#endif  // WIRE_MODEL_WIRE_H_
