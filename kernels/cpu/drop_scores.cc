#include "kernels/cpu/drop_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cpu/tile_ops.h"

namespace blockmgr {
namespace {

// The least that 1 - p counts as.
constexpr float kLeastRest = 1e-6f;

}  // namespace

DropKvScorer::DropKvScorer(const ModelLayout& layout)
    : layout_(layout),
      weights_(layout),
      output_(static_cast<std::size_t>(layout.head_dim)) {}

void DropKvScorer::TransposeValues(const KvArena& arena,
                                   const HeadEntries& entries) {
  const auto tile_floats = output_.size() * kTileRows;
  const auto num_tiles =
      static_cast<std::size_t>(CeilDiv<int64_t>(entries.size(), kTileRows));
  values_.resize(num_tiles * tile_floats);
  float* to = values_.data();
  for (int64_t j = 0; j < entries.size(); ++j) {
    const std::byte* row =
        arena.key_row(entries.slots[static_cast<std::size_t>(j)]) +
        arena.kv_stride();
    float* column = to + j % kTileRows;
    for (int64_t d = 0; d < layout_.head_dim; ++d) {
      column[d * kTileRows] = LoadElement(layout_.dtype, row, d);
    }
    if (j % kTileRows == kTileRows - 1) to += tile_floats;
  }
}

void DropKvScorer::Attend(std::span<float> logits) {
  const float top = *std::ranges::max_element(logits);
  float sum = 0.0f;
  for (float& logit : logits) {
    logit = std::exp(logit - top);
    sum += logit;
  }
  output_lanes_.assign(output_.size() * kTileRows, 0.0f);
  const float* values = values_.data();
  std::array<float, kTileRows> shares;
  for (std::size_t begin = 0; begin < logits.size(); begin += kTileRows) {
    const std::size_t count =
        std::min<std::size_t>(kTileRows, logits.size() - begin);
    for (std::size_t r = 0; r < count; ++r) {
      shares[r] = logits[begin + r] / sum;
      const float rest = (sum - logits[begin + r]) / sum;
      logits[begin + r] = shares[r] / std::max(rest, kLeastRest);
    }
    float* lanes = output_lanes_.data();
    for (std::size_t d = 0; d < output_.size(); ++d) {
      for (std::size_t r = 0; r < count; ++r) {
        lanes[r] += shares[r] * values[r];
      }
      lanes += kTileRows;
      values += kTileRows;
    }
  }
  for (std::size_t d = 0; d < output_.size(); ++d) {
    output_[d] = 0.0f;
    for (std::size_t r = 0; r < kTileRows; ++r) {
      output_[d] += output_lanes_[d * kTileRows + r];
    }
  }
}

void DropKvScorer::AddChanges(std::span<const float> ratios,
                              std::span<float> sums) const {
  const float* values = values_.data();
  std::array<float, kTileRows> distances;
  for (std::size_t begin = 0; begin < sums.size(); begin += kTileRows) {
    const std::size_t count =
        std::min<std::size_t>(kTileRows, sums.size() - begin);
    distances.fill(0.0f);
    for (const float output : output_) {
      for (std::size_t r = 0; r < count; ++r) {
        const float difference = values[r] - output;
        distances[r] += difference * difference;
      }
      values += kTileRows;
    }
    for (std::size_t r = 0; r < count; ++r) {
      const float ratio = ratios[begin + r];
      sums[begin + r] += ratio * ratio * distances[r];
    }
  }
}

void DropKvScorer::Score(const KvArena& arena, const ScoreBatch& batch) {
  BM_CHECK(batch.q_head_norms.empty());
  BM_CHECK(batch.window.count > 0);
  BM_CHECK(batch.window.count <= batch.window.length);
  BM_CHECK(batch.window.queries != nullptr);
  ScorerSpec reduction = batch.scorer;
  reduction.pool = PoolKind::kAvg;
  const int64_t window_begin = batch.window.length - batch.window.count;
  const int32_t group_size = layout_.group_size();
  for (int32_t head = 0; head < layout_.num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    const std::span<float> scores = entries.Of(batch.scores);
    const auto num_past =
        static_cast<std::size_t>(entries.CountBelow(window_begin));
    std::ranges::fill(scores.subspan(num_past),
                      std::numeric_limits<float>::infinity());
    if (num_past == 0) continue;
    TransposeValues(arena, entries);
    changes_.assign(static_cast<std::size_t>(group_size) * num_past, 0.0f);
    weights_.ForEachRow(
        arena, batch, head, entries, [&](int32_t g, std::span<float> logits) {
          Attend(logits);
          AddChanges(logits,
                     std::span(changes_).subspan(
                         static_cast<std::size_t>(g) * num_past, num_past));
        });
    ReduceSnapKv(reduction, changes_, group_size, scores.first(num_past));
  }
}

}  // namespace blockmgr
