// The inner loops of PackedMatrix: products of rows with packed weights.
//
// Weights are packed by groups of kPackedColumns output columns, so that a
// vector of columns is contiguous in memory. A group is a sequence of blocks
// along `in`, and a block holds scales of its columns, then codes:
//
//   kNibbles  32 elements  |scale[32]|minimum[32]|word[4][32]|
//   kBytes16  32 elements  |scale[32]|word[8][32]|
//   kBytes32  16 elements  |scale[32]|word[4][32]|
//   kFloat    1 element    |weight[32]|
//
// A word has four bytes of one column. In kBytes, byte b of word w is the code
// of element 4 w + b, with a sign. In kNibbles it has the code of element
// 4 w + b in its low half and of element 16 + 4 w + b in its high half. A
// weight is code * scale + minimum. The last group is padded with weights of
// zero.
#ifndef ENGINE_REFERENCE_PACKED_PRODUCTS_H_
#define ENGINE_REFERENCE_PACKED_PRODUCTS_H_

#include <cstddef>
#include <cstdint>

namespace blockmgr {

inline constexpr size_t kPackedColumns = 32;
// Bytes behind the last group that are read, but not used.
inline constexpr size_t kPackedPadding = 64;

// The numbers are the bits of a scale, or of a weight without one.
enum class PackedFormat {
  kFloat32,
  kFloat16,
  kBFloat16,
  kNibbles16,
  kNibbles32,
  kBytes16,
  kBytes32,
};

// Returns the elements of a block along `in`.
constexpr size_t PackedBlockElements(PackedFormat format) {
  switch (format) {
    case PackedFormat::kNibbles16:
    case PackedFormat::kNibbles32:
    case PackedFormat::kBytes16:
      return 32;
    case PackedFormat::kBytes32:
      return 16;
    default:
      return 1;
  }
}

// Returns the bytes of a block, of all columns of a group.
constexpr size_t PackedBlockBytes(PackedFormat format) {
  switch (format) {
    case PackedFormat::kFloat32:
      return kPackedColumns * 4;
    case PackedFormat::kFloat16:
    case PackedFormat::kBFloat16:
      return kPackedColumns * 2;
    case PackedFormat::kNibbles16:
      return kPackedColumns * (2 + 2 + 16);
    case PackedFormat::kNibbles32:
      return kPackedColumns * (4 + 4 + 16);
    case PackedFormat::kBytes16:
      return kPackedColumns * (2 + 32);
    case PackedFormat::kBytes32:
      return kPackedColumns * (4 + 16);
  }
  return 0;
}

// A packed matrix, borrowed. Group g begins at groups + g * group_bytes, which
// is aligned to a cache line.
struct PackedView {
  PackedFormat format;
  size_t in;
  size_t out;
  size_t group_bytes;
  const uint8_t* groups;
};

// Computes the columns of groups first_group .. last_group - 1 of the product.
// Shapes: input [num_rows, in], output [num_rows, out].
void MultiplyGroups(const PackedView& matrix, size_t first_group,
                    size_t last_group, const float* input, size_t num_rows,
                    float* output);

// Writes the weights of one column.
void UnpackColumn(const PackedView& matrix, size_t column, float* weights);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_PACKED_PRODUCTS_H_
