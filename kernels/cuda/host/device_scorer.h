// Scores on a device: Score, AddAttention and ValueNorms of CudaBackend.
#ifndef KERNELS_CUDA_HOST_DEVICE_SCORER_H_
#define KERNELS_CUDA_HOST_DEVICE_SCORER_H_

#include <cstdint>
#include <span>

#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// DeviceScorer sends entries and queries, runs the kernels, brings scores back.
//
// Queries and projections are rounded to the pool's elements on the way: scores
// are those of rounded inputs, within the error that the kernels' headers
// state. Covariances go as two such elements each.
//
// Cost: two to five kernels and one wait per call. A projection is sent with
// every call, and so are the covariances of expected_attention, num_q_heads *
// head_dim^2 * 4 bytes, which the host predicts in as many steps.
// Thread-compatible.
class DeviceScorer {
 public:
  // The pool is borrowed.
  explicit DeviceScorer(const DevicePool* pool) : pool_(*pool) {}

  // REQUIRES: a scorer that reads keys.
  void Score(const ScoreBatch& batch);
  void AddAttention(const AttentionSumBatch& batch);
  // REQUIRES: batch.model_dim % 8 == 0.
  void ValueNorms(const ValueNormBatch& batch);

 private:
  // Arrays of the call's entries, before and after they are sent.
  struct Entries {
    CallMemory::Array<int64_t> offsets;
    CallMemory::Array<int64_t> slots;
    CallMemory::Array<int32_t> positions;
    CallSplits row_splits;
    CallSplits window_splits;
  };
  // Arrays of a window of queries.
  struct Window {
    CallMemory::Array<uint16_t> queries;
    CallMemory::Array<int32_t> length;
    CallMemory::Array<float> lse;
    CallMemory::Array<float> partial_stats;
    CallSplits tiles;  // of the sequence, for tova
  };
  // Arrays of the queries that expected_attention predicts.
  struct Future {
    CallMemory::Array<float> means;
    CallMemory::Array<uint16_t> covariances;  // none: cov=false
    CallMemory::Array<float> units;
  };
  // Arrays of what comes back, and of norms; no norms: no products.
  struct Scores {
    CallMemory::Array<float> scores;
    CallMemory::Array<float> norms;
    CallMemory::Array<float> products;
  };

  Entries AddEntries(const EntryList& list, int32_t layer);
  Window AddWindow(const QueryWindow& window, const Entries& entries);
  Future AddFuture(const ScoreBatch& batch);
  Scores AddScores(const ScoreBatch& batch);
  EntryLists Lists(const Entries& entries) const;
  // Without attention and sums.
  WindowParams MakeWindow(const QueryWindow& queries, float scale,
                          const Entries& entries, const Window& window) const;
  // Sends the call, and has the weights of its window computed.
  WindowParams Weigh(const ScoreBatch& batch, Window* window, Scores* scores);
  // What the kernels behind those weights have in common.
  template <typename Params>
  Params ScoresOf(const ScoreBatch& batch, const WindowParams& window,
                  const Scores& scores) const;
  // Waits for the device.
  void StoreScores(const Scores& scores, const ScoreBatch& batch);
  void SnapKv(const ScoreBatch& batch);
  void Tova(const ScoreBatch& batch);
  void H2o(const ScoreBatch& batch);
  void Keys(const ScoreBatch& batch);
  void Expected(const ScoreBatch& batch);

  const DevicePool& pool_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_SCORER_H_
