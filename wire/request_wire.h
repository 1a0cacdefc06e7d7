// Conversions for the API of clients, proto/blockmgr/v1/{request,eviction,
// admin}.proto. Requests and evictions become the library's types. Effects and
// statistics become messages.
//
// These functions check everything that a message says. Their errors are
// InvalidArgument and name the field as the .proto files do.
//
// Thread-safe: pure functions. Cost: linear in the message.
#ifndef WIRE_REQUEST_WIRE_H_
#define WIRE_REQUEST_WIRE_H_

#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "proto/blockmgr/v1/admin.pb.h"
#include "proto/blockmgr/v1/eviction.pb.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "scheduler/request.h"
#include "scheduler/server/commands.h"

namespace blockmgr {

// Checks that an id has 1 to 128 bytes.
absl::Status CheckId(absl::string_view field, const std::string& id);

// Returns the status of a submission, in which the scheduler names the field
// Request::prompt, with the name that the field has in a message.
absl::Status NamePrompt(const absl::Status& status, absl::string_view field);

// Converts everything but the session, which is not part of a Request.
absl::StatusOr<Request> FromProto(const v1::SubmitRequest& proto);

// Converts everything but the scores, which come in other messages. Checks that
// the policy's budget and `budgets` agree.
absl::StatusOr<EvictionCommand> FromProto(const v1::EvictRequest& proto);

// ToProto fills an empty message. No eviction is an empty one.
void ToProto(const RequestEviction& eviction, v1::RequestEviction* proto);
void ToProto(const EvictionEffect& effect, v1::EvictResponse* proto);
void ToProto(const CoreStats& stats, v1::GetStatsResponse* proto);
// Converts the numbers, not the tenants.
void FromProto(const v1::GetStatsResponse& proto, SchedulerStats* stats);

}  // namespace blockmgr

#endif  // WIRE_REQUEST_WIRE_H_
