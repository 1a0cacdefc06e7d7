#include "blockmgr/eviction/policy.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

namespace blockmgr {
namespace {

template <typename T>
absl::Status OutOfRange(absl::string_view stage, absl::string_view key,
                        absl::string_view expected, T got) {
  return absl::InvalidArgumentError(absl::StrCat(
      "policy: ", stage, ": ", key, ": expected ", expected, ", got ", got));
}

absl::Status ValidateScorer(const ScorerSpec& scorer) {
  switch (scorer.kind) {
    case ScorerKind::kSnapKv:
      if (scorer.window < 1) {
        return OutOfRange("snapkv", "window", "at least 1", scorer.window);
      }
      if (scorer.kernel < 1 || scorer.kernel > kMaxKernel ||
          scorer.kernel % 2 == 0) {
        return OutOfRange(
            "snapkv", "kernel",
            absl::StrCat("an odd number in [1, ", kMaxKernel, "]"),
            scorer.kernel);
      }
      return absl::OkStatus();
    case ScorerKind::kStreaming:
      if (scorer.sinks < 0) {
        return OutOfRange("streaming", "sinks", "at least 0", scorer.sinks);
      }
      return absl::OkStatus();
    case ScorerKind::kExternal:
      return absl::OkStatus();
  }
  return OutOfRange("scorer", "kind", "a known scorer",
                    static_cast<int>(scorer.kind));
}

}  // namespace

absl::Status EvictionPolicy::Validate() const {
  if (absl::Status status = ValidateScorer(scorer); !status.ok()) {
    return status;
  }
  // Written so that NaN fails.
  if (budget.kind == BudgetKind::kAdaKv &&
      !(budget.alpha >= 0.0 && budget.alpha <= 1.0)) {
    return OutOfRange("adakv", "alpha", "a number in [0, 1]", budget.alpha);
  }
  if (protect.sinks < 0) {
    return OutOfRange("protect", "sinks", "at least 0", protect.sinks);
  }
  if (protect.recent < -1) {
    return OutOfRange("protect", "recent",
                      "at least -1 (-1: the observation window)",
                      protect.recent);
  }
  return absl::OkStatus();
}

absl::Status EvictionTarget::Validate() const {
  if (kind == Kind::kTokens) {
    if (tokens >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("target: tokens: expected at least 1, got ", tokens));
  }
  if (ratio.numerator >= 1 && ratio.denominator >= ratio.numerator &&
      ratio.denominator <= 1'000'000'000) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "target: ratio: expected a fraction in (0, 1] with a denominator of at "
      "most 10^9, got ",
      ratio.numerator, "/", ratio.denominator));
}

int32_t EvictionTarget::TokensPerHead(int32_t covered) const {
  if (kind == Kind::kTokens) return std::min(tokens, covered);
  return std::max(1, static_cast<int32_t>(ratio.Floor(covered)));
}

}  // namespace blockmgr
