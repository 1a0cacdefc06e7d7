// The declarations of simt.h for nvcc: wrappers of intrinsics and PTX.
#ifndef KERNELS_CUDA_SIMT_CUDA_H_
#define KERNELS_CUDA_SIMT_CUDA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/simt_types.h"

#define SIMT_SPACE device_code
#define SIMT_DEVICE __device__ __forceinline__
#define SIMT_KERNEL(threads, min_blocks) \
  __global__ __launch_bounds__(threads, min_blocks)
#define SIMT_UNROLL _Pragma("unroll")
#define SIMT_UNROLL_BY(count) SIMT_UNROLL_TEXT(unroll count)
#define SIMT_UNROLL_TEXT(text) _Pragma(#text)

namespace blockmgr::simt {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

SIMT_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
SIMT_DEVICE uint32_t Lane() { return threadIdx.x % kWarpThreads; }
SIMT_DEVICE uint32_t Warp() { return threadIdx.x / kWarpThreads; }
SIMT_DEVICE uint32_t num_threads() { return blockDim.x; }
SIMT_DEVICE uint32_t BlockX() { return blockIdx.x; }
SIMT_DEVICE uint32_t BlockY() { return blockIdx.y; }
SIMT_DEVICE uint32_t BlockZ() { return blockIdx.z; }
SIMT_DEVICE uint32_t num_blocks_x() { return gridDim.x; }
SIMT_DEVICE uint32_t num_blocks_y() { return gridDim.y; }
SIMT_DEVICE uint32_t num_blocks_z() { return gridDim.z; }

SIMT_DEVICE void AwaitEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

SIMT_DEVICE void SyncBlock() { __syncthreads(); }
SIMT_DEVICE bool SyncBlockOr(bool value) {
  return __syncthreads_or(value ? 1 : 0) != 0;
}
SIMT_DEVICE void SyncWarp() { __syncwarp(); }

template <typename T>
SIMT_DEVICE T Shuffle(T value, uint32_t source_lane) {
  return __shfl_sync(kAllLanes, value, static_cast<int>(source_lane));
}
template <typename T>
SIMT_DEVICE T ShuffleXor(T value, uint32_t mask) {
  return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
}
template <typename T>
SIMT_DEVICE T ShuffleUp(T value, uint32_t delta) {
  return __shfl_up_sync(kAllLanes, value, delta);
}
template <typename T>
SIMT_DEVICE T ShuffleDown(T value, uint32_t delta) {
  return __shfl_down_sync(kAllLanes, value, delta);
}
SIMT_DEVICE uint32_t Ballot(bool value) {
  return __ballot_sync(kAllLanes, value);
}
SIMT_DEVICE bool Any(bool value) { return __any_sync(kAllLanes, value) != 0; }
SIMT_DEVICE bool All(bool value) { return __all_sync(kAllLanes, value) != 0; }

// The types that CUDA's atomics take. On LP64 systems uint64_t is not unsigned
// long long.
template <typename T>
using AtomicWord = std::conditional_t<
    sizeof(T) == 8, unsigned long long,
    std::conditional_t<std::is_signed<T>::value, int, unsigned int>>;

template <typename T>
SIMT_DEVICE AtomicWord<T>* AtomicPointer(T* address) {
  static_assert(std::is_integral<T>::value, "no atomics on floats");
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  return reinterpret_cast<AtomicWord<T>*>(address);
}
template <typename T>
SIMT_DEVICE T AtomicAdd(T* address, T value) {
  return static_cast<T>(
      atomicAdd(AtomicPointer(address), static_cast<AtomicWord<T>>(value)));
}
template <typename T>
SIMT_DEVICE T AtomicMax(T* address, T value) {
  static_assert(sizeof(T) == 4 || std::is_unsigned<T>::value, "order");
  return static_cast<T>(
      atomicMax(AtomicPointer(address), static_cast<AtomicWord<T>>(value)));
}
template <typename T>
SIMT_DEVICE T AtomicMin(T* address, T value) {
  static_assert(sizeof(T) == 4 || std::is_unsigned<T>::value, "order");
  return static_cast<T>(
      atomicMin(AtomicPointer(address), static_cast<AtomicWord<T>>(value)));
}
template <typename T>
SIMT_DEVICE T AtomicOr(T* address, T value) {
  return static_cast<T>(
      atomicOr(AtomicPointer(address), static_cast<AtomicWord<T>>(value)));
}
template <typename T>
SIMT_DEVICE T AtomicExchange(T* address, T value) {
  return static_cast<T>(
      atomicExch(AtomicPointer(address), static_cast<AtomicWord<T>>(value)));
}
template <typename T>
SIMT_DEVICE T AtomicCompareExchange(T* address, T expected, T desired) {
  return static_cast<T>(atomicCAS(AtomicPointer(address),
                                  static_cast<AtomicWord<T>>(expected),
                                  static_cast<AtomicWord<T>>(desired)));
}
SIMT_DEVICE uint32_t AtomicIncrement(uint32_t* address, uint32_t limit) {
  return atomicInc(address, limit);
}
// __threadfence is sequentially consistent, which is more than kernels need.
SIMT_DEVICE void ThreadFence() {
  asm volatile("fence.acq_rel.gpu;\n" ::: "memory");
}

SIMT_DEVICE char* SharedBytes() {
  extern __shared__ __align__(128) char simt_shared_bytes[];
  return simt_shared_bytes;
}

// `count` elements of the block's dynamic shared memory.
template <typename T>
class SharedArray {
 public:
  SIMT_DEVICE SharedArray(T* data, uint32_t count)
      : data_(data), count_(count) {}

  SIMT_DEVICE T Load(uint32_t i) const { return data_[i]; }
  SIMT_DEVICE void Store(uint32_t i, T value) const { data_[i] = value; }
  SIMT_DEVICE T AtomicAdd(uint32_t i, T value) const {
    return simt::AtomicAdd(data_ + i, value);
  }
  SIMT_DEVICE T AtomicMax(uint32_t i, T value) const {
    return simt::AtomicMax(data_ + i, value);
  }
  SIMT_DEVICE T AtomicMin(uint32_t i, T value) const {
    return simt::AtomicMin(data_ + i, value);
  }
  SIMT_DEVICE T AtomicOr(uint32_t i, T value) const {
    return simt::AtomicOr(data_ + i, value);
  }
  SIMT_DEVICE T* data() const { return data_; }
  SIMT_DEVICE uint32_t size() const { return count_; }

 private:
  T* data_;
  uint32_t count_;
};

template <typename T>
SIMT_DEVICE SharedArray<T> Shared(size_t byte_offset, uint32_t count) {
  return SharedArray<T>(reinterpret_cast<T*>(SharedBytes() + byte_offset),
                        count);
}

SIMT_DEVICE int32_t LoadUncached(const int32_t* address) {
  return __ldcg(address);
}
SIMT_DEVICE Vector16 LoadGlobal16(const void* address) {
  const uint4 value = *static_cast<const uint4*>(address);
  return Vector16{{value.x, value.y, value.z, value.w}};
}
SIMT_DEVICE void StoreGlobal16(void* address, const Vector16& value) {
  *static_cast<uint4*>(address) = make_uint4(value.words[0], value.words[1],
                                             value.words[2], value.words[3]);
}

SIMT_DEVICE uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
SIMT_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(
                   SharedAddress(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
SIMT_DEVICE void CommitCopies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kPending>
SIMT_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

SIMT_DEVICE void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
SIMT_DEVICE void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(row))
      : "memory");
}
SIMT_DEVICE uint32_t MoveMatrixTransposed(uint32_t value) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n"
               : "=r"(result)
               : "r"(value));
  return result;
}
template <typename T>
SIMT_DEVICE void Mma16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                          uint32_t b1) {
  if constexpr (std::is_same<T, BFloat16>::value) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same<T, Half>::value, "bf16 or f16");
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

SIMT_DEVICE float ToFloat(BFloat16 value) {
  return BitsToFloat(static_cast<uint32_t>(value.bits) << 16);
}
SIMT_DEVICE float ToFloat(Half value) {
  return __half2float(__ushort_as_half(value.bits));
}
template <typename T>
SIMT_DEVICE T FromFloat(float value) {
  if constexpr (std::is_same<T, BFloat16>::value) {
    return BFloat16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};
  } else {
    static_assert(std::is_same<T, Half>::value, "bf16 or f16");
    return Half{__half_as_ushort(__float2half_rn(value))};
  }
}
template <typename T>
SIMT_DEVICE uint32_t Pack2(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same<T, BFloat16>::value) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&packed, &pair, sizeof(packed));
  } else {
    static_assert(std::is_same<T, Half>::value, "bf16 or f16");
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&packed, &pair, sizeof(packed));
  }
  return packed;
}

// The product is rounded and never fused with a later addition.
SIMT_DEVICE float Multiply(float a, float b) { return __fmul_rn(a, b); }
// Computes exp2f without scaling of results below 2^-126, which are 0 here.
// This takes a third of the instructions. Weights that small do not count.
SIMT_DEVICE float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
SIMT_DEVICE float Log2(float x) { return log2f(x); }
SIMT_DEVICE float Sqrt(float x) { return __fsqrt_rn(x); }
SIMT_DEVICE float ReverseSqrt(float x) { return rsqrtf(x); }
SIMT_DEVICE int PopCount(uint32_t x) { return __popc(x); }
SIMT_DEVICE int LeadingZeros(uint32_t x) { return __clz(static_cast<int>(x)); }
// Returns the number of the lowest set bit. REQUIRES: x != 0.
SIMT_DEVICE int FirstBit(uint32_t x) { return __ffs(static_cast<int>(x)) - 1; }

}  // namespace blockmgr::simt

#endif  // KERNELS_CUDA_SIMT_CUDA_H_
