// The fields of a policy, said once: their keys, ranges and names of values.
// Parsing, formatting, validating and the wire are visitors of these.
//
// A visitor has, for the fields of one stage in turn,
//   void Int(absl::string_view key, int32_t& value, int32_t min,
//            int32_t max);
//   void Real(absl::string_view key, double& value, double min,
//             double max);
//   void Bool(absl::string_view key, bool& value);
//   void Text(absl::string_view key, std::string& value);
//   void Enum(absl::string_view key, E& value);  // EnumNames<E>() has its
//   names
// where the references are const if the spec is. Keys are the names of the
// fields in proto/blockmgr/v1/common.proto.
#ifndef BLOCKMGR_EVICTION_POLICY_FIELDS_H_
#define BLOCKMGR_EVICTION_POLICY_FIELDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <absl/strings/string_view.h>

#include "blockmgr/eviction/policy.h"

namespace blockmgr {

namespace policy_names {
// Indexed by the enum's value.
inline constexpr std::array<absl::string_view, 9> kScorer = {
    "snapkv",    "h2o",   "tova",   "keydiff", "expected_attention",
    "streaming", "knorm", "random", "external"};
inline constexpr std::array<absl::string_view, 8> kBudget = {
    "uniform", "pyramid", "adakv",  "ada_pyramid",
    "headkv",  "lukv",    "global", "external"};
inline constexpr std::array<absl::string_view, 2> kSelector = {"topk",
                                                               "critical"};
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

// The name of a value; "?" for what is no value of the enum.
template <typename E>
constexpr absl::string_view EnumName(E value) {
  const auto index = static_cast<size_t>(value);
  return index < EnumNames<E>().size() ? EnumNames<E>()[index] : "?";
}

// False, with `value` as it was, when no value has that name.
template <typename E>
constexpr bool EnumFromName(absl::string_view name, E* value) {
  for (size_t i = 0; i < EnumNames<E>().size(); ++i) {
    if (EnumNames<E>()[i] != name) continue;
    *value = static_cast<E>(i);
    return true;
  }
  return false;
}

namespace policy_internal {
inline constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
inline constexpr double kLarge = 1e9;
}  // namespace policy_internal

template <typename Scorer, typename Visitor>
void VisitScorer(Scorer& scorer, Visitor&& visitor) {
  using policy_internal::kAny;
  using policy_internal::kLarge;
  switch (scorer.kind) {
    case ScorerKind::kSnapKv:
      visitor.Int("window", scorer.window, 1, kAny);
      visitor.Enum("pool", scorer.pool);
      visitor.Int("kernel", scorer.kernel, 1, kMaxKernel);
      visitor.Enum("order", scorer.order);
      visitor.Enum("group", scorer.group);
      break;
    case ScorerKind::kH2o:
      visitor.Enum("norm", scorer.norm);
      visitor.Int("recent", scorer.recent, 0, kAny);
      visitor.Int("obs_window", scorer.obs_window, 0, kAny);
      break;
    case ScorerKind::kKeyDiff:
      visitor.Enum("anchor", scorer.anchor);
      visitor.Enum("metric", scorer.metric);
      break;
    case ScorerKind::kExpectedAttention:
      visitor.Int("n_future", scorer.n_future, 1, 1 << 20);
      visitor.Int("n_sink", scorer.n_sink, 0, kAny);
      visitor.Bool("cov", scorer.cov);
      visitor.Bool("vnorm", scorer.vnorm);
      visitor.Real("eps", scorer.eps, 0.0, kLarge);
      break;
    case ScorerKind::kStreaming:
      visitor.Int("sinks", scorer.sinks, 0, kAny);
      break;
    case ScorerKind::kRandom:
      visitor.Int("seed", scorer.seed, 0, kAny);
      break;
    case ScorerKind::kTova:
    case ScorerKind::kKnorm:
    case ScorerKind::kExternal:
      break;
  }
}

template <typename Budget, typename Visitor>
void VisitBudget(Budget& budget, Visitor&& visitor) {
  using policy_internal::kLarge;
  const bool pyramid = budget.kind == BudgetKind::kPyramid ||
                       budget.kind == BudgetKind::kAdaPyramid;
  const bool ada = budget.kind == BudgetKind::kAdaKv ||
                   budget.kind == BudgetKind::kAdaPyramid;
  if (ada) visitor.Real("alpha", budget.alpha, 0.0, 1.0);
  if (budget.kind == BudgetKind::kAdaKv) visitor.Enum("mode", budget.mode);
  if (pyramid) {
    visitor.Real("beta", budget.beta, 1.0, kLarge);
    visitor.Enum("formula", budget.formula);
  }
  if (budget.kind == BudgetKind::kHeadKv || budget.kind == BudgetKind::kLuKv) {
    visitor.Text("profile", budget.profile);
  }
  if (budget.kind == BudgetKind::kHeadKv) {
    visitor.Real("share", budget.share, 1.0, kLarge);
    visitor.Real("temp", budget.temp, 0.0, 1000.0);
  }
}

template <typename Selector, typename Visitor>
void VisitSelector(Selector& selector, Visitor&& visitor) {
  if (selector.kind != SelectorKind::kCritical) return;
  visitor.Real("first", selector.first, 0.0, 1.0);
  visitor.Real("eps", selector.eps, 0.0, policy_internal::kLarge);
  visitor.Enum("norm", selector.norm);
  visitor.Bool("gqa_product", selector.gqa_product);
}

template <typename Protect, typename Visitor>
void VisitProtection(Protect& protect, Visitor&& visitor) {
  using policy_internal::kAny;
  visitor.Int("sinks", protect.sinks, 0, kAny);
  // -1: the observation window.
  visitor.Int("recent", protect.recent, -1, kAny);
}

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_POLICY_FIELDS_H_
