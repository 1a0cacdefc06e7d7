// Sampling of an engine: what a request asks for, what an engine can do, and
// what an engine tells of the tokens. Plain data.
#ifndef BLOCKMGR_SAMPLING_PARAMS_H_
#define BLOCKMGR_SAMPLING_PARAMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blockmgr {

struct LogitBias {
  int32_t token = 0;
  double bias = 0.0;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// SamplingParams says how the tokens of a request are chosen. The comments of
// the message of this name in proto/blockmgr/v1/common.proto give the meaning
// and the range of each field. A request without SamplingParams is decoded
// greedily.
struct SamplingParams {
  double temperature = 1.0;
  int32_t top_k = 0;  // 0 means all tokens
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<LogitBias> logit_bias = {};
  std::optional<int64_t> seed = std::nullopt;  // never empty in a RequestInfo
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::optional<int32_t> logprobs = std::nullopt;
  std::optional<int32_t> prompt_logprobs = std::nullopt;
  std::vector<std::string> stop = {};

  friend bool operator==(const SamplingParams&,
                         const SamplingParams&) = default;
};

// A field of SamplingParams that the engine has to support. The values are
// those of the enum of this name in common.proto.
enum class SamplingField : uint8_t {
  kTemperature = 1,
  kTopK = 2,
  kTopP = 3,
  kMinP = 4,
  kRepetitionPenalty = 5,
  kPresencePenalty = 6,
  kFrequencyPenalty = 7,
  kLogitBias = 8,
  kSeed = 9,
  kMinTokens = 10,
  kLogprobs = 11,
  kPromptLogprobs = 12,
  kStop = 13,
};
inline constexpr int32_t kNumSamplingFields = 13;

// EngineSampling is what an engine announces of its sampling.
struct EngineSampling {
  uint32_t fields = 0;  // BitOf of every field that the engine supports
  // 0 means that the size is unknown and token ids are not checked.
  int32_t vocabulary_size = 0;
  // The tokens that end every request without ignore_eos.
  std::vector<int32_t> end_token_ids = {};

  static constexpr uint32_t BitOf(SamplingField field) {
    return uint32_t{1} << static_cast<uint32_t>(field);
  }
  static constexpr uint32_t kAllFields =
      ((uint32_t{1} << kNumSamplingFields) - 1) << 1;
  bool Supports(SamplingField field) const {
    return (fields & BitOf(field)) != 0;
  }

  friend bool operator==(const EngineSampling&,
                         const EngineSampling&) = default;
};

// The most tokens that are listed beside each token.
inline constexpr int32_t kMaxLogprobs = 20;

// TokenLogProbs has the log-probabilities of consecutive tokens of a request:
// of its prompt or of its outputs.
struct TokenLogProbs {
  // The index, in the prompt or in the outputs, of the first token with a row.
  int32_t first_index = 0;
  int32_t num_top = 0;  // listed beside each token
  // [num_rows(), 1 + num_top]: the token itself, then the most likely tokens,
  // by descending probability and ascending id.
  std::vector<int32_t> tokens = {};
  std::vector<float> logprobs = {};

  // REQUIRES: there are no tokens, or 0 <= num_top <= kMaxLogprobs.
  int32_t num_rows() const {
    return tokens.empty() ? 0
                          : static_cast<int32_t>(tokens.size()) / (1 + num_top);
  }
  // Forgets the rows. Keeps the memory.
  void Clear() {
    tokens.clear();
    logprobs.clear();
  }

  friend bool operator==(const TokenLogProbs&, const TokenLogProbs&) = default;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_SAMPLING_PARAMS_H_
