// Kernels that only read or only copy: the most that the memory of a device
// gives. Also elements for problems. For host code that knows CUDA.
#ifndef BENCH_CEILING_KERNELS_H_
#define BENCH_CEILING_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

// Reads num_vectors 16-byte vectors; `sink` is written for a sum that never
// comes.
cudaError_t LaunchReadCeiling(const void* from, int64_t num_vectors,
                              uint32_t* sink, int32_t num_blocks,
                              cudaStream_t stream);
cudaError_t LaunchCopyCeiling(const void* from, void* to, int64_t num_vectors,
                              int32_t num_blocks, cudaStream_t stream);
// out[i] = Element(seed, i) of kernel_problem.h, for i < count.
cudaError_t LaunchFillElements(uint16_t* out, int64_t count, uint64_t seed,
                               ElementType type, cudaStream_t stream);

}  // namespace blockmgr

#endif  // BENCH_CEILING_KERNELS_H_
