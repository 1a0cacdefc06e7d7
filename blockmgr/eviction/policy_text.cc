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

#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {
namespace {

// Ten times the longest sensible policy; bounds the work on hostile text.
constexpr size_t kMaxPolicyText = 2048;

template <typename Kind>
struct Name {
  absl::string_view text;
  Kind kind;
};

constexpr std::array<Name<ScorerKind>, 3> kScorers = {{
    {"snapkv", ScorerKind::kSnapKv},
    {"streaming", ScorerKind::kStreaming},
    {"external", ScorerKind::kExternal},
}};
constexpr std::array<Name<BudgetKind>, 3> kBudgets = {{
    {"uniform", BudgetKind::kUniform},
    {"adakv", BudgetKind::kAdaKv},
    {"external", BudgetKind::kExternal},
}};
constexpr std::array<Name<SelectorKind>, 1> kSelectors = {{
    {"topk", SelectorKind::kTopK},
}};
constexpr std::array<Name<PoolKind>, 2> kPools = {{
    {"max", PoolKind::kMax},
    {"avg", PoolKind::kAvg},
}};
constexpr std::array<Name<PoolOrder>, 2> kOrders = {{
    {"adakv", PoolOrder::kAdaKv},
    {"kvpress", PoolOrder::kKvPress},
}};
constexpr std::array<Name<GroupReduce>, 2> kGroups = {{
    {"mean", GroupReduce::kMean},
    {"max", GroupReduce::kMax},
}};
constexpr std::array<Name<Rounding>, 2> kRoundings = {{
    {"page", Rounding::kPage},
    {"token", Rounding::kToken},
}};

template <typename Kind, size_t n>
bool Find(const std::array<Name<Kind>, n>& names, absl::string_view text,
          Kind* kind) {
  for (const Name<Kind>& name : names) {
    if (name.text == text) {
      *kind = name.kind;
      return true;
    }
  }
  return false;
}

template <typename Kind, size_t n>
absl::string_view TextOf(const std::array<Name<Kind>, n>& names, Kind kind) {
  for (const Name<Kind>& name : names) {
    if (name.kind == kind) return name.text;
  }
  return "?";
}

template <typename Kind, size_t n>
std::string Choices(const std::array<Name<Kind>, n>& names) {
  return absl::StrJoin(names, ", ",
                       [](std::string* out, const Name<Kind>& name) {
                         absl::StrAppend(out, name.text);
                       });
}

template <typename... Pieces>
absl::Status Bad(const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat("policy: ", pieces...));
}

// One stage as written: name(key=value, ...). Views into the caller's text.
struct Stage {
  absl::string_view name;
  std::vector<std::pair<absl::string_view, absl::string_view>> arguments;
};

// Takes the arguments of one stage by key; the first error sticks, and what no
// Take asked for is an unknown key.
class ArgumentReader {
 public:
  explicit ArgumentReader(const Stage& stage) : stage_(stage) {}

  void Take(absl::string_view key, int32_t* value) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr || absl::SimpleAtoi(*text, value)) return;
    Fail(key, "a 32-bit integer", *text);
  }
  void Take(absl::string_view key, double* value) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr || absl::SimpleAtod(*text, value)) return;
    Fail(key, "a number", *text);
  }
  template <typename Kind, size_t n>
  void Take(absl::string_view key, const std::array<Name<Kind>, n>& names,
            Kind* kind) {
    const absl::string_view* text = Lookup(key);
    if (text == nullptr || Find(names, *text, kind)) return;
    Fail(key, absl::StrCat("one of ", Choices(names)), *text);
  }

  absl::Status Finish() const {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : stage_.arguments) {
      if (absl::c_linear_search(known_, key)) continue;
      return Bad(stage_.name, ": unknown key '", key, "', expected ",
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
    status_ = Bad(stage_.name, ": ", key, ": expected ", expected, ", got '",
                  got, "'");
  }

  const Stage& stage_;
  std::vector<absl::string_view> known_;
  absl::Status status_;
};

// A stage without "=": `round(page)` gives the key "page" and no value, which
// only the round stage accepts.
absl::StatusOr<Stage> ParseStage(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  Stage stage;
  const size_t open = text.find('(');
  stage.name = absl::StripAsciiWhitespace(text.substr(0, open));
  if (stage.name.empty()) {
    return Bad("expected a stage such as snapkv(window=32), got '", text, "'");
  }
  if (open == absl::string_view::npos) return stage;
  if (text.back() != ')') {
    return Bad(stage.name, ": expected ')' at the end, got '", text, "'");
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
    if (key.empty() || (bare && stage.name != "round")) {
      return Bad(stage.name, ": expected key=value, got '",
                 absl::StripAsciiWhitespace(argument), "'");
    }
    if (!bare && stage.name == "round") {
      return Bad("round: expected ", Choices(kRoundings), ", got '",
                 absl::StripAsciiWhitespace(argument), "'");
    }
    for (const auto& [name, unused] : stage.arguments) {
      if (name == key) return Bad(stage.name, ": key '", key, "' given twice");
    }
    stage.arguments.emplace_back(key, value);
  }
  return stage;
}

absl::Status ReadScorer(const Stage& stage, ScorerSpec* scorer) {
  if (!Find(kScorers, stage.name, &scorer->kind)) {
    return Bad("unknown scorer '", stage.name, "', expected one of ",
               Choices(kScorers));
  }
  ArgumentReader arguments(stage);
  if (scorer->kind == ScorerKind::kSnapKv) {
    arguments.Take("window", &scorer->window);
    arguments.Take("pool", kPools, &scorer->pool);
    arguments.Take("kernel", &scorer->kernel);
    arguments.Take("order", kOrders, &scorer->order);
    arguments.Take("group", kGroups, &scorer->group);
  } else if (scorer->kind == ScorerKind::kStreaming) {
    arguments.Take("sinks", &scorer->sinks);
  }
  return arguments.Finish();
}

absl::Status ReadRounding(const Stage& stage, Rounding* rounding) {
  if (stage.arguments.size() == 1 &&
      Find(kRoundings, stage.arguments[0].first, rounding)) {
    return absl::OkStatus();
  }
  return Bad("round: expected one of ", Choices(kRoundings), ", got '",
             absl::StrJoin(stage.arguments, ",",
                           [](std::string* out, const auto& argument) {
                             absl::StrAppend(out, argument.first);
                           }),
             "'");
}

// Where a stage may stand; stages come in ascending order of place.
enum class Place { kScorer, kBudget, kSelector, kOption };

// Reads one stage after the scorer.
absl::Status ReadLaterStage(const Stage& stage, EvictionPolicy* policy,
                            Place* place) {
  ArgumentReader arguments(stage);
  if (Find(kBudgets, stage.name, &policy->budget.kind)) {
    *place = Place::kBudget;
    if (policy->budget.kind == BudgetKind::kAdaKv) {
      arguments.Take("alpha", &policy->budget.alpha);
    }
    return arguments.Finish();
  }
  if (Find(kSelectors, stage.name, &policy->selector.kind)) {
    *place = Place::kSelector;
    return arguments.Finish();
  }
  *place = Place::kOption;
  if (stage.name == "protect") {
    arguments.Take("sinks", &policy->protect.sinks);
    arguments.Take("recent", &policy->protect.recent);
    return arguments.Finish();
  }
  if (stage.name == "round") return ReadRounding(stage, &policy->rounding);
  ScorerKind scorer;
  if (Find(kScorers, stage.name, &scorer)) {
    return Bad("stage '", stage.name,
               "' out of order: expected one scorer, before everything else");
  }
  return Bad("unknown stage '", stage.name, "', expected a budget (",
             Choices(kBudgets), "), a selector (", Choices(kSelectors),
             "), protect or round");
}

// The shortest text that reads back as `value`.
std::string ShortestText(double value) {
  std::array<char, 32> text;
  const std::to_chars_result end =
      std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end.ptr);
}

// name(key=value,...) of the keys whose value is not the default.
class StageWriter {
 public:
  explicit StageWriter(absl::string_view name) : text_(name) {}

  template <typename T>
  StageWriter& Key(absl::string_view key, bool is_default, const T& value) {
    if (is_default) return *this;
    absl::StrAppend(&text_, open_ ? "," : "(", key, "=", value);
    open_ = true;
    return *this;
  }
  std::string Finish() const { return open_ ? text_ + ")" : text_; }

 private:
  std::string text_;
  bool open_ = false;
};

std::string FormatScorer(const ScorerSpec& scorer) {
  const ScorerSpec defaults;
  StageWriter writer(TextOf(kScorers, scorer.kind));
  if (scorer.kind == ScorerKind::kSnapKv) {
    writer.Key("window", scorer.window == defaults.window, scorer.window)
        .Key("pool", scorer.pool == defaults.pool, TextOf(kPools, scorer.pool))
        .Key("kernel", scorer.kernel == defaults.kernel, scorer.kernel)
        .Key("order", scorer.order == defaults.order,
             TextOf(kOrders, scorer.order))
        .Key("group", scorer.group == defaults.group,
             TextOf(kGroups, scorer.group));
  } else if (scorer.kind == ScorerKind::kStreaming) {
    writer.Key("sinks", scorer.sinks == defaults.sinks, scorer.sinks);
  }
  return writer.Finish();
}

}  // namespace

absl::StatusOr<EvictionPolicy> ParsePolicy(absl::string_view text) {
  if (text.size() > kMaxPolicyText) {
    return Bad("expected at most ", kMaxPolicyText, " characters, got ",
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
      return Bad("stage '", stage.name, "' out of order after '", seen.back(),
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
  stages.push_back(FormatScorer(policy.scorer));
  const bool adakv = policy.budget.kind == BudgetKind::kAdaKv;
  stages.push_back(
      StageWriter(TextOf(kBudgets, policy.budget.kind))
          .Key("alpha", !adakv || policy.budget.alpha == defaults.budget.alpha,
               ShortestText(policy.budget.alpha))
          .Finish());
  stages.emplace_back(TextOf(kSelectors, policy.selector.kind));
  if (policy.protect != defaults.protect) {
    stages.push_back(
        StageWriter("protect")
            .Key("sinks", policy.protect.sinks == defaults.protect.sinks,
                 policy.protect.sinks)
            .Key("recent", policy.protect.recent == defaults.protect.recent,
                 policy.protect.recent)
            .Finish());
  }
  if (policy.rounding != defaults.rounding) {
    stages.push_back(
        absl::StrCat("round(", TextOf(kRoundings, policy.rounding), ")"));
  }
  return absl::StrJoin(stages, " | ");
}

}  // namespace blockmgr
