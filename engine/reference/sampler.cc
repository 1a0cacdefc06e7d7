#include "engine/reference/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Temperatures below count as 0, as in vLLM.
constexpr double kMinTemperature = 1e-5;
constexpr float kNever = -std::numeric_limits<float>::infinity();
// Exponents below have weight 0: exp(-87) is nearly the least normal float.
constexpr float kMinExponent = -87.0f;
// Exponents are counted in bins of this width for a first, coarse order.
constexpr float kBinsPerUnit = 16.0f;
constexpr size_t kNumBins = size_t{87} * 16 + 1;
// Independent accumulators, for the compiler to turn into vectors.
constexpr size_t kLanes = 16;
constexpr size_t kBlock = 256;  // tokens that are summed up together

// Returns exp(x) within 2 units in the last place, without branches or calls.
// REQUIRES: kMinExponent <= x <= 0.
inline float Exp(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  // ln 2 in two parts. The first has few bits: its products are exact.
  constexpr float kLn2High = 0x1.62e400p-1f;
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  // Adding and subtracting it rounds to an integer.
  constexpr float kRound = 0x1.8p+23f;
  const float n = (x * kLog2E + kRound) - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor's polynomial: |r| is below 0.35, so the next term is below 2^-25.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t scale = (static_cast<int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(scale);
}

// NaN is never the largest.
float MaxOf(std::span<const float> values) {
  std::array<float, kLanes> lanes;
  lanes.fill(kNever);
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float value = values[i + j];
      lanes[j] = value > lanes[j] ? value : lanes[j];
    }
  }
  float max = *std::ranges::max_element(lanes);
  for (const float value : values.subspan(whole)) {
    max = value > max ? value : max;
  }
  return max;
}

// Returns the first index that has the value; 0 if none has.
int32_t IndexOf(std::span<const float> values, float value) {
  const auto found = std::ranges::find(values, value);
  return found == values.end() ? 0
                               : static_cast<int32_t>(found - values.begin());
}

double SumOf(std::span<const float> values) {
  std::array<double, kLanes> lanes{};
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] += static_cast<double>(values[i + j]);
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  for (const float value : values.subspan(whole)) {
    sum += static_cast<double>(value);
  }
  return sum;
}

// Uniform in [0, 1): the same for the same seed and position.
double Uniform(int64_t seed, size_t position) {
  const uint64_t bits =
      SplitMix64(SplitMix64(static_cast<uint64_t>(seed)) + position);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Returns the exponent below which min_p leaves a token out.
float LeastExponent(const SamplingParams& params) {
  if (params.min_p <= 0.0) return kMinExponent;
  return std::max(kMinExponent, static_cast<float>(std::log(params.min_p)));
}

// Returns whether top_k or top_p may leave tokens out.
bool LeavesOutTokens(const SamplingParams& params, size_t vocabulary) {
  const bool has_top_k =
      params.top_k > 0 && static_cast<size_t>(params.top_k) < vocabulary;
  return has_top_k || params.top_p < 1.0;
}

// Calls `apply` for every token of a list that is in the vocabulary.
template <typename Apply>
void ForEachToken(std::span<const int32_t> tokens, size_t vocabulary,
                  Apply apply) {
  for (const int32_t token : tokens) {
    const auto index = static_cast<size_t>(token);
    if (token >= 0 && index < vocabulary) apply(index);
  }
}

// Fills `weights` with exp((value - max) * scale), or 0 for exponents below
// `floor`.
void Exponentiate(std::span<const float> values, float max, float scale,
                  float floor, std::span<float> weights) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = (values[i] - max) * scale;
    // By bits: the compiler makes no vectors of branches.
    const int32_t mask = -static_cast<int32_t>(x >= floor);
    const float weight = Exp(x >= floor ? x : floor);
    weights[i] = std::bit_cast<float>(std::bit_cast<int32_t>(weight) & mask);
  }
}

}  // namespace

Sampler::Sampler(int32_t vocabulary)
    : vocabulary_(static_cast<size_t>(vocabulary)),
      adjusted_(vocabulary_),
      weights_(vocabulary_),
      counts_(vocabulary_) {
  BM_CHECK(vocabulary > 0);
  candidates_.reserve(vocabulary_);
}

int32_t Sampler::Sample(const RequestInfo* info,
                        std::span<const int32_t> tokens,
                        std::span<const float> logits) {
  BM_CHECK(logits.size() == vocabulary_);
  if (info == nullptr || !info->sampling.has_value()) {
    return IndexOf(logits, MaxOf(logits));
  }
  const SamplingParams& params = *info->sampling;
  const std::span<const float> values = Adjust(*info, tokens, logits);
  const float max = MaxOf(values);
  // Without a finite logit there is nothing to choose from.
  if (params.temperature < kMinTemperature || !std::isfinite(max)) {
    return IndexOf(values, max);
  }
  Weigh(params, values, max);
  if (LeavesOutTokens(params, vocabulary_)) {
    const Boundary last = FindBoundary(params, values, max);
    for (size_t i = 0; i < vocabulary_; ++i) {
      const bool is_kept =
          values[i] > last.logit ||
          (values[i] == last.logit && static_cast<int32_t>(i) <= last.token);
      weights_[i] = is_kept ? weights_[i] : 0.0f;
    }
  }
  return Draw(Uniform(params.seed.value_or(0), tokens.size()));
}

std::span<const float> Sampler::Adjust(const RequestInfo& info,
                                       std::span<const int32_t> tokens,
                                       std::span<const float> logits) {
  const SamplingParams& params = *info.sampling;
  const size_t num_prompt =
      std::min(tokens.size(), static_cast<size_t>(info.num_prompt_tokens));
  const std::span<const int32_t> outputs = tokens.subspan(num_prompt);
  const bool bans = std::ssize(outputs) < params.min_tokens;
  const bool has_penalties = params.repetition_penalty != 1.0 ||
                             params.presence_penalty != 0.0 ||
                             params.frequency_penalty != 0.0;
  if (!bans && !has_penalties && params.logit_bias.empty()) return logits;
  std::ranges::copy(logits, adjusted_.begin());
  if (bans) {
    ForEachToken(info.stop_token_ids, vocabulary_,
                 [this](size_t token) { adjusted_[token] = kNever; });
  }
  for (const LogitBias& bias : params.logit_bias) {
    ForEachToken({&bias.token, 1}, vocabulary_, [&](size_t token) {
      adjusted_[token] += static_cast<float>(bias.bias);
    });
  }
  if (has_penalties) ApplyPenalties(params, tokens, outputs);
  return adjusted_;
}

void Sampler::ApplyPenalties(const SamplingParams& params,
                             std::span<const int32_t> tokens,
                             std::span<const int32_t> outputs) {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  if (repetition != 1.0f) {
    ForEachToken(tokens, vocabulary_, [&](size_t token) {
      if (counts_[token]++ > 0) return;
      float& logit = adjusted_[token];
      logit = logit > 0.0f ? logit / repetition : logit * repetition;
    });
    ForEachToken(tokens, vocabulary_,
                 [this](size_t token) { counts_[token] = 0; });
  }
  const auto frequency = static_cast<float>(params.frequency_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  ForEachToken(outputs, vocabulary_,
               [this](size_t token) { ++counts_[token]; });
  ForEachToken(outputs, vocabulary_, [&](size_t token) {
    if (counts_[token] == 0) return;
    adjusted_[token] -= frequency * static_cast<float>(counts_[token]);
    adjusted_[token] -= presence;
    counts_[token] = 0;
  });
}

void Sampler::Weigh(const SamplingParams& params, std::span<const float> logits,
                    float max) {
  Exponentiate(logits, max, static_cast<float>(1.0 / params.temperature),
               LeastExponent(params), weights_);
}

Sampler::Masses Sampler::CollectCandidates(const SamplingParams& params,
                                           std::span<const float> logits,
                                           float max) {
  // Rounding keeps the order, so a token in an earlier bin is more likely.
  const auto scale = static_cast<float>(1.0 / params.temperature);
  const auto bin_of = [&](size_t i) {
    return static_cast<size_t>((max - logits[i]) * scale * kBinsPerUnit);
  };
  std::array<int64_t, kNumBins> counts{};
  std::array<double, kNumBins> masses{};
  for (size_t i = 0; i < vocabulary_; ++i) {
    if (weights_[i] == 0.0f) continue;
    const size_t bin = bin_of(i);
    ++counts[bin];
    masses[bin] += static_cast<double>(weights_[i]);
  }
  double total = 0.0;
  for (const double mass : masses) total += mass;
  size_t last = 0;
  int64_t count = counts[0];
  double mass = masses[0];
  while (
      last + 1 < kNumBins &&
      (params.top_k > 0 ? count < params.top_k : mass < params.top_p * total)) {
    ++last;
    count += counts[last];
    mass += masses[last];
  }
  // With top_p alone, all tokens of earlier bins are kept.
  const size_t first = params.top_k > 0 ? 0 : last;
  candidates_.clear();
  for (size_t i = 0; i < vocabulary_; ++i) {
    if (weights_[i] == 0.0f) continue;
    const size_t bin = bin_of(i);
    if (bin < first || bin > last) continue;
    candidates_.push_back(static_cast<int32_t>(i));
  }
  return {.total = total,
          .before = params.top_k > 0 ? 0.0 : mass - masses[last]};
}

Sampler::Boundary Sampler::FindBoundary(const SamplingParams& params,
                                        std::span<const float> logits,
                                        float max) {
  Masses masses = CollectCandidates(params, logits, max);
  const auto is_better = [logits](int32_t a, int32_t b) {
    const float left = logits[static_cast<size_t>(a)];
    const float right = logits[static_cast<size_t>(b)];
    return left > right || (left == right && a < b);
  };
  const auto mass_of = [this](auto from, auto to) {
    double mass = 0.0;
    for (; from != to; ++from) {
      mass += static_cast<double>(weights_[static_cast<size_t>(*from)]);
    }
    return mass;
  };
  const auto begin = candidates_.begin();
  auto end = candidates_.end();
  if (params.top_k > 0) {
    if (end - begin > params.top_k) {
      std::nth_element(begin, begin + params.top_k, end, is_better);
      end = begin + params.top_k;
    }
    masses.total = mass_of(begin, end);
  }
  // The first tokens that together reach top_p end between `low` and `end`.
  double mass = masses.before;
  for (auto low = begin; params.top_p < 1.0 && end - low > 1;) {
    const auto middle = low + (end - low) / 2;
    std::nth_element(low, middle, end, is_better);
    const double part = mass_of(low, middle);
    if (mass + part >= params.top_p * masses.total) {
      end = middle;
    } else {
      mass += part;
      low = middle;
    }
  }
  const int32_t last = *std::max_element(begin, end, is_better);
  return {.logit = logits[static_cast<size_t>(last)], .token = last};
}

int32_t Sampler::Draw(double uniform) const {
  const std::span<const float> weights = weights_;
  const auto block_at = [weights](size_t begin) {
    return weights.subspan(begin, std::min(kBlock, weights.size() - begin));
  };
  double total = 0.0;
  for (size_t i = 0; i < weights.size(); i += kBlock) {
    total += SumOf(block_at(i));
  }
  double left = uniform * total;
  size_t last = 0;  // of those with a weight, in case rounding runs past them
  for (size_t i = 0; i < weights.size(); i += kBlock) {
    const double sum = SumOf(block_at(i));
    if (sum == 0.0) continue;
    const bool is_here = left < sum;
    for (size_t j = i; j < std::min(i + kBlock, weights.size()); ++j) {
      if (weights[j] == 0.0f) continue;
      last = j;
      if (!is_here) continue;
      left -= static_cast<double>(weights[j]);
      if (left < 0.0) return static_cast<int32_t>(j);
    }
    if (is_here) break;
    left -= sum;
  }
  return static_cast<int32_t>(last);
}

bool Sampler::PlanDraw(const RequestInfo* info, std::span<const int32_t> tokens,
                       int32_t row, RowDraw* draw,
                       std::vector<LogitEdit>* edits) {
  *draw = {.row = row};
  if (info == nullptr || !info->sampling.has_value()) return true;
  const SamplingParams& params = *info->sampling;
  const bool is_greedy = params.temperature < kMinTemperature;
  if (!is_greedy && LeavesOutTokens(params, vocabulary_)) return false;
  AddEdits(*info, tokens, row, edits);
  if (is_greedy) return true;
  draw->inverse_temperature = static_cast<float>(1.0 / params.temperature);
  draw->min_exponent = LeastExponent(params);
  draw->uniform = Uniform(params.seed.value_or(0), tokens.size());
  return true;
}

void Sampler::AddEdits(const RequestInfo& info, std::span<const int32_t> tokens,
                       int32_t row, std::vector<LogitEdit>* edits) {
  const SamplingParams& params = *info.sampling;
  const size_t num_prompt =
      std::min(tokens.size(), static_cast<size_t>(info.num_prompt_tokens));
  const std::span<const int32_t> outputs = tokens.subspan(num_prompt);
  const size_t begin = edits->size();
  // counts_ has one more than the place of a token's edit.
  const auto edit_of = [&](size_t token) -> LogitEdit& {
    int32_t& place = counts_[token];
    if (place == 0) {
      edits->push_back({.row = row, .token = static_cast<int32_t>(token)});
      place = static_cast<int32_t>(edits->size() - begin);
    }
    return (*edits)[begin + static_cast<size_t>(place) - 1];
  };
  if (std::ssize(outputs) < params.min_tokens) {
    ForEachToken(info.stop_token_ids, vocabulary_,
                 [&](size_t token) { edit_of(token).bias = kNever; });
  }
  for (const LogitBias& bias : params.logit_bias) {
    ForEachToken({&bias.token, 1}, vocabulary_, [&](size_t token) {
      edit_of(token).bias += static_cast<float>(bias.bias);
    });
  }
  const auto repetition = static_cast<float>(params.repetition_penalty);
  if (repetition != 1.0f) {
    ForEachToken(tokens, vocabulary_,
                 [&](size_t token) { edit_of(token).repetition = repetition; });
  }
  if (params.frequency_penalty != 0.0 || params.presence_penalty != 0.0) {
    // First the counts, which are whole numbers.
    ForEachToken(outputs, vocabulary_,
                 [&](size_t token) { edit_of(token).penalty += 1.0f; });
  }
  const auto frequency = static_cast<float>(params.frequency_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  for (LogitEdit& edit : std::span(*edits).subspan(begin)) {
    counts_[static_cast<size_t>(edit.token)] = 0;
    if (edit.penalty > 0.0f) edit.penalty = frequency * edit.penalty + presence;
  }
}

void Sampler::AddLogProbs(std::span<const float> logits, int32_t token,
                          TokenLogProbs* rows) {
  BM_CHECK(logits.size() == vocabulary_);
  BM_CHECK(rows->num_top <= kMaxLogprobs);
  const float max = MaxOf(logits);
  Exponentiate(logits, max, 1.0f, kMinExponent, weights_);
  const double base = static_cast<double>(max) + std::log(SumOf(weights_));
  // The most likely tokens so far, in order.
  std::array<int32_t, kMaxLogprobs> top{};
  const auto num_top = static_cast<size_t>(rows->num_top);
  size_t size = 0;
  for (size_t i = 0; i < vocabulary_ && num_top > 0; ++i) {
    // NaN is never above, and below everything else.
    const auto is_below = [&](size_t place) {
      const float other = logits[static_cast<size_t>(top[place])];
      return logits[i] > other || (std::isnan(other) && !std::isnan(logits[i]));
    };
    if (size == num_top && !is_below(size - 1)) continue;
    size_t place = size < num_top ? size++ : size - 1;
    for (; place > 0 && is_below(place - 1); --place) {
      top[place] = top[place - 1];
    }
    top[place] = static_cast<int32_t>(i);
  }
  const auto add = [&](int32_t id) {
    const auto index = static_cast<size_t>(id);
    rows->tokens.push_back(id);
    rows->logprobs.push_back(
        index < vocabulary_
            ? static_cast<float>(static_cast<double>(logits[index]) - base)
            : kNever);
  };
  add(token);
  for (size_t i = 0; i < size; ++i) add(top[i]);
}

}  // namespace blockmgr
