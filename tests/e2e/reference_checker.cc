#include "tests/e2e/reference_checker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

constexpr double kLogitTolerance = 1e-3;
// Two scores nearer than this (relative) may be told apart by either side only
// by rounding: fp32 in the engine, float64 here.
constexpr double kScoreMargin = 1e-4;

// SnapKV in float64 from its definition (ALGORITHMS: window attention over all
// columns, mean over the window, group mean, then max pooling), for the entries
// that a head attends. Protected entries get infinity.
std::vector<double> DenseSnapKv(const DenseReference& reference,
                                const TinyShape& shape, const ScorerSpec& spec,
                                int32_t layer, int32_t head) {
  const int32_t length = reference.length();
  const int32_t past_end = length - spec.window;
  const int32_t group = shape.num_q_heads / shape.num_heads;
  const std::vector<int32_t> entries = reference.Attended(layer, head, length);
  std::vector<double> mean(entries.size(), 0.0);
  for (int32_t q = head * group; q < (head + 1) * group; ++q) {
    for (int32_t query = past_end; query < length; ++query) {
      std::vector<double> weights(entries.size(), 0.0);
      double sum = 0;
      for (size_t i = 0; i < entries.size() && entries[i] <= query; ++i) {
        double logit = 0;
        const std::span<const double> a = reference.Query(layer, q, query);
        const std::span<const double> b =
            reference.Key(layer, head, entries[i]);
        for (size_t d = 0; d < a.size(); ++d) logit += a[d] * b[d];
        weights[i] = std::exp(logit / std::sqrt(shape.head_dim));
        sum += weights[i];
      }
      for (size_t i = 0; i < entries.size(); ++i) {
        mean[i] += weights[i] / sum / spec.window / group;
      }
    }
  }
  const auto num_past = static_cast<int32_t>(
      std::ranges::lower_bound(entries, past_end) - entries.begin());
  std::vector<double> scores(entries.size(),
                             std::numeric_limits<double>::infinity());
  const int32_t half = spec.kernel / 2;
  for (int32_t i = 0; i < num_past; ++i) {
    const int32_t begin = std::max(0, i - half);
    const int32_t end = std::min(num_past, i + half + 1);
    scores[i] = *std::max_element(mean.begin() + begin, mean.begin() + end);
  }
  return scores;
}

// Whether two kept sets of one head differ only by entries whose scores are
// equal but for rounding.
bool EqualButForRounding(const std::vector<int32_t>& a,
                         const std::vector<int32_t>& b,
                         std::span<const int32_t> positions,
                         std::span<const float> scores) {
  std::vector<int32_t> odd;
  std::ranges::set_symmetric_difference(a, b, std::back_inserter(odd));
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  for (const int32_t position : odd) {
    const auto rank =
        std::ranges::lower_bound(positions, position) - positions.begin();
    low = std::min<double>(low, scores[rank]);
    high = std::max<double>(high, scores[rank]);
  }
  return odd.empty() || high - low <= kScoreMargin * high;
}

}  // namespace

ReferenceChecker::ReferenceChecker(TinyEngine* engine,
                                   std::shared_ptr<const TinyModel> model)
    : engine_(engine), model_(std::move(model)) {
  TinyObserver observer;
  observer.on_logits = [this](SequenceSlot slot, int32_t position,
                              std::span<const float> logits) {
    OnLogits(slot, position, logits);
  };
  observer.on_eviction = [this](const EvictionOrder& order,
                                const EntryIndex& candidates,
                                std::span<const float>, const KeepSets& keep) {
    OnEviction(order, candidates, keep);
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

void ReferenceChecker::FileLogits(SequenceSlot slot, int32_t position,
                                  std::span<const float> logits) {
  const std::vector<int32_t>& tokens = engine_->tables().row(slot).tokens;
  for (const std::vector<int32_t>& prompt : prompts_) {
    if (prompt.size() > tokens.size() || std::ssize(prompt) > position + 1 ||
        !std::equal(prompt.begin(), prompt.end(), tokens.begin())) {
      continue;
    }
    auto& by_position = logits_[prompt];
    const std::vector<float> values(logits.begin(), logits.end());
    const auto [found, inserted] = by_position.emplace(position, values);
    EXPECT_TRUE(inserted || found->second == values ||
                !sequences_[engine_->tables().row(slot).request].kept.empty())
        << "computed again with other logits at position " << position;
    return;
  }
}

void ReferenceChecker::OnLogits(SequenceSlot slot, int32_t position,
                                std::span<const float> logits) {
  Sequence& sequence = Find(slot);
  Advance(slot, &sequence, position + 1);
  FileLogits(slot, position, logits);
  const std::vector<double>& expected = sequence.expected.at(position);
  ++num_logits_checked_;
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, std::abs(logits[i] - expected[i]));
  }
  EXPECT_LE(worst, kLogitTolerance)
      << "request " << Index(engine_->tables().row(slot).request)
      << ", position " << position;
  const int32_t token =
      static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  const int32_t best = Argmax(expected);
  EXPECT_LE(expected[best] - expected[token], 2 * kLogitTolerance)
      << "a token other than the reference's, beyond its margin";
}

std::vector<float> ReferenceChecker::DenseScores(
    const EvictionOrder& order, const Sequence& sequence,
    const EntryIndex& candidates) const {
  std::vector<float> scores;
  const TinyShape& shape = model_->shape();
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      const size_t index = static_cast<size_t>(layer) * shape.num_heads + head;
      const int64_t begin = candidates.offsets[index];
      const int64_t end = candidates.offsets[index + 1];
      const std::vector<int32_t> attended =
          sequence.reference->Attended(layer, head, order.cut);
      EXPECT_TRUE(std::equal(attended.begin(), attended.end(),
                             candidates.positions.begin() + begin,
                             candidates.positions.begin() + end))
          << "layer " << layer << ", head " << head
          << " attends other entries than the reference";
      if (order.policy.scorer.kind == ScorerKind::kExternal) {
        for (const int32_t position : attended) {
          scores.push_back((*order.scores)[index * order.cut + position]);
        }
      } else if (order.policy.scorer.kind == ScorerKind::kSnapKv) {
        const std::vector<double> dense = DenseSnapKv(
            *sequence.reference, shape, order.policy.scorer, layer, head);
        // Attended entries ascend, so those below the cut come first.
        for (size_t i = 0; i < attended.size(); ++i) {
          scores.push_back(static_cast<float>(dense[i]));
        }
      }
    }
  }
  return scores;
}

void ReferenceChecker::OnEviction(const EvictionOrder& order,
                                  const EntryIndex& candidates,
                                  const KeepSets& keep) {
  Sequence& sequence = Find(order.slot);
  const TinyShape& shape = model_->shape();
  const size_t num_heads =
      static_cast<size_t>(shape.num_layers) * shape.num_heads;
  std::vector<std::vector<int32_t>> kept(num_heads);
  for (size_t i = 0; i < num_heads; ++i) {
    for (int64_t k = keep.offsets[i]; k < keep.offsets[i + 1]; ++k) {
      kept[i].push_back(
          candidates.positions[candidates.offsets[i] + keep.ranks[k]]);
    }
  }
  ++num_evictions_checked_;
  const auto key = std::make_pair(order.length, order.cut);
  if (const auto found = sequence.kept.find(key);
      found != sequence.kept.end()) {
    ++num_replays_checked_;
    EXPECT_EQ(found->second, kept) << "a replay kept other entries";
    return;
  }
  Advance(order.slot, &sequence, order.length);
  ASSERT_EQ(sequence.reference->length(), order.length);
  const std::vector<float> scores = DenseScores(order, sequence, candidates);
  const KeepSets expected = SelectEntries(
      order.policy, order.target,
      {.num_layers = shape.num_layers,
       .num_heads = shape.num_heads,
       .page_size = engine_->tables().layout().page_size},
      {.cut = order.cut, .length = order.length},
      {.offsets = candidates.offsets,
       .positions = candidates.positions,
       .scores = scores},
      order.budgets == nullptr ? std::span<const int32_t>()
                               : std::span<const int32_t>(*order.budgets));
  for (size_t i = 0; i < num_heads; ++i) {
    const auto begin = static_cast<size_t>(candidates.offsets[i]);
    const auto count = static_cast<size_t>(candidates.offsets[i + 1]) - begin;
    const auto positions =
        std::span<const int32_t>(candidates.positions).subspan(begin, count);
    std::vector<int32_t> want;
    for (int64_t k = expected.offsets[i]; k < expected.offsets[i + 1]; ++k) {
      want.push_back(positions[expected.ranks[k]]);
    }
    EXPECT_TRUE(kept[i] == want ||
                (!scores.empty() &&
                 EqualButForRounding(kept[i], want, positions,
                                     std::span(scores).subspan(begin, count))))
        << "head " << i << " kept other entries than the policy does on "
        << "dense tensors";
    sequence.reference->Keep(static_cast<int32_t>(i) / shape.num_heads,
                             static_cast<int32_t>(i) % shape.num_heads,
                             order.cut, kept[i]);
  }
  sequence.kept.emplace(key, std::move(kept));
}

}  // namespace blockmgr
