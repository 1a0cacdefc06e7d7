// fp32 matrices as pairs of 16-bit ones, for tensor cores.
#ifndef KERNELS_CUDA_HOST_SPLIT_COVARIANCE_H_
#define KERNELS_CUDA_HOST_SPLIT_COVARIANCE_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/dtype.h"

namespace blockmgr {

// Splits a covariance [head_dim, head_dim] into parts [head_dim, 2, head_dim]
// of bf16 or fp16, as ExpectedParams has them: element (i, j) is the sum of its
// two parts times the unit that is returned, a power of two. It is off by no
// more than 2^-16 of itself in bf16, 2^-22 in fp16, or by 2^-38 of the largest
// element; by no more than 2^-120 in all where elements are that small. What is
// not finite makes its parts so.
float SplitCovariance(std::span<const float> covariance, int32_t head_dim,
                      DType dtype, std::span<uint16_t> parts);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_SPLIT_COVARIANCE_H_
