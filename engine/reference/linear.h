// Matrix times rows, such that a row's result never depends on the other rows.
#ifndef ENGINE_REFERENCE_LINEAR_H_
#define ENGINE_REFERENCE_LINEAR_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// Output widths must be a multiple of this: no vector has a remainder.
inline constexpr int32_t kLinearMultiple = 16;

// output[r] = input[r] * weights, in fp32. Every output element is summed over
// `in` in ascending order with an accumulator of its own, so a row's bits are
// the same whether it is computed alone or among others.
// input: [num_rows, in], weights: [in, out], output: [num_rows, out],
// row-major; num_rows is output.size() / out. REQUIRES: out is a multiple of
// kLinearMultiple.
void Linear(std::span<const float> input, std::span<const float> weights,
            int32_t in, int32_t out, std::span<float> output);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_LINEAR_H_
