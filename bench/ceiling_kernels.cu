// Kernels that show what memory gives at best; see ceiling_kernels.h. Launched
// as those that are held against them.
#include "bench/ceiling_kernels.h"

#include <cuda_fp16.h>

#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
// Not a nameless one, which nvcc names by the path: the interpreter of PTX
// finds kernels by their names.
namespace ceilings {

constexpr int kThreads = 512;
// 16-byte loads that a thread has in flight.
constexpr int kUnroll = 8;

// Each CTA takes contiguous tiles of kThreads * kUnroll vectors.
__global__ __launch_bounds__(kThreads) void ReadAll(const uint4* from,
                                                    int64_t num_vectors,
                                                    uint32_t* sink) {
  simt::AwaitEarlierKernels();
  constexpr int64_t kTile = int64_t{kThreads} * kUnroll;
  uint32_t sum = 0;
  for (int64_t begin = blockIdx.x * kTile; begin < num_vectors;
       begin += gridDim.x * kTile) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t index = begin + i * kThreads + threadIdx.x;
      loaded[i] =
          index < num_vectors ? __ldcs(from + index) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      sum |= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
  }
  // Rarely true, and the compiler cannot know: the loads stay.
  if (sum == 0x7F4A7C15u) atomicAdd(sink, 1u);
}

__global__ __launch_bounds__(kThreads) void CopyAll(const uint4* from,
                                                    uint4* to,
                                                    int64_t num_vectors) {
  simt::AwaitEarlierKernels();
  constexpr int64_t kTile = int64_t{kThreads} * kUnroll;
  for (int64_t begin = blockIdx.x * kTile; begin < num_vectors;
       begin += gridDim.x * kTile) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t index = begin + i * kThreads + threadIdx.x;
      if (index < num_vectors) loaded[i] = __ldcs(from + index);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t index = begin + i * kThreads + threadIdx.x;
      if (index < num_vectors) __stcs(to + index, loaded[i]);
    }
  }
}

static __device__ uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__global__ __launch_bounds__(kThreads) void FillElements(uint16_t* out,
                                                         int64_t count,
                                                         uint64_t seed,
                                                         ElementType type) {
  simt::AwaitEarlierKernels();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += stride) {
    const uint64_t high = Mix((seed << 40) + static_cast<uint64_t>(i)) >> 48;
    const float value = static_cast<float>(high) / 32768.0f - 1.0f;
    if (type == ElementType::kHalf) {
      out[i] = __half_as_ushort(__float2half_rn(value));
      continue;
    }
    const uint32_t bits = __float_as_uint(value);
    out[i] =
        static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
}

}  // namespace ceilings

namespace {

LaunchSize GridOf(int32_t num_blocks) {
  return SizeOf(num_blocks, 1, ceilings::kThreads);
}

}  // namespace

cudaError_t LaunchReadCeiling(const void* from, int64_t num_vectors,
                              uint32_t* sink, int32_t num_blocks,
                              cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(
      launcher(GridOf(num_blocks), kKernel<ceilings::ReadAll>,
               static_cast<const uint4*>(from), num_vectors, sink));
}

cudaError_t LaunchCopyCeiling(const void* from, void* to, int64_t num_vectors,
                              int32_t num_blocks, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(launcher(
      GridOf(num_blocks), kKernel<ceilings::CopyAll>,
      static_cast<const uint4*>(from), static_cast<uint4*>(to), num_vectors));
}

cudaError_t LaunchFillElements(uint16_t* out, int64_t count, uint64_t seed,
                               ElementType type, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(launcher(GridOf(4096), kKernel<ceilings::FillElements>,
                                  out, count, seed, type));
}

}  // namespace blockmgr
