#include "kernels/cpu/expected_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "kernels/cpu/key_ops.h"

namespace blockmgr {

ExpectedAttentionScorer::ExpectedAttentionScorer(const ModelLayout& layout)
    : layout_(layout),
      packed_(AllocatePacked(layout.head_dim)),
      rows_(layout.head_dim) {}

void ExpectedAttentionScorer::Logits(const KvArena& arena,
                                     const ScoreBatch& batch,
                                     std::span<const FutureQueries> futures,
                                     std::span<const SlotIndex> slots,
                                     int64_t stride) {
  logits_.resize(futures.size() * stride);
  const int64_t head_dim = layout_.head_dim;
  const float half_square = batch.scale * batch.scale / 2.0f;
  std::array<float, kTileRows> forms;
  ForEachTile(arena, slots, RowKind::kKeys,
              [&](const KvTile& tile, int64_t begin, int32_t num_rows) {
                PackRows(tile, num_rows, packed_.get());
                float* logits = logits_.data() + begin;
                for (const FutureQueries& future : futures) {
                  const float* mean = future.mean.data();
                  DotPacked(packed_.get(), head_dim, num_rows, batch.scale,
                            {&mean, 1}, logits, stride);
                  if (batch.scorer.cov) {
                    for (int64_t i = 0; i < head_dim; ++i) {
                      rows_[i] = future.covariance.data() + i * head_dim;
                    }
                    QuadraticForms(packed_.get(), num_rows, rows_,
                                   forms.data());
                    for (int32_t r = 0; r < num_rows; ++r) {
                      logits[r] += half_square * forms[r];
                    }
                  }
                  logits += stride;
                }
              });
}

void ExpectedAttentionScorer::Score(const KvArena& arena,
                                    const ScoreBatch& batch) {
  BM_CHECK(batch.statistics != nullptr);
  BM_CHECK(std::ssize(batch.inverse_frequencies) * 2 == layout_.head_dim);
  const ScorerSpec& scorer = batch.scorer;
  const int32_t group_size = layout_.group_size();
  const MeanRotation rotation = AverageRotation(
      batch.inverse_frequencies, batch.window.length, scorer.n_future);
  std::vector<FutureQueries> futures(group_size);
  std::array<float, kTileRows> squares;
  for (int32_t head = 0; head < layout_.num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    const std::span<float> all_scores = entries.Of(batch.scores);
    const int64_t num_sinks = entries.CountBelow(scorer.n_sink);
    const auto slots = entries.slots.subspan(num_sinks);
    const auto scores = all_scores.subspan(num_sinks);
    std::ranges::fill(all_scores.first(num_sinks),
                      std::numeric_limits<float>::infinity());
    if (slots.empty()) continue;
    for (int32_t g = 0; g < group_size; ++g) {
      futures[g] =
          PredictQueries(*batch.statistics, rotation, head * group_size + g);
    }
    const int64_t stride =
        CeilDiv<int64_t>(std::ssize(slots), kTileRows) * kTileRows;
    Logits(arena, batch, futures, slots, stride);
    std::ranges::fill(scores, 0.0f);
    for (int32_t g = 0; g < group_size; ++g) {
      AddSoftmax(logits_.data() + g * stride, std::ssize(slots), scores);
    }
    for (float& score : scores) score /= static_cast<float>(group_size);
    if (!scorer.vnorm) continue;
    const float eps = static_cast<float>(scorer.eps);
    ForEachTile(arena, slots, RowKind::kValues,
                [&](const KvTile& tile, int64_t begin, int32_t num_rows) {
                  SquaredNorms(tile, num_rows, squares.data());
                  for (int32_t r = 0; r < num_rows; ++r) {
                    float& score = scores[begin + r];
                    score = (score + eps) * std::sqrt(squares[r]);
                  }
                });
  }
}

}  // namespace blockmgr
