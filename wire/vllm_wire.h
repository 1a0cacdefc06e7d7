// Conversions of the messages by which gateways use an engine of vLLM
// (proto/vllm/grpc/engine.proto).
//
// Thread-safe: pure functions. The errors are InvalidArgument and name the
// field. ToProto fills an empty message.
#ifndef WIRE_VLLM_WIRE_H_
#define WIRE_VLLM_WIRE_H_

#include <cstdint>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "proto/smg/grpc/common.pb.h"
#include "proto/vllm/grpc/engine.pb.h"
#include "scheduler/request.h"
#include "scheduler/server/commands.h"

namespace blockmgr {

// A call of Generate. Answers after the first are forks of the request.
struct GenerateCall {
  Request request;
  int32_t num_answers = 1;
  bool stream = false;
  bool default_eviction = false;  // the call says nothing of eviction
  // The call has no max_tokens, and those of the request are the most that
  // answers have room for (kMaxAnswerBytes).
  bool all_tokens = false;
};

// The most bytes of a message to a gateway: what clients of gRPC take by
// default. Gateways read an answer, or the log-probabilities of a prompt, from
// one message.
inline constexpr int64_t kMaxAnswerBytes = int64_t{4} << 20;

// The metadata entry of a call of Generate that has GenerateExtras as JSON.
inline constexpr char kOptionsMetadata[] = "blockmgr-options";
// The most bytes of GenerateExtras as JSON: 64 retention wishes take some 6
// KiB, an eviction policy some hundred bytes.
inline constexpr int64_t kMaxOptionsBytes = int64_t{16} << 10;

// `options` is the metadata entry; empty: there is none. Ranges of sampling
// fields are for the scheduler to check. What concerns the text that the
// gateway makes has no effect.
absl::StatusOr<GenerateCall> FromProto(
    const vllm::grpc::engine::GenerateRequest& proto,
    absl::string_view options);

// LoadStats is what gateways are told of the load. CoreStats does not have the
// rate of tokens, so the caller gives it.
struct LoadStats {
  const CoreStats& core;
  int32_t max_num_seqs = 0;
  double tokens_per_second = 0;
};
void ToProto(const LoadStats& stats, vllm::grpc::engine::SchedulerLoad* proto);
void ToProto(const LoadStats& stats, smg::grpc::common::EngineLoad* proto);

// REQUIRES: an engine has attached.
void ToProto(const CoreStats& stats,
             vllm::grpc::engine::GetModelInfoResponse* proto);

}  // namespace blockmgr

#endif  // WIRE_VLLM_WIRE_H_
