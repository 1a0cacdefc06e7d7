// What the parts of CudaBackend share: the pool on a device, and the memory of
// calls.
#ifndef KERNELS_CUDA_DEVICE_POOL_H_
#define KERNELS_CUDA_DEVICE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/call_memory.h"
#include "kernels/cuda/device_runtime.h"

namespace blockmgr {

// Plain data; everything in it outlives the backend's parts.
struct DevicePool {
  ModelLayout layout;
  PagedPool pool;
  RowShape shape;
  DeviceRuntime* runtime = nullptr;
  CallMemory* memory = nullptr;

  // Ends a call that reads results. What kernels complain about is our own
  // mistake or the caller's (an id that is not the pool's), and so is a device
  // that fails in the middle of a step: there is no way on.
  void Receive() const {
    memory->Receive();
    BM_CHECK_OK(runtime->status());
    const bool ids_are_in_the_pool = memory->error() == 0;
    BM_CHECK(ids_are_in_the_pool);
  }
  void Send() const { BM_CHECK_OK(memory->Send()); }

  // fp32 to the bits of the pool's elements. REQUIRES: as many of both.
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

#endif  // KERNELS_CUDA_DEVICE_POOL_H_
