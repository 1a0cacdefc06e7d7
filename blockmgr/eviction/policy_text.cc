// The text form of EvictionPolicy: ParsePolicy and FormatPolicy.
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>
#include <vector>

#include <absl/algorithm/container.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {
namespace {

// This is ten times the length of the longest sensible policy. It bounds the
// work on hostile text.
constexpr size_t kMaxPolicyText = 2048;

// Returns the names of an enum's values as "a, b, c".
template <typename E>
std::string Choices() {
  return absl::StrJoin(EnumNames<E>(), ", ");
}

// Two keys of VisitProtection. The text writes recent_percent=10 as recent=10%.
constexpr absl::string_view kRecent = "recent";
constexpr absl::string_view kRecentPercent = "recent_percent";

template <typename... Pieces>
absl::Status BadText(const Pieces&... pieces) {
  return Invalid("policy: ", pieces...);
}

// One stage as it is written: name(key=value, ...). The fields are views of the
// caller's text.
struct Stage {
  absl::string_view name;
  std::vector<std::pair<absl::string_view, absl::string_view>> arguments;
};

// A visitor that takes the arguments of one stage by key and keeps the first
// error. A key that no field asked for is unknown. Validate checks the ranges.
class ArgumentReader {
 public:
  explicit ArgumentReader(const Stage& stage) : stage_(stage) {}

  void Int(absl::string_view key, int32_t& value, int32_t /*min*/,
           int32_t /*max*/) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr || absl::SimpleAtoi(*text, &value)) return;
    Fail(key, "a 32-bit integer", *text);
  }
  void Real(absl::string_view key, double& value, double /*min*/,
            double /*max*/) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr || absl::SimpleAtod(*text, &value)) return;
    Fail(key, "a number", *text);
  }
  void Bool(absl::string_view key, bool& value) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr) return;
    value = *text == "true";
    if (!value && *text != "false") Fail(key, "true or false", *text);
  }
  void Text(absl::string_view key, std::string& value) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr) return;
    value = std::string(*text);
    // An empty name in the struct means that there is none.
    if (value.empty()) Fail(key, kTableNameText, value);
  }
  template <typename E>
  void Enum(absl::string_view key, E& value) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr || EnumFromName(*text, &value)) return;
    Fail(key, absl::StrCat("one of ", Choices<E>()), *text);
  }

  absl::Status Finish() const {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : stage_.arguments) {
      if (absl::c_linear_search(known_, key)) continue;
      return BadText(
          stage_.name, ": unknown key '", key, "', expected ",
          known_.empty()
              ? "no keys"
              : absl::StrCat("one of ", absl::StrJoin(known_, ", ")));
    }
    return absl::OkStatus();
  }

 private:
  const absl::string_view* Lookup(absl::string_view key) {
    known_.push_back(key);
    for (const auto& [name, value] : stage_.arguments) {
      if (name == key) return &value;
    }
    return nullptr;
  }
  void Fail(absl::string_view key, absl::string_view expected,
            absl::string_view got) {
    if (!status_.ok()) return;
    status_ = BadText(stage_.name, ": ", key, ": expected ", expected,
                      ", got '", got, "'");
  }

  const Stage& stage_;
  std::vector<absl::string_view> known_;
  absl::Status status_;
};

// Parses one stage. A word without "=", as in round(page), becomes a key
// without a value.
absl::StatusOr<Stage> ParseStage(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  Stage stage;
  const size_t open = text.find('(');
  stage.name = absl::StripAsciiWhitespace(text.substr(0, open));
  if (stage.name.empty()) {
    return BadText("expected a stage such as snapkv(window=32), got '", text,
                   "'");
  }
  if (stage.name == "parity") {
    return BadText("expected no parity(..), which is for tensors ",
                   "(blockmgr-evict), not for serving, got '", text, "'");
  }
  if (open == absl::string_view::npos) return stage;
  const bool takes_word = stage.name == "round";
  if (text.back() != ')') {
    return BadText(stage.name, ": expected ')' at the end, got '", text, "'");
  }
  const absl::string_view inside =
      absl::StripAsciiWhitespace(text.substr(open + 1, text.size() - open - 2));
  if (inside.empty()) return stage;
  for (absl::string_view argument : absl::StrSplit(inside, ',')) {
    const size_t equals = argument.find('=');
    const absl::string_view key =
        absl::StripAsciiWhitespace(argument.substr(0, equals));
    const absl::string_view value =
        equals == absl::string_view::npos
            ? ""
            : absl::StripAsciiWhitespace(argument.substr(equals + 1));
    const bool bare = equals == absl::string_view::npos;
    if (key.empty() || (bare && !takes_word)) {
      return BadText(stage.name, ": expected key=value, got '",
                     absl::StripAsciiWhitespace(argument), "'");
    }
    if (!bare && takes_word) {
      return BadText(stage.name, ": expected one word, got '",
                     absl::StripAsciiWhitespace(argument), "'");
    }
    for (const auto& [name, unused] : stage.arguments) {
      if (name == key) {
        return BadText(stage.name, ": key '", key, "' given twice");
      }
    }
    stage.arguments.emplace_back(key, value);
  }
  return stage;
}

absl::Status ReadScorer(const Stage& stage, ScorerSpec* scorer) {
  if (!EnumFromName(stage.name, &scorer->kind)) {
    return BadText("unknown scorer '", stage.name, "', expected one of ",
                   Choices<ScorerKind>());
  }
  ArgumentReader arguments(stage);
  VisitScorer(*scorer, arguments);
  return arguments.Finish();
}

absl::Status ReadRounding(const Stage& stage, Rounding* rounding) {
  if (stage.arguments.size() == 1 &&
      EnumFromName(stage.arguments[0].first, rounding)) {
    return absl::OkStatus();
  }
  return BadText("round: expected one of ", Choices<Rounding>(), ", got '",
                 absl::StrJoin(stage.arguments, ",",
                               [](std::string* out, const auto& argument) {
                                 absl::StrAppend(out, argument.first);
                               }),
                 "'");
}

// Renames recent=10% to recent_percent=10.
Stage ReadPercent(Stage stage) {
  for (auto& [key, value] : stage.arguments) {
    if (key != kRecent || !absl::ConsumeSuffix(&value, "%")) continue;
    key = kRecentPercent;
  }
  return stage;
}

// The place of a stage in the text. Stages come in ascending order of place.
enum class Place { kScorer, kBudget, kSelector, kOption };

// Reads one stage after the scorer.
absl::Status ReadLaterStage(const Stage& stage, EvictionPolicy* policy,
                            Place* place) {
  ArgumentReader arguments(stage);
  if (EnumFromName(stage.name, &policy->budget.kind)) {
    *place = Place::kBudget;
    VisitBudget(policy->budget, arguments);
    return arguments.Finish();
  }
  if (EnumFromName(stage.name, &policy->selector.kind)) {
    *place = Place::kSelector;
    VisitSelector(policy->selector, arguments);
    return arguments.Finish();
  }
  *place = Place::kOption;
  if (stage.name == "protect") {
    const Stage with_percent = ReadPercent(stage);
    ArgumentReader reader(with_percent);
    VisitProtection(policy->protect, reader);
    return reader.Finish();
  }
  if (stage.name == "round") return ReadRounding(stage, &policy->rounding);
  if (ScorerKind scorer; EnumFromName(stage.name, &scorer)) {
    return BadText(
        "stage '", stage.name,
        "' out of order: expected one scorer, before everything else");
  }
  return BadText("unknown stage '", stage.name, "', expected a budget (",
                 Choices<BudgetKind>(), "), a selector (",
                 Choices<SelectorKind>(), "), protect or round");
}

// Returns the shortest text that reads back as `value`.
std::string ShortestText(double value) {
  std::array<char, 32> text;
  const std::to_chars_result end =
      std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end.ptr);
}

// A visitor that records the fields of a stage as key=value.
class ArgumentWriter {
 public:
  void Int(absl::string_view key, int32_t value, int32_t /*min*/,
           int32_t /*max*/) {
    arguments_.push_back(key == kRecentPercent
                             ? absl::StrCat(kRecent, "=", value, "%")
                             : absl::StrCat(key, "=", value));
  }
  void Real(absl::string_view key, double value, double /*min*/,
            double /*max*/) {
    arguments_.push_back(absl::StrCat(key, "=", ShortestText(value)));
  }
  void Bool(absl::string_view key, bool value) {
    arguments_.push_back(absl::StrCat(key, "=", value ? "true" : "false"));
  }
  void Text(absl::string_view key, const std::string& value) {
    arguments_.push_back(absl::StrCat(key, "=", value));
  }
  template <typename E>
  void Enum(absl::string_view key, E value) {
    arguments_.push_back(absl::StrCat(key, "=", EnumName(value)));
  }

  // Returns name(key=value,...) without the fields that `defaults` records as
  // well. Both have the same keys in the same order.
  std::string Finish(absl::string_view name,
                     const ArgumentWriter& defaults) const {
    std::vector<absl::string_view> kept;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i] != defaults.arguments_[i]) {
        kept.push_back(arguments_[i]);
      }
    }
    if (kept.empty()) return std::string(name);
    return absl::StrCat(name, "(", absl::StrJoin(kept, ","), ")");
  }

 private:
  std::vector<std::string> arguments_;
};

// Returns the text of one stage. `visit` shows the fields of a spec to a
// visitor.
template <typename Spec, typename Visit>
std::string FormatStage(absl::string_view name, const Spec& spec,
                        const Spec& defaults, Visit visit) {
  ArgumentWriter writer;
  ArgumentWriter default_writer;
  visit(spec, writer);
  visit(defaults, default_writer);
  return writer.Finish(name, default_writer);
}

// Returns a spec of the same kind, with every other field at its default.
template <typename Spec>
Spec DefaultsOf(const Spec& spec) {
  Spec defaults;
  defaults.kind = spec.kind;
  return defaults;
}

}  // namespace

absl::StatusOr<EvictionPolicy> ParsePolicy(absl::string_view text) {
  if (text.size() > kMaxPolicyText) {
    return BadText("expected at most ", kMaxPolicyText, " characters, got ",
                   text.size());
  }
  EvictionPolicy policy;
  std::vector<absl::string_view> seen;
  Place last = Place::kScorer;
  for (absl::string_view piece : absl::StrSplit(text, '|')) {
    BM_ASSIGN_OR_RETURN(const Stage stage, ParseStage(piece));
    if (seen.empty()) {
      BM_RETURN_IF_ERROR(ReadScorer(stage, &policy.scorer));
      seen.push_back(stage.name);
      continue;
    }
    Place place = Place::kOption;
    BM_RETURN_IF_ERROR(ReadLaterStage(stage, &policy, &place));
    const bool repeated =
        place == last &&
        (place != Place::kOption || absl::c_linear_search(seen, stage.name));
    if (place < last || repeated) {
      return BadText(
          "stage '", stage.name, "' out of order after '", seen.back(),
          "': expected scorer | budget | selector | options, each once");
    }
    last = place;
    seen.push_back(stage.name);
  }
  BM_RETURN_IF_ERROR(policy.Validate());
  return policy;
}

std::string FormatPolicy(const EvictionPolicy& policy) {
  const EvictionPolicy defaults;
  std::vector<std::string> stages;
  stages.push_back(FormatStage(
      EnumName(policy.scorer.kind), policy.scorer, DefaultsOf(policy.scorer),
      [](const auto& spec, auto& out) { VisitScorer(spec, out); }));
  stages.push_back(FormatStage(
      EnumName(policy.budget.kind), policy.budget, DefaultsOf(policy.budget),
      [](const auto& spec, auto& out) { VisitBudget(spec, out); }));
  stages.push_back(FormatStage(
      EnumName(policy.selector.kind), policy.selector,
      DefaultsOf(policy.selector),
      [](const auto& spec, auto& out) { VisitSelector(spec, out); }));
  if (policy.protect != defaults.protect) {
    stages.push_back(FormatStage(
        "protect", policy.protect, defaults.protect,
        [](const auto& spec, auto& out) { VisitProtection(spec, out); }));
  }
  if (policy.rounding != defaults.rounding) {
    stages.push_back(absl::StrCat("round(", EnumName(policy.rounding), ")"));
  }
  return absl::StrJoin(stages, " | ");
}

}  // namespace blockmgr
