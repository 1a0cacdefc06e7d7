// The pool on a device, and what the parts of CudaBackend share: the pool and
// the memory of calls. Host code.
#ifndef KERNELS_CUDA_HOST_DEVICE_POOL_H_
#define KERNELS_CUDA_HOST_DEVICE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/call_memory.h"
#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/paged_pool.h"

namespace blockmgr {

// Returns the pool as kernels see it, without positions. For one tensor per
// layer the caller sets layer_bases of the result, and `base` is not used.
inline PagedPool MakePagedPool(const ModelLayout& layout,
                               const KvPoolLayout& strides, char* base) {
  PagedPool pool;
  pool.base = base;
  pool.layer_stride = strides.layer_stride;
  pool.block_stride = strides.block_stride;
  pool.head_stride = strides.head_stride;
  pool.kv_stride = strides.kv_stride;
  pool.token_stride = strides.token_stride;
  pool.num_layers = layout.num_layers;
  pool.num_blocks = layout.num_blocks;
  pool.num_heads = layout.num_heads;
  pool.page_size = layout.page_size;
  pool.row_bytes = static_cast<int32_t>(layout.row_bytes());
  return Prepared(pool);
}

// ListSplits before their array is sent; see FillSplitOffsets.
struct CallSplits {
  CallMemory::Array<int32_t> offsets;
  int32_t count = 0;
};

inline CallSplits AddSplits(CallMemory* memory,
                            std::span<const int64_t> offsets,
                            int32_t split_entries, int32_t min_splits = 0) {
  CallSplits splits;
  splits.offsets = memory->Input<int32_t>(std::ssize(offsets));
  splits.count =
      FillSplitOffsets(offsets.data(), std::ssize(offsets) - 1, split_entries,
                       memory->Host(splits.offsets).data(), min_splits);
  return splits;
}

inline ListSplits DeviceSplits(const CallMemory& memory,
                               const CallSplits& splits) {
  return {memory.Device(splits.offsets), splits.count};
}

// The pool and the objects of the backend that its parts share. Plain data. All
// pointers outlive the parts of the backend.
struct DevicePool {
  ModelLayout layout;
  PagedPool pool;
  RowShape shape;
  DeviceRuntime* runtime = nullptr;
  CallMemory* memory = nullptr;

  // Ends a call that reads results. If kernels found an id outside the pool, or
  // the device failed in the middle of a step, no recovery is possible: the
  // call aborts.
  void Receive() const {
    memory->Receive();
    BM_CHECK_OK(runtime->status());
    const bool ids_are_in_the_pool = memory->error() == 0;
    BM_CHECK(ids_are_in_the_pool);
  }
  void Send() const { BM_CHECK_OK(memory->Send()); }

  // Rounds fp32 to the bits of the pool's elements. REQUIRES: as many values as
  // elements.
  void Round(const float* values, std::span<uint16_t> out) const {
    const bool half = layout.dtype == DType::kFloat16;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = half ? ToFloat16(values[i]) : ToBFloat16(values[i]);
    }
  }
  void Widen(std::span<const uint16_t> values, float* out) const {
    const bool half = layout.dtype == DType::kFloat16;
    for (std::size_t i = 0; i < values.size(); ++i) {
      out[i] = half ? FromFloat16(values[i]) : FromBFloat16(values[i]);
    }
  }
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_POOL_H_
