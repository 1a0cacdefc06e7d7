#include "tests/e2e/reference_checker.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

// Two scores nearer than this (relative) may be told apart by either side only
// by rounding: fp32 in the engine, float64 here.
constexpr double kScoreMargin = 1e-4;

// Whether two kept sets of one head differ only by entries whose scores are
// equal but for rounding.
bool EqualButForRounding(const std::vector<int32_t>& a,
                         const std::vector<int32_t>& b,
                         std::span<const int32_t> positions,
                         std::span<const float> scores) {
  std::vector<int32_t> odd;
  std::ranges::set_symmetric_difference(a, b, std::back_inserter(odd));
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const int32_t position : odd) {
    const auto rank =
        std::ranges::lower_bound(positions, position) - positions.begin();
    low = std::min<double>(low, scores[rank]);
    high = std::max<double>(high, scores[rank]);
  }
  return odd.empty() ||
         high - low <= kScoreMargin * std::max(std::abs(low), std::abs(high));
}

}  // namespace

ReferenceChecker::ReferenceChecker(TinyEngine* engine,
                                   std::shared_ptr<const LanguageModel> model,
                                   const ReferenceMargins& margins)
    : engine_(engine),
      model_(std::move(model)),
      margins_(margins),
      merger_(engine->tables().layout()) {
  TinyObserver observer;
  observer.on_start = [this](const SequenceStart& start) { OnStart(start); };
  observer.on_logits = [this](SequenceSlot slot, int32_t position,
                              std::span<const float> logits) {
    OnLogits(slot, position, logits);
  };
  observer.on_eviction = [this](const EvictionOrder& order, int32_t shard,
                                const ScoredEntries& scored,
                                const KeepSets& keep) {
    if (!merger_.Add(shard, scored, keep)) return;
    OnEviction(order, merger_.scored(), merger_.keep());
  };
  engine_->set_observer(std::move(observer));
}

ReferenceChecker::Sequence& ReferenceChecker::Find(SequenceSlot slot) {
  Sequence& sequence = sequences_[engine_->tables().row(slot).request];
  if (sequence.reference == nullptr) {
    sequence.reference = std::make_unique<DenseReference>(model_.get());
  }
  return sequence;
}

void ReferenceChecker::Advance(SequenceSlot slot, Sequence* sequence,
                               int32_t length) {
  const std::vector<int32_t>& tokens = engine_->tables().row(slot).tokens;
  DenseReference& reference = *sequence->reference;
  while (reference.length() < length) {
    const int32_t position = reference.length();
    sequence->expected[position] = reference.Forward(tokens[position]);
  }
}

void ReferenceChecker::Keep(const std::vector<std::vector<int32_t>>& kept,
                            const Point& point,
                            DenseReference* reference) const {
  const int32_t num_heads = model_->shape().num_heads;
  for (size_t i = 0; i < kept.size(); ++i) {
    const int32_t layer = model_->groups().LayerAt(
        static_cast<int32_t>(i) / num_heads, point.group);
    if (layer < 0) {
      EXPECT_TRUE(kept[i].empty()) << "of what is padding";
      continue;
    }
    reference->Keep(layer, static_cast<int32_t>(i) % num_heads, point.cut,
                    kept[i]);
  }
}

int32_t ReferenceChecker::FirstOf(const EvictionOrder& order) const {
  if (order.group == 0) return 0;
  // The next token attends to itself, and to so many before less one.
  const int32_t window =
      engine_->tables().layout().group_windows.at(order.group - 1);
  return std::max(0, order.length + 1 - window);
}

void ReferenceChecker::OnStart(const SequenceStart& start) {
  const bool is_fork =
      start.source != kNoSequenceSlot && start.source != start.slot;
  if (!is_fork && start.region == kNoRegion) return;
  // Who comes back from the host tier brings its own.
  if (!is_fork && start.swap == kNoSwap) {
    const auto& groups = engine_->tables().row(start.slot).groups;
    counts_.window_regions_taken += std::count_if(
        groups.begin() + 1, groups.end(),
        [](const GroupTable& group) { return group.region.cut > 0; });
  }
  const Evictions evictions =
      is_fork ? sequences_[engine_->tables().row(start.source).request].kept
              : regions_.at(start.region);
  Sequence& sequence = Find(start.slot);
  for (const auto& [point, kept] : evictions) {
    if (point.length > start.num_cached_tokens) break;
    if (const auto found = sequence.kept.find(point);
        found != sequence.kept.end()) {
      // It goes on from what it ran on before.
      EXPECT_EQ(found->second, kept);
      continue;
    }
    // Others may have come further than it had.
    EXPECT_GE(point.length, sequence.reference->length())
        << "it ran on without this before";
    Advance(start.slot, &sequence, point.length);
    Keep(kept, point, sequence.reference.get());
    sequence.kept.emplace(point, kept);
  }
}

std::vector<int32_t> ReferenceChecker::PromptOf(
    const std::vector<int32_t>& tokens, int32_t length) {
  const MutexLock lock(&mutex_);
  std::vector<int32_t> own;
  for (const std::vector<int32_t>& prompt : prompts_) {
    if (prompt.size() <= tokens.size() && std::ssize(prompt) <= length &&
        std::equal(prompt.begin(), prompt.end(), tokens.begin()) &&
        own.size() < prompt.size()) {
      own = prompt;
    }
  }
  return own;
}

void ReferenceChecker::FileLogits(SequenceSlot slot, int32_t position,
                                  std::span<const float> logits) {
  const std::vector<int32_t> own =
      PromptOf(engine_->tables().row(slot).tokens, position + 1);
  if (own.empty()) return;
  const std::vector<float> values(logits.begin(), logits.end());
  const auto [found, inserted] = logits_[own].emplace(position, values);
  EXPECT_TRUE(inserted || found->second == values ||
              !sequences_[engine_->tables().row(slot).request].kept.empty())
      << "computed again with other logits at position " << position;
}

void ReferenceChecker::OnLogits(SequenceSlot slot, int32_t position,
                                std::span<const float> logits) {
  Sequence& sequence = Find(slot);
  Advance(slot, &sequence, position + 1);
  FileLogits(slot, position, logits);
  const std::vector<double>& expected = sequence.expected.at(position);
  ++counts_.logits;
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, std::abs(logits[i] - expected[i]));
  }
  EXPECT_LE(worst, margins_.logits)
      << "request " << Index(engine_->tables().row(slot).request)
      << ", position " << position;
  const int32_t token =
      static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  const int32_t best = Argmax(expected);
  EXPECT_LE(expected[best] - expected[token], margins_.logits)
      << "a token other than the reference's, beyond its margin";
}

void ReferenceChecker::ExpectAttended(const EvictionOrder& order,
                                      const Sequence& sequence,
                                      const EntryIndex& candidates) const {
  const ModelShape& shape = model_->shape();
  for (int32_t slot = 0; slot < model_->groups().num_layers; ++slot) {
    const int32_t layer = model_->groups().LayerAt(slot, order.group);
    if (layer < 0) continue;
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      const size_t index = static_cast<size_t>(slot) * shape.num_heads + head;
      const int64_t begin = candidates.offsets[index];
      const int64_t end = candidates.offsets[index + 1];
      const std::vector<int32_t> attended =
          sequence.reference->Attended(layer, head, order.cut, FirstOf(order));
      EXPECT_TRUE(std::equal(attended.begin(), attended.end(),
                             candidates.positions.begin() + begin,
                             candidates.positions.begin() + end))
          << "layer " << layer << ", head " << head
          << " attends other entries than the reference";
    }
  }
}

KeepSets ReferenceChecker::SelectDensely(const EvictionOrder& order,
                                         const EntryIndex& candidates,
                                         const DenseScores& dense) const {
  const ModelShape& shape = model_->shape();
  const ModelLayout& layout = engine_->tables().layout();
  const int32_t num_heads = shape.num_heads / layout.num_shards;
  // By (layer, head) of the whole model: the ranks kept.
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> ranks;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    // The columns of the shard's heads.
    DenseScores own;
    std::vector<int64_t> offsets = {0};
    std::vector<int32_t> positions;
    std::vector<int32_t> budgets;
    const auto copy = [](const auto& from, int64_t begin, int64_t end,
                         auto* to) {
      if (from.empty()) return;
      to->insert(to->end(), from.begin() + begin, from.begin() + end);
    };
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (int32_t i = 0; i < num_heads; ++i) {
        const int32_t index = layer * shape.num_heads + shard * num_heads + i;
        const int64_t begin = candidates.offsets[index];
        const int64_t end = candidates.offsets[index + 1];
        copy(candidates.positions, begin, end, &positions);
        copy(dense.scores, begin, end, &own.scores);
        copy(dense.value_norms, begin, end, &own.value_norms);
        copy(dense.products, begin, end, &own.products);
        offsets.push_back(std::ssize(positions));
        if (order.budgets != nullptr) {
          budgets.push_back((*order.budgets)[index]);
        }
      }
    }
    // A window begins at its first position, and has the sequence's sinks only
    // if that is 0.
    const int32_t first = FirstOf(order);
    EvictionPolicy policy = order.policy;
    if (first > 0) policy.protect.sinks = policy.scorer.sinks = 0;
    for (int32_t& position : positions) position -= first;
    const KeepSets keep = SelectEntries(
        policy, order.target,
        {.num_layers = layout.num_layers,
         .num_heads = num_heads,
         .page_size = layout.page_size},
        {.cut = order.cut - first, .length = order.length - first},
        {.offsets = offsets,
         .positions = positions,
         .scores = own.scores,
         .value_norms = own.value_norms,
         .products = own.products},
        budgets);
    for (int32_t i = 0; i < layout.num_layers * num_heads; ++i) {
      std::vector<int32_t>& of_head =
          ranks[{i / num_heads, shard * num_heads + i % num_heads}];
      if (model_->groups().LayerAt(i / num_heads, order.group) < 0) continue;
      of_head.assign(keep.ranks.begin() + keep.offsets[i],
                     keep.ranks.begin() + keep.offsets[i + 1]);
    }
  }
  KeepSets all;
  all.offsets.push_back(0);
  for (const auto& [head, own] : ranks) {
    all.ranks.insert(all.ranks.end(), own.begin(), own.end());
    all.offsets.push_back(std::ssize(all.ranks));
  }
  return all;
}

void ReferenceChecker::ExpectNear(const std::vector<int64_t>& offsets,
                                  const std::vector<float>& own,
                                  const std::vector<float>& dense) const {
  ASSERT_EQ(own.size(), dense.size());
  if (own.empty()) return;
  const auto num_heads = static_cast<size_t>(model_->shape().num_heads);
  for (size_t head = 0; head + 1 < offsets.size(); head += num_heads) {
    double error = 0;
    double norm = 0;
    for (int64_t i = offsets[head]; i < offsets[head + num_heads]; ++i) {
      EXPECT_EQ(std::isinf(own[i]), std::isinf(dense[i])) << "entry " << i;
      if (std::isinf(dense[i])) continue;
      error += std::pow(double{own[i]} - dense[i], 2);
      norm += std::pow(dense[i], 2);
    }
    EXPECT_LE(std::sqrt(error), margins_.scores * std::sqrt(norm))
        << "layer slot " << head / num_heads;
  }
}

void ReferenceChecker::OnEviction(const EvictionOrder& order,
                                  const ScoredEntries& scored,
                                  const KeepSets& keep) {
  const EntryIndex& candidates = scored.candidates;
  Sequence& sequence = Find(order.slot);
  const size_t num_heads = engine_->tables().layout().pages_per_block();
  std::vector<std::vector<int32_t>> kept(num_heads);
  for (size_t i = 0; i < num_heads; ++i) {
    for (int64_t k = keep.offsets[i]; k < keep.offsets[i + 1]; ++k) {
      kept[i].push_back(
          candidates.positions[candidates.offsets[i] + keep.ranks[k]]);
    }
  }
  ++counts_.evictions;
  counts_.window_evictions += order.group > 0 ? 1 : 0;
  const Point key{order.length, order.cut, order.group};
  if (const auto found = sequence.kept.find(key);
      found != sequence.kept.end()) {
    ++counts_.replays;
    EXPECT_EQ(found->second, kept) << "a replay kept other entries";
    NoteName(order, &sequence);
    return;
  }
  Advance(order.slot, &sequence, order.length);
  ASSERT_EQ(sequence.reference->length(), order.length);
  ExpectAttended(order, sequence, candidates);
  DenseScores dense = ScoreDensely(
      order, FirstOf(order), candidates.offsets, *sequence.reference, *model_,
      engine_->tables().layout().num_shards, engine_->query_stats());
  if (margins_.scores > 0) {
    ExpectNear(candidates.offsets, scored.scores, dense.scores);
    ExpectNear(candidates.offsets, scored.products, dense.products);
    if (scored.products.empty()) {  // which they would be part of
      ExpectNear(candidates.offsets, scored.value_norms, dense.value_norms);
    }
    dense = {.scores = scored.scores,
             .value_norms = scored.value_norms,
             .products = scored.products};
  }
  const KeepSets expected = SelectDensely(order, candidates, dense);
  for (size_t i = 0; i < num_heads; ++i) {
    const auto begin = static_cast<size_t>(candidates.offsets[i]);
    const auto count = static_cast<size_t>(candidates.offsets[i + 1]) - begin;
    const auto positions =
        std::span<const int32_t>(candidates.positions).subspan(begin, count);
    std::vector<int32_t> want;
    for (int64_t k = expected.offsets[i]; k < expected.offsets[i + 1]; ++k) {
      want.push_back(positions[expected.ranks[k]]);
    }
    const auto close = [&](const std::vector<float>& values) {
      // The same scores, by the same rule: nothing is rounded.
      return margins_.scores == 0 && !values.empty() &&
             EqualButForRounding(kept[i], want, positions,
                                 std::span(values).subspan(begin, count));
    };
    EXPECT_TRUE(kept[i] == want || close(dense.scores) || close(dense.products))
        << "head " << i << " kept other entries than the policy does on "
        << "dense tensors";
  }
  Keep(kept, key, sequence.reference.get());
  sequence.kept.emplace(key, std::move(kept));
  NoteName(order, &sequence);
}

void ReferenceChecker::NoteName(const EvictionOrder& order,
                                Sequence* sequence) {
  if (order.group == 0) {
    sequence->name = order.region;
    sequence->name_length = order.length;
  }
  if (sequence->name == kNoRegion || sequence->name_length != order.length) {
    return;
  }
  Evictions& kept = regions_[sequence->name];
  const auto found =
      sequence->kept.find({order.length, order.cut, order.group});
  if (order.group == 0) kept = {sequence->kept.begin(), found};
  kept.insert(*found);
}

}  // namespace blockmgr
