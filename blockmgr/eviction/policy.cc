#include "blockmgr/eviction/policy.h"

#include <algorithm>
#include <tuple>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {
namespace {

// kTableNameText says this number, too.
constexpr size_t kMaxTableName = 64;

template <typename... Pieces>
absl::Status BadPolicy(const Pieces&... pieces) {
  return Invalid("policy: ", pieces...);
}

// Checks the fields of one stage and keeps the first error.
class RangeChecker {
 public:
  RangeChecker(absl::string_view stage, absl::Status* status)
      : stage_(stage), status_(status) {}

  void Int(absl::string_view key, int32_t value, int32_t min, int32_t max) {
    if (value >= min && value <= max) return;
    const bool open = max == policy_internal::kAny;
    Fail(key,
         open ? absl::StrCat("at least ", min)
              : absl::StrCat("a number in [", min, ", ", max, "]"),
         absl::StrCat(value));
  }
  void Real(absl::string_view key, double value, double min, double max) {
    // NaN fails this condition.
    if (value >= min && value <= max) return;
    Fail(key, absl::StrCat("a number in [", min, ", ", max, "]"),
         absl::StrCat(value));
  }
  void Bool(absl::string_view /*key*/, bool /*value*/) {}
  void Text(absl::string_view key, const std::string& value) {
    // CheckTogether says where a name must not be missing.
    if (value.empty() || IsTableName(value)) return;
    Fail(key, kTableNameText, absl::StrCat("'", value, "'"));
  }
  template <typename E>
  void Enum(absl::string_view key, E value) {
    if (static_cast<size_t>(value) < EnumNames<E>().size()) return;
    Fail(key, "a known value", absl::StrCat(static_cast<int>(value)));
  }

 private:
  void Fail(absl::string_view key, absl::string_view expected,
            absl::string_view got) {
    if (!status_->ok()) return;
    *status_ =
        BadPolicy(stage_, ": ", key, ": expected ", expected, ", got ", got);
  }

  absl::string_view stage_;
  absl::Status* status_;
};

// Returns the traits of the scorer's row in kScorers, or the defaults if the
// scorer has no row.
const ScorerTraits& TraitsOf(const ScorerSpec& scorer) {
  static constexpr auto kTraits = policy_internal::Column(
      policy_internal::kScorers, [](const auto& row) { return row.traits; });
  static constexpr ScorerTraits kNone;
  const auto index = static_cast<size_t>(scorer.kind);
  return index < kTraits.size() ? kTraits[index] : kNone;
}

// Checks that the parts of a policy, each valid by itself, go together.
absl::Status CheckTogether(const EvictionPolicy& policy) {
  const ScorerSpec& scorer = policy.scorer;
  const bool pools =
      scorer.kind == ScorerKind::kSnapKv || scorer.kind == ScorerKind::kDropKv;
  if (pools && scorer.kernel % 2 == 0) {
    return BadPolicy(EnumName(scorer.kind),
                     ": kernel: expected an odd number in [1, ", kMaxKernel,
                     "], got ", scorer.kernel);
  }
  if (policy.protect.recent_percent > 0 && policy.protect.recent >= 0) {
    return BadPolicy("protect: recent_percent: expected 0 with recent, got ",
                     policy.protect.recent_percent);
  }
  if (policy.needs_table() && policy.budget.profile.empty()) {
    const absl::string_view budget = EnumName(policy.budget.kind);
    return BadPolicy(budget, ": profile: expected the name of a budget table, ",
                     budget, "(profile=NAME), got none");
  }
  const bool pairwise = scorer.kind == ScorerKind::kKeyDiff &&
                        scorer.anchor == KeyDiffAnchor::kPairwise;
  if (pairwise && scorer.metric != KeyDiffMetric::kCosine) {
    return BadPolicy(
        "keydiff: metric: expected cosine with anchor=pairwise, got ",
        EnumName(scorer.metric));
  }
  if (policy.selector.kind == SelectorKind::kCritical &&
      policy.selector.gqa_product && !TraitsOf(scorer).has_products) {
    return BadPolicy("critical: gqa_product: expected false with scorer ",
                     EnumName(scorer.kind),
                     ", of which no score per query head is kept, got true");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsTableName(absl::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxTableName &&
         std::all_of(name.begin(), name.end(), allowed);
}

absl::Status EvictionPolicy::Validate() const {
  absl::Status status;
  for (const auto& [known, what, value] :
       {std::tuple(EnumNames<ScorerKind>().size(), "scorer",
                   static_cast<size_t>(scorer.kind)),
        std::tuple(EnumNames<BudgetKind>().size(), "budget",
                   static_cast<size_t>(budget.kind)),
        std::tuple(EnumNames<SelectorKind>().size(), "selector",
                   static_cast<size_t>(selector.kind)),
        std::tuple(EnumNames<Rounding>().size(), "rounding",
                   static_cast<size_t>(rounding))}) {
    if (value >= known) {
      return BadPolicy(what, ": kind: expected a known ", what, ", got ",
                       value);
    }
  }
  VisitScorer(scorer, RangeChecker(EnumName(scorer.kind), &status));
  VisitBudget(budget, RangeChecker(EnumName(budget.kind), &status));
  VisitSelector(selector, RangeChecker(EnumName(selector.kind), &status));
  VisitProtection(protect, RangeChecker("protect", &status));
  BM_RETURN_IF_ERROR(status);
  return CheckTogether(*this);
}

ScoreSource EvictionPolicy::score_source() const {
  return TraitsOf(scorer).source;
}

int32_t EvictionPolicy::query_window() const {
  const ScorerTraits& traits = TraitsOf(scorer);
  return traits.query_window == nullptr ? 0 : traits.query_window(scorer);
}

ScorerState EvictionPolicy::scorer_state() const {
  const ScorerTraits& traits = TraitsOf(scorer);
  return traits.state == nullptr ? ScorerState::kNone : traits.state(scorer);
}

bool EvictionPolicy::scorer_reads_values() const {
  const ScorerTraits& traits = TraitsOf(scorer);
  return traits.reads_values != nullptr && traits.reads_values(scorer);
}

int32_t EvictionPolicy::protected_sinks() const {
  const ScorerTraits& traits = TraitsOf(scorer);
  const int32_t own = traits.sinks == nullptr ? 0 : traits.sinks(scorer);
  return std::max(protect.sinks, own);
}

int32_t EvictionPolicy::protected_recent() const {
  if (protect.recent >= 0) return protect.recent;
  const ScorerTraits& traits = TraitsOf(scorer);
  return traits.recent == nullptr ? query_window() : traits.recent(scorer);
}

namespace {

absl::Status CheckRatio(absl::string_view field, const KeepRatio& ratio) {
  if (ratio.numerator >= 1 && ratio.denominator >= ratio.numerator &&
      ratio.denominator <= 1'000'000'000) {
    return absl::OkStatus();
  }
  return Invalid("target: ", field,
                 ": expected a fraction in (0, 1] with a denominator of at "
                 "most 10^9, got ",
                 ratio.numerator, "/", ratio.denominator);
}

}  // namespace

absl::Status EvictionTarget::Validate() const {
  BM_RETURN_IF_ERROR(CheckRatio("window_keep_ratio", window_keep_ratio));
  if (kind == Kind::kRatio) return CheckRatio("ratio", ratio);
  if (tokens >= 1) return absl::OkStatus();
  return Invalid("target: tokens: expected at least 1, got ", tokens);
}

void ResolveRecent(const EvictionTarget& target, int32_t cut,
                   EvictionPolicy* policy) {
  Protection& protect = policy->protect;
  if (protect.recent_percent == 0) return;
  protect.recent = static_cast<int32_t>(int64_t{target.TokensPerHead(cut)} *
                                        protect.recent_percent / 100);
  protect.recent_percent = 0;
}

int32_t EvictionTarget::TokensPerHead(int32_t covered) const {
  if (kind == Kind::kTokens) return std::min(tokens, covered);
  return std::max(1, static_cast<int32_t>(ratio.Floor(covered)));
}

}  // namespace blockmgr
