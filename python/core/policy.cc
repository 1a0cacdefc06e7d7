// Policies, targets and budget tables.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "blockmgr/base/read_file.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/policy_fields.h"
#include "python/core/core.h"
#include "python/core/errors.h"

namespace blockmgr::python {
namespace {

nb::str ToStr(absl::string_view text) {
  return nb::str(text.data(), text.size());
}

// A visitor of a stage's fields (policy_fields.h) that collects their values.
struct Fields {
  nb::dict values;

  void Int(absl::string_view key, int32_t value, int32_t, int32_t) {
    values[ToStr(key)] = value;
  }
  void Real(absl::string_view key, double value, double, double) {
    values[ToStr(key)] = value;
  }
  void Bool(absl::string_view key, bool value) { values[ToStr(key)] = value; }
  void Text(absl::string_view key, const std::string& value) {
    values[ToStr(key)] = ToStr(value);
  }
  template <typename E>
  void Enum(absl::string_view key, E value) {
    values[ToStr(key)] = ToStr(EnumName(value));
  }
};

// A name of a stage and its fields.
template <typename Kind, typename Visit>
nb::tuple StageOf(Kind kind, Visit visit) {
  Fields fields;
  visit(fields);
  return nb::make_tuple(ToStr(EnumName(kind)), fields.values);
}

nb::tuple ScorerOf(const EvictionPolicy& policy) {
  return StageOf(policy.scorer.kind,
                 [&](Fields& fields) { VisitScorer(policy.scorer, fields); });
}
nb::tuple BudgetOf(const EvictionPolicy& policy) {
  return StageOf(policy.budget.kind,
                 [&](Fields& fields) { VisitBudget(policy.budget, fields); });
}
nb::tuple SelectorOf(const EvictionPolicy& policy) {
  return StageOf(policy.selector.kind, [&](Fields& fields) {
    VisitSelector(policy.selector, fields);
  });
}

// Every stage by its kind and name, with the defaults of its fields.
template <typename Kind, typename SetKind, typename Read>
nb::dict StagesOf(SetKind set_kind, Read read) {
  nb::dict stages;
  for (size_t i = 0; i < EnumNames<Kind>().size(); ++i) {
    EvictionPolicy policy;
    set_kind(policy, static_cast<Kind>(i));
    const nb::tuple stage = read(policy);
    stages[stage[0]] = stage[1];
  }
  return stages;
}

nb::dict AllStages() {
  nb::dict stages;
  stages["scorer"] = StagesOf<ScorerKind>(
      [](EvictionPolicy& p, ScorerKind kind) { p.scorer.kind = kind; },
      ScorerOf);
  stages["budget"] = StagesOf<BudgetKind>(
      [](EvictionPolicy& p, BudgetKind kind) { p.budget.kind = kind; },
      BudgetOf);
  stages["selector"] = StagesOf<SelectorKind>(
      [](EvictionPolicy& p, SelectorKind kind) { p.selector.kind = kind; },
      SelectorOf);
  return stages;
}

absl::StatusOr<KeepRatio> ParseRatio(const char* name, nb::handle value) {
  if (nb::isinstance<nb::str>(value)) {
    return KeepRatio::Parse(nb::cast<std::string>(value));
  }
  double number = 0;
  if (!nb::try_cast(value, number, true)) {
    throw nb::type_error(
        absl::StrCat(name, ": expected a number or text").c_str());
  }
  return KeepRatio::FromDouble(number);
}

KeepRatio RatioOf(const char* name, nb::handle value) {
  const absl::StatusOr<KeepRatio> ratio = ParseRatio(name, value);
  if (!ratio.ok()) ThrowInvalid(name, ": ", ratio.status().message());
  return *ratio;
}

EvictionTarget MakeTarget(nb::handle ratio, std::optional<int32_t> tokens,
                          nb::handle window_keep_ratio) {
  if (ratio.is_none() != tokens.has_value()) {
    ThrowInvalid("Target: expected either ratio or tokens");
  }
  EvictionTarget target;
  if (tokens.has_value()) {
    target.kind = EvictionTarget::Kind::kTokens;
    target.tokens = *tokens;
  } else {
    target.ratio = RatioOf("ratio", ratio);
  }
  if (!window_keep_ratio.is_none()) {
    target.window_keep_ratio = RatioOf("window_keep_ratio", window_keep_ratio);
  }
  ThrowIfError(target.Validate());
  return target;
}

std::string TargetText(const EvictionTarget& target) {
  std::string text =
      target.kind == EvictionTarget::Kind::kTokens
          ? absl::StrCat("tokens=", target.tokens)
          : absl::StrCat("ratio='", target.ratio.ToString(), "'");
  if (target.evicts_in_windows()) {
    absl::StrAppend(&text, ", window_keep_ratio='",
                    target.window_keep_ratio.ToString(), "'");
  }
  return absl::StrCat("Target(", text, ")");
}

void BindPolicyType(nb::module_& m) {
  nb::class_<EvictionPolicy>(
      m, "Policy",
      "An eviction policy: scorer | budget | selector, and options.\n\n"
      "Made of text, 'snapkv(window=32) | adakv(alpha=0.2) | topk', or of the "
      "stages of\nblockmgr.policies: snapkv(window=32) | adakv(alpha=0.2). "
      "docs/eviction.md lists them.")
      .def("__init__", InitBy(&PolicyOf), nb::arg("text"))
      .def_prop_ro("scorer", &ScorerOf,
                   nb::sig("def scorer(self) -> "
                           "tuple[str, dict[str, int | float | bool | str]]"),
                   "The name of the scorer, and the fields that it uses.")
      .def_prop_ro("budget", &BudgetOf,
                   nb::sig("def budget(self) -> "
                           "tuple[str, dict[str, int | float | bool | str]]"),
                   "The name of the budget, and the fields that it uses.")
      .def_prop_ro("selector", &SelectorOf,
                   nb::sig("def selector(self) -> "
                           "tuple[str, dict[str, int | float | bool | str]]"),
                   "The name of the selector, and the fields that it uses.")
      .def_prop_ro("query_window", &EvictionPolicy::query_window,
                   "The number of last queries that the scorer reads.")
      .def_prop_ro("protected_sinks", &EvictionPolicy::protected_sinks,
                   "The number of first positions that are never evicted.")
      .def_prop_ro("protected_recent", &EvictionPolicy::protected_recent,
                   "The number of last positions that are never evicted.")
      .def_prop_ro("needs_table", &EvictionPolicy::needs_table,
                   "Whether the budget is looked up in a BudgetTable.")
      .def_prop_ro("has_external_scores", &EvictionPolicy::has_external_scores,
                   "Whether the caller sends the scores.")
      .def("__str__", &FormatPolicy)
      .def("__repr__",
           [](const EvictionPolicy& self) {
             return absl::StrCat("Policy('", FormatPolicy(self), "')");
           })
      .def("__hash__",
           [](const EvictionPolicy& self) {
             return nb::hash(nb::cast(FormatPolicy(self)));
           })
      .def("__eq__", &IsEqual<EvictionPolicy>, nb::arg("other").none());
}

void BindTable(nb::module_& m) {
  nb::class_<PyBudgetTable>(
      m, "BudgetTable",
      "Measured budgets of heads, for the policies headkv and lukv.")
      .def_static(
          "load",
          [](const std::string& path) {
            return PyBudgetTable{std::make_shared<const BudgetTable>(
                ValueOrThrow(DecodeBudgetTable(ValueOrThrow(ReadFile(path)))))};
          },
          nb::arg("path"),
          "Reads an LU-KV profile, head scores as JSON, or retention counts as "
          ".npy.")
      .def_static(
          "decode",
          [](nb::bytes content) {
            return PyBudgetTable{
                std::make_shared<const BudgetTable>(ValueOrThrow(
                    DecodeBudgetTable({content.c_str(), content.size()})))};
          },
          nb::arg("content"), "Reads the content of such a file.")
      .def_prop_ro(
          "fingerprint",
          [](const PyBudgetTable& self) {
            return TableFingerprint(*self.table);
          },
          "A text that identifies the content.");
}

}  // namespace

EvictionPolicy PolicyOf(const PolicyArgument& argument) {
  if (nb::isinstance<EvictionPolicy>(argument.value)) {
    return nb::cast<const EvictionPolicy&>(argument.value);
  }
  return ValueOrThrow(
      ParsePolicy(nb::cast<std::string>(nb::str(argument.value))));
}

EvictionTarget TargetOf(const TargetArgument& argument) {
  if (nb::isinstance<EvictionTarget>(argument.value)) {
    return nb::cast<const EvictionTarget&>(argument.value);
  }
  int32_t tokens = 0;
  if (nb::isinstance<nb::int_>(argument.value) &&
      !nb::isinstance<nb::bool_>(argument.value)) {
    if (!nb::try_cast(argument.value, tokens, false)) {
      ThrowInvalid("target: expected tokens below 2^31");
    }
    return MakeTarget(nb::none(), tokens, nb::none());
  }
  return MakeTarget(argument.value, std::nullopt, nb::none());
}

TableHandle TableOf(const PyBudgetTable* table) {
  return table == nullptr ? nullptr : table->table;
}

void BindPolicy(nb::module_& m) {
  BindPolicyType(m);
  nb::class_<EvictionTarget>(
      m, "Target",
      "How much an eviction keeps: a ratio of the covered positions, or tokens "
      "per head\n(the mean over heads). Where a target is expected, 0.2 is "
      "short for Target(ratio=0.2),\nand 1024 for Target(tokens=1024).")
      .def("__init__", InitBy(&MakeTarget), nb::arg("ratio") = nb::none(),
           nb::arg("tokens") = nb::none(),
           nb::arg("window_keep_ratio") = nb::none(),
           nb::sig("def __init__(self, ratio: float | str | None = None, "
                   "tokens: int | None = None, "
                   "window_keep_ratio: float | str | None = None) -> None"),
           "Ratios are in (0, 1]; as text they are exact. window_keep_ratio is "
           "of "
           "layers with a\nsliding window, which keep everything without it.")
      .def(
          "tokens_per_head",
          [](const EvictionTarget& self, int32_t covered) {
            if (covered <= 0) {
              ThrowInvalid("covered: expected at least 1, got ", covered);
            }
            return self.TokensPerHead(covered);
          },
          nb::arg("covered"),
          "The mean number of entries per head to keep of so many positions.")
      .def("__eq__", &IsEqual<EvictionTarget>, nb::arg("other").none())
      .def("__repr__", &TargetText);
  BindTable(m);
  m.def("stages", &AllStages,
        nb::sig("def stages() -> dict[str, dict[str, dict[str, "
                "int | float | bool | str]]]"),
        "Every stage of a policy: {scorer | budget | selector: {name: {field: "
        "default}}}.");
}

}  // namespace blockmgr::python
