#include "kernels/cpu/attention_scores.h"

#include <algorithm>
#include <limits>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Rows of logits held at a time, unless one query's heads are more. Packing a
// tile costs as much as three rows.
constexpr int32_t kWindowRows = 32;

void CheckWindow(const QueryWindow& window) {
  BM_CHECK(window.count > 0 && window.count <= window.length);
  BM_CHECK(window.queries != nullptr);
}

void CheckProducts(const ModelLayout& layout, const ScoreBatch& batch) {
  if (batch.q_head_norms.empty()) return;
  BM_CHECK(batch.products.size() == batch.scores.size());
  BM_CHECK(batch.q_head_norms.size() ==
           batch.scores.size() * layout.group_size());
}

// Fills the products of one head. `rows` are the scores of the first num_past
// entries per query head, [group_size, num_past].
void FillProducts(const ScoreBatch& batch, const HeadEntries& entries,
                  int32_t group_size, int64_t num_past, const float* rows) {
  const std::span<float> products = entries.Of(batch.products);
  std::ranges::fill(products.first(num_past), 0.0f);
  std::ranges::fill(products.subspan(num_past), kInfinity);
  const float* norms = batch.q_head_norms.data() + group_size * entries.begin;
  for (int32_t g = 0; g < group_size; ++g) {
    for (int64_t j = 0; j < num_past; ++j) {
      products[j] += (rows[j] + batch.product_eps) * norms[j];
    }
    rows += num_past;
    norms += entries.size();
  }
  for (float& product : products.first(num_past)) {
    product /= static_cast<float>(group_size);
  }
}

}  // namespace

AttentionWeights::AttentionWeights(const ModelLayout& layout)
    : layout_(layout), packed_(AllocatePacked(layout.head_dim)) {}

void AttentionWeights::Logits(const KvArena& arena, float scale,
                              std::span<const SlotIndex> slots,
                              int64_t stride) {
  const std::size_t size = queries_.size() * static_cast<std::size_t>(stride);
  if (logits_.size() < size) logits_.resize(size);
  const int32_t head_dim = layout_.head_dim;
  ForEachTile(arena, slots, RowKind::kKeys,
              [&](const KvTile& tile, int64_t begin, int32_t num_rows) {
                PackRows(tile, num_rows, packed_.get());
                DotPacked(packed_.get(), head_dim, num_rows, scale, queries_,
                          logits_.data() + begin, stride);
              });
}

void AttentionWeights::Add(const KvArena& arena, const Window& window,
                           int32_t head, const HeadEntries& entries,
                           const Sums& out) {
  Visit(arena, window, head, entries,
        [&out](int32_t g, std::span<float> logits) {
          const int64_t num_added =
              std::min<int64_t>(std::ssize(logits), out.num_columns);
          AddSoftmax(
              logits.data(), std::ssize(logits),
              {out.sums + g * out.stride, static_cast<std::size_t>(num_added)});
        });
}

void AttentionWeights::ForEachRow(
    const KvArena& arena, const ScoreBatch& batch, int32_t head,
    const HeadEntries& entries,
    absl::FunctionRef<void(int32_t g, std::span<float> logits)> use) {
  Visit(arena, {.queries = batch.window, .scale = batch.scale}, head, entries,
        use);
}

void AttentionWeights::Visit(
    const KvArena& arena, const Window& window, int32_t head,
    const HeadEntries& entries,
    absl::FunctionRef<void(int32_t g, std::span<float> logits)> use) {
  const QueryWindow& queries = window.queries;
  const int32_t group_size = layout_.group_size();
  const int64_t head_dim = layout_.head_dim;
  const int32_t first_position = queries.length - queries.count;
  const int32_t block_queries = std::max(1, kWindowRows / group_size);
  for (int32_t first = 0; first < queries.count; first += block_queries) {
    const int32_t last = std::min(first + block_queries, queries.count);
    queries_.clear();
    for (int32_t i = first; i < last; ++i) {
      for (int32_t g = 0; g < group_size; ++g) {
        const int64_t q_head = int64_t{head} * group_size + g;
        queries_.push_back(queries.queries +
                           (int64_t{i} * layout_.num_q_heads + q_head) *
                               head_dim);
      }
    }
    // Every query of the block sees or ignores what the last one sees.
    const int64_t num_seen = entries.CountBelow(int64_t{first_position} + last);
    const int64_t stride = CeilDiv<int64_t>(num_seen, kTileRows) * kTileRows;
    Logits(arena, window.scale, entries.slots.first(num_seen), stride);
    float* logits = logits_.data();
    for (int32_t i = first; i < last; ++i) {
      const int64_t num_visible =
          entries.CountBelow(int64_t{first_position} + i + 1);
      if (num_visible == 0) {
        logits += group_size * stride;
        continue;
      }
      for (int32_t g = 0; g < group_size; ++g, logits += stride) {
        use(g, {logits, static_cast<std::size_t>(num_visible)});
      }
    }
  }
}

std::span<const float> AttentionWeights::Average(const KvArena& arena,
                                                 const ScoreBatch& batch,
                                                 int32_t head,
                                                 const HeadEntries& entries,
                                                 int64_t num_past) {
  average_.assign(layout_.group_size() * num_past, 0.0f);
  if (num_past == 0) return average_;
  Add(arena, {.queries = batch.window, .scale = batch.scale}, head, entries,
      {.sums = average_.data(), .stride = num_past, .num_columns = num_past});
  const float count = static_cast<float>(batch.window.count);
  for (float& weight : average_) weight /= count;
  return average_;
}

void AttentionWeights::AddTo(const KvArena& arena,
                             const AttentionSumBatch& batch) {
  CheckEntries(layout_, batch.layer, batch.entries);
  CheckWindow(batch.window);
  BM_CHECK(batch.sums.size() == batch.entries.slots.size());
  for (int32_t head = 0; head < layout_.num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    Add(arena, {.queries = batch.window, .scale = batch.scale}, head, entries,
        {.sums = entries.Of(batch.sums).data(),
         .stride = 0,
         .num_columns = entries.size()});
  }
}

void SnapKvScorer::Score(const KvArena& arena, const ScoreBatch& batch) {
  const ModelLayout& layout = arena.layout();
  CheckWindow(batch.window);
  CheckProducts(layout, batch);
  const int32_t group_size = layout.group_size();
  const int64_t window_begin = batch.window.length - batch.window.count;
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    const std::span<float> scores = entries.Of(batch.scores);
    const int64_t num_past = entries.CountBelow(window_begin);
    std::ranges::fill(scores.subspan(num_past), kInfinity);
    const std::span<const float> attention =
        weights_.Average(arena, batch, head, entries, num_past);
    if (num_past > 0) {
      ReduceSnapKv(batch.scorer, attention, group_size, scores.first(num_past));
    }
    if (batch.q_head_norms.empty()) continue;
    pooled_.resize(attention.size());
    for (int32_t g = 0; g < group_size && num_past > 0; ++g) {
      ReduceSnapKv(batch.scorer, attention.subspan(g * num_past, num_past), 1,
                   std::span(pooled_).subspan(g * num_past, num_past));
    }
    FillProducts(batch, entries, group_size, num_past, pooled_.data());
  }
}

void TovaScorer::Score(const KvArena& arena, const ScoreBatch& batch) {
  const ModelLayout& layout = arena.layout();
  CheckWindow(batch.window);
  CheckProducts(layout, batch);
  BM_CHECK(batch.window.count == 1);
  const int64_t last_position = batch.window.length - 1;
  by_position_.assign(last_position, 0.0f);
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    const int64_t num_past = entries.CountBelow(last_position);
    const std::span<const float> attention =
        weights_.Average(arena, batch, head, entries, num_past);
    const float* weights = attention.data();
    for (int32_t g = 0; g < layout.group_size(); ++g, weights += num_past) {
      for (int64_t j = 0; j < num_past; ++j) {
        by_position_[entries.positions[j]] += weights[j];
      }
    }
    if (batch.q_head_norms.empty()) continue;
    FillProducts(batch, entries, layout.group_size(), num_past,
                 attention.data());
  }
  const float num_q_heads = static_cast<float>(layout.num_q_heads);
  for (std::size_t i = 0; i < batch.scores.size(); ++i) {
    const int64_t position = batch.entries.positions[i];
    batch.scores[i] = position < last_position
                          ? by_position_[position] / num_q_heads
                          : kInfinity;
  }
}

void H2oScorer::Score(const KvArena& arena, const ScoreBatch& batch) {
  BM_CHECK(batch.q_head_norms.empty());
  const int64_t length = batch.window.length;
  int64_t num_queries = length;
  if (batch.scorer.obs_window > 0) {
    CheckWindow(batch.window);
    num_queries = batch.window.count;
    std::ranges::fill(batch.scores, 0.0f);
    weights_.AddTo(arena, {.layer = batch.layer,
                           .scale = batch.scale,
                           .entries = batch.entries,
                           .window = batch.window,
                           .sums = batch.scores});
  } else {
    BM_CHECK(batch.attention_sums.size() == batch.scores.size());
    std::ranges::copy(batch.attention_sums, batch.scores.begin());
  }
  const float group_size = static_cast<float>(arena.layout().group_size());
  const bool by_count = batch.scorer.norm == H2oNorm::kCount;
  for (std::size_t i = 0; i < batch.scores.size(); ++i) {
    batch.scores[i] /= group_size;
    if (!by_count) continue;
    const int64_t position = batch.entries.positions[i];
    BM_CHECK(position < length);
    batch.scores[i] /=
        static_cast<float>(std::min(num_queries, length - position));
  }
}

}  // namespace blockmgr
