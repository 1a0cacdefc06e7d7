// Conversions of what concerns sampling: tokens, parameters and
// log-probabilities.
//
// Thread-safe: pure functions. The errors are InvalidArgument and name the
// field. ToProto fills an empty message.
#ifndef WIRE_SAMPLING_WIRE_H_
#define WIRE_SAMPLING_WIRE_H_

#include <cstdint>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/repeated_field.h>

#include "blockmgr/sampling_params.h"
#include "proto/blockmgr/v1/common.pb.h"

namespace blockmgr {

// Appends token ids.
absl::Status TokensFromProto(
    absl::string_view field,
    const google::protobuf::RepeatedField<uint32_t>& proto,
    std::vector<int32_t>* tokens);

// Checks no ranges: the scheduler does.
absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& proto);
void ToProto(const SamplingParams& sampling, v1::SamplingParams* proto);

// Ids that are none become negative.
void FromProto(const v1::TokenLogProbs& proto, TokenLogProbs* rows);
void ToProto(const TokenLogProbs& rows, v1::TokenLogProbs* proto);

}  // namespace blockmgr

#endif  // WIRE_SAMPLING_WIRE_H_
