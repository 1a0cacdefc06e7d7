// Selection and compaction on a device.
#ifndef KERNELS_CUDA_DEVICE_SELECTOR_H_
#define KERNELS_CUDA_DEVICE_SELECTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/select.h"
#include "kernels/backend.h"
#include "kernels/cuda/device_pool.h"
#include "kernels/cuda/select.h"

namespace blockmgr {

// DeviceSelector chooses what SelectEntries chooses, and moves what
// PlaceSurvivors would, bit for bit.
//
// Cost: 2 to 7 small kernels, two fills and a wait per selection; five kernels
// per compaction, and PlaceSurvivors on the host, for the positions alone; 4
// bytes of device memory per page of the pool from the first compaction on.
// Thread-compatible.
class DeviceSelector {
 public:
  // The pool is borrowed.
  explicit DeviceSelector(const DevicePool* pool) : pool_(*pool) {}
  DeviceSelector(const DeviceSelector&) = delete;
  DeviceSelector& operator=(const DeviceSelector&) = delete;
  ~DeviceSelector();

  // Unimplemented for policies with parity, which are the CPU's alone.
  absl::StatusOr<KeepSets> Select(const SelectBatch& batch);

  // Plans the moves and carries both phases out, on the device. Does not wait.
  std::vector<int32_t> Compact(const Compaction& compaction);

 private:
  // Arrays of a selection and of a compaction; see SelectProblem, SelectMoves.
  struct SelectionArrays {
    CallMemory::Array<SelectScope> scopes;
    CallMemory::Array<int64_t> offsets;
    CallSplits chunks;
    CallMemory::Array<int32_t> positions;
    CallMemory::Array<float> scores;
    CallMemory::Array<float> value_norms;
    CallMemory::Array<float> products;
    CallMemory::Array<SelectHead> heads;
    CallMemory::Array<RadixSearch> searches;
    CallMemory::Array<uint32_t> zeros;  // histograms, bins, counters
    CallMemory::Array<uint32_t> ties;
    CallMemory::Array<int32_t> budgets;
    CallMemory::Array<uint32_t> survivors;
    CallMemory::Array<int64_t> num_nan;
  };
  struct MoveArrays {
    CallMemory::Array<uint32_t> survivors;
    CallMemory::Array<int32_t> kept;
    CallMemory::Array<int64_t> offsets;
    CallMemory::Array<int64_t> slots;
    CallMemory::Array<int32_t> page_offsets;
    CallMemory::Array<int32_t> pages;
    CallMemory::Array<int32_t> held;
    CallMemory::Array<int64_t> kept_offsets;
    CallMemory::Array<int64_t> strays;
    CallMemory::Array<uint32_t> filled;
    CallMemory::Array<int32_t> counts;
    CallMemory::Array<RowMove> moves;  // of phase 1, then of phase 2
    CallMemory::Array<int64_t> num_moves;
  };

  // Adds the arrays to the call; the problem has everything but pointers.
  SelectProblem AddSelection(const SelectBatch& batch, SelectionArrays* arrays);
  void PointTo(const SelectionArrays& arrays, const EntriesView& entries,
               SelectProblem* problem) const;
  // Keep sets as the selection's kernels leave them.
  CallMemory::Array<uint32_t> AddSurvivors(std::span<const int64_t> offsets,
                                           const KeepSets& keep);
  MoveArrays AddMoves(const Compaction& compaction);
  void NeedPagePlaces();

  const DevicePool& pool_;
  std::vector<SelectScope> scopes_;  // of the call
  // -1 per page of the pool, between calls; null before the first compaction.
  int32_t* page_places_ = nullptr;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_DEVICE_SELECTOR_H_
