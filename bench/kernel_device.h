// The device that `blockmgr-bench kernels` times.
#ifndef BENCH_KERNEL_DEVICE_H_
#define BENCH_KERNEL_DEVICE_H_

#include <cstdint>

#include <absl/status/status.h>

#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// KernelDevice is a device and a stream: the library's kernels, and what a
// benchmark needs beside them. One implementation drives CUDA
// (cuda_kernel_device.h), the other is the tests', on the emulator.
// Thread-compatible.
class KernelDevice {
 public:
  virtual ~KernelDevice() = default;

  virtual DeviceRuntime& runtime() = 0;
  // The first thing that went wrong, here or in the runtime.
  virtual absl::Status status() const = 0;

  // The most that memory gives: these read num_vectors vectors of 16 bytes
  // (`sink` is written for a sum that never comes), or copy them.
  virtual void ReadCeiling(const char* from, int64_t num_vectors,
                           uint32_t* sink) = 0;
  virtual void CopyCeiling(const char* from, char* to, int64_t num_vectors) = 0;
  // out[i] = Element(seed, i) of kernel_problem.h, for i < count.
  virtual void FillElements(uint16_t* out, int64_t count, uint64_t seed,
                            ElementType type) = 0;
};

}  // namespace blockmgr

#endif  // BENCH_KERNEL_DEVICE_H_
