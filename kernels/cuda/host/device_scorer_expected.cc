#include <algorithm>

#include "blockmgr/base/check.h"
#include "kernels/cpu/query_statistics.h"
#include "kernels/cuda/host/device_score_call.h"
#include "kernels/cuda/host/device_scorers.h"
#include "kernels/cuda/host/split_covariance.h"

namespace blockmgr {
namespace {

// The predicted queries.
struct Future {
  CallMemory::Array<float> means;
  CallMemory::Array<uint16_t> covariances;  // empty if cov=false
  CallMemory::Array<float> units;
};

Future AddFuture(const DevicePool& pool, const ScoreBatch& batch) {
  const ModelLayout& layout = pool.layout;
  const ScorerSpec& scorer = batch.scorer;
  BM_CHECK(batch.statistics != nullptr);
  BM_CHECK(std::ssize(batch.inverse_frequencies) * 2 == layout.head_dim);
  CallMemory& memory = *pool.memory;
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

}  // namespace

void ExpectedOnDevice(const DevicePool& pool, const ScoreBatch& batch) {
  DeviceScoreCall call(pool);
  CallMemory& memory = *pool.memory;
  const ModelLayout& layout = pool.layout;
  BM_CHECK(!DeviceScoreCall::HasProducts(batch));
  memory.Begin();
  const DeviceScoreCall::Entries entries =
      call.AddEntries(batch.entries, batch.layer);
  const Future future = AddFuture(pool, batch);
  const auto logits =
      memory.Work<float>(std::ssize(batch.scores) * layout.group_size());
  const auto lse = memory.Work<float>(layout.num_q_heads);
  const DeviceScoreCall::Scores scores = call.AddScores(batch);
  pool.Send();
  ExpectedParams params;
  params.entries = call.Lists(entries);
  params.pool = pool.pool;
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
  pool.runtime->ExpectedScores(params, pool.shape);
  call.StoreScores(scores, batch);
}

}  // namespace blockmgr
