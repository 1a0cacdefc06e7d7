#include "kernels/cpu/key_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "kernels/cpu/key_ops.h"

namespace blockmgr {
namespace {

// Below these a length counts as this long (the method's reference code).
constexpr float kAnchorFloor = 1e-12f;
constexpr float kCosineFloor = 1e-8f;
// Channels whose values are gathered in one pass over K.
constexpr int32_t kMedianChannels = 8;

// NaN is kept: std::max(a, b) is a unless a < b.
float AtLeast(float value, float floor) { return std::max(value, floor); }

// Returns the median, which is the mean of the middle two of an even number of
// values. Reorders them.
double Median(std::span<float> values) {
  if (std::ranges::any_of(values, [](float x) { return std::isnan(x); })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const float below = *std::max_element(values.begin(), middle);
  return (double{below} + double{*middle}) / 2.0;
}

}  // namespace

KeyDiffScorer::KeyDiffScorer(const ModelLayout& layout)
    : anchor_(layout.head_dim),
      anchor_f32_(layout.head_dim),
      partial_sum_(layout.head_dim) {}

void KeyDiffScorer::Norms(const KvArena& arena,
                          std::span<const SlotIndex> slots) {
  norms_.resize(slots.size() + kRowGroup);
  ForEachKeyRows(arena, slots, [&](const RowList& keys, int64_t begin) {
    float* norms = &norms_[begin];
    SquaredNorms(keys, norms);
    for (int32_t r = 0; r < keys.num_rows; ++r) norms[r] = std::sqrt(norms[r]);
  });
}

void KeyDiffScorer::MeanKey(const KvArena& arena,
                            std::span<const SlotIndex> slots, bool normalize,
                            float floor) {
  norms_.resize(slots.size() + kRowGroup);
  std::ranges::fill(anchor_, 0.0);
  ForEachKeyRows(arena, slots, [&](const RowList& keys, int64_t begin) {
    if (normalize) {
      SumNormalizedRows(keys, floor, &norms_[begin], partial_sum_.data());
    } else {
      SumRows(keys, partial_sum_.data());
    }
    // The sum of so few is exact enough in fp32, a million rows' is not.
    for (std::size_t i = 0; i < anchor_.size(); ++i) {
      anchor_[i] += partial_sum_[i];
    }
  });
  for (double& x : anchor_) x /= static_cast<double>(slots.size());
}

void KeyDiffScorer::MedianKey(const KvArena& arena,
                              std::span<const SlotIndex> slots, float floor) {
  Norms(arena, slots);
  const std::size_t size = slots.size();
  channels_.resize(kMedianChannels * size);
  const int32_t head_dim = arena.layout().head_dim;
  for (int32_t first = 0; first < head_dim; first += kMedianChannels) {
    const int32_t num_channels = std::min(kMedianChannels, head_dim - first);
    ForEachKeyRows(arena, slots, [&](const RowList& keys, int64_t begin) {
      for (int32_t r = 0; r < keys.num_rows; ++r) {
        const float norm = AtLeast(norms_[begin + r], floor);
        for (int32_t c = 0; c < num_channels; ++c) {
          channels_[c * size + begin + r] =
              LoadElement(keys.dtype, keys.rows[r], first + c) / norm;
        }
      }
    });
    for (int32_t c = 0; c < num_channels; ++c) {
      anchor_[first + c] = Median(std::span(channels_).subspan(c * size, size));
    }
  }
}

void KeyDiffScorer::Compare(const KvArena& arena, const ScorerSpec& scorer,
                            const HeadEntries& entries,
                            std::span<float> scores) {
  double square = 0.0;
  for (std::size_t i = 0; i < anchor_.size(); ++i) {
    square += anchor_[i] * anchor_[i];
    anchor_f32_[i] = static_cast<float>(anchor_[i]);
  }
  const bool pairwise = scorer.anchor == KeyDiffAnchor::kPairwise;
  const float anchor_norm =
      pairwise ? 1.0f
               : AtLeast(static_cast<float>(std::sqrt(square)), kCosineFloor);
  std::array<float, kTileRows> results;
  ForEachKeyRows(arena, entries.slots, [&](const RowList& keys, int64_t begin) {
    const float* norms = &norms_[begin];
    float* out = &scores[begin];
    switch (scorer.metric) {
      case KeyDiffMetric::kCosine:
        DotRows(keys, anchor_f32_.data(), results.data());
        for (int32_t r = 0; r < keys.num_rows; ++r) {
          out[r] =
              -results[r] / (AtLeast(norms[r], kCosineFloor) * anchor_norm);
        }
        break;
      case KeyDiffMetric::kDot:
        DotRows(keys, anchor_f32_.data(), results.data());
        for (int32_t r = 0; r < keys.num_rows; ++r) out[r] = -results[r];
        break;
      case KeyDiffMetric::kEuclidean:
        SquaredDistances(keys, anchor_f32_.data(), results.data());
        for (int32_t r = 0; r < keys.num_rows; ++r) {
          out[r] = std::sqrt(results[r]);
        }
        break;
    }
  });
}

void KeyDiffScorer::Score(const KvArena& arena, const ScoreBatch& batch) {
  const ScorerSpec& scorer = batch.scorer;
  for (int32_t head = 0; head < arena.layout().num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    if (entries.size() == 0) continue;
    switch (scorer.anchor) {
      case KeyDiffAnchor::kNormalized:
        MeanKey(arena, entries.slots, /*normalize=*/true, kAnchorFloor);
        break;
      case KeyDiffAnchor::kRaw:
        if (scorer.metric == KeyDiffMetric::kCosine) {
          Norms(arena, entries.slots);
        }
        MeanKey(arena, entries.slots, /*normalize=*/false, 0.0f);
        break;
      case KeyDiffAnchor::kMedian:
        MedianKey(arena, entries.slots, kAnchorFloor);
        break;
      case KeyDiffAnchor::kPairwise:
        BM_CHECK(scorer.metric == KeyDiffMetric::kCosine);
        MeanKey(arena, entries.slots, /*normalize=*/true, kCosineFloor);
        break;
    }
    Compare(arena, scorer, entries, entries.Of(batch.scores));
  }
}

void KnormScorer::Score(const KvArena& arena, const ScoreBatch& batch) {
  for (int32_t head = 0; head < arena.layout().num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    const std::span<float> scores = entries.Of(batch.scores);
    std::array<float, kTileRows> squares;
    ForEachKeyRows(arena, entries.slots,
                   [&](const RowList& keys, int64_t begin) {
                     SquaredNorms(keys, squares.data());
                     for (int32_t r = 0; r < keys.num_rows; ++r) {
                       scores[begin + r] = -std::sqrt(squares[r]);
                     }
                   });
  }
}

}  // namespace blockmgr
