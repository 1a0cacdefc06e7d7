// One spelling of device code, for nvcc and for a checking emulator on the CPU.
//
// A kernel is written once, in a .cuh file, against what this header declares.
// nvcc compiles it in a .cu file to wrappers of intrinsics and PTX; any other
// compiler runs it on the emulator (tests/kernels/simt), which
// runs one fiber per CUDA thread and checks what a GPU leaves undefined.
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
// SIMT_SPACE keeps a kernel that nvcc compiled and the one that the emulator
// runs apart when both are linked into one program.
//
// Rules a kernel obeys:
// * It includes simt.h and POD headers only, in C++17; no CUDA name, PTX,
//   __shared__, assert or printf. Parameters are one POD struct, by value.
// * It calls AwaitEarlierKernels in every thread, and first of all: from sm_90
//   on it may begin while the one before it on the stream runs (programmatic
//   dependent launch), and nothing else keeps the two apart. Where that one is
//   ours, those before it have ended: what they wrote and it does not may be
//   read earlier, by LoadUncached if it writes beside it.
// * Blocks have one dimension, a multiple of 32 threads; grids up to three.
// * Shared memory is dynamic. Plain accesses go through Shared<T>; a raw
//   pointer into SharedBytes() is for CopyAsync16 and LoadMatrix only.
// * Collectives (marked C) are executed by all 32 lanes of a warp, SyncBlock*
//   by all threads of the block, at one place in the source and with the same
//   uniform arguments.
// * No waiting for another block: blocks run one after another here, in any
//   order. LastBlockDone is the way to go on with the results of all.
// * No atomics on floats: their order would show.
//
// The emulator stops a launch, and reports the source line, on: accesses out of
// shared memory or out of a Shared<T>; misaligned vectors; shared memory read
// before anybody wrote it; two accesses of which one writes without a barrier
// between them (SyncWarp inside a warp, SyncBlock between warps; atomics among
// themselves excepted); use of what an asynchronous copy has not delivered yet;
// collectives that not all lanes reach, or in different places; deadlock. Each
// byte of shared memory starts as 0xFF. A copy's bytes arrive when they are
// waited for, and are 0xFF before. It does not model time, registers, weak
// ordering of global memory between blocks, or the order in which tensor cores
// add.
//
// Declared here (blockmgr::simt):
//   SIMT_KERNEL(threads, min_blocks_per_sm)   SIMT_DEVICE   SIMT_UNROLL
//   uint32_t ThreadIndex(), Lane(), Warp(), NumThreads();
//   uint32_t BlockX(), BlockY(), BlockZ(), NumBlocksX(), -Y(), -Z();
//   void AwaitEarlierKernels();      until what the stream had before has ended
//     and can be seen; then lets the next kernel begin, which waits likewise
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
//     true in the last block to call it; then all blocks' earlier global writes
//     are visible to it. The counter starts at 0 and is 0 again afterwards.
//   Vector16 LoadGlobal16(const void*);  void StoreGlobal16(void*, Vector16);
//   int32_t LoadUncached(const int32_t*);   leaves nothing in the SM's cache
//   void CopyAsync16(void* shared, const void* global, bool valid);  16 bytes,
//     zeros if not valid (`global` is then not read, but must not be null)
//   void CommitCopies();  void WaitCopies<N>();  at most N groups pending;
//     own copies only: a barrier makes them visible to others
//   void LoadMatrix4(uint32_t (&r)[4], const void* row);             C,
//   ldmatrix void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row);   C
//   uint32_t MoveMatrixTransposed(uint32_t);                         C
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
  // One thread's fences do for all: what the others wrote comes before them by
  // the first barrier, and what they read after them by the second.
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
