// What simt.h declares, on the CPU: a launch runs one fiber per CUDA thread,
// block after block, and checks the rules of simt.h.
//
// Fibers switch only inside collectives, barriers and at a thread's end. A warp
// collective completes when its 32 lanes have arrived: the last computes the
// results of all. Which warp runs, in which order its lanes, and how far before
// another gets its turn is the schedule's choice; results must not depend on
// it. Run every kernel under several schedules: some bugs show in one only.
//
// Cost: about 1 us per warp collective.
// Thread-compatible: launches in different threads do not meet.
#ifndef TESTS_KERNELS_SIMT_SIMT_EMULATOR_H_
#define TESTS_KERNELS_SIMT_SIMT_EMULATOR_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#include "kernels/cuda/simt_types.h"

#define SIMT_SPACE emulated_code
#define SIMT_DEVICE inline
// nvcc wants these numbers; here they bound nothing.
#define SIMT_KERNEL(threads, min_blocks) inline
#define SIMT_UNROLL
#define SIMT_UNROLL_BY(count)

namespace blockmgr::simt {

struct Grid {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

struct LaunchShape {
  Grid grid = {};
  uint32_t threads = kWarpThreads;  // per block; a multiple of 32, at most 1024
  size_t shared_bytes = 0;
};

struct Schedule {
  enum class Order {
    kForward,  // the first warp as far as it goes, then the next
    kReverse,  // last block, warp and lane first
    kRandom,   // blocks, warps and lanes shuffled, runs of random length
  };
  Order order = Order::kForward;
  uint64_t seed = 0;
};

struct LaunchReport {
  // Empty when no rule was broken. Else the first breach: what, where in the
  // source, and which block and thread. The launch ended there; what it wrote
  // until then stays.
  std::string error;
  // 8-row groups of LoadMatrix4 whose rows share shared memory banks, counted
  // once per extra pass.
  int64_t bank_conflicts = 0;

  bool ok() const { return error.empty(); }
};

namespace emulator {

// Where a device function was called.
struct Site {
  const char* file;
  int line;
};

struct ThreadPlace {
  uint32_t thread;
  Grid block;
  Grid num_blocks;
  uint32_t num_threads;
};

LaunchReport RunGrid(const Schedule& schedule, const LaunchShape& shape,
                     const std::function<void()>& thread_body);

// The following belong to the thread that is running. Those with a Site fail
// the launch and do not return when a rule is broken.
const ThreadPlace& Place();
[[noreturn]] void Fail(const std::string& what, Site site);
char* SharedMemory();
void CheckSharedRange(size_t offset, size_t bytes, size_t alignment, Site site);
void CheckIndex(uint32_t index, uint32_t count, Site site);
void ReadShared(const void* address, size_t bytes, Site site);
void WriteShared(void* address, size_t bytes, Site site);
void AtomicShared(void* address, size_t bytes, Site site);
bool BlockBarrier(const char* what, bool value, Site site);
void WarpBarrier(Site site);

enum class Exchange { kIndex, kXor, kUp, kDown };
// `argument` is per lane for kIndex and uniform otherwise.
uint64_t ExchangeLanes(Exchange kind, uint64_t value, uint32_t argument,
                       Site site);
uint32_t Vote(const char* what, bool value, Site site);
void CheckAligned16(const void* address, Site site);
void IssueCopy(void* shared, const void* global, bool valid, Site site);
void CommitGroup();
void WaitGroups(int max_pending, Site site);
void LoadMatrix(bool transposed, uint32_t (&r)[4], const void* row, Site site);
uint32_t MoveMatrix(uint32_t value, Site site);
void Multiply(bool bfloat16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
              uint32_t b1, Site site);
inline float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  // The device makes this of any NaN.
  if (magnitude > 0x7C00u) return BitsToFloat(0x7FFFFFFFu);
  if (magnitude == 0x7C00u) return BitsToFloat(sign | 0x7F800000u);
  // The exponent's bias is 112 less, also of subnormals; the product is exact.
  const float scaled = BitsToFloat(magnitude << 13) * 0x1p112f;
  return BitsToFloat(sign | FloatBits(scaled));
}
uint16_t FloatToHalf(float value);

}  // namespace emulator

// The default argument is evaluated where the function is called.
#define SIMT_SITE \
  ::blockmgr::simt::emulator::Site site = {__builtin_FILE(), __builtin_LINE()}

// Runs the kernel on the emulator. Parameters are copied for every thread.
template <typename... Params, typename... Arguments>
LaunchReport Launch(const Schedule& schedule, const LaunchShape& shape,
                    void (*kernel)(Params...), const Arguments&... arguments) {
  return emulator::RunGrid(schedule, shape, [&] { kernel(arguments...); });
}

inline uint32_t ThreadIndex() { return emulator::Place().thread; }
inline uint32_t Lane() { return ThreadIndex() % kWarpThreads; }
inline uint32_t Warp() { return ThreadIndex() / kWarpThreads; }
inline uint32_t num_threads() { return emulator::Place().num_threads; }
inline uint32_t BlockX() { return emulator::Place().block.x; }
inline uint32_t BlockY() { return emulator::Place().block.y; }
inline uint32_t BlockZ() { return emulator::Place().block.z; }
inline uint32_t num_blocks_x() { return emulator::Place().num_blocks.x; }
inline uint32_t num_blocks_y() { return emulator::Place().num_blocks.y; }
inline uint32_t num_blocks_z() { return emulator::Place().num_blocks.z; }

// Launches end before the next one begins here.
inline void AwaitEarlierKernels() {}
inline void SyncBlock(SIMT_SITE) {
  emulator::BlockBarrier("SyncBlock", false, site);
}
inline bool SyncBlockOr(bool value, SIMT_SITE) {
  return emulator::BlockBarrier("SyncBlockOr", value, site);
}
inline void SyncWarp(SIMT_SITE) { emulator::WarpBarrier(site); }

namespace emulator {

template <typename T>
T ExchangeAs(Exchange kind, T value, uint32_t argument, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = ExchangeLanes(kind, bits, argument, site);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace emulator

template <typename T>
T Shuffle(T value, uint32_t source_lane, SIMT_SITE) {
  return emulator::ExchangeAs(emulator::Exchange::kIndex, value, source_lane,
                              site);
}
template <typename T>
T ShuffleXor(T value, uint32_t mask, SIMT_SITE) {
  return emulator::ExchangeAs(emulator::Exchange::kXor, value, mask, site);
}
template <typename T>
T ShuffleUp(T value, uint32_t delta, SIMT_SITE) {
  return emulator::ExchangeAs(emulator::Exchange::kUp, value, delta, site);
}
template <typename T>
T ShuffleDown(T value, uint32_t delta, SIMT_SITE) {
  return emulator::ExchangeAs(emulator::Exchange::kDown, value, delta, site);
}
inline uint32_t Ballot(bool value, SIMT_SITE) {
  return emulator::Vote("Ballot", value, site);
}
inline bool Any(bool value, SIMT_SITE) {
  return emulator::Vote("Any", value, site) != 0;
}
inline bool All(bool value, SIMT_SITE) {
  return emulator::Vote("All", value, site) == 0xFFFFFFFFu;
}

// Blocks run one after another and fibers switch elsewhere only, so plain
// operations are atomic.
template <typename T>
T AtomicAdd(T* address, T value) {
  static_assert(std::is_integral_v<T> && sizeof(T) >= 4,
                "no atomics on floats");
  const T old = *address;
  // Wraps around, as the device does.
  *address = static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) +
                            static_cast<std::make_unsigned_t<T>>(value));
  return old;
}
template <typename T>
T AtomicMax(T* address, T value) {
  const T old = *address;
  if (value > old) *address = value;
  return old;
}
template <typename T>
T AtomicMin(T* address, T value) {
  const T old = *address;
  if (value < old) *address = value;
  return old;
}
template <typename T>
T AtomicOr(T* address, T value) {
  const T old = *address;
  *address = old | value;
  return old;
}
template <typename T>
T AtomicExchange(T* address, T value) {
  const T old = *address;
  *address = value;
  return old;
}
template <typename T>
T AtomicCompareExchange(T* address, T expected, T desired) {
  const T old = *address;
  if (old == expected) *address = desired;
  return old;
}
inline uint32_t AtomicIncrement(uint32_t* address, uint32_t limit) {
  const uint32_t old = *address;
  *address = old >= limit ? 0 : old + 1;
  return old;
}
inline void ThreadFence() {}

inline char* SharedBytes() { return emulator::SharedMemory(); }

template <typename T>
class SharedArray {
  static_assert(sizeof(T) >= 2, "hazards are tracked by 2 bytes");

 public:
  SharedArray(T* data, uint32_t count) : data_(data), count_(count) {}

  T Load(uint32_t i, SIMT_SITE) const {
    emulator::CheckIndex(i, count_, site);
    emulator::ReadShared(data_ + i, sizeof(T), site);
    return data_[i];
  }
  void Store(uint32_t i, T value, SIMT_SITE) const {
    emulator::CheckIndex(i, count_, site);
    emulator::WriteShared(data_ + i, sizeof(T), site);
    data_[i] = value;
  }
  T AtomicAdd(uint32_t i, T value, SIMT_SITE) const {
    return simt::AtomicAdd(Atomic(i, site), value);
  }
  T AtomicMax(uint32_t i, T value, SIMT_SITE) const {
    return simt::AtomicMax(Atomic(i, site), value);
  }
  T AtomicMin(uint32_t i, T value, SIMT_SITE) const {
    return simt::AtomicMin(Atomic(i, site), value);
  }
  T AtomicOr(uint32_t i, T value, SIMT_SITE) const {
    return simt::AtomicOr(Atomic(i, site), value);
  }
  T* data() const { return data_; }
  uint32_t size() const { return count_; }

 private:
  T* Atomic(uint32_t i, emulator::Site site) const {
    emulator::CheckIndex(i, count_, site);
    emulator::AtomicShared(data_ + i, sizeof(T), site);
    return data_ + i;
  }

  T* data_;
  uint32_t count_;
};

template <typename T>
SharedArray<T> Shared(size_t byte_offset, uint32_t count, SIMT_SITE) {
  emulator::CheckSharedRange(byte_offset, count * sizeof(T), alignof(T), site);
  return SharedArray<T>(reinterpret_cast<T*>(SharedBytes() + byte_offset),
                        count);
}

inline int32_t LoadUncached(const int32_t* address) { return *address; }
inline Vector16 LoadGlobal16(const void* address, SIMT_SITE) {
  emulator::CheckAligned16(address, site);
  return *static_cast<const Vector16*>(address);
}
inline void StoreGlobal16(void* address, const Vector16& value, SIMT_SITE) {
  emulator::CheckAligned16(address, site);
  *static_cast<Vector16*>(address) = value;
}

inline void CopyAsync16(void* shared, const void* global, bool valid,
                        SIMT_SITE) {
  emulator::IssueCopy(shared, global, valid, site);
}
inline void CommitCopies() { emulator::CommitGroup(); }
template <int kPending>
void WaitCopies(SIMT_SITE) {
  emulator::WaitGroups(kPending, site);
}

inline void LoadMatrix4(uint32_t (&r)[4], const void* row, SIMT_SITE) {
  emulator::LoadMatrix(false, r, row, site);
}
inline void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row,
                                  SIMT_SITE) {
  emulator::LoadMatrix(true, r, row, site);
}
inline uint32_t MoveMatrixTransposed(uint32_t value, SIMT_SITE) {
  return emulator::MoveMatrix(value, site);
}
template <typename T>
void Mma16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
              SIMT_SITE) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  emulator::Multiply(std::is_same_v<T, BFloat16>, c, a, b0, b1, site);
}

inline float ToFloat(BFloat16 value) {
  return BitsToFloat(static_cast<uint32_t>(value.bits) << 16);
}
inline float ToFloat(Half value) { return emulator::HalfToFloat(value.bits); }
template <typename T>
T FromFloat(float value) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  if constexpr (std::is_same_v<T, Half>) {
    return Half{emulator::FloatToHalf(value)};
  } else if (std::isnan(value)) {
    return BFloat16{0x7FFF};  // what the device's conversion makes of any NaN
  } else {
    return BFloat16{BFloat16Bits(value)};
  }
}
template <typename T>
uint32_t Pack2(float low, float high) {
  return FromFloat<T>(low).bits | static_cast<uint32_t>(FromFloat<T>(high).bits)
                                      << 16;
}

inline float Multiply(float a, float b) { return a * b; }
inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }
inline float Sqrt(float x) { return std::sqrt(x); }
inline float ReverseSqrt(float x) { return 1.0f / std::sqrt(x); }
inline int PopCount(uint32_t x) { return std::popcount(x); }
inline int LeadingZeros(uint32_t x) { return std::countl_zero(x); }
inline int FirstBit(uint32_t x) { return std::countr_zero(x); }

}  // namespace blockmgr::simt

#endif  // TESTS_KERNELS_SIMT_SIMT_EMULATOR_H_
