#include "wire/sampling_wire.h"

#include <limits>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr uint32_t kMaxToken = std::numeric_limits<int32_t>::max();

absl::Status TooLarge(absl::string_view field, uint32_t token) {
  return Invalid(field, ": expected at most ", kMaxToken, ", got ", token);
}

}  // namespace

absl::Status TokensFromProto(
    absl::string_view field,
    const google::protobuf::RepeatedField<uint32_t>& proto,
    std::vector<int32_t>* tokens) {
  tokens->reserve(static_cast<size_t>(proto.size()));
  for (int i = 0; i < proto.size(); ++i) {
    if (proto[i] > kMaxToken) {
      return TooLarge(absl::StrCat(field, "[", i, "]"), proto[i]);
    }
    tokens->push_back(static_cast<int32_t>(proto[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& proto) {
  SamplingParams sampling;
#define BM_GET(name) \
  if (proto.has_##name()) sampling.name = proto.name()
  BM_GET(temperature);
  BM_GET(top_k);
  BM_GET(top_p);
  BM_GET(min_p);
  BM_GET(repetition_penalty);
  BM_GET(presence_penalty);
  BM_GET(frequency_penalty);
  BM_GET(seed);
  BM_GET(min_tokens);
  BM_GET(ignore_eos);
  BM_GET(logprobs);
  BM_GET(prompt_logprobs);
#undef BM_GET
  sampling.stop.assign(proto.stop().begin(), proto.stop().end());
  for (const v1::LogitBias& bias : proto.logit_bias()) {
    if (bias.token_id() > kMaxToken) {
      return TooLarge(absl::StrCat("sampling.logit_bias[",
                                   sampling.logit_bias.size(), "].token_id"),
                      bias.token_id());
    }
    sampling.logit_bias.push_back(
        {.token = static_cast<int32_t>(bias.token_id()), .bias = bias.bias()});
  }
  return sampling;
}

void ToProto(const SamplingParams& sampling, v1::SamplingParams* proto) {
  proto->set_temperature(sampling.temperature);
  proto->set_top_k(sampling.top_k);
  proto->set_top_p(sampling.top_p);
  proto->set_min_p(sampling.min_p);
  proto->set_repetition_penalty(sampling.repetition_penalty);
  proto->set_presence_penalty(sampling.presence_penalty);
  proto->set_frequency_penalty(sampling.frequency_penalty);
  proto->set_min_tokens(sampling.min_tokens);
  proto->set_ignore_eos(sampling.ignore_eos);
  if (sampling.seed.has_value()) proto->set_seed(*sampling.seed);
  if (sampling.logprobs.has_value()) proto->set_logprobs(*sampling.logprobs);
  if (sampling.prompt_logprobs.has_value()) {
    proto->set_prompt_logprobs(*sampling.prompt_logprobs);
  }
  proto->mutable_stop()->Add(sampling.stop.begin(), sampling.stop.end());
  for (const LogitBias& bias : sampling.logit_bias) {
    v1::LogitBias* const added = proto->add_logit_bias();
    added->set_token_id(static_cast<uint32_t>(bias.token));
    added->set_bias(bias.bias);
  }
}

void FromProto(const v1::TokenLogProbs& proto, TokenLogProbs* rows) {
  rows->first_index = proto.first_index();
  rows->num_top = proto.num_top();
  rows->tokens.assign(proto.token_ids().begin(), proto.token_ids().end());
  rows->logprobs.assign(proto.logprobs().begin(), proto.logprobs().end());
}

void ToProto(const TokenLogProbs& rows, v1::TokenLogProbs* proto) {
  proto->set_first_index(rows.first_index);
  proto->set_num_top(rows.num_top);
  proto->mutable_token_ids()->Add(rows.tokens.begin(), rows.tokens.end());
  proto->mutable_logprobs()->Add(rows.logprobs.begin(), rows.logprobs.end());
}

}  // namespace blockmgr
