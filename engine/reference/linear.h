// Multiplies rows by a matrix. A row's result does not depend on other rows.
#ifndef ENGINE_REFERENCE_LINEAR_H_
#define ENGINE_REFERENCE_LINEAR_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// Output widths are a multiple of this, so that vector loops have no remainder.
inline constexpr int32_t kLinearMultiple = 16;

// Computes output[r] = input[r] * weights in fp32. Every output element has its
// own accumulator and is summed over `in` in ascending order. So the bits of a
// row are the same in every batch. Shapes, row-major: input [num_rows, in],
// weights [in, out], output [num_rows, out]; num_rows is output.size() / out.
// REQUIRES: out is a multiple of kLinearMultiple.
void Linear(std::span<const float> input, std::span<const float> weights,
            int32_t in, int32_t out, std::span<float> output);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_LINEAR_H_
