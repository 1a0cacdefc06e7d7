#include "blockmgr/base/check.h"
#include "kernels/cuda/host/device_score_call.h"
#include "kernels/cuda/host/device_scorers.h"

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

}  // namespace

KeyScoreParams KeyParamsOf(const ScorerSpec& scorer) {
  KeyScoreParams params;
  params.anchor = AnchorOf(scorer.anchor);
  params.metric = scorer.kind == ScorerKind::kKnorm ? KeyMetric::kNorm
                                                    : MetricOf(scorer.metric);
  return params;
}

void KeysOnDevice(const DevicePool& pool, const ScoreBatch& batch) {
  DeviceScoreCall call(pool);
  CallMemory& memory = *pool.memory;
  BM_CHECK(batch.q_head_norms.empty());
  const ModelLayout& layout = pool.layout;
  memory.Begin();
  const DeviceScoreCall::Entries entries =
      call.AddEntries(batch.entries, batch.layer);
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
  pool.Send();
  KeyScoreParams params = KeyParamsOf(batch.scorer);
  params.entries = call.Lists(entries);
  params.pool = pool.pool;
  params.partial_sums = memory.Device(sums);
  params.lengths = memory.Device(lengths);
  params.medians = memory.Device(medians);
  params.anchors = memory.Device(anchors);
  params.scores = memory.Device(scores);
  pool.runtime->KeyScores(params, pool.shape);
  pool.Receive();
  call.Fetch(scores, batch.scores);
}

}  // namespace blockmgr
