#include "wire/vllm_wire.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include <absl/status/status.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "proto/blockmgr/v1/generate.pb.h"
#include "wire/request_wire.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

namespace engine = ::vllm::grpc::engine;

constexpr uint32_t kMaxAnswers = 128;
// Forks have the prompt, too. As many tokens of all prompts of a call take 4
// MiB.
constexpr int64_t kMaxPromptTokens = int64_t{1} << 20;
// Room for the index in the ids of forks.
constexpr size_t kMaxCallBytes = 120;

constexpr char kOptionsField[] = "kv_transfer_params_json";

absl::Status RefuseInputs(const engine::GenerateRequest& proto) {
  if (!proto.has_tokenized()) {
    return Invalid(
        "tokenized: expected the prompt as token ids in tokenized.input_ids, "
        "got ",
        proto.has_text() ? "text" : "none");
  }
  struct Unsupported {
    const char* field;
    bool is_set;
  };
  for (const auto& [field, is_set] :
       {Unsupported{"mm_inputs", proto.has_mm_inputs()},
        Unsupported{"extra_mm_inputs", !proto.extra_mm_inputs().empty()},
        Unsupported{"media_refs", proto.has_media_refs()},
        Unsupported{"kv_transfer_params", proto.has_kv_transfer_params()}}) {
    if (!is_set) continue;
    return Invalid(field, ": expected none, as it is not supported, got some");
  }
  if (proto.data_parallel_rank() != 0) {
    return Invalid("data_parallel_rank: expected 0, the only one, got ",
                   proto.data_parallel_rank());
  }
  return absl::OkStatus();
}

absl::Status RefuseSampling(const engine::SamplingParams& proto) {
  if (proto.constraint_case() != engine::SamplingParams::CONSTRAINT_NOT_SET) {
    const google::protobuf::FieldDescriptor* const field =
        engine::SamplingParams::descriptor()->FindFieldByNumber(
            proto.constraint_case());
    return Invalid("sampling_params.", field->name(),
                   ": expected none, as structured output is not supported, "
                   "got one");
  }
  if (proto.has_truncate_prompt_tokens()) {
    return Invalid(
        "sampling_params.truncate_prompt_tokens: expected none, as it is not "
        "supported, got ",
        proto.truncate_prompt_tokens());
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> SamplingOf(const engine::SamplingParams& proto) {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  SamplingParams sampling;
  if (proto.has_temperature()) sampling.temperature = proto.temperature();
  if (proto.top_p() != 0) sampling.top_p = proto.top_p();
  if (proto.top_k() > kMax || proto.min_tokens() > kMax) {
    return Invalid("sampling_params.",
                   proto.top_k() > kMax ? "top_k" : "min_tokens",
                   ": expected at most ", kMax, ", got ",
                   std::max(proto.top_k(), proto.min_tokens()));
  }
  sampling.top_k = static_cast<int32_t>(proto.top_k());
  sampling.min_p = proto.min_p();
  sampling.frequency_penalty = proto.frequency_penalty();
  sampling.presence_penalty = proto.presence_penalty();
  if (proto.repetition_penalty() != 0) {
    sampling.repetition_penalty = proto.repetition_penalty();
  }
  sampling.min_tokens = static_cast<int32_t>(proto.min_tokens());
  sampling.ignore_eos = proto.ignore_eos();
  if (proto.has_logprobs()) sampling.logprobs = proto.logprobs();
  if (proto.has_prompt_logprobs()) {
    sampling.prompt_logprobs = proto.prompt_logprobs();
  }
  if (proto.has_seed()) sampling.seed = proto.seed();
  sampling.stop.assign(proto.stop().begin(), proto.stop().end());
  for (const auto& [token, bias] : proto.logit_bias()) {
    sampling.logit_bias.push_back({.token = token, .bias = bias});
  }
  // The order of a map is not the same from run to run.
  std::ranges::sort(sampling.logit_bias, {}, &LogitBias::token);
  return sampling;
}

absl::StatusOr<v1::GenerateOptions> OptionsOf(
    const engine::GenerateRequest& proto, absl::string_view metadata) {
  if (!metadata.empty() && proto.has_kv_transfer_params_json()) {
    return Invalid(kOptionsField, ": expected none beside the metadata entry ",
                   kOptionsMetadata, ", got both");
  }
  const absl::string_view field =
      metadata.empty() ? kOptionsField : kOptionsMetadata;
  const absl::string_view json =
      metadata.empty() ? proto.kv_transfer_params_json() : metadata;
  v1::GenerateExtras extras;
  if (json.empty()) return extras.blockmgr();
  if (std::ssize(json) > kMaxOptionsBytes) {
    return Invalid(field, ": expected at most ", kMaxOptionsBytes,
                   " bytes, got ", json.size());
  }
  const auto status = google::protobuf::util::JsonStringToMessage(
      {json.data(), json.size()}, &extras);
  if (!status.ok()) {
    return Invalid(field,
                   ": expected an object with one member, \"blockmgr\", that "
                   "is a blockmgr.v1.GenerateOptions; ",
                   std::string(status.message()));
  }
  return extras.blockmgr();
}

// The options are fields of SubmitRequest, too, so its conversion checks them.
absl::StatusOr<Request> RequestOf(const engine::GenerateRequest& proto,
                                  const v1::GenerateOptions& options) {
  v1::SubmitRequest submit;
  submit.set_client_session("-");
  submit.set_request_id(proto.request_id());
  submit.add_prompt_token_ids(0);
  submit.set_max_tokens(1);
  submit.set_tenant(options.tenant());
  submit.set_lora(options.lora());
  submit.set_cache_salt(options.cache_salt());
  submit.set_priority(options.priority());
  *submit.mutable_retention() = options.retention();
  if (options.has_eviction()) *submit.mutable_eviction() = options.eviction();
  BM_ASSIGN_OR_RETURN(Request request, FromProto(submit));
  request.prompt.clear();
  if (proto.tokenized().input_ids().empty()) {
    return Invalid(
        "tokenized.input_ids: expected at least one token, got none");
  }
  BM_RETURN_IF_ERROR(TokensFromProto(
      "tokenized.input_ids", proto.tokenized().input_ids(), &request.prompt));
  BM_RETURN_IF_ERROR(TokensFromProto("sampling_params.stop_token_ids",
                                     proto.sampling_params().stop_token_ids(),
                                     &request.stop_token_ids));
  return request;
}

absl::StatusOr<int32_t> CountAnswers(uint32_t n, int64_t num_prompt_tokens) {
  const int64_t most =
      std::clamp<int64_t>(kMaxPromptTokens / num_prompt_tokens, 1, kMaxAnswers);
  if (n > most) {
    return Invalid("sampling_params.n: expected at most ", most,
                   " with a prompt of ", num_prompt_tokens, " tokens, got ", n);
  }
  return static_cast<int32_t>(std::max(n, 1U));
}

// Upper bounds of bytes on the wire. Token ids are varints.
constexpr int64_t kTokenBytes = 5;
// Everything of a response beside tokens and log-probabilities, of which a stop
// string takes the most.
constexpr int64_t kOtherBytes = 1024;

// The row of one token: itself, its log-probability in a message of its own for
// a prompt, and the most likely tokens.
int64_t RowBytes(int32_t num_top, bool of_prompt) {
  constexpr int64_t kFloatBytes = sizeof(float);
  const int64_t top = std::clamp(num_top, 0, kMaxLogprobs);
  const int64_t top_bytes =
      top == 0 ? 0 : 7 + top * (kTokenBytes + kFloatBytes);
  return kTokenBytes + kFloatBytes + (of_prompt ? 3 : 0) + top_bytes;
}

// Checks that every message of the answers fits into kMaxAnswerBytes: the
// complete one and, in a stream, the first chunk, which has the prompt's rows
// and one output. Limits max_tokens if the call does not.
absl::Status LimitAnswer(GenerateCall* call) {
  Request& request = call->request;
  const SamplingParams& sampling = *request.sampling;
  const auto num_prompt = std::ssize(request.prompt);
  const int64_t output_bytes =
      kTokenBytes +
      (sampling.logprobs.has_value() ? RowBytes(*sampling.logprobs, false) : 0);
  int64_t room = kMaxAnswerBytes - kOtherBytes;
  if (sampling.prompt_logprobs.has_value()) {
    const int64_t row_bytes = RowBytes(*sampling.prompt_logprobs, true);
    const int64_t most = (room - output_bytes) / row_bytes;
    if (num_prompt > most) {
      return Invalid("tokenized.input_ids: expected at most ", most,
                     " tokens with sampling_params.prompt_logprobs = ",
                     *sampling.prompt_logprobs,
                     ", as an answer is one message of at most ",
                     kMaxAnswerBytes, " bytes, got ", num_prompt);
    }
    if (!call->stream) room -= num_prompt * row_bytes;
  }
  const int64_t most = room / (call->stream ? kTokenBytes : output_bytes);
  if (call->all_tokens) {
    request.max_tokens = static_cast<int32_t>(most);
  } else if (request.max_tokens > most) {
    return Invalid("sampling_params.max_tokens: expected at most ", most,
                   call->stream ? "" : " without stream",
                   ", as an answer is one message of at most ", kMaxAnswerBytes,
                   " bytes, got ", request.max_tokens);
  }
  return absl::OkStatus();
}

// The tokens that `blocks` have room for, with a block of every layer group for
// each page.
int32_t TokensOf(const CoreStats& stats, int64_t blocks) {
  if (!stats.layout.has_value()) return 0;
  const ModelLayout& layout = *stats.layout;
  return static_cast<int32_t>(
      std::min<int64_t>(blocks * layout.page_size / layout.num_groups(),
                        std::numeric_limits<int32_t>::max()));
}

// Without the null block.
int32_t CountPoolBlocks(const CoreStats& stats) {
  return std::max(stats.scheduler.blocks.num_blocks - 1, 0);
}

double UsageOf(const CoreStats& stats) {
  const int32_t blocks = CountPoolBlocks(stats);
  if (blocks == 0) return 0;
  return static_cast<double>(stats.scheduler.blocks.used_blocks) / blocks;
}

double HitRateOf(const SchedulerStats& stats) {
  if (stats.num_prompt_tokens == 0) return 0;
  return static_cast<double>(stats.num_cached_tokens) /
         static_cast<double>(stats.num_prompt_tokens);
}

}  // namespace

absl::StatusOr<GenerateCall> FromProto(const engine::GenerateRequest& proto,
                                       absl::string_view options) {
  const size_t id_bytes = proto.request_id().size();
  if (id_bytes == 0 || id_bytes > kMaxCallBytes) {
    return Invalid("request_id: expected 1..", kMaxCallBytes, " bytes, got ",
                   id_bytes);
  }
  BM_RETURN_IF_ERROR(RefuseInputs(proto));
  const engine::SamplingParams& sampling = proto.sampling_params();
  BM_RETURN_IF_ERROR(RefuseSampling(sampling));
  BM_ASSIGN_OR_RETURN(const v1::GenerateOptions extras,
                      OptionsOf(proto, options));
  GenerateCall call{.request = {},
                    .stream = proto.stream(),
                    .default_eviction = !extras.has_eviction(),
                    .all_tokens = !sampling.has_max_tokens()};
  BM_ASSIGN_OR_RETURN(call.request, RequestOf(proto, extras));
  BM_ASSIGN_OR_RETURN(call.request.sampling, SamplingOf(sampling));
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  if (sampling.has_max_tokens() &&
      (sampling.max_tokens() == 0 || sampling.max_tokens() > kMax)) {
    return Invalid("sampling_params.max_tokens: expected 1 to ", kMax, ", got ",
                   sampling.max_tokens());
  }
  call.request.max_tokens = static_cast<int32_t>(sampling.max_tokens());
  BM_ASSIGN_OR_RETURN(
      call.num_answers,
      CountAnswers(sampling.n(), std::ssize(call.request.prompt)));
  BM_RETURN_IF_ERROR(LimitAnswer(&call));
  return call;
}

void ToProto(const LoadStats& stats, engine::SchedulerLoad* proto) {
  const SchedulerStats& scheduler = stats.core.scheduler;
  proto->set_num_running_reqs(scheduler.num_running);
  proto->set_num_waiting_reqs(scheduler.num_waiting);
  proto->set_num_total_reqs(scheduler.num_running + scheduler.num_waiting);
  proto->set_num_used_tokens(
      TokensOf(stats.core, scheduler.blocks.used_blocks));
  proto->set_max_total_num_tokens(
      TokensOf(stats.core, CountPoolBlocks(stats.core)));
  proto->set_token_usage(UsageOf(stats.core));
  proto->set_gen_throughput(stats.tokens_per_second);
  proto->set_cache_hit_rate(HitRateOf(scheduler));
  proto->set_max_running_requests(stats.max_num_seqs);
  proto->set_utilization(stats.max_num_seqs == 0
                             ? 0
                             : static_cast<double>(scheduler.num_running) /
                                   stats.max_num_seqs);
  proto->set_num_waiting_uncached_tokens(static_cast<int32_t>(std::min<int64_t>(
      scheduler.num_waiting_tokens, std::numeric_limits<int32_t>::max())));
}

void ToProto(const LoadStats& stats, smg::grpc::common::EngineLoad* proto) {
  engine::SchedulerLoad load;
  ToProto(stats, &load);
  proto->set_running_requests(static_cast<uint32_t>(load.num_running_reqs()));
  proto->set_waiting_requests(static_cast<uint32_t>(load.num_waiting_reqs()));
  proto->set_waiting_uncached_tokens(
      static_cast<uint32_t>(load.num_waiting_uncached_tokens()));
  proto->set_token_usage(load.token_usage());
  // Blocks that only the cache holds are not counted.
  proto->set_active_token_usage(load.token_usage());
  proto->set_gen_throughput(load.gen_throughput());
  proto->set_max_running_requests(
      static_cast<uint32_t>(load.max_running_requests()));
  proto->set_cache_hit_rate(load.cache_hit_rate());
  proto->set_num_used_tokens(load.num_used_tokens());
  proto->set_max_total_num_tokens(load.max_total_num_tokens());
}

void ToProto(const CoreStats& stats, engine::GetModelInfoResponse* proto) {
  const ServedModel none;
  const ServedModel& model = stats.model == nullptr ? none : *stats.model;
  const std::string& name = model.name.empty() ? stats.engine_name : model.name;
  proto->set_model_path(name);
  proto->set_served_model_name(name);
  proto->set_is_generation(true);
  proto->set_max_context_length(
      static_cast<uint32_t>(stats.max_sequence_tokens));
  proto->set_max_req_input_len(stats.max_sequence_tokens - 1);
  proto->set_vocab_size(static_cast<uint32_t>(stats.sampling.vocabulary_size));
  proto->set_model_type(model.model_type);
  for (const std::string& architecture : model.architectures) {
    proto->add_architectures(architecture);
  }
  proto->mutable_eos_token_ids()->Add(stats.sampling.end_token_ids.begin(),
                                      stats.sampling.end_token_ids.end());
  proto->set_bos_token_id(model.bos_token_id.value_or(0));
  proto->set_pad_token_id(model.pad_token_id.value_or(0));
}

}  // namespace blockmgr
