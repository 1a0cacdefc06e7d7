#include "kernels/cuda/host/device_scorer.h"

#include <algorithm>
#include <array>
#include <limits>

#include "blockmgr/base/check.h"
#include "kernels/cpu/query_statistics.h"
#include "kernels/cuda/host/split_covariance.h"

namespace blockmgr {
namespace {

KeyAnchor AnchorOf(KeyDiffAnchor anchor) {
  switch (anchor) {
    case KeyDiffAnchor::kRaw:
      return KeyAnchor::kRaw;
    case KeyDiffAnchor::kPairwise:
      return KeyAnchor::kPairwise;
    case KeyDiffAnchor::kMedian:
      return KeyAnchor::kMedian;
    case KeyDiffAnchor::kNormalized:
      break;
  }
  return KeyAnchor::kNormalized;
}

KeyMetric MetricOf(KeyDiffMetric metric) {
  switch (metric) {
    case KeyDiffMetric::kDot:
      return KeyMetric::kDot;
    case KeyDiffMetric::kEuclidean:
      return KeyMetric::kEuclidean;
    case KeyDiffMetric::kCosine:
      break;
  }
  return KeyMetric::kCosine;
}

void CheckWindow(const QueryWindow& window) {
  BM_CHECK(window.count > 0 && window.count <= window.length);
  BM_CHECK(window.queries != nullptr);
}

bool HasProducts(const ScoreBatch& batch) {
  return !batch.q_head_norms.empty();
}

template <typename T>
void CopyOut(std::span<const T> from, std::span<T> to) {
  std::ranges::copy(from, to.begin());
}

}  // namespace

DeviceScorer::Entries DeviceScorer::AddEntries(const EntryList& list,
                                               int32_t layer) {
  const ModelLayout& layout = pool_.layout;
  BM_CHECK(layer >= 0 && layer < layout.num_layers);
  BM_CHECK(std::ssize(list.offsets) == layout.num_heads + 1);
  BM_CHECK(list.offsets.back() == std::ssize(list.slots));
  BM_CHECK(list.slots.size() == list.positions.size());
  const SlotIndex num_slots = layout.num_pages() * layout.page_size;
  bool inside = true;
  for (const SlotIndex slot : list.slots) {
    inside &= slot >= 0 && slot < num_slots;
  }
  BM_CHECK(inside);
  CallMemory& memory = *pool_.memory;
  Entries entries;
  entries.offsets = memory.InputOf(list.offsets);
  entries.slots = memory.InputOf(list.slots);
  entries.positions = memory.InputOf(list.positions);
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    const int64_t size = list.offsets[head + 1] - list.offsets[head];
    BM_CHECK(size >= 0 && size <= std::numeric_limits<int32_t>::max());
  }
  entries.row_splits = AddSplits(pool_.memory, list.offsets, kRowSplitEntries);
  entries.window_splits = AddSplits(pool_.memory, list.offsets, kSplitEntries);
  return entries;
}

EntryLists DeviceScorer::Lists(const Entries& entries) const {
  const CallMemory& memory = *pool_.memory;
  EntryLists lists;
  lists.num_sequences = 1;
  lists.num_heads = pool_.layout.num_heads;
  lists.offsets = memory.Device(entries.offsets);
  lists.slots = memory.Device(entries.slots);
  lists.positions = memory.Device(entries.positions);
  lists.row_splits = DeviceSplits(memory, entries.row_splits);
  lists.window_splits = DeviceSplits(memory, entries.window_splits);
  return lists;
}

DeviceScorer::Window DeviceScorer::AddWindow(const QueryWindow& queries,
                                             const Entries& entries) {
  CheckWindow(queries);
  const ModelLayout& layout = pool_.layout;
  CallMemory& memory = *pool_.memory;
  const int64_t num_rows = int64_t{queries.count} * layout.num_q_heads;
  Window window;
  window.queries = memory.Input<uint16_t>(num_rows * layout.head_dim);
  pool_.Round(queries.queries, memory.Host(window.queries));
  window.length =
      memory.InputOf<int32_t>(std::span<const int32_t>(&queries.length, 1));
  window.lse = memory.Work<float>(num_rows);
  window.partial_stats =
      memory.Work<float>(int64_t{2} * entries.window_splits.count *
                         WindowRows(layout.group_size(), queries.count));
  const std::array<int64_t, 2> tokens = {0, queries.length};
  window.tiles = AddSplits(pool_.memory, tokens, kTovaThreads);
  return window;
}

WindowParams DeviceScorer::MakeWindow(const QueryWindow& queries, float scale,
                                      const Entries& entries,
                                      const Window& window) const {
  BM_CHECK(scale > 0);
  const CallMemory& memory = *pool_.memory;
  WindowParams params;
  params.entries = Lists(entries);
  params.pool = pool_.pool;
  params.queries = memory.Device(window.queries);
  params.window = queries.count;
  params.lengths = memory.Device(window.length);
  params.group_size = pool_.layout.group_size();
  params.scale = scale;
  params.lse = memory.Device(window.lse);
  params.partial_stats = memory.Device(window.partial_stats);
  return params;
}

DeviceScorer::Scores DeviceScorer::AddScores(const ScoreBatch& batch) {
  CallMemory& memory = *pool_.memory;
  const int64_t num_entries = std::ssize(batch.scores);
  Scores scores;
  scores.scores = memory.Result<float>(num_entries);
  if (!HasProducts(batch)) return scores;
  BM_CHECK(batch.products.size() == batch.scores.size());
  BM_CHECK(std::ssize(batch.q_head_norms) ==
           num_entries * pool_.layout.group_size());
  scores.norms = memory.InputOf(batch.q_head_norms);
  scores.products = memory.Result<float>(num_entries);
  return scores;
}

void DeviceScorer::StoreScores(const Scores& scores, const ScoreBatch& batch) {
  pool_.Receive();
  CallMemory& memory = *pool_.memory;
  CopyOut<float>(memory.Host(scores.scores), batch.scores);
  if (!HasProducts(batch)) return;
  CopyOut<float>(memory.Host(scores.products), batch.products);
}

void DeviceScorer::Score(const ScoreBatch& batch) {
  BM_CHECK(batch.scores.size() == batch.entries.slots.size());
  switch (batch.scorer.kind) {
    case ScorerKind::kSnapKv:
      return SnapKv(batch);
    case ScorerKind::kTova:
      return Tova(batch);
    case ScorerKind::kH2o:
      return H2o(batch);
    case ScorerKind::kExpectedAttention:
      return Expected(batch);
    case ScorerKind::kKeyDiff:
    case ScorerKind::kKnorm:
      return Keys(batch);
    case ScorerKind::kStreaming:
    case ScorerKind::kRandom:
    case ScorerKind::kExternal:
      break;
  }
  const bool reads_keys = false;
  BM_CHECK(reads_keys);
}

WindowParams DeviceScorer::Weigh(const ScoreBatch& batch, Window* window,
                                 Scores* scores) {
  CallMemory& memory = *pool_.memory;
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  *window = AddWindow(batch.window, entries);
  const auto attention =
      memory.Work<float>(std::ssize(batch.scores) * pool_.layout.group_size());
  *scores = AddScores(batch);
  pool_.Send();
  WindowParams params = MakeWindow(batch.window, batch.scale, entries, *window);
  params.attention = memory.Device(attention);
  pool_.runtime->WindowStats(params, pool_.shape);
  pool_.runtime->WindowColumns(params, pool_.shape);
  return params;
}

template <typename Params>
Params DeviceScorer::ScoresOf(const ScoreBatch& batch,
                              const WindowParams& window,
                              const Scores& scores) const {
  const CallMemory& memory = *pool_.memory;
  Params params;
  params.entries = window.entries;
  params.lengths = window.lengths;
  params.group_size = window.group_size;
  params.attention = window.attention;
  params.scores = memory.Device(scores.scores);
  if (HasProducts(batch)) {
    params.q_head_norms = memory.Device(scores.norms);
    params.product_eps = batch.product_eps;
    params.products = memory.Device(scores.products);
  }
  return params;
}

void DeviceScorer::SnapKv(const ScoreBatch& batch) {
  Window window;
  Scores scores;
  const WindowParams weights = Weigh(batch, &window, &scores);
  auto params = ScoresOf<PoolParams>(batch, weights, scores);
  params.window = batch.window.count;
  params.max_pool = batch.scorer.pool == PoolKind::kMax;
  params.kernel = batch.scorer.kernel;
  params.pool_first = batch.scorer.order == PoolOrder::kKvPress;
  params.group_max = batch.scorer.group == GroupReduce::kMax;
  pool_.runtime->PoolWindow(params);
  StoreScores(scores, batch);
}

void DeviceScorer::Tova(const ScoreBatch& batch) {
  const CallMemory& memory = *pool_.memory;
  BM_CHECK(batch.window.count == 1);
  Window window;
  Scores scores;
  const WindowParams weights = Weigh(batch, &window, &scores);
  auto params = ScoresOf<TovaParams>(batch, weights, scores);
  params.tiles = DeviceSplits(memory, window.tiles);
  pool_.runtime->Tova(params);
  StoreScores(scores, batch);
}

void DeviceScorer::H2o(const ScoreBatch& batch) {
  CallMemory& memory = *pool_.memory;
  BM_CHECK(batch.q_head_norms.empty());
  const bool in_window = batch.scorer.obs_window > 0;
  const int32_t num_queries =
      in_window ? batch.window.count : batch.window.length;
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  const auto scores = memory.InOut<float>(std::ssize(batch.scores));
  const std::span<float> sums = memory.Host(scores);
  Window window;
  if (in_window) {
    window = AddWindow(batch.window, entries);
    std::ranges::fill(sums, 0.0f);
  } else {
    BM_CHECK(batch.attention_sums.size() == batch.scores.size());
    CopyOut(batch.attention_sums, sums);
    window.length = memory.InputOf<int32_t>(
        std::span<const int32_t>(&batch.window.length, 1));
  }
  const auto queries =
      memory.InputOf<int32_t>(std::span<const int32_t>(&num_queries, 1));
  pool_.Send();
  if (in_window) {
    WindowParams params =
        MakeWindow(batch.window, batch.scale, entries, window);
    params.sums = memory.Device(scores);
    pool_.runtime->WindowStats(params, pool_.shape);
    pool_.runtime->WindowColumns(params, pool_.shape);
  }
  H2oScoreParams finish;
  finish.entries = Lists(entries);
  finish.lengths = memory.Device(window.length);
  if (batch.scorer.norm == H2oNorm::kCount) {
    finish.num_queries = memory.Device(queries);
  }
  finish.group_size = pool_.layout.group_size();
  finish.scores = memory.Device(scores);
  pool_.runtime->FinishH2o(finish);
  pool_.Receive();
  CopyOut<float>(memory.Host(scores), batch.scores);
}

void DeviceScorer::Keys(const ScoreBatch& batch) {
  CallMemory& memory = *pool_.memory;
  BM_CHECK(batch.q_head_norms.empty());
  const ModelLayout& layout = pool_.layout;
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  const bool median = batch.scorer.kind == ScorerKind::kKeyDiff &&
                      batch.scorer.anchor == KeyDiffAnchor::kMedian;
  const int64_t num_channels = int64_t{layout.num_heads} * layout.head_dim;
  const auto sums = memory.Work<float>(
      median ? 0 : int64_t{entries.row_splits.count} * layout.head_dim);
  const auto lengths =
      memory.Work<float>(median ? std::ssize(batch.scores) : int64_t{0});
  const auto medians = memory.Work<float>(median ? num_channels : 0);
  const auto anchors =
      memory.Work<float>(int64_t{layout.num_heads} * (layout.head_dim + 1));
  const auto scores = memory.Result<float>(std::ssize(batch.scores));
  pool_.Send();
  KeyScoreParams params;
  params.entries = Lists(entries);
  params.pool = pool_.pool;
  params.anchor = AnchorOf(batch.scorer.anchor);
  params.metric = batch.scorer.kind == ScorerKind::kKnorm
                      ? KeyMetric::kNorm
                      : MetricOf(batch.scorer.metric);
  params.partial_sums = memory.Device(sums);
  params.lengths = memory.Device(lengths);
  params.medians = memory.Device(medians);
  params.anchors = memory.Device(anchors);
  params.scores = memory.Device(scores);
  pool_.runtime->KeyScores(params, pool_.shape);
  pool_.Receive();
  CopyOut<float>(memory.Host(scores), batch.scores);
}

DeviceScorer::Future DeviceScorer::AddFuture(const ScoreBatch& batch) {
  const ModelLayout& layout = pool_.layout;
  const ScorerSpec& scorer = batch.scorer;
  BM_CHECK(batch.statistics != nullptr);
  BM_CHECK(std::ssize(batch.inverse_frequencies) * 2 == layout.head_dim);
  CallMemory& memory = *pool_.memory;
  const int64_t head_dim = layout.head_dim;
  const int64_t num_parts = 2 * head_dim * head_dim;
  Future future;
  future.means = memory.Input<float>(layout.num_q_heads * head_dim);
  future.units = memory.Input<float>(layout.num_q_heads);
  future.covariances =
      memory.Input<uint16_t>(scorer.cov ? layout.num_q_heads * num_parts : 0);
  const std::span<float> means = memory.Host(future.means);
  const std::span<float> units = memory.Host(future.units);
  const std::span<uint16_t> covariances = memory.Host(future.covariances);
  std::ranges::fill(means, 0.0f);
  std::ranges::fill(units, 0.0f);
  std::ranges::fill(covariances, uint16_t{0});
  const MeanRotation rotation = AverageRotation(
      batch.inverse_frequencies, batch.window.length, scorer.n_future);
  for (int32_t q_head = 0; q_head < layout.num_q_heads; ++q_head) {
    // Where only sinks are left there may have been no queries.
    const int32_t head = q_head / layout.group_size();
    const int64_t begin = batch.entries.offsets[head];
    const int64_t end = batch.entries.offsets[head + 1];
    if (begin == end || batch.entries.positions[end - 1] < scorer.n_sink) {
      continue;
    }
    const FutureQueries queries =
        PredictQueries(*batch.statistics, rotation, q_head);
    std::ranges::copy(queries.mean, means.begin() + q_head * head_dim);
    if (!scorer.cov) continue;
    units[q_head] =
        SplitCovariance(queries.covariance, layout.head_dim, layout.dtype,
                        covariances.subspan(q_head * num_parts, num_parts));
  }
  return future;
}

void DeviceScorer::Expected(const ScoreBatch& batch) {
  CallMemory& memory = *pool_.memory;
  const ModelLayout& layout = pool_.layout;
  BM_CHECK(!HasProducts(batch));
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  const Future future = AddFuture(batch);
  const auto logits =
      memory.Work<float>(std::ssize(batch.scores) * layout.group_size());
  const auto lse = memory.Work<float>(layout.num_q_heads);
  const Scores scores = AddScores(batch);
  pool_.Send();
  ExpectedParams params;
  params.entries = Lists(entries);
  params.pool = pool_.pool;
  params.group_size = layout.group_size();
  params.scale = batch.scale;
  params.n_sink = batch.scorer.n_sink;
  params.means = memory.Device(future.means);
  if (batch.scorer.cov) {
    params.covariances = memory.Device(future.covariances);
    params.units = memory.Device(future.units);
  }
  params.vnorm = batch.scorer.vnorm;
  params.eps = static_cast<float>(batch.scorer.eps);
  params.logits = memory.Device(logits);
  params.lse = memory.Device(lse);
  params.scores = memory.Device(scores.scores);
  pool_.runtime->ExpectedScores(params, pool_.shape);
  StoreScores(scores, batch);
}

void DeviceScorer::AddAttention(const AttentionSumBatch& batch) {
  CallMemory& memory = *pool_.memory;
  BM_CHECK(batch.sums.size() == batch.entries.slots.size());
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  const Window window = AddWindow(batch.window, entries);
  const auto sums = memory.InOut<float>(std::ssize(batch.sums));
  CopyOut<float>(batch.sums, memory.Host(sums));
  pool_.Send();
  WindowParams params = MakeWindow(batch.window, batch.scale, entries, window);
  params.sums = memory.Device(sums);
  pool_.runtime->WindowStats(params, pool_.shape);
  pool_.runtime->WindowColumns(params, pool_.shape);
  pool_.Receive();
  CopyOut<float>(memory.Host(sums), batch.sums);
}

void DeviceScorer::ValueNorms(const ValueNormBatch& batch) {
  CallMemory& memory = *pool_.memory;
  const ModelLayout& layout = pool_.layout;
  BM_CHECK(batch.model_dim > 0 && batch.model_dim % 8 == 0);
  const int64_t rows = batch.per_query_head ? layout.group_size() : 1;
  BM_CHECK(std::ssize(batch.norms) == rows * batch.entries.offsets.back());
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  const auto projection = memory.Input<uint16_t>(
      int64_t{layout.num_q_heads} * layout.head_dim * batch.model_dim);
  pool_.Round(batch.output_projection, memory.Host(projection));
  const auto norms = memory.Result<float>(std::ssize(batch.norms));
  pool_.Send();
  ValueNormParams params;
  params.entries = Lists(entries);
  params.pool = pool_.pool;
  params.projection = memory.Device(projection);
  params.model_dim = batch.model_dim;
  params.group_size = layout.group_size();
  params.l2 = batch.norm == ValueNorm::kL2;
  params.per_query_head = batch.per_query_head;
  params.norms = memory.Device(norms);
  pool_.runtime->ValueNorms(params, pool_.shape);
  pool_.Receive();
  CopyOut<float>(memory.Host(norms), batch.norms);
}

}  // namespace blockmgr
