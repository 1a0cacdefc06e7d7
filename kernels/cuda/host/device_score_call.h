// The common part of the scorers on a device: one call of Backend::Score, from
// its arrays to its results. Host code.
#ifndef KERNELS_CUDA_HOST_DEVICE_SCORE_CALL_H_
#define KERNELS_CUDA_HOST_DEVICE_SCORE_CALL_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// DeviceScoreCall lays out the arrays of one call and fills the parameters of
// its kernels. The order of a call is
//
//   memory.Begin()
//   AddEntries, AddWindow, AddScores, memory.Input, memory.Work, ..
//   pool.Send()       uploads the inputs
//   pool.runtime->..  launches the kernels
//   StoreScores       waits, and copies the results to the batch
//
// Queries are rounded to the pool's elements. The object is made for one call
// and borrows the pool.
class DeviceScoreCall {
 public:
  // The entries of the call.
  struct Entries {
    CallMemory::Array<int64_t> offsets;
    CallMemory::Array<int64_t> slots;
    CallMemory::Array<int32_t> positions;
    CallSplits row_splits;
    CallSplits window_splits;
  };
  // A window of queries.
  struct Window {
    CallMemory::Array<uint16_t> queries;
    CallMemory::Array<int32_t> length;
    CallMemory::Array<float> lse;
    CallMemory::Array<float> partial_stats;
    CallSplits tiles;  // tiles of the sequence, for tova
  };
  // The results. Without norms there are no products.
  struct Scores {
    CallMemory::Array<float> scores;
    CallMemory::Array<float> norms;
    CallMemory::Array<float> products;
  };

  explicit DeviceScoreCall(const DevicePool& pool) : pool_(pool) {}

  static bool HasProducts(const ScoreBatch& batch) {
    return !batch.q_head_norms.empty();
  }

  // Checks the entries and adds their arrays.
  Entries AddEntries(const EntryList& list, int32_t layer);
  Window AddWindow(const QueryWindow& window, const Entries& entries);
  Scores AddScores(const ScoreBatch& batch);

  EntryLists Lists(const Entries& entries) const;
  // Returns the parameters of the window kernels without `attention` and
  // `sums`.
  WindowParams MakeWindow(const QueryWindow& queries, float scale,
                          const Entries& entries, const Window& window) const;
  // Begins and sends a call with a window, and launches the kernels that
  // compute the attention weights of the window.
  WindowParams Weigh(const ScoreBatch& batch, Window* window, Scores* scores);
  // Returns the parameters that all kernels behind Weigh have in common.
  template <typename Params>
  Params ScoresOf(const ScoreBatch& batch, const WindowParams& window,
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

  // Waits for the device and copies the results to the batch.
  void StoreScores(const Scores& scores, const ScoreBatch& batch);
  // Copies an array that was received. REQUIRES: pool.Receive() was called.
  void Fetch(const CallMemory::Array<float>& array, std::span<float> to) const {
    std::ranges::copy(pool_.memory->Host(array), to.begin());
  }

 private:
  const DevicePool& pool_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_SCORE_CALL_H_
