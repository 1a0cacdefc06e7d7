// Splits fp32 matrices into pairs of 16-bit matrices, for tensor cores.
#ifndef KERNELS_CUDA_HOST_SPLIT_COVARIANCE_H_
#define KERNELS_CUDA_HOST_SPLIT_COVARIANCE_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/dtype.h"

namespace blockmgr {

// Splits a covariance [head_dim, head_dim] into parts [head_dim, 2, head_dim]
// of bf16 or fp16, as ExpectedParams needs them. Element (i, j) is the sum of
// its two parts times the unit. Returns the unit, a power of two. The error of
// an element is at most 2^-16 of the element in bf16 and 2^-22 in fp16, or
// 2^-38 of the largest element. If all elements are small, the error is at most
// 2^-120. An element that is not finite gives parts that are not finite.
float SplitCovariance(std::span<const float> covariance, int32_t head_dim,
                      DType dtype, std::span<uint16_t> parts);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_SPLIT_COVARIANCE_H_
