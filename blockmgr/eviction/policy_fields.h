// The table of policies: each scorer, budget and selector has one row.
//
// A row gives the name, the keys and, for a scorer, what the scorer needs. The
// parser, the formatter, EvictionPolicy's functions, the wire and the engines
// all read the table. docs/eviction.md says how to add a row.
//
// A visitor is shown the fields of one stage in the order of their keys:
//
//   void Int(absl::string_view key, int32_t& value, int32_t min, int32_t max);
//   void Real(absl::string_view key, double& value, double min, double max);
//   void Bool(absl::string_view key, bool& value);
//   void Text(absl::string_view key, std::string& value);
//   void Enum(absl::string_view key, E& value);
//
// The references are const if the spec is const. EnumNames<E>() has the names
// of an enum's values. A key is also the name of the field in
// proto/blockmgr/v1/common.proto.
#ifndef BLOCKMGR_EVICTION_POLICY_FIELDS_H_
#define BLOCKMGR_EVICTION_POLICY_FIELDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>

#include <absl/strings/string_view.h>

#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// A scorer's needs and what it protects. A function that is left null gives 0,
// ScorerState::kNone or false.
struct ScorerTraits {
  ScoreSource source = ScoreSource::kBackend;
  // The number of last queries that the scorer reads.
  int32_t (*query_window)(const ScorerSpec&) = nullptr;
  // The state that engines accumulate from the first token on.
  ScorerState (*state)(const ScorerSpec&) = nullptr;
  // Whether the scorer reads V.
  bool (*reads_values)(const ScorerSpec&) = nullptr;
  // The number of first positions that are never evicted.
  int32_t (*sinks)(const ScorerSpec&) = nullptr;
  // The number of last positions that are never evicted unless protect(recent)
  // says otherwise. Null means the query window.
  int32_t (*recent)(const ScorerSpec&) = nullptr;
  // Whether Backend::Score also fills ScoreBatch::products, which
  // critical(gqa_product=true) reads.
  bool has_products = false;
};

namespace policy_internal {

inline constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
inline constexpr double kLarge = 1e9;

// A bool, a text or an enum.
template <typename Spec, typename T>
struct Field {
  absl::string_view key;
  T Spec::*member;

  template <typename S, typename Visitor>
  void Show(S& spec, Visitor& visitor) const {
    if constexpr (std::is_same_v<T, bool>) {
      visitor.Bool(key, spec.*member);
    } else if constexpr (std::is_enum_v<T>) {
      visitor.Enum(key, spec.*member);
    } else {
      visitor.Text(key, spec.*member);
    }
  }
};

// A number in [min, max].
template <typename Spec, typename T>
struct Number {
  absl::string_view key;
  T Spec::*member;
  T min;
  T max;

  template <typename S, typename Visitor>
  void Show(S& spec, Visitor& visitor) const {
    if constexpr (std::is_same_v<T, double>) {
      visitor.Real(key, spec.*member, min, max);
    } else {
      visitor.Int(key, spec.*member, min, max);
    }
  }
};

template <typename Spec, typename T>
constexpr Field<Spec, T> Key(absl::string_view key, T Spec::*member) {
  return {key, member};
}
template <typename Spec, typename T>
constexpr Number<Spec, T> Key(absl::string_view key, T Spec::*member,
                              std::type_identity_t<T> min,
                              std::type_identity_t<T> max) {
  return {key, member, min, max};
}

template <typename Kind, typename... Fields>
struct Row {
  Kind kind;
  absl::string_view name;
  ScorerTraits traits;  // used by rows of scorers only
  std::tuple<Fields...> fields;

  template <typename Spec, typename Visitor>
  void ShowIfOf(Spec& spec, Visitor& visitor) const {
    if (spec.kind != kind) return;
    std::apply([&](const auto&... field) { (field.Show(spec, visitor), ...); },
               fields);
  }
};

template <typename... Fields>
constexpr Row<ScorerKind, Fields...> Scorer(ScorerKind kind,
                                            absl::string_view name,
                                            const ScorerTraits& traits,
                                            Fields... fields) {
  return {kind, name, traits, {fields...}};
}
template <typename Kind, typename... Fields>
constexpr Row<Kind, Fields...> Stage(Kind kind, absl::string_view name,
                                     Fields... fields) {
  return {kind, name, {}, {fields...}};
}

inline constexpr auto kAlpha = Key("alpha", &BudgetSpec::alpha, 0.0, 1.0);
inline constexpr auto kBeta = Key("beta", &BudgetSpec::beta, 1.0, kLarge);
inline constexpr auto kFormula = Key("formula", &BudgetSpec::formula);
inline constexpr auto kProfile = Key("profile", &BudgetSpec::profile);

// The rows stand in the order of their enums.
inline constexpr auto kScorers = std::tuple(
    Scorer(ScorerKind::kSnapKv, "snapkv",
           {.query_window = [](const ScorerSpec& spec) { return spec.window; },
            .has_products = true},
           Key("window", &ScorerSpec::window, 1, kAny),
           Key("pool", &ScorerSpec::pool),
           Key("kernel", &ScorerSpec::kernel, 1, kMaxKernel),
           Key("order", &ScorerSpec::order), Key("group", &ScorerSpec::group)),
    Scorer(
        ScorerKind::kH2o, "h2o",
        {.query_window = [](const ScorerSpec& spec) { return spec.obs_window; },
         .state =
             [](const ScorerSpec& spec) {
               return spec.obs_window == 0 ? ScorerState::kAttentionSums
                                           : ScorerState::kNone;
             },
         .recent = [](const ScorerSpec& spec) { return spec.recent; }},
        Key("norm", &ScorerSpec::norm),
        Key("recent", &ScorerSpec::recent, 0, kAny),
        Key("obs_window", &ScorerSpec::obs_window, 0, kAny)),
    Scorer(ScorerKind::kTova, "tova",
           {.query_window = [](const ScorerSpec&) { return 1; },
            .has_products = true}),
    Scorer(ScorerKind::kKeyDiff, "keydiff", {},
           Key("anchor", &ScorerSpec::anchor),
           Key("metric", &ScorerSpec::metric)),
    Scorer(ScorerKind::kExpectedAttention, "expected_attention",
           {.state =
                [](const ScorerSpec& spec) {
                  return spec.stats.empty() ? ScorerState::kQueryStatistics
                                            : ScorerState::kNone;
                },
            .reads_values = [](const ScorerSpec& spec) { return spec.vnorm; },
            .sinks = [](const ScorerSpec& spec) { return spec.n_sink; }},
           Key("n_future", &ScorerSpec::n_future, 1, 1 << 20),
           Key("n_sink", &ScorerSpec::n_sink, 0, kAny),
           Key("cov", &ScorerSpec::cov), Key("vnorm", &ScorerSpec::vnorm),
           Key("eps", &ScorerSpec::eps, 0.0, kLarge),
           Key("stats", &ScorerSpec::stats)),
    Scorer(ScorerKind::kStreaming, "streaming",
           {.source = ScoreSource::kPosition,
            .sinks = [](const ScorerSpec& spec) { return spec.sinks; }},
           Key("sinks", &ScorerSpec::sinks, 0, kAny)),
    Scorer(ScorerKind::kKnorm, "knorm", {}),
    Scorer(ScorerKind::kRandom, "random", {.source = ScoreSource::kRandom},
           Key("seed", &ScorerSpec::seed, 0, kAny)),
    Scorer(ScorerKind::kExternal, "external", {.source = ScoreSource::kCaller}),
    Scorer(ScorerKind::kDropKv, "dropkv",
           {.query_window = [](const ScorerSpec& spec) { return spec.window; },
            .reads_values = [](const ScorerSpec&) { return true; }},
           Key("window", &ScorerSpec::window, 1, kAny),
           Key("kernel", &ScorerSpec::kernel, 1, kMaxKernel)));

inline constexpr auto kBudgets = std::tuple(
    Stage(BudgetKind::kUniform, "uniform"),
    Stage(BudgetKind::kPyramid, "pyramid", kBeta, kFormula),
    Stage(BudgetKind::kAdaKv, "adakv", kAlpha, Key("mode", &BudgetSpec::mode)),
    Stage(BudgetKind::kAdaPyramid, "ada_pyramid", kAlpha, kBeta, kFormula),
    Stage(BudgetKind::kHeadKv, "headkv", kProfile,
          Key("share", &BudgetSpec::share, 1.0, kLarge),
          Key("temp", &BudgetSpec::temp, 0.0, 1000.0)),
    Stage(BudgetKind::kLuKv, "lukv", kProfile),
    Stage(BudgetKind::kGlobal, "global"),
    Stage(BudgetKind::kExternal, "external"),
    Stage(BudgetKind::kDuo, "duo", kProfile));

inline constexpr auto kSelectors =
    std::tuple(Stage(SelectorKind::kTopK, "topk"),
               Stage(SelectorKind::kCritical, "critical",
                     Key("first", &SelectorSpec::first, 0.0, 1.0),
                     Key("eps", &SelectorSpec::eps, 0.0, kLarge),
                     Key("norm", &SelectorSpec::norm),
                     Key("gqa_product", &SelectorSpec::gqa_product)));

// One array with `get` of each row.
template <typename Table, typename Get>
constexpr auto Column(const Table& table, Get get) {
  return std::apply([&](const auto&... row) { return std::array{get(row)...}; },
                    table);
}

template <typename Table>
constexpr auto Names(const Table& table) {
  return Column(table, [](const auto& row) { return row.name; });
}

template <typename Table>
constexpr bool IsInOrder(const Table& table) {
  const auto kinds = Column(
      table, [](const auto& row) { return static_cast<size_t>(row.kind); });
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != i) return false;
  }
  return true;
}
static_assert(IsInOrder(kScorers));
static_assert(IsInOrder(kBudgets));
static_assert(IsInOrder(kSelectors));

template <typename Table, typename Spec, typename Visitor>
void VisitRow(const Table& table, Spec& spec, Visitor& visitor) {
  std::apply([&](const auto&... row) { (row.ShowIfOf(spec, visitor), ...); },
             table);
}

}  // namespace policy_internal

namespace policy_names {
// Indexed by the enum's value.
inline constexpr auto kScorer =
    policy_internal::Names(policy_internal::kScorers);
inline constexpr auto kBudget =
    policy_internal::Names(policy_internal::kBudgets);
inline constexpr auto kSelector =
    policy_internal::Names(policy_internal::kSelectors);
inline constexpr std::array<absl::string_view, 2> kPool = {"max", "avg"};
inline constexpr std::array<absl::string_view, 2> kOrder = {"adakv", "kvpress"};
inline constexpr std::array<absl::string_view, 2> kGroup = {"mean", "max"};
inline constexpr std::array<absl::string_view, 2> kH2oNorm = {"none", "count"};
inline constexpr std::array<absl::string_view, 4> kAnchor = {
    "normalized", "raw", "median", "pairwise"};
inline constexpr std::array<absl::string_view, 3> kMetric = {"cosine", "dot",
                                                             "euclidean"};
inline constexpr std::array<absl::string_view, 3> kFormula = {
    "adakv", "kvpress", "factory"};
inline constexpr std::array<absl::string_view, 2> kMode = {"blend", "floor"};
inline constexpr std::array<absl::string_view, 2> kValueNorm = {"l1", "l2"};
inline constexpr std::array<absl::string_view, 2> kRounding = {"page", "token"};
}  // namespace policy_names

template <typename E>
constexpr std::span<const absl::string_view> EnumNames();
#define BM_ENUM_NAMES(type, names)                                 \
  template <>                                                      \
  constexpr std::span<const absl::string_view> EnumNames<type>() { \
    return policy_names::names;                                    \
  }
BM_ENUM_NAMES(ScorerKind, kScorer)
BM_ENUM_NAMES(BudgetKind, kBudget)
BM_ENUM_NAMES(SelectorKind, kSelector)
BM_ENUM_NAMES(PoolKind, kPool)
BM_ENUM_NAMES(PoolOrder, kOrder)
BM_ENUM_NAMES(GroupReduce, kGroup)
BM_ENUM_NAMES(H2oNorm, kH2oNorm)
BM_ENUM_NAMES(KeyDiffAnchor, kAnchor)
BM_ENUM_NAMES(KeyDiffMetric, kMetric)
BM_ENUM_NAMES(PyramidFormula, kFormula)
BM_ENUM_NAMES(AdaKvMode, kMode)
BM_ENUM_NAMES(ValueNorm, kValueNorm)
BM_ENUM_NAMES(Rounding, kRounding)
#undef BM_ENUM_NAMES

// Returns the name of a value, or "?" if the enum has no such value.
template <typename E>
constexpr absl::string_view EnumName(E value) {
  const auto index = static_cast<size_t>(value);
  return index < EnumNames<E>().size() ? EnumNames<E>()[index] : "?";
}

// Sets `value` by its name. Returns false and leaves `value` unchanged if no
// value has that name.
template <typename E>
constexpr bool EnumFromName(absl::string_view name, E* value) {
  for (size_t i = 0; i < EnumNames<E>().size(); ++i) {
    if (EnumNames<E>()[i] != name) continue;
    *value = static_cast<E>(i);
    return true;
  }
  return false;
}

// Shows the fields of one stage to the visitor.
template <typename Spec, typename Visitor>
void VisitScorer(Spec& spec, Visitor&& visitor) {
  policy_internal::VisitRow(policy_internal::kScorers, spec, visitor);
}
template <typename Spec, typename Visitor>
void VisitBudget(Spec& spec, Visitor&& visitor) {
  policy_internal::VisitRow(policy_internal::kBudgets, spec, visitor);
}
template <typename Spec, typename Visitor>
void VisitSelector(Spec& spec, Visitor&& visitor) {
  policy_internal::VisitRow(policy_internal::kSelectors, spec, visitor);
}
template <typename Protect, typename Visitor>
void VisitProtection(Protect& protect, Visitor&& visitor) {
  using policy_internal::kAny;
  visitor.Int("sinks", protect.sinks, 0, kAny);
  // -1 stands for the scorer's own number: h2o's `recent`, and the observation
  // window of any other scorer.
  visitor.Int("recent", protect.recent, -1, kAny);
  // 0 stands for none. The text form is "recent=10%".
  visitor.Int("recent_percent", protect.recent_percent, 0, 100);
}

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_POLICY_FIELDS_H_
