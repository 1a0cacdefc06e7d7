// The element types of GGUF tensors: names, sizes, and conversion to fp32.
//
// A row of a tensor is a sequence of blocks. A block has BlockElements(type)
// elements in BlockBytes(type) bytes, in little endian:
//
//   Q8_0   |d       |int8 q[32]                           |  d q
//   Q4_1   |d  |m   |4 bits q[32]                         |  d q + m
//   Q5_0   |d       |fifth bits q[32]|4 bits q[32]        |  d (q - 16)
//   Q4_K   |d  |e   |6 bits s[8], 6 bits m[8]|4 bits q[8][32]
//                                                         |  d s q - e m
//   Q6_K   |4 bits q[256]|upper 2 bits q[256]|int8 s[16]|d|  d s (q - 32)
//
// d, e and the m of Q4_1 are fp16. s and m of Q4_K belong to 32 elements, s of
// Q6_K to 16.
#ifndef ENGINE_GGUF_TENSOR_TYPE_H_
#define ENGINE_GGUF_TENSOR_TYPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <absl/strings/string_view.h>

namespace blockmgr {

// The numbers are those of the format.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30,
};

inline constexpr std::array kTensorTypes = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ4_K, TensorType::kQ6_K};

// Returns whether the number is one of kTensorTypes. The format has more types.
bool IsKnown(uint32_t type);

// Returns for example "Q4_K".
absl::string_view TensorTypeName(TensorType type);

// Returns 1, 32 or 256. The rows of a tensor have a multiple of it.
int64_t BlockElements(TensorType type);
int64_t BlockBytes(TensorType type);

// REQUIRES: elements is a multiple of BlockElements(type), and the result is
// representable.
int64_t RowBytes(TensorType type, int64_t elements);

// Writes the elements of a row as fp32. The bytes need no alignment. The result
// is the exact value of the formula above, rounded once. REQUIRES: row.size()
// is RowBytes(type, elements.size()).
void DequantizeRow(TensorType type, std::span<const std::byte> row,
                   std::span<float> elements);

}  // namespace blockmgr

#endif  // ENGINE_GGUF_TENSOR_TYPE_H_
