// What the parts of CudaBackend share: the pool on a device, and the memory of
// calls.
#ifndef KERNELS_CUDA_DEVICE_POOL_H_
#define KERNELS_CUDA_DEVICE_POOL_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/call_memory.h"
#include "kernels/cuda/device_runtime.h"
#include "kernels/cuda/simt_types.h"

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
    BM_CHECK(runtime->status().ok());
    const bool ids_are_in_the_pool = memory->error() == 0;
    BM_CHECK(ids_are_in_the_pool);
  }
  void Send() const { BM_CHECK(memory->Send().ok()); }
};

// fp32 to the pool's elements. REQUIRES: as many of both.
inline void RoundTo(std::span<simt::BFloat16> out, const float* values) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].bits = ToBFloat16(values[i]);
  }
}
inline void Widen(std::span<const simt::BFloat16> values, float* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    out[i] = FromBFloat16(values[i].bits);
  }
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_DEVICE_POOL_H_
