// Selection on a device.
#ifndef KERNELS_CUDA_HOST_DEVICE_SELECTOR_H_
#define KERNELS_CUDA_HOST_DEVICE_SELECTOR_H_

#include <cstdint>
#include <vector>

#include "blockmgr/eviction/select.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// DeviceSelector selects what SelectEntries selects, bit for bit.
//
// Cost: 2 or 4 small kernels, 4 or 8 more for heads of kDividedHeadEntries or
// more entries, two fills and one wait per selection.
// Thread-compatible.
class DeviceSelector {
 public:
  // The pool is borrowed.
  explicit DeviceSelector(const DevicePool* pool) : pool_(*pool) {}
  DeviceSelector(const DeviceSelector&) = delete;
  DeviceSelector& operator=(const DeviceSelector&) = delete;

  KeepSets Select(const SelectBatch& batch);

 private:
  // The arrays of a selection; see SelectProblem.
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
    CallMemory::Array<uint32_t> zeros;  // histograms, counters
    CallMemory::Array<uint32_t> ties;
    CallMemory::Array<int32_t> budgets;
    CallMemory::Array<uint32_t> survivors;
    CallMemory::Array<int64_t> num_nan;
  };

  // Adds the arrays to the call. The returned problem has all fields except
  // pointers.
  SelectProblem AddSelection(const SelectBatch& batch, SelectionArrays* arrays);
  void PointTo(const SelectionArrays& arrays, const EntriesView& entries,
               SelectProblem* problem) const;

  const DevicePool& pool_;
  std::vector<SelectScope> scopes_;  // scopes of the call
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_SELECTOR_H_
