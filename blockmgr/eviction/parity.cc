#include "blockmgr/eviction/parity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/entries.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/score_order.h"

namespace blockmgr {
namespace {

// What a program gives a score it forces: finfo(float32).max.
constexpr float kForced = std::numeric_limits<float>::max();

// T * (1 - r), which programs truncate; r is itself rounded to a double, for
// that is what their callers pass.
double IdealCount(const EvictionTarget& target, int32_t covered) {
  if (target.kind == EvictionTarget::Kind::kTokens) {
    return std::min(target.tokens, covered);
  }
  const KeepRatio& keep = target.ratio;
  const double evicted =
      static_cast<double>(keep.denominator - keep.numerator) /
      static_cast<double>(keep.denominator);
  return (1.0 - evicted) * covered;
}

int64_t Truncate(double value) { return static_cast<int64_t>(value); }

// The larger one; NaN wins, as it does in the programs.
float MaxOrNaN(float a, float b) { return b > a || std::isnan(b) ? b : a; }

// Whether a program pads the score of this position.
bool IsPadded(const EvictionPolicy& policy, const EvictionRange& range,
              int32_t position) {
  switch (policy.scorer.kind) {
    case ScorerKind::kSnapKv:
    case ScorerKind::kTova:
      return position >= range.length - policy.query_window();
    case ScorerKind::kExpectedAttention:
      return position < policy.scorer.n_sink;
    default:
      return false;
  }
}

// Replaces the scores of padded entries; they belong to one layer.
void Pad(const EvictionPolicy& policy, const EvictionRange& range,
         std::span<const int32_t> positions, std::span<float> scores) {
  float max = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!IsPadded(policy, range, positions[i])) max = MaxOrNaN(max, scores[i]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (IsPadded(policy, range, positions[i])) scores[i] = max + 1.0f;
  }
}

std::vector<uint32_t> Keys(std::span<const float> scores) {
  std::vector<uint32_t> keys;
  keys.reserve(scores.size());
  for (const float score : scores) keys.push_back(ScoreKey(score));
  return keys;
}

// One layer's heads, as the programs see them.
class Layer {
 public:
  struct Head {
    std::span<const float> scores;
    std::span<const float> value_norms;
    // Of the entries in front of the window; all of them for kvpress, which
    // lets the window compete.
    size_t num_past = 0;
  };

  Layer(const EvictionPolicy& policy, const EvictionTarget& target,
        const EvictionRange& range)
      : policy_(policy), ideal_(IdealCount(target, range.cut)) {
    if (is_released()) window_ = policy.query_window();
  }

  void Add(const Head& head) {
    heads_.push_back(head);
    // kvpress forces the best int(n * alpha) of every head.
    forced_.emplace_back(head.scores.begin(), head.scores.end());
    if (is_released() || policy_.budget.kind != BudgetKind::kAdaKv) return;
    ForEachTop(Keys(head.scores), num_safe(), [&](int64_t index) {
      forced_.back()[static_cast<size_t>(index)] = kForced;
    });
  }

  std::vector<int64_t> Budgets() const {
    std::vector<int64_t> budgets;
    if (is_released()) return BlendBudgets();
    if (policy_.budget.kind == BudgetKind::kAdaKv) {
      return CountTop(count() * num_heads());
    }
    for (const Head& head : heads_) {
      budgets.push_back(
          std::min(count(), static_cast<int64_t>(head.scores.size())));
    }
    return budgets;
  }

  // Appends what one head keeps of `budget` entries, window included.
  void Select(size_t index, int64_t budget, std::vector<int32_t>* ranks) const {
    const Head& head = heads_[index];
    const size_t window = head.scores.size() - head.num_past;
    const int64_t total = budget - static_cast<int64_t>(window);
    const std::span<const float> first =
        std::span<const float>(forced_[index]).first(head.num_past);
    SelectPast(first, head, FirstStage(total), total, ranks);
    for (size_t rank = head.num_past; rank < head.scores.size(); ++rank) {
      ranks->push_back(static_cast<int32_t>(rank));
    }
  }

 private:
  bool is_released() const { return policy_.parity == Parity::kReleased; }
  int64_t num_heads() const { return static_cast<int64_t>(heads_.size()); }
  int64_t count() const { return Truncate(ideal_); }
  int64_t num_safe() const {
    return Truncate(static_cast<double>(count()) * policy_.budget.alpha);
  }

  // How many of the layer's `slots` best past entries each head holds.
  std::vector<int64_t> CountTop(int64_t slots) const {
    std::vector<uint32_t> keys;
    std::vector<int64_t> ends;
    for (size_t head = 0; head < heads_.size(); ++head) {
      for (size_t i = 0; i < heads_[head].num_past; ++i) {
        keys.push_back(ScoreKey(forced_[head][i]));
      }
      ends.push_back(static_cast<int64_t>(keys.size()));
    }
    std::vector<int64_t> counts(heads_.size());
    size_t head = 0;
    ForEachTop(keys, slots, [&](int64_t index) {
      while (index >= ends[head]) ++head;
      ++counts[head];
    });
    return counts;
  }

  // Ada-KV's code: the window aside, a head's share of the best is blended with
  // its share of the floor and rounded half to even by itself; totals drift.
  std::vector<int64_t> BlendBudgets() const {
    const int64_t base = std::max<int64_t>(0, count() - window_);
    const int64_t floor =
        Truncate(static_cast<double>(base) * policy_.budget.alpha);
    // The factor is a float there.
    const double rest = static_cast<float>(1.0 - policy_.budget.alpha);
    std::vector<int64_t> budgets = CountTop(base * num_heads());
    for (size_t head = 0; head < heads_.size(); ++head) {
      const auto past = static_cast<int64_t>(heads_[head].num_past);
      const auto held = static_cast<int64_t>(heads_[head].scores.size());
      const auto blend = static_cast<int64_t>(
          std::nearbyint(static_cast<double>(budgets[head]) * rest +
                         static_cast<double>(floor)));
      budgets[head] = std::min(blend, past) + (held - past);
    }
    return budgets;
  }

  // How many entries the first stage takes out of `total`.
  int64_t FirstStage(int64_t total) const {
    if (policy_.selector.kind == SelectorKind::kTopK) return total;
    const double first = policy_.selector.first;
    int64_t count = 0;
    if (is_released()) {
      count = Truncate(static_cast<double>(total) * first);
    } else if (policy_.budget.kind == BudgetKind::kAdaKv) {
      // Floats there; and what was forced stays forced.
      count = std::max(Truncate(double{static_cast<float>(total) *
                                       static_cast<float>(first)}),
                       num_safe());
    } else {
      count = Truncate(ideal_ * first);  // not of the truncated count
    }
    return std::min(count, total);
  }

  // The best num_first by `first`, and of the others the best by (score + eps)
  // * norm.
  void SelectPast(std::span<const float> first, const Head& head,
                  int64_t num_first, int64_t total,
                  std::vector<int32_t>* ranks) const {
    std::vector<bool> taken(head.num_past);
    const auto take = [&](int64_t index) {
      taken[static_cast<size_t>(index)] = true;
    };
    ForEachTop(Keys(first), num_first, take);
    if (num_first < total) {
      const auto eps = static_cast<float>(policy_.selector.eps);
      std::vector<uint32_t> keys;
      std::vector<int64_t> rest;
      for (size_t i = 0; i < head.num_past; ++i) {
        if (taken[i]) continue;
        keys.push_back(ScoreKey((head.scores[i] + eps) * head.value_norms[i]));
        rest.push_back(static_cast<int64_t>(i));
      }
      ForEachTop(keys, total - num_first, [&](int64_t index) {
        take(rest[static_cast<size_t>(index)]);
      });
    }
    for (size_t i = 0; i < head.num_past; ++i) {
      if (taken[i]) ranks->push_back(static_cast<int32_t>(i));
    }
  }

  const EvictionPolicy& policy_;
  const double ideal_;
  int32_t window_ = 0;
  std::vector<Head> heads_;
  std::vector<std::vector<float>> forced_;  // scores, with what is forced
};

// Everything both functions need; `visit` gets each layer and its budgets.
template <typename Visit>
void ForEachLayer(const EvictionPolicy& policy, const EvictionTarget& target,
                  const HeadShape& shape, const EvictionRange& range,
                  const EntriesView& entries, Visit visit) {
  CheckEntries(shape, range, entries);
  BM_CHECK(policy.parity != Parity::kNone);
  BM_CHECK(CheckParity(policy).ok());
  const std::vector<float> scores =
      ParityScores(policy, target, shape, range, entries);
  const bool released = policy.parity == Parity::kReleased;
  for (int32_t index = 0; index < shape.num_layers; ++index) {
    Layer layer(policy, target, range);
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      const int64_t head_index = int64_t{index} * shape.num_heads + head;
      const auto positions = HeadPositions(entries, head_index);
      const auto begin =
          static_cast<size_t>(entries.offsets[static_cast<size_t>(head_index)]);
      Layer::Head view;
      view.scores = std::span(scores).subspan(begin, positions.size());
      if (!entries.value_norms.empty()) {
        view.value_norms = entries.value_norms.subspan(begin, positions.size());
      }
      view.num_past = positions.size();
      if (released) {
        view.num_past = static_cast<size_t>(
            std::lower_bound(positions.begin(), positions.end(),
                             range.length - policy.query_window()) -
            positions.begin());
      }
      layer.Add(view);
    }
    visit(layer);
  }
}

absl::Status Expected(absl::string_view parity, absl::string_view what,
                      absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("policy: parity(", parity,
                                                 "): ", what, ": expected ",
                                                 expected, ", got ", got));
}

}  // namespace

absl::Status CheckParity(const EvictionPolicy& policy) {
  if (policy.parity == Parity::kNone) return absl::OkStatus();
  const absl::string_view parity = EnumName(policy.parity);
  const absl::string_view budget = EnumName(policy.budget.kind);
  const bool released = policy.parity == Parity::kReleased;
  const bool critical = policy.selector.kind == SelectorKind::kCritical;
  const bool ada = policy.budget.kind == BudgetKind::kAdaKv;
  if (released) {
    if (!ada || policy.budget.mode != AdaKvMode::kBlend) {
      return Expected(parity, "budget", "adakv(mode=blend)",
                      ada ? "adakv(mode=floor)" : budget);
    }
    if (policy.scorer.kind != ScorerKind::kSnapKv) {
      return Expected(parity, "scorer", "snapkv", EnumName(policy.scorer.kind));
    }
  } else {
    const bool floor = ada && policy.budget.mode == AdaKvMode::kFloor;
    if (!floor && policy.budget.kind != BudgetKind::kUniform) {
      return Expected(parity, "budget", "uniform or adakv(mode=floor)",
                      ada ? "adakv(mode=blend)" : budget);
    }
    if (policy.scorer.kind == ScorerKind::kStreaming && (ada || critical)) {
      return Expected(
          parity, "budget and selector", "uniform and topk",
          absl::StrCat(budget, " and ", EnumName(policy.selector.kind)));
    }
    if (policy.scorer.kind == ScorerKind::kH2o && policy.scorer.recent != 0) {
      return Expected(parity, "h2o: recent", "0",
                      absl::StrCat(policy.scorer.recent));
    }
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

std::vector<float> ParityScores(const EvictionPolicy& policy,
                                const EvictionTarget& target,
                                const HeadShape& shape,
                                const EvictionRange& range,
                                const EntriesView& entries) {
  if (policy.scorer.kind == ScorerKind::kStreaming) {
    std::vector<float> scores;
    scores.reserve(entries.positions.size());
    const int64_t pruned = range.cut - Truncate(IdealCount(target, range.cut));
    for (const int32_t position : entries.positions) {
      const int64_t behind_sinks = int64_t{position} - policy.scorer.sinks;
      scores.push_back(behind_sinks >= 0 && behind_sinks < pruned ? 0.0f
                                                                  : 1.0f);
    }
    return scores;
  }
  BM_CHECK(entries.scores.size() == entries.positions.size());
  std::vector<float> scores(entries.scores.begin(), entries.scores.end());
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto heads = static_cast<size_t>(shape.num_heads);
    const size_t first = static_cast<size_t>(layer) * heads;
    const auto begin = static_cast<size_t>(entries.offsets[first]);
    const auto size =
        static_cast<size_t>(entries.offsets[first + heads]) - begin;
    Pad(policy, range, entries.positions.subspan(begin, size),
        std::span(scores).subspan(begin, size));
  }
  return scores;
}

std::vector<int32_t> ParityBudgets(const EvictionPolicy& policy,
                                   const EvictionTarget& target,
                                   const HeadShape& shape,
                                   const EvictionRange& range,
                                   const EntriesView& entries) {
  std::vector<int32_t> budgets;
  ForEachLayer(policy, target, shape, range, entries, [&](const Layer& layer) {
    for (const int64_t budget : layer.Budgets()) {
      budgets.push_back(static_cast<int32_t>(budget));
    }
  });
  return budgets;
}

KeepSets SelectParity(const EvictionPolicy& policy,
                      const EvictionTarget& target, const HeadShape& shape,
                      const EvictionRange& range, const EntriesView& entries) {
  if (policy.selector.kind == SelectorKind::kCritical) {
    BM_CHECK(entries.value_norms.size() == entries.positions.size());
  }
  KeepSets kept;
  kept.num_nan = std::count_if(entries.scores.begin(), entries.scores.end(),
                               [](float score) { return std::isnan(score); });
  kept.offsets.push_back(0);
  ForEachLayer(policy, target, shape, range, entries, [&](const Layer& layer) {
    const std::vector<int64_t> budgets = layer.Budgets();
    for (size_t head = 0; head < budgets.size(); ++head) {
      layer.Select(head, budgets[head], &kept.ranks);
      kept.offsets.push_back(static_cast<int64_t>(kept.ranks.size()));
    }
  });
  return kept;
}

}  // namespace blockmgr
