// The arithmetic of a transformer between its matrix products, on rows of
// activations.
//
// The bits of an element depend on its row alone, or on the element alone where
// the function works on elements. They depend neither on other rows nor on the
// element's place in a vector.
#ifndef ENGINE_REFERENCE_ROW_OPS_H_
#define ENGINE_REFERENCE_ROW_OPS_H_

#include <cstddef>
#include <span>

namespace blockmgr {

// Computes RMSNorm of each row: x * gain / sqrt(mean(x^2) + epsilon). Shapes:
// rows and normalized [num_rows, width], gains [width]. `normalized` may be
// `rows`.
void NormalizeRows(std::span<const float> rows, std::span<const float> gains,
                   float epsilon, std::span<float> normalized);

// Computes gate = silu(gate) * up, where silu(x) = x / (1 + exp(-x)).
void GateWithSilu(std::span<const float> up, std::span<float> gate);

// Computes gate = gelu(gate) * up. gelu is the approximation with tanh, and
// x (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)).
void GateWithGelu(std::span<const float> up, std::span<float> gate);

// Rotates pairs of elements (rotate-half): element i of a head pairs with
// element i + half. Shapes: rows [num_rows, num_heads, 2 * half], cosines and
// sines [num_rows, half].
void RotateRows(std::span<const float> cosines, std::span<const float> sines,
                size_t half, std::span<float> rows);

// Computes sums += rows.
void AddRows(std::span<const float> rows, std::span<float> sums);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_ROW_OPS_H_
