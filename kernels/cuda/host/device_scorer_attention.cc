#include <algorithm>

#include "blockmgr/base/check.h"
#include "kernels/cuda/host/device_score_call.h"
#include "kernels/cuda/host/device_scorers.h"

namespace blockmgr {

void SetPooling(const ScorerSpec& scorer, PoolParams* params) {
  params->max_pool = scorer.pool == PoolKind::kMax;
  params->kernel = scorer.kernel;
  params->pool_first = scorer.order == PoolOrder::kKvPress;
  params->group_max = scorer.group == GroupReduce::kMax;
}

void SnapKvOnDevice(const DevicePool& pool, const ScoreBatch& batch) {
  DeviceScoreCall call(pool);
  DeviceScoreCall::Window window;
  DeviceScoreCall::Scores scores;
  const WindowParams weights = call.Weigh(batch, &window, &scores);
  auto params = call.ScoresOf<PoolParams>(batch, weights, scores);
  params.window = batch.window.count;
  SetPooling(batch.scorer, &params);
  pool.runtime->PoolWindow(params);
  call.StoreScores(scores, batch);
}

void TovaOnDevice(const DevicePool& pool, const ScoreBatch& batch) {
  DeviceScoreCall call(pool);
  const CallMemory& memory = *pool.memory;
  BM_CHECK(batch.window.count == 1);
  DeviceScoreCall::Window window;
  DeviceScoreCall::Scores scores;
  const WindowParams weights = call.Weigh(batch, &window, &scores);
  auto params = call.ScoresOf<TovaParams>(batch, weights, scores);
  params.tiles = DeviceSplits(memory, window.tiles);
  pool.runtime->Tova(params);
  call.StoreScores(scores, batch);
}

void H2oOnDevice(const DevicePool& pool, const ScoreBatch& batch) {
  DeviceScoreCall call(pool);
  CallMemory& memory = *pool.memory;
  BM_CHECK(batch.q_head_norms.empty());
  const bool in_window = batch.scorer.obs_window > 0;
  const int32_t num_queries =
      in_window ? batch.window.count : batch.window.length;
  memory.Begin();
  const DeviceScoreCall::Entries entries =
      call.AddEntries(batch.entries, batch.layer);
  const auto scores = memory.InOut<float>(std::ssize(batch.scores));
  const std::span<float> sums = memory.Host(scores);
  DeviceScoreCall::Window window;
  if (in_window) {
    window = call.AddWindow(batch.window, entries);
    std::ranges::fill(sums, 0.0f);
  } else {
    BM_CHECK(batch.attention_sums.size() == batch.scores.size());
    std::ranges::copy(batch.attention_sums, sums.begin());
    window.length = memory.InputOf<int32_t>(
        std::span<const int32_t>(&batch.window.length, 1));
  }
  const auto queries =
      memory.InputOf<int32_t>(std::span<const int32_t>(&num_queries, 1));
  pool.Send();
  if (in_window) {
    WindowParams params =
        call.MakeWindow(batch.window, batch.scale, entries, window);
    params.sums = memory.Device(scores);
    pool.runtime->WindowStats(params, pool.shape);
    pool.runtime->WindowColumns(params, pool.shape);
  }
  H2oScoreParams finish;
  finish.entries = call.Lists(entries);
  finish.lengths = memory.Device(window.length);
  if (batch.scorer.norm == H2oNorm::kCount) {
    finish.num_queries = memory.Device(queries);
  }
  finish.group_size = pool.layout.group_size();
  finish.scores = memory.Device(scores);
  pool.runtime->FinishH2o(finish);
  pool.Receive();
  call.Fetch(scores, batch.scores);
}

}  // namespace blockmgr
