#include "bench/evict/parity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "bench/evict/parity_budgets.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/entries.h"
#include "blockmgr/eviction/score_order.h"

namespace blockmgr {
namespace {

// The programs give entries that they force this score: finfo(float32).max.
constexpr float kForced = std::numeric_limits<float>::max();

// kvpress's lukv keeps these besides; its defaults.
constexpr int32_t kLuKvSinks = 4;
constexpr int32_t kLuKvRecent = 1;

int64_t Truncate(double value) { return static_cast<int64_t>(value); }

// Whether a program pads the score of this position.
bool IsPadded(const ParityPolicy& policy, const EvictionRange& range,
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
void Pad(const ParityPolicy& policy, const EvictionRange& range,
         std::span<const int32_t> positions, std::span<float> scores) {
  float max = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!IsPadded(policy, range, positions[i])) max = MaxOrNaN(max, scores[i]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (IsPadded(policy, range, positions[i])) scores[i] = max + 1.0f;
  }
  if (policy.parity != Parity::kKvPress ||
      policy.budget.kind != BudgetKind::kLuKv) {
    return;
  }
  // Over what the scorer padded, too.
  for (const float score : scores) max = MaxOrNaN(max, score);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (positions[i] < kLuKvSinks ||
        positions[i] >= range.length - kLuKvRecent) {
      scores[i] = max + 1.0f;
    }
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
    size_t num_entries = 0;
    // The number of entries in front of a window that is kept beside; the
    // number of all entries where the window competes.
    size_t num_past = 0;
    int64_t external = 0;  // headkv, lukv: what the table gives it
    std::span<const float> scores;
    std::span<const float> value_norms;  // critical only
  };

  // `ideal`: ParityCount; `mean`: of ParityMeans, this layer's; `keeps_all`:
  // the target evicts nothing.
  Layer(const ParityPolicy& policy, double ideal, int64_t mean, bool keeps_all)
      : policy_(policy), ideal_(ideal), mean_(mean), keeps_all_(keeps_all) {}

  void Add(const Head& head) {
    heads_.push_back(head);
    if (!is_floor()) return;
    // kvpress forces the best int(n * alpha) of every head.
    forced_.emplace_back(head.scores.begin(), head.scores.end());
    ForEachTop(Keys(head.scores), num_safe(), [&](int64_t index) {
      forced_.back()[static_cast<size_t>(index)] = kForced;
    });
  }

  // Appends what the heads keep, the window included.
  void Select(KeepSets* kept) const {
    const std::vector<int64_t> budgets = PastBudgets();
    for (size_t index = 0; index < heads_.size(); ++index) {
      const Head& head = heads_[index];
      const auto past = static_cast<int64_t>(head.num_past);
      const int64_t total =
          keeps_all_ ? past : std::clamp<int64_t>(budgets[index], 0, past);
      SelectPast(FirstScores(index), head, FirstStage(total), total,
                 &kept->ranks);
      for (size_t rank = head.num_past; rank < head.num_entries; ++rank) {
        kept->ranks.push_back(static_cast<int32_t>(rank));
      }
      kept->offsets.push_back(std::ssize(kept->ranks));
    }
  }

 private:
  bool is_released() const { return policy_.parity == Parity::kReleased; }
  bool is_floor() const {
    return !is_released() && policy_.budget.kind == BudgetKind::kAdaKv;
  }
  int64_t num_safe() const {
    return Truncate(static_cast<double>(mean_) * policy_.budget.alpha);
  }

  // Scores of one head's past, with the entries that are forced.
  std::span<const float> FirstScores(size_t head) const {
    const std::span<const float> scores =
        is_floor() ? std::span<const float>(forced_[head])
                   : heads_[head].scores;
    return scores.first(heads_[head].num_past);
  }

  // Entries per head beside the window, before what a head holds bounds them.
  std::vector<int64_t> PastBudgets() const {
    if (IsAdaptive(policy_.budget.kind)) {
      const int64_t slots = mean_ * static_cast<int64_t>(heads_.size());
      return is_floor() ? CountTop(slots) : BlendBudgets(slots);
    }
    if (!policy_.needs_table()) {
      return std::vector<int64_t>(heads_.size(), mean_);
    }
    std::vector<int64_t> budgets;
    for (const Head& head : heads_) {
      const size_t window = head.num_entries - head.num_past;
      budgets.push_back(head.external - static_cast<int64_t>(window));
    }
    return budgets;
  }

  // How many of the layer's `slots` best past entries each head holds.
  std::vector<int64_t> CountTop(int64_t slots) const {
    std::vector<uint32_t> keys;
    std::vector<int64_t> ends;
    for (size_t head = 0; head < heads_.size(); ++head) {
      for (const float score : FirstScores(head)) {
        keys.push_back(ScoreKey(score));
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
  std::vector<int64_t> BlendBudgets(int64_t slots) const {
    const auto floor = static_cast<double>(num_safe());
    // The factor is a float there.
    const double rest = static_cast<float>(1.0 - policy_.budget.alpha);
    std::vector<int64_t> budgets = CountTop(slots);
    for (int64_t& budget : budgets) {
      budget = std::llrint(static_cast<double>(budget) * rest + floor);
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
    } else if (is_floor()) {
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

  const ParityPolicy& policy_;
  const double ideal_;
  const int64_t mean_;
  const bool keeps_all_;
  std::vector<Head> heads_;
  std::vector<std::vector<float>> forced_;  // kvpress's adakv: scores of heads
};

Layer::Head MakeHead(const ParityPolicy& policy, const EvictionRange& range,
                     const EntriesView& entries, std::span<const float> scores,
                     std::span<const int32_t> external, int64_t index) {
  const auto positions = HeadPositions(entries, index);
  const auto head = static_cast<size_t>(index);
  const auto begin = static_cast<size_t>(entries.offsets[head]);
  Layer::Head view;
  view.num_entries = positions.size();
  view.num_past = positions.size();
  if (KeepsWindowBeside(policy)) {
    view.num_past = static_cast<size_t>(
        std::lower_bound(positions.begin(), positions.end(),
                         range.length - policy.query_window()) -
        positions.begin());
  }
  if (policy.needs_table()) view.external = external[head];
  view.scores = scores.subspan(begin, positions.size());
  if (policy.selector.kind == SelectorKind::kCritical) {
    view.value_norms = entries.value_norms.subspan(begin, positions.size());
  }
  return view;
}

}  // namespace

std::vector<float> ParityScores(const ParityEviction& eviction,
                                const EntriesView& entries) {
  const auto& [policy, target, shape, range] = eviction;
  if (policy.scorer.kind == ScorerKind::kStreaming) {
    std::vector<float> scores;
    scores.reserve(entries.positions.size());
    const int64_t pruned = range.cut - Truncate(ParityCount(target, range.cut));
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

KeepSets SelectParity(const ParityEviction& eviction,
                      const EntriesView& entries,
                      std::span<const int32_t> external) {
  const auto& [policy, target, shape, range] = eviction;
  if (policy.parity == Parity::kNone) {
    return SelectEntries(policy, target, shape, range, entries, external);
  }
  CheckEntries(shape, range, entries);
  BM_CHECK(CheckParity(policy).ok());
  BM_CHECK(policy.selector.kind == SelectorKind::kTopK ||
           entries.value_norms.size() == entries.positions.size());
  std::vector<int64_t> means(static_cast<size_t>(shape.num_layers));
  if (policy.needs_table()) {
    BM_CHECK(external.size() + 1 == entries.offsets.size());
  } else {
    means = ParityMeans(eviction);
  }
  const double ideal = ParityCount(target, range.cut);
  // A table's budgets say so themselves.
  const bool keeps_all =
      !policy.needs_table() && ParityKeepsAll(target, range.cut);
  const std::vector<float> scores = ParityScores(eviction, entries);
  KeepSets kept;
  kept.num_nan = std::count_if(entries.scores.begin(), entries.scores.end(),
                               [](float score) { return std::isnan(score); });
  kept.offsets.push_back(0);
  int64_t head_index = 0;
  for (const int64_t mean : means) {
    Layer layer(policy, ideal, mean, keeps_all);
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      layer.Add(MakeHead(policy, range, entries, scores, external, head_index));
      ++head_index;
    }
    layer.Select(&kept);
  }
  return kept;
}

}  // namespace blockmgr
