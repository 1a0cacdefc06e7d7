#include "bench/evict/parity_policy.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {

namespace policy_names {
constexpr std::array<absl::string_view, 3> kParity = {"none", "kvpress",
                                                      "released"};
}  // namespace policy_names

template <>
constexpr std::span<const absl::string_view> EnumNames<Parity>() {
  return policy_names::kParity;
}

namespace {

absl::Status Expected(absl::string_view parity, absl::string_view what,
                      absl::string_view expected, absl::string_view got) {
  return Invalid("policy: parity(", parity, "): ", what, ": expected ",
                 expected, ", got ", got);
}

// The budget with the field that tells programs apart.
std::string BudgetText(const BudgetSpec& budget) {
  const absl::string_view name = EnumName(budget.kind);
  switch (budget.kind) {
    case BudgetKind::kAdaKv:
      return absl::StrCat(name, "(mode=", EnumName(budget.mode), ")");
    case BudgetKind::kPyramid:
    case BudgetKind::kAdaPyramid:
      return absl::StrCat(name, "(formula=", EnumName(budget.formula), ")");
    default:
      return std::string(name);
  }
}

absl::Status CheckBudget(const ParityPolicy& policy) {
  static constexpr absl::string_view kKvPress[] = {
      "uniform", "pyramid(formula=kvpress)", "adakv(mode=floor)", "lukv"};
  static constexpr absl::string_view kReleased[] = {
      "pyramid(formula=adakv)",
      "pyramid(formula=factory)",
      "adakv(mode=blend)",
      "ada_pyramid(formula=adakv)",
      "headkv",
      "lukv"};
  const std::span<const absl::string_view> known =
      policy.parity == Parity::kReleased
          ? std::span<const absl::string_view>(kReleased)
          : std::span<const absl::string_view>(kKvPress);
  const std::string got = BudgetText(policy.budget);
  if (std::find(known.begin(), known.end(), got) != known.end()) {
    return absl::OkStatus();
  }
  return Expected(EnumName(policy.parity), "budget",
                  absl::StrCat("one of ", absl::StrJoin(known, ", ")), got);
}

// Whether the program scores by the attention of its window, and nothing else.
bool NeedsSnapKv(const ParityPolicy& policy) {
  return policy.budget.kind == BudgetKind::kPyramid ||
         (policy.parity == Parity::kReleased && !policy.needs_table());
}

// Whether there is a program of CriticalKV with such budgets. kvpress's takes
// the scores of the method it is put on, not the counts of its layers.
bool HasCritical(const ParityPolicy& policy) {
  return !policy.needs_table() && (policy.parity == Parity::kReleased ||
                                   policy.budget.kind != BudgetKind::kPyramid);
}

// The word of parity(word); false, with `parity` as it was, without one.
bool ReadParity(absl::string_view arguments, Parity* parity) {
  arguments = absl::StripAsciiWhitespace(arguments);
  return absl::ConsumePrefix(&arguments, "(") &&
         absl::ConsumeSuffix(&arguments, ")") &&
         EnumFromName(absl::StripAsciiWhitespace(arguments), parity);
}

}  // namespace

absl::Status CheckParity(const ParityPolicy& policy) {
  if (policy.parity == Parity::kNone) return absl::OkStatus();
  const absl::string_view parity = EnumName(policy.parity);
  const bool critical = policy.selector.kind == SelectorKind::kCritical;
  if (policy.rounding != Rounding::kToken) {
    return Expected(parity, "rounding", "round(token)", "round(page)");
  }
  BM_RETURN_IF_ERROR(CheckBudget(policy));
  if (NeedsSnapKv(policy) && policy.scorer.kind != ScorerKind::kSnapKv) {
    return Expected(parity, "scorer", "snapkv", EnumName(policy.scorer.kind));
  }
  if (policy.scorer.kind == ScorerKind::kDropKv) {
    return Expected(parity, "scorer", "one of a published program's",
                    EnumName(policy.scorer.kind));
  }
  if (policy.scorer.kind == ScorerKind::kStreaming &&
      (policy.budget.kind != BudgetKind::kUniform || critical)) {
    return Expected(parity, "budget and selector of streaming",
                    "uniform and topk under parity(kvpress)",
                    absl::StrCat(EnumName(policy.budget.kind), " and ",
                                 EnumName(policy.selector.kind)));
  }
  if (policy.scorer.kind == ScorerKind::kH2o && policy.scorer.recent != 0) {
    return Expected(parity, "h2o: recent", "0",
                    absl::StrCat(policy.scorer.recent));
  }
  if (critical && !HasCritical(policy)) {
    return Expected(parity,
                    absl::StrCat("selector of ", EnumName(policy.budget.kind)),
                    "topk", "critical");
  }
  if (critical && policy.selector.norm != ValueNorm::kL1) {
    return Expected(parity, "critical: norm", "l1",
                    EnumName(policy.selector.norm));
  }
  if (critical && policy.selector.gqa_product) {
    return Expected(parity, "critical: gqa_product", "false", "true");
  }
  if (policy.protect != Protection{}) {
    return Expected(parity, "protect", "none", "sets of the library's own");
  }
  return absl::OkStatus();
}

absl::StatusOr<ParityPolicy> ParseParityPolicy(absl::string_view text) {
  Parity parity = Parity::kNone;
  bool is_given = false;
  std::vector<absl::string_view> of_library;
  for (const absl::string_view stage : absl::StrSplit(text, '|')) {
    absl::string_view arguments = absl::StripAsciiWhitespace(stage);
    if (!absl::ConsumePrefix(&arguments, "parity")) {
      of_library.push_back(stage);
      continue;
    }
    if (is_given || !ReadParity(arguments, &parity)) {
      return Invalid("policy: parity: expected, once, parity(word) of one of ",
                     absl::StrJoin(EnumNames<Parity>(), ", "), ", got '",
                     absl::StripAsciiWhitespace(stage), "'");
    }
    is_given = true;
  }
  BM_ASSIGN_OR_RETURN(const EvictionPolicy policy,
                      ParsePolicy(absl::StrJoin(of_library, "|")));
  ParityPolicy whole{policy, parity};
  BM_RETURN_IF_ERROR(CheckParity(whole));
  return whole;
}

std::string FormatParityPolicy(const ParityPolicy& policy) {
  std::string text = FormatPolicy(policy);
  if (policy.parity != Parity::kNone) {
    absl::StrAppend(&text, " | parity(", EnumName(policy.parity), ")");
  }
  return text;
}

}  // namespace blockmgr
