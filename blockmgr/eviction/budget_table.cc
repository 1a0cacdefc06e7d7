#include "blockmgr/eviction/budget_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

// Header-only, so that an installed blockmgr needs no xxHash to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/apportion.h"
#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/parity_budgets.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/protection.h"

namespace blockmgr {
namespace {

// Weights are in multiples of 10^-9 entries, coarser if one would not fit.
constexpr double kTableUnit = 1e9;
constexpr double kMaxWeight = 0x1p61;
// More heads than any model has, and than Apportion takes.
constexpr int64_t kMaxHeads = int64_t{1} << 16;

absl::Status BadScores(absl::string_view field, absl::string_view expected,
                       absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat(
      "head scores: ", field, ": expected ", expected, ", got ", got));
}

absl::Status CheckScores(const HeadScores& table) {
  const int64_t num_heads = int64_t{table.num_layers} * table.num_heads;
  if (table.num_layers < 1 || table.num_heads < 1 || num_heads >= kMaxHeads) {
    return BadScores("num_layers * num_heads",
                     absl::StrCat("1 to ", kMaxHeads - 1, " heads"),
                     absl::StrCat(table.num_layers, " * ", table.num_heads));
  }
  if (std::ssize(table.scores) != num_heads) {
    return BadScores("scores", absl::StrCat(num_heads, " values"),
                     absl::StrCat(table.scores.size()));
  }
  float largest = 0.0f;
  for (size_t i = 0; i < table.scores.size(); ++i) {
    const float score = table.scores[i];
    // Also true for NaN.
    if (!(score >= 0.0f) || !std::isfinite(score)) {
      return BadScores(absl::StrCat("scores[", i, "]"), "a finite number >= 0",
                       absl::StrCat(score));
    }
    largest = std::max(largest, score);
  }
  if (largest > 0.0f) return absl::OkStatus();
  return BadScores("scores", "one that is not 0", "none");
}

// One layer's row: as many scores as KV heads, or a group of query heads each.
absl::Status AddRow(const nlohmann::json& row, HeadScores* table) {
  const int64_t layer = std::ssize(table->scores) / table->num_heads;
  const std::string field = absl::StrCat("scores[", layer, "]");
  if (!row.is_array()) return BadScores(field, "an array", row.type_name());
  const auto num_heads = static_cast<size_t>(table->num_heads);
  if (row.empty() || row.size() % num_heads != 0) {
    return BadScores(field,
                     absl::StrCat("a multiple of ", num_heads, " numbers"),
                     absl::StrCat(row.size()));
  }
  const size_t group_size = row.size() / num_heads;
  for (size_t head = 0; head < num_heads; ++head) {
    double sum = 0.0;
    for (size_t q = head * group_size; q < (head + 1) * group_size; ++q) {
      if (!row[q].is_number()) {
        return BadScores(absl::StrCat(field, "[", q, "]"), "a number",
                         row[q].type_name());
      }
      const auto score = row[q].get<double>();
      // A negative one must not hide in the sum of its group.
      if (!(score >= 0.0)) {
        return BadScores(absl::StrCat(field, "[", q, "]"), "a number >= 0",
                         absl::StrCat(score));
      }
      sum += score;
    }
    table->scores.push_back(static_cast<float>(sum));
  }
  return absl::OkStatus();
}

absl::Status ReadCount(const nlohmann::json& object, const char* field,
                       int32_t* count) {
  const auto found = object.find(field);
  if (found == object.end()) {
    return BadScores(field, "a whole number", "nothing");
  }
  if (!found->is_number_integer()) {
    return BadScores(field, "a whole number", found->type_name());
  }
  const auto value = found->get<int64_t>();
  if (value < 1 || value >= kMaxHeads) {
    return BadScores(field, absl::StrCat("1 to ", kMaxHeads - 1),
                     absl::StrCat(value));
  }
  *count = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status CheckShape(absl::string_view table, int32_t num_layers,
                        int32_t num_heads, const HeadShape& shape) {
  if (num_layers == shape.num_layers && num_heads == shape.num_heads) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      table, ": expected ", shape.num_layers, " layers of ", shape.num_heads,
      " KV heads, got ", num_layers, " of ", num_heads));
}

// Released code: of the mean, 1 / share is a pool that scores divide, the rest
// is everybody's. Protected entries are nobody's choice and stay out of it.
std::vector<double> HeadKvIdeals(const BudgetSpec& spec, double mean,
                                 double num_protected,
                                 const HeadScores& table) {
  // Relative to the largest, so that no power of all vanishes.
  const double largest =
      *std::max_element(table.scores.begin(), table.scores.end());
  std::vector<double> parts;
  parts.reserve(table.scores.size());
  for (const float score : table.scores) {
    parts.push_back(std::pow(score / largest, spec.temp));
  }
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  const double past = std::max(mean - num_protected, 0.0);
  const auto num_heads = static_cast<double>(parts.size());
  for (double& ideal : parts) {
    // Constant factors, none negative: rounded as they are, they make no ideal
    // fall when the mean grows.
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

std::vector<double> LuKvIdeals(double mean, double cut,
                               const LuKvProfile& profile) {
  std::vector<double> ideals = profile.EvictedFractions(1.0 - mean / cut);
  for (double& ideal : ideals) ideal = (1.0 - ideal) * cut;
  return ideals;
}

}  // namespace

absl::StatusOr<HeadScores> HeadScores::FromJson(absl::string_view json) {
  const nlohmann::json object = nlohmann::json::parse(
      json.begin(), json.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return BadScores("file", "JSON", "a syntax error");
  if (!object.is_object()) {
    return BadScores("file", "a JSON object", object.type_name());
  }
  HeadScores table;
  BM_RETURN_IF_ERROR(ReadCount(object, "num_layers", &table.num_layers));
  BM_RETURN_IF_ERROR(ReadCount(object, "num_heads", &table.num_heads));
  const auto rows = object.find("scores");
  if (rows == object.end()) return BadScores("scores", "an array", "nothing");
  if (!rows->is_array()) {
    return BadScores("scores", "an array", rows->type_name());
  }
  if (rows->size() != static_cast<size_t>(table.num_layers)) {
    return BadScores("scores", absl::StrCat(table.num_layers, " rows"),
                     absl::StrCat(rows->size()));
  }
  for (const nlohmann::json& row : *rows) {
    BM_RETURN_IF_ERROR(AddRow(row, &table));
  }
  BM_RETURN_IF_ERROR(CheckScores(table));
  return table;
}

absl::StatusOr<BudgetTable> DecodeBudgetTable(absl::string_view bytes) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(bytes);
  const bool is_json =
      absl::StartsWith(text, "{") || absl::StartsWith(text, "[");
  if (is_json) {
    BM_ASSIGN_OR_RETURN(HeadScores scores, HeadScores::FromJson(bytes));
    return scores;
  }
  BM_ASSIGN_OR_RETURN(LuKvProfile profile, DecodeLuKvProfile(bytes));
  return profile;
}

std::string TableFingerprint(const BudgetTable& table) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const auto add = [&state](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    const int64_t size = std::ssize(values);
    XXH3_128bits_update(&state, &size, sizeof size);
    XXH3_128bits_update(&state, bytes.data(), bytes.size());
  };
  BudgetKind kind = BudgetKind::kHeadKv;
  if (const auto* profile = std::get_if<LuKvProfile>(&table)) {
    kind = BudgetKind::kLuKv;
    add(std::array{profile->num_layers, profile->num_heads});
    add(profile->rho);
    add(profile->r);
  } else {
    const auto& scores = std::get<HeadScores>(table);
    add(std::array{scores.num_layers, scores.num_heads});
    add(scores.scores);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return absl::StrCat(EnumName(kind), ":",
                      absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

absl::Status CheckTable(const EvictionPolicy& policy, const HeadShape& shape,
                        const BudgetTable& table) {
  const BudgetKind kind = policy.budget.kind;
  const bool is_profile = std::holds_alternative<LuKvProfile>(table);
  if (kind != (is_profile ? BudgetKind::kLuKv : BudgetKind::kHeadKv)) {
    return absl::InvalidArgumentError(
        absl::StrCat("budget table: expected one for ", EnumName(kind),
                     ", got one for ", is_profile ? "lukv" : "headkv"));
  }
  if (int64_t{shape.num_layers} * shape.num_heads >= kMaxHeads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "budget table: expected fewer than ", kMaxHeads, " heads, got ",
        shape.num_layers, " layers of ", shape.num_heads));
  }
  if (is_profile) {
    const auto& profile = std::get<LuKvProfile>(table);
    BM_RETURN_IF_ERROR(profile.Validate());
    return CheckShape("LU-KV profile", profile.num_layers, profile.num_heads,
                      shape);
  }
  const auto& scores = std::get<HeadScores>(table);
  BM_RETURN_IF_ERROR(CheckScores(scores));
  return CheckShape("head scores", scores.num_layers, scores.num_heads, shape);
}

std::vector<double> IdealTableBudgets(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range,
                                      const BudgetTable& table) {
  CheckRange(shape, range);
  BM_CHECK(policy.needs_table());
  BM_CHECK(policy.parity == Parity::kNone);
  const auto mean = static_cast<double>(MeanEntries(policy, target, range));
  const int64_t num_protected = ProtectedPositions(policy, range).count();
  const auto* profile = std::get_if<LuKvProfile>(&table);
  BM_CHECK((profile != nullptr) == (policy.budget.kind == BudgetKind::kLuKv));
  std::vector<double> ideals =
      profile != nullptr ? LuKvIdeals(mean, range.cut, *profile)
                         : HeadKvIdeals(policy.budget, mean,
                                        static_cast<double>(num_protected),
                                        std::get<HeadScores>(table));
  BM_CHECK(std::ssize(ideals) == int64_t{shape.num_layers} * shape.num_heads);
  return ideals;
}

// Without what heads hold: those that kept the budgets of an earlier cut hold
// these, but for rounding (of the mean too, where it grows with the cut) and
// for what the minima of others took from them. What a head that holds less (an
// engine may keep less than it is told) leaves of its budget is not handed on.
std::vector<int32_t> TableBudgets(const EvictionPolicy& policy,
                                  const EvictionTarget& target,
                                  const HeadShape& shape,
                                  const EvictionRange& range,
                                  const BudgetTable& table) {
  if (policy.parity != Parity::kNone) {
    return ParityTableBudgets(policy, target, shape, range, table);
  }
  const std::vector<double> ideals =
      IdealTableBudgets(policy, target, shape, range, table);
  const int64_t num_heads = std::ssize(ideals);
  const int64_t mean = MeanEntries(policy, target, range);
  const int64_t num_protected = ProtectedPositions(policy, range).count();
  const bool by_page = policy.rounding == Rounding::kPage;
  const int64_t unit = by_page ? shape.page_size : 1;
  const int64_t max_units = CeilDiv(int64_t{range.cut}, unit);
  // Under round(token) less than what is protected is allowed; then all get the
  // same.
  const int64_t min_units =
      by_page ? MinHeadPages(policy, shape, range)
              : std::min(std::max(int64_t{1}, num_protected), mean);
  const int64_t total =
      by_page ? ScopePages(num_heads, policy, target, shape, range)
              : num_heads * mean;
  std::vector<int32_t> budgets;
  budgets.reserve(ideals.size());
  for (const int64_t units :
       Apportion(total, MakeClaims(ideals, min_units, max_units))) {
    budgets.push_back(
        static_cast<int32_t>(std::min(units * unit, int64_t{range.cut})));
  }
  return budgets;
}

}  // namespace blockmgr
