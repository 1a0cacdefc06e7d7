// The scorers that a device has kernels for. docs/eviction.md says how to add a
// scorer. Host code.
//
// Each function fills batch.scores as the CpuScorer of the same kind does, and
// batch.products if batch.q_head_norms is not empty. DeviceScorer has checked
// that there are as many scores as entries.
#ifndef KERNELS_CUDA_HOST_DEVICE_SCORERS_H_
#define KERNELS_CUDA_HOST_DEVICE_SCORERS_H_

#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/pooled_scores.h"

namespace blockmgr {

void SnapKvOnDevice(const DevicePool& pool, const ScoreBatch& batch);
void TovaOnDevice(const DevicePool& pool, const ScoreBatch& batch);
void H2oOnDevice(const DevicePool& pool, const ScoreBatch& batch);
void KeysOnDevice(const DevicePool& pool, const ScoreBatch& batch);
void ExpectedOnDevice(const DevicePool& pool, const ScoreBatch& batch);

// Returns parameters with the anchor and the metric of keydiff or knorm.
KeyScoreParams KeyParamsOf(const ScorerSpec& scorer);
// Sets how snapkv pools and reduces.
void SetPooling(const ScorerSpec& scorer, PoolParams* params);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_SCORERS_H_
