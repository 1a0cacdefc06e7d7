#include "blockmgr/eviction/budget_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/apportion.h"
#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/protection.h"
#include "blockmgr/eviction/table_bytes.h"

namespace blockmgr {
namespace {

// Weights count units of 10^-9 entries. The unit is larger if a weight would
// exceed kMaxWeight.
constexpr double kTableUnit = 1e9;
constexpr double kMaxWeight = 0x1p61;

// HeadKV's budgets, as its authors' program has them. The protected entries of
// a head stay out. Of the rest of the mean, every head gives 1 / share into a
// pool, which is shared in proportion to the scores, and keeps the other part.
std::vector<double> HeadKvIdeals(const BudgetSpec& spec, double mean,
                                 double num_protected,
                                 std::span<const float> scores) {
  // Scores are divided by the largest one. So their powers cannot all become 0.
  const double largest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> parts;
  parts.reserve(scores.size());
  for (const float score : scores) {
    parts.push_back(std::pow(score / largest, spec.temp));
  }
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  const double past = std::max(mean - num_protected, 0.0);
  const auto num_heads = static_cast<double>(parts.size());
  for (double& ideal : parts) {
    // A factor does not depend on the mean, and none is negative. So no ideal
    // falls when the mean grows, in spite of rounding.
    const double factor =
        ideal / sum * num_heads / spec.share + (1.0 - 1.0 / spec.share);
    ideal = factor * past + (mean - past);
  }
  return parts;
}

std::vector<Claim> MakeClaims(std::span<const double> ideals, int64_t min_units,
                              int64_t max_units) {
  const double largest = *std::max_element(ideals.begin(), ideals.end());
  const double unit = std::min(kTableUnit, kMaxWeight / largest);
  std::vector<Claim> claims;
  claims.reserve(ideals.size());
  for (const double ideal : ideals) {
    claims.push_back({.weight = std::llround(ideal * unit),
                      .min = min_units,
                      .max = max_units});
  }
  return claims;
}

// Gives every head `least`. Then raises heads to `most`, those with the best
// scores first (ties: the lower index), until `total` is spent.
std::vector<int64_t> DuoAmounts(std::span<const float> scores, int64_t total,
                                int64_t least, int64_t most) {
  std::vector<int64_t> amounts(scores.size(), std::min(least, most));
  int64_t rest = total - std::ssize(amounts) * amounts.front();
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  for (const size_t head : order) {
    const int64_t more = std::clamp<int64_t>(rest, 0, most - amounts[head]);
    amounts[head] += more;
    rest -= more;
  }
  return amounts;
}

std::vector<double> LuKvIdeals(double mean, double cut,
                               const LuKvProfile& profile) {
  std::vector<double> ideals = profile.EvictedFractions(1.0 - mean / cut);
  for (double& ideal : ideals) ideal = (1.0 - ideal) * cut;
  return ideals;
}

}  // namespace

absl::StatusOr<BudgetTable> DecodeBudgetTable(absl::string_view bytes) {
  if (IsNpy(bytes)) {
    BM_ASSIGN_OR_RETURN(HeadScores scores,
                        HeadScores::FromRetentionCounts(bytes));
    return scores;
  }
  if (IsLuKvProfile(bytes)) {
    BM_ASSIGN_OR_RETURN(LuKvProfile profile, DecodeLuKvProfile(bytes));
    return profile;
  }
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(bytes);
  if (absl::StartsWith(text, "{") || absl::StartsWith(text, "[")) {
    BM_ASSIGN_OR_RETURN(HeadScores scores, HeadScores::FromJson(bytes));
    return scores;
  }
  return Invalid(
      "expected an LU-KV profile, head scores as JSON or "
      "retention counts as .npy, got ",
      bytes.size(), " bytes that begin as none of them");
}

std::string TableFingerprint(const BudgetTable& table) {
  const auto bytes = [](const auto& values) {
    return std::as_bytes(std::span(values));
  };
  if (const auto* profile = std::get_if<LuKvProfile>(&table)) {
    const std::array shape = {profile->num_layers, profile->num_heads};
    return absl::StrCat(
        EnumName(BudgetKind::kLuKv), ":",
        ContentHash({bytes(shape), bytes(profile->rho), bytes(profile->r)}));
  }
  const auto& scores = std::get<HeadScores>(table);
  const std::array shape = {scores.num_layers, scores.num_heads};
  return absl::StrCat(EnumName(BudgetKind::kHeadKv), ":",
                      ContentHash({bytes(shape), bytes(scores.scores)}));
}

absl::Status CheckTable(const EvictionPolicy& policy, const HeadShape& shape,
                        const BudgetTable& table) {
  const BudgetKind kind = policy.budget.kind;
  const bool is_profile = std::holds_alternative<LuKvProfile>(table);
  const bool fits =
      is_profile ? kind == BudgetKind::kLuKv
                 : kind == BudgetKind::kHeadKv || kind == BudgetKind::kDuo;
  if (!fits) {
    return Invalid("budget table: expected one for ", EnumName(kind),
                   ", got one for ", is_profile ? "lukv" : "headkv, duo");
  }
  if (int64_t{shape.num_layers} * shape.num_heads >= kMaxTableHeads) {
    return Invalid("budget table: expected fewer than ", kMaxTableHeads,
                   " heads, got ", shape.num_layers, " layers of ",
                   shape.num_heads);
  }
  if (!is_profile) {
    const auto& scores = std::get<HeadScores>(table);
    BM_RETURN_IF_ERROR(scores.Validate());
    return scores.CheckShape(shape);
  }
  const auto& profile = std::get<LuKvProfile>(table);
  BM_RETURN_IF_ERROR(profile.Validate());
  if (profile.num_layers == shape.num_layers &&
      profile.num_heads == shape.num_heads) {
    return absl::OkStatus();
  }
  return Invalid("LU-KV profile: expected ", shape.num_layers, " layers of ",
                 shape.num_heads, " KV heads, got ", profile.num_layers, " of ",
                 profile.num_heads);
}

std::vector<double> IdealTableBudgets(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range,
                                      const BudgetTable& table) {
  CheckRange(shape, range);
  BM_CHECK(policy.needs_table());
  const auto mean = static_cast<double>(MeanEntries(policy, target, range));
  const int64_t num_protected = ProtectedPositions(policy, range).count();
  const auto* profile = std::get_if<LuKvProfile>(&table);
  BM_CHECK((profile != nullptr) == (policy.budget.kind == BudgetKind::kLuKv));
  if (policy.budget.kind == BudgetKind::kDuo) {
    const std::vector<float> scores =
        std::get<HeadScores>(table).OfKvHeads(shape.num_heads, 1.0);
    const std::vector<int64_t> amounts = DuoAmounts(
        scores, std::ssize(scores) * MeanEntries(policy, target, range),
        std::max(int64_t{1}, num_protected), range.cut);
    return {amounts.begin(), amounts.end()};
  }
  std::vector<double> ideals =
      profile != nullptr
          ? LuKvIdeals(mean, range.cut, *profile)
          : HeadKvIdeals(policy.budget, mean,
                         static_cast<double>(num_protected),
                         std::get<HeadScores>(table).OfKvHeads(
                             shape.num_heads, policy.budget.temp));
  BM_CHECK(std::ssize(ideals) == int64_t{shape.num_layers} * shape.num_heads);
  return ideals;
}

// These budgets do not depend on what heads hold. A head that kept its budget
// of an earlier cut holds its budget of this cut, except for rounding (the mean
// is rounded, too, if it grows with the cut) and for what the minima of other
// heads took from it. An engine may keep less than it is told. What such a head
// leaves of its budget does not go to other heads.
std::vector<int32_t> TableBudgets(const EvictionPolicy& policy,
                                  const EvictionTarget& target,
                                  const HeadShape& shape,
                                  const EvictionRange& range,
                                  const BudgetTable& table) {
  const std::vector<double> ideals =
      IdealTableBudgets(policy, target, shape, range, table);
  const int64_t num_heads = std::ssize(ideals);
  const int64_t mean = MeanEntries(policy, target, range);
  const int64_t num_protected = ProtectedPositions(policy, range).count();
  const bool by_page = policy.rounding == Rounding::kPage;
  const int64_t unit = by_page ? shape.page_size : 1;
  const int64_t max_units = CeilDiv(int64_t{range.cut}, unit);
  // With round(token) the mean may be below the number of protected entries.
  // Then all heads get the mean.
  const int64_t min_units =
      by_page ? MinHeadPages(policy, shape, range)
              : std::min(std::max(int64_t{1}, num_protected), mean);
  const int64_t total =
      by_page ? CountScopePages(num_heads, policy, target, shape, range)
              : num_heads * mean;
  const std::vector<int64_t> all_units =
      policy.budget.kind == BudgetKind::kDuo
          ? DuoAmounts(
                std::get<HeadScores>(table).OfKvHeads(shape.num_heads, 1.0),
                total, min_units, max_units)
          : Apportion(total, MakeClaims(ideals, min_units, max_units));
  std::vector<int32_t> budgets;
  budgets.reserve(ideals.size());
  for (const int64_t units : all_units) {
    budgets.push_back(
        static_cast<int32_t>(std::min(units * unit, int64_t{range.cut})));
  }
  return budgets;
}

}  // namespace blockmgr
