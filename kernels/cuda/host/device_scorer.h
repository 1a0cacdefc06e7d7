// Scores on a device: Score, AddAttention and ValueNorms of CudaBackend.
#ifndef KERNELS_CUDA_HOST_DEVICE_SCORER_H_
#define KERNELS_CUDA_HOST_DEVICE_SCORER_H_

#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/device_pool.h"

namespace blockmgr {

// DeviceScorer sends entries and queries, runs the kernels and brings the
// scores back.
//
// Queries and projections are rounded to the pool's elements before they are
// sent. Scores are those of the rounded inputs, within the error that the
// headers of the kernels state. A covariance element is sent as two elements of
// the pool.
//
// Cost: two to five kernels and one wait per call. Each call sends its
// projection. expected_attention sends its covariances, num_q_heads *
// head_dim^2 * 4 bytes, after as many steps on the host. Thread-compatible.
class DeviceScorer {
 public:
  // The pool is borrowed.
  explicit DeviceScorer(const DevicePool* pool) : pool_(*pool) {}

  static bool HasScorer(ScorerKind kind);
  // REQUIRES: HasScorer(batch.scorer.kind).
  void Score(const ScoreBatch& batch);
  void AddAttention(const AttentionSumBatch& batch);
  // REQUIRES: batch.model_dim % 8 == 0.
  void ValueNorms(const ValueNormBatch& batch);

 private:
  const DevicePool& pool_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_SCORER_H_
