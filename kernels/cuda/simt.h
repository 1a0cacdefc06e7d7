// One spelling of device code, for nvcc and for an emulator on the CPU.
//
// A kernel is written once, in a .cuh file, with the functions that this header
// declares. nvcc compiles the kernel in a .cu file: the functions become
// wrappers of intrinsics and PTX. Any other compiler compiles the kernel for
// the emulator (tests/kernels/simt). The emulator runs one fiber per CUDA
// thread and checks what a GPU leaves undefined.
//
//   namespace blockmgr {
//   inline namespace SIMT_SPACE {
//   template <int kDim>
//   SIMT_KERNEL(128, 2) void Scale(ScaleParams p) {
//     simt::AwaitEarlierKernels();
//     const auto tile = simt::Shared<float>(0, 128);
//     tile.Store(simt::ThreadIndex(), p.in[simt::ThreadIndex()]);
//     simt::SyncBlock();
//     ...
//   }
//   }  // inline namespace SIMT_SPACE
//   }  // namespace blockmgr
//
//   .cu:      launcher(SizeOf(grid, 1, 128, bytes), kKernel<Scale<4>>, params);
//   test.cc:  simt::Launch(schedule, {.grid = {grid}, .threads = 128,
//                          .shared_bytes = bytes}, Scale<4>, params);
//
// SIMT_SPACE keeps the two compiled versions of a kernel apart, for programs
// that link both.
//
// A kernel obeys these rules:
// * It includes simt.h and POD headers only, in C++17. It uses no CUDA name,
//   PTX, __shared__, assert or printf. Its parameters are one POD struct, by
//   value.
// * Every thread calls AwaitEarlierKernels before anything else. From sm_90 on
//   a kernel may begin while the kernel before it on the stream still runs
//   (programmatic dependent launch), and nothing else keeps the two apart. If
//   the kernel before is one of ours, all kernels before that one have ended.
//   Their results may be read before AwaitEarlierKernels, if the kernel before
//   does not write them. If it writes memory beside them, the reader uses
//   LoadUncached.
// * Blocks have one dimension, a multiple of 32 threads. Grids have up to three
//   dimensions.
// * Shared memory is dynamic. Plain accesses go through Shared<T>. Only
//   CopyAsync16 and LoadMatrix take a raw pointer into SharedBytes().
// * All 32 lanes of a warp execute a collective (marked C) at one place in the
//   source with the same uniform arguments. All threads of the block execute
//   SyncBlock* in that way.
// * A block never waits for another block: the emulator runs blocks one after
//   another, in any order. LastBlockDone lets one block go on with the results
//   of all blocks.
// * There are no atomics on floats, because their order would show.
//
// The emulator stops a launch and reports the source line on:
// * accesses outside of shared memory or outside of a Shared<T>
// * misaligned vectors
// * reads of shared memory that was never written
// * two accesses without a barrier between them, if one of the two writes
//   (SyncWarp inside a warp, SyncBlock between warps; two atomics are allowed)
// * use of bytes that an asynchronous copy has not delivered yet
// * collectives that not all lanes reach, or reach in different places
// * deadlock
// Each byte of shared memory starts as 0xFF. The bytes of an asynchronous copy
// arrive when the thread waits for them, and are 0xFF before. The emulator does
// not model time, registers, weak ordering of global memory between blocks, or
// the order in which tensor cores add.
//
// This header declares (blockmgr::simt):
//   SIMT_KERNEL(threads, min_blocks_per_sm)   SIMT_DEVICE   SIMT_UNROLL
//   uint32_t ThreadIndex(), Lane(), Warp(), num_threads();
//   uint32_t BlockX(), BlockY(), BlockZ();
//   uint32_t num_blocks_x(), num_blocks_y(), num_blocks_z();
//   void AwaitEarlierKernels();      waits until all earlier work of the stream
//     has ended and is visible, then lets the next kernel begin
//   void SyncBlock();                all threads
//   bool SyncBlockOr(bool);          all threads: barrier, then "any of them"
//   void SyncWarp();                                   C, orders memory
//   T Shuffle(T, source_lane);       any lane each     C, T of 4 or 8 bytes
//   T ShuffleXor(T, mask), ShuffleUp(T, delta), ShuffleDown(T, delta);   C
//   uint32_t Ballot(bool);  bool Any(bool), All(bool);                   C
//   The shuffles and votes order no memory.
//   Shared<T>(byte_offset, count)    a SharedArray<T>, T of 2, 4, 8, 16 bytes:
//     T Load(i);  void Store(i, T);  T AtomicAdd(i, T);  T AtomicMax,
//     AtomicMin, AtomicOr;  T* data();  uint32_t size();
//   char* SharedBytes();             the dynamic shared memory, 128-aligned
//   T AtomicAdd(T*, T), AtomicMax, AtomicMin, AtomicOr, AtomicExchange,
//     AtomicCompareExchange(T*, expected, desired);    global memory, integers
//   uint32_t AtomicIncrement(uint32_t*, limit);   0 comes after the limit
//   void ThreadFence();                           acquires and releases
//   bool LastBlockDone(uint32_t* counter, uint32_t num_blocks);  all threads:
//     returns true in the last block that calls it. Earlier global writes of
//     all blocks are visible to this block. The counter must be 0 before, and
//     is 0 again afterwards.
//   Vector16 LoadGlobal16(const void*);  void StoreGlobal16(void*, Vector16);
//   int32_t LoadUncached(const int32_t*);   leaves nothing in the SM's cache
//   void CopyAsync16(void* shared, const void* global, bool valid);  copies 16
//     bytes. If not valid, it writes zeros and does not read `global`, which
//     must not be null.
//   void CommitCopies();  void WaitCopies<N>();  waits until at most N groups
//     of the thread's own copies are pending. A barrier makes the copies
//     visible to other threads.
//   void LoadMatrix4(uint32_t (&r)[4], const void* row);   C, ldmatrix
//   void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row);       C
//   uint32_t MoveMatrixTransposed(uint32_t);                             C
//   void Mma16816<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
//                    uint32_t b1);   C, c += a b; T = BFloat16 or Half
//   float ToFloat(BFloat16), ToFloat(Half);  T FromFloat<T>(float);  (nearest)
//   uint32_t Pack2<T>(float low, float high);
//   float Exp2(float), Log2(float), Sqrt(float), ReverseSqrt(float);
//     Exp2 may be 0 where the result is below 2^-126.
//   int PopCount(uint32_t), LeadingZeros(uint32_t), FirstBit(uint32_t);
// simt_types.h: BFloat16, Half, Vector16, FloatBits, BitsToFloat, BFloat16Bits.
#ifndef KERNELS_CUDA_SIMT_H_
#define KERNELS_CUDA_SIMT_H_

#include "kernels/cuda/simt_types.h"

#if defined(__CUDACC__)
#include "kernels/cuda/simt_cuda.h"
#else
#include "tests/kernels/simt/simt_emulator.h"
#endif

namespace blockmgr::simt {

SIMT_DEVICE bool LastBlockDone(uint32_t* counter, uint32_t num_blocks) {
  // The fences of one thread are enough for all threads of the block. The first
  // barrier orders the writes of the others before the fences. The second
  // barrier orders the reads of the others after the fences.
  SyncBlock();
  bool last = false;
  if (ThreadIndex() == 0) {
    ThreadFence();
    last = AtomicIncrement(counter, num_blocks - 1) == num_blocks - 1;
    ThreadFence();
  }
  return SyncBlockOr(last);
}

}  // namespace blockmgr::simt

#endif  // KERNELS_CUDA_SIMT_H_
