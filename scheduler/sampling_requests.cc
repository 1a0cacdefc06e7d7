#include "scheduler/sampling_requests.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/require_range.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxEndTokens = 64;
constexpr int64_t kMaxLogitBiases = 1024;
constexpr double kMaxBias = 100.0;
// The limits of stop strings. An engine compares the end of a request's text
// with each string after every token.
constexpr int64_t kMaxStopStrings = 64;
constexpr int64_t kMaxStopBytes = 256;
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// Does the same as RequireRange for numbers that may be NaN.
absl::Status RequireNumber(absl::string_view field, double value, double low,
                           double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid(field, ": expected ", low, " to ", high, ", got ", value);
}

// The limit 0 is excluded.
absl::Status RequirePositive(absl::string_view field, double value,
                             double high) {
  if (value > 0.0 && value <= high) return absl::OkStatus();
  return Invalid(field, ": expected above 0 and at most ", high, ", got ",
                 value);
}

absl::Status RequireToken(absl::string_view field, int32_t token,
                          int32_t vocabulary_size) {
  if (token < 0) {
    return Invalid(field, ": expected a token id of at least 0, got ", token);
  }
  if (vocabulary_size == 0 || token < vocabulary_size) return absl::OkStatus();
  return Invalid(field, ": expected a token id below ", vocabulary_size,
                 " (the engine's vocabulary_size), got ", token);
}

absl::Status ValidateBiases(const std::vector<LogitBias>& biases,
                            int32_t vocabulary_size) {
  constexpr absl::string_view kField = "sampling.logit_bias";
  if (std::ssize(biases) > kMaxLogitBiases) {
    return Invalid(kField, ": expected at most ", kMaxLogitBiases, ", got ",
                   biases.size());
  }
  std::set<int32_t> seen;
  for (size_t i = 0; i < biases.size(); ++i) {
    const std::string field = absl::StrCat(kField, "[", i, "].");
    const int32_t token = biases[i].token;
    BM_RETURN_IF_ERROR(
        RequireToken(absl::StrCat(field, "token_id"), token, vocabulary_size));
    BM_RETURN_IF_ERROR(RequireNumber(absl::StrCat(field, "bias"),
                                     biases[i].bias, -kMaxBias, kMaxBias));
    if (!seen.insert(token).second) {
      return Invalid(field, "token_id: expected different tokens, got ", token,
                     " twice");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateRanges(const SamplingParams& sampling,
                            int32_t max_tokens) {
  BM_RETURN_IF_ERROR(
      RequireNumber("sampling.temperature", sampling.temperature, 0, 2));
  BM_RETURN_IF_ERROR(
      RequireRange("sampling.top_k", sampling.top_k, 0, kMaxInt));
  BM_RETURN_IF_ERROR(RequirePositive("sampling.top_p", sampling.top_p, 1));
  BM_RETURN_IF_ERROR(RequireNumber("sampling.min_p", sampling.min_p, 0, 1));
  BM_RETURN_IF_ERROR(RequirePositive("sampling.repetition_penalty",
                                     sampling.repetition_penalty, 2));
  BM_RETURN_IF_ERROR(RequireNumber("sampling.presence_penalty",
                                   sampling.presence_penalty, -2, 2));
  BM_RETURN_IF_ERROR(RequireNumber("sampling.frequency_penalty",
                                   sampling.frequency_penalty, -2, 2));
  BM_RETURN_IF_ERROR(RequireRange("sampling.min_tokens", sampling.min_tokens, 0,
                                  max_tokens, "to max_tokens"));
  BM_RETURN_IF_ERROR(RequireRange(
      "sampling.logprobs", sampling.logprobs.value_or(0), 0, kMaxLogprobs));
  return RequireRange("sampling.prompt_logprobs",
                      sampling.prompt_logprobs.value_or(0), 0, kMaxLogprobs);
}

absl::Status ValidateStopStrings(const std::vector<std::string>& stop) {
  if (std::ssize(stop) > kMaxStopStrings) {
    return Invalid("sampling.stop: expected at most ", kMaxStopStrings,
                   ", got ", stop.size());
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    if (!stop[i].empty() && std::ssize(stop[i]) <= kMaxStopBytes) continue;
    return Invalid("sampling.stop[", i, "]: expected 1 to ", kMaxStopBytes,
                   " bytes, got ", stop[i].size());
  }
  return absl::OkStatus();
}

// Checks that the engine supports every field that is in use.
absl::Status ValidateSupport(const SamplingParams& sampling,
                             const EngineSampling& engine) {
  struct Use {
    SamplingField field;
    const char* name;
    bool is_used;
    // The value that turns the field off.
    std::string off;
    std::string value;
  };
  const auto number = [](SamplingField field, const char* name, double value,
                         double off) {
    return Use{field, name, value != off, absl::StrCat(off),
               absl::StrCat(value)};
  };
  const auto optional = [](SamplingField field, const char* name, auto value) {
    return Use{field, name, value.has_value(), "none",
               absl::StrCat(value.value_or(0))};
  };
  for (const Use& use : {
           number(SamplingField::kTemperature, "temperature",
                  sampling.temperature, 0),
           number(SamplingField::kTopK, "top_k", sampling.top_k, 0),
           number(SamplingField::kTopP, "top_p", sampling.top_p, 1),
           number(SamplingField::kMinP, "min_p", sampling.min_p, 0),
           number(SamplingField::kRepetitionPenalty, "repetition_penalty",
                  sampling.repetition_penalty, 1),
           number(SamplingField::kPresencePenalty, "presence_penalty",
                  sampling.presence_penalty, 0),
           number(SamplingField::kFrequencyPenalty, "frequency_penalty",
                  sampling.frequency_penalty, 0),
           Use{SamplingField::kLogitBias, "logit_bias",
               !sampling.logit_bias.empty(), "none",
               absl::StrCat(sampling.logit_bias.size())},
           optional(SamplingField::kSeed, "seed", sampling.seed),
           number(SamplingField::kMinTokens, "min_tokens", sampling.min_tokens,
                  0),
           optional(SamplingField::kLogprobs, "logprobs", sampling.logprobs),
           optional(SamplingField::kPromptLogprobs, "prompt_logprobs",
                    sampling.prompt_logprobs),
           Use{SamplingField::kStop, "stop", !sampling.stop.empty(), "none",
               absl::StrCat(sampling.stop.size())},
       }) {
    if (!use.is_used || engine.Supports(use.field)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("sampling.", use.name, ": expected ", use.off,
                     ", as the engine does not support it, got ", use.value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateEngineSampling(const EngineSampling& engine) {
  if ((engine.fields & ~EngineSampling::kAllFields) != 0) {
    return Invalid("sampling_fields: expected numbers of 1 to ",
                   kNumSamplingFields, ", got others");
  }
  BM_RETURN_IF_ERROR(
      RequireRange("vocabulary_size", engine.vocabulary_size, 0, kMaxInt));
  BM_RETURN_IF_ERROR(RequireRange("end_token_ids.size()",
                                  std::ssize(engine.end_token_ids), 0,
                                  kMaxEndTokens));
  return ValidateTokens("end_token_ids", engine.end_token_ids,
                        engine.vocabulary_size);
}

absl::Status ValidateTokens(absl::string_view field,
                            const std::vector<int32_t>& tokens,
                            int32_t vocabulary_size) {
  // One pass suffices for valid tokens, which is nearly always the case.
  const int32_t end = vocabulary_size == 0 ? std::numeric_limits<int32_t>::max()
                                           : vocabulary_size - 1;
  const auto wrong = std::ranges::find_if(
      tokens, [end](int32_t token) { return token < 0 || token > end; });
  if (wrong == tokens.end()) return absl::OkStatus();
  return RequireToken(absl::StrCat(field, "[", wrong - tokens.begin(), "]"),
                      *wrong, vocabulary_size);
}

absl::Status ValidateSampling(const Request& request,
                              const EngineSampling& engine) {
  if (!request.sampling.has_value()) return absl::OkStatus();
  BM_RETURN_IF_ERROR(ValidateRanges(*request.sampling, request.max_tokens));
  BM_RETURN_IF_ERROR(
      ValidateBiases(request.sampling->logit_bias, engine.vocabulary_size));
  BM_RETURN_IF_ERROR(ValidateStopStrings(request.sampling->stop));
  return ValidateSupport(*request.sampling, engine);
}

std::vector<int32_t> StopTokensOf(const Request& request,
                                  const EngineSampling& engine,
                                  bool ignore_eos) {
  std::vector<int32_t> tokens = request.stop_token_ids;
  if (!ignore_eos) {
    tokens.insert(tokens.end(), engine.end_token_ids.begin(),
                  engine.end_token_ids.end());
  }
  std::ranges::sort(tokens);
  // clang 14 cannot compile std::ranges::unique of libstdc++ 12.
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace blockmgr
