// A matrix of weights, packed for products with rows of activations.
#ifndef ENGINE_REFERENCE_PACKED_MATRIX_H_
#define ENGINE_REFERENCE_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/gguf/tensor_type.h"
#include "engine/reference/packed_products.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

// Memory of many matrices, side by side in huge pages where the system has
// them: eight sequences decode 8 % faster than with each matrix in pages of its
// own. The matrices share the memory, and free it when the last one is gone.
// Thread-compatible.
class WeightMemory {
 public:
  // Takes memory from the system by `chunk_bytes` or more.
  explicit WeightMemory(size_t chunk_bytes = size_t{16} << 20)
      : chunk_bytes_(chunk_bytes) {}

  // Returns zeros, aligned to a cache line. Throws std::bad_alloc.
  std::shared_ptr<uint8_t[]> Allocate(size_t bytes);

 private:
  const size_t chunk_bytes_;
  std::shared_ptr<uint8_t[]> chunk_;
  size_t chunk_size_ = 0;
  size_t num_used_ = 0;
};

// A PackedMatrix holds `out` rows of `in` weights, in about the bytes that the
// file has for them:
//
//   F32, F16, BF16, Q8_0, Q4_1   as many
//   Q5_0, Q6_K                   8.5 and 10 bits a weight: codes are bytes
//   Q4_K                         6 bits a weight: scales are multiplied out
//
// A product has one accumulator for each output element. The accumulator is
// fp32 and begins at zero. Products of inputs and weights are added to it with
// fused multiply-adds, over `in` in ascending order. A weight is its exact
// value, rounded to fp32 once, as DequantizeRow gives it. So the bits of a row
// of output depend neither on other rows nor on the number of threads, nor on
// the machine, unless it has no fused multiply-add.
//
// One row is bound by memory. A few rows (up to 4) unpack each weight into a
// register and use it for all. Some rows (up to 16) unpack a run of weights
// into a small buffer. More rows unpack panels of weights into a buffer of 64
// KiB on the stack.
//
// Copies share the weights. Thread-safe: immutable once packed.
class PackedMatrix {
 public:
  // An empty matrix.
  PackedMatrix() = default;

  // Packs rows of `in` elements each. Output i is row row_order[i], or row i if
  // row_order is empty. REQUIRES: `in` is a positive multiple of
  // BlockElements(type), out > 0, rows.size() is RowBytes(type, in) * the
  // number of rows, which is `out` if row_order is empty, and row_order has
  // `out` elements below it.
  static PackedMatrix Pack(TensorType type, int32_t in, int32_t out,
                           std::span<const std::byte> rows,
                           std::span<const int32_t> row_order = {},
                           WeightMemory* memory = nullptr);

  int32_t in() const { return in_; }
  int32_t out() const { return out_; }
  PackedFormat format() const { return format_; }
  // Returns the bytes of the packed weights.
  size_t num_bytes() const { return num_bytes_; }

  // Computes output[r] = matrix * input[r]. Shapes, row-major: input
  // [num_rows, in], output [num_rows, out]. Null `threads` stands for the
  // calling thread alone.
  void Multiply(std::span<const float> input, std::span<float> output,
                ThreadPool* threads) const;

  // Writes the weights of output `index`, exactly. Costs about what a product
  // of one row with 32 outputs does.
  void UnpackRow(int32_t index, std::span<float> weights) const;

 private:
  size_t num_groups() const;
  PackedView View() const;

  int32_t in_ = 0;
  int32_t out_ = 0;
  PackedFormat format_ = PackedFormat::kFloat32;
  size_t num_bytes_ = 0;
  std::shared_ptr<uint8_t[]> bytes_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_PACKED_MATRIX_H_
