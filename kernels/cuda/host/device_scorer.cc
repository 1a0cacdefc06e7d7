#include "kernels/cuda/host/device_scorer.h"

#include <algorithm>

#include "blockmgr/base/check.h"
#include "kernels/cuda/host/device_score_call.h"
#include "kernels/cuda/host/device_scorers.h"

namespace blockmgr {
namespace {

struct DeviceRegistration {
  ScorerKind kind;
  void (*score)(const DevicePool& pool, const ScoreBatch& batch);
};

constexpr DeviceRegistration kDeviceRegistrations[] = {
    {ScorerKind::kSnapKv, SnapKvOnDevice},
    {ScorerKind::kH2o, H2oOnDevice},
    {ScorerKind::kTova, TovaOnDevice},
    {ScorerKind::kKeyDiff, KeysOnDevice},
    {ScorerKind::kExpectedAttention, ExpectedOnDevice},
    {ScorerKind::kKnorm, KeysOnDevice},
};

}  // namespace

bool DeviceScorer::HasScorer(ScorerKind kind) {
  return std::ranges::find(kDeviceRegistrations, kind,
                           &DeviceRegistration::kind) !=
         std::ranges::end(kDeviceRegistrations);
}

void DeviceScorer::Score(const ScoreBatch& batch) {
  BM_CHECK(batch.scores.size() == batch.entries.slots.size());
  const ScorerKind kind = batch.scorer.kind;
  BM_CHECK(HasScorer(kind));
  std::ranges::find(kDeviceRegistrations, kind, &DeviceRegistration::kind)
      ->score(pool_, batch);
}

void DeviceScorer::AddAttention(const AttentionSumBatch& batch) {
  DeviceScoreCall call(pool_);
  CallMemory& memory = *pool_.memory;
  BM_CHECK(batch.sums.size() == batch.entries.slots.size());
  memory.Begin();
  const DeviceScoreCall::Entries entries =
      call.AddEntries(batch.entries, batch.layer);
  const DeviceScoreCall::Window window = call.AddWindow(batch.window, entries);
  const auto sums = memory.InOut<float>(std::ssize(batch.sums));
  std::ranges::copy(batch.sums, memory.Host(sums).begin());
  pool_.Send();
  WindowParams params =
      call.MakeWindow(batch.window, batch.scale, entries, window);
  params.sums = memory.Device(sums);
  pool_.runtime->WindowStats(params, pool_.shape);
  pool_.runtime->WindowColumns(params, pool_.shape);
  pool_.Receive();
  call.Fetch(sums, batch.sums);
}

void DeviceScorer::ValueNorms(const ValueNormBatch& batch) {
  DeviceScoreCall call(pool_);
  CallMemory& memory = *pool_.memory;
  const ModelLayout& layout = pool_.layout;
  BM_CHECK(batch.model_dim > 0 && batch.model_dim % 8 == 0);
  const int64_t rows = batch.per_query_head ? layout.group_size() : 1;
  BM_CHECK(std::ssize(batch.norms) == rows * batch.entries.offsets.back());
  memory.Begin();
  const DeviceScoreCall::Entries entries =
      call.AddEntries(batch.entries, batch.layer);
  const auto projection = memory.Input<uint16_t>(
      int64_t{layout.num_q_heads} * layout.head_dim * batch.model_dim);
  pool_.Round(batch.output_projection, memory.Host(projection));
  const auto norms = memory.Result<float>(std::ssize(batch.norms));
  pool_.Send();
  ValueNormParams params;
  params.entries = call.Lists(entries);
  params.pool = pool_.pool;
  params.projection = memory.Device(projection);
  params.model_dim = batch.model_dim;
  params.group_size = layout.group_size();
  params.l2 = batch.norm == ValueNorm::kL2;
  params.per_query_head = batch.per_query_head;
  params.norms = memory.Device(norms);
  pool_.runtime->ValueNorms(params, pool_.shape);
  pool_.Receive();
  call.Fetch(norms, batch.norms);
}

}  // namespace blockmgr
