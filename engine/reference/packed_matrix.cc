#include "engine/reference/packed_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"

namespace blockmgr {
namespace {

// Fewer multiplications than this, some 20 us of them, are not worth a second
// thread.
constexpr size_t kMinProducts = 1 << 17;
// Pieces for each thread. More pieces even out how fast threads are.
constexpr size_t kPiecesPerThread = 4;

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

PackedFormat FormatOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return PackedFormat::kFloat32;
    case TensorType::kF16:
      return PackedFormat::kFloat16;
    case TensorType::kBF16:
      return PackedFormat::kBFloat16;
    case TensorType::kQ4_1:
      return PackedFormat::kNibbles16;
    case TensorType::kQ4_K:
      return PackedFormat::kNibbles32;
    case TensorType::kQ5_0:
    case TensorType::kQ8_0:
      return PackedFormat::kBytes16;
    case TensorType::kQ6_K:
      return PackedFormat::kBytes32;
  }
  return PackedFormat::kFloat32;
}

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void Store(T value, uint8_t* bytes) {
  std::memcpy(bytes, &value, sizeof(T));
}

int32_t Unsigned(std::byte byte) { return std::to_integer<int32_t>(byte); }

// Writes codes, nibbles or bytes, by words of four bytes.
void PackCodes(const void* codes, size_t num_bytes, uint8_t* words) {
  const auto* from = static_cast<const std::byte*>(codes);
  for (size_t i = 0; i < num_bytes; i += 4) {
    std::memcpy(words + i * kPackedColumns, from + i, 4);
  }
}

// Writes a row of numbers that have no blocks.
template <typename T>
void PackFloats(const std::byte* row, size_t in, uint8_t* group,
                size_t column) {
  for (size_t i = 0; i < in; ++i) {
    std::memcpy(group + (i * kPackedColumns + column) * sizeof(T),
                row + i * sizeof(T), sizeof(T));
  }
}

// PackQ41 .. PackQ6K write one block of a row as a column of the group's packed
// block, or blocks, with the same elements.
void PackQ41(const std::byte* block, uint8_t* group, size_t column) {
  Store(Load<uint16_t>(block), group + column * 2);
  Store(Load<uint16_t>(block + 2), group + (kPackedColumns + column) * 2);
  PackCodes(block + 4, 16, group + kPackedColumns * 4 + column * 4);
}

void PackQ80(const std::byte* block, uint8_t* group, size_t column) {
  Store(Load<uint16_t>(block), group + column * 2);
  PackCodes(block + 2, 32, group + kPackedColumns * 2 + column * 4);
}

void PackQ50(const std::byte* block, uint8_t* group, size_t column) {
  Store(Load<uint16_t>(block), group + column * 2);
  const auto fifths = Load<uint32_t>(block + 2);
  int8_t codes[32];
  for (int32_t i = 0; i < 32; ++i) {
    const int32_t nibble = Unsigned(block[6 + i % 16]) >> (i < 16 ? 0 : 4) & 15;
    const auto fifth = static_cast<int32_t>(fifths >> i & 1u);
    codes[i] = static_cast<int8_t>((nibble | fifth << 4) - 16);
  }
  PackCodes(codes, 32, group + kPackedColumns * 2 + column * 4);
}

// Six-bit scale i and minimum i of Q4_K. The first four of each are the low
// bits of their bytes; the upper bits of these bytes belong to the last four.
struct SmallScale {
  int32_t scale;
  int32_t minimum;
};

SmallScale SmallScaleAt(const std::byte* packed, size_t i) {
  const int32_t a = Unsigned(packed[i % 4]);
  const int32_t b = Unsigned(packed[i % 4 + 4]);
  if (i < 4) return {a & 63, b & 63};
  const int32_t halves = Unsigned(packed[i + 4]);
  return {(halves & 15) | a >> 6 << 4, halves >> 4 | b >> 6 << 4};
}

void PackQ4K(const std::byte* block, uint8_t* group, size_t column) {
  const float scale = FromFloat16(Load<uint16_t>(block));
  const float minimum = FromFloat16(Load<uint16_t>(block + 2));
  for (size_t part = 0; part < 8; ++part) {
    const SmallScale small = SmallScaleAt(block + 4, part);
    uint8_t* to = group + part * PackedBlockBytes(PackedFormat::kNibbles32);
    Store(scale * static_cast<float>(small.scale), to + column * 4);
    Store(-(minimum * static_cast<float>(small.minimum)),
          to + (kPackedColumns + column) * 4);
    // Two parts share 32 bytes: the even one has the low halves.
    std::byte nibbles[16];
    const std::byte* from = block + 16 + part / 2 * 32;
    for (size_t i = 0; i < 16; ++i) {
      const std::byte first = part % 2 == 0 ? from[i] : from[i] >> 4;
      const std::byte second = part % 2 == 0 ? from[i + 16] << 4 : from[i + 16];
      nibbles[i] = (first & std::byte{0x0f}) | (second & std::byte{0xf0});
    }
    PackCodes(nibbles, 16, to + kPackedColumns * 8 + column * 4);
  }
}

void PackQ6K(const std::byte* block, uint8_t* group, size_t column) {
  const float scale = FromFloat16(Load<uint16_t>(block + 208));
  for (size_t part = 0; part < 16; ++part) {
    uint8_t* to = group + part * PackedBlockBytes(PackedFormat::kBytes32);
    const auto small = static_cast<float>(Load<int8_t>(block + 192 + part));
    Store(scale * small, to + column * 4);
    // Eight parts are a half: 64 bytes of lower bits, 32 of upper bits. Four
    // runs of 32 elements share the upper bits, two and two the lower ones.
    const size_t run = part / 2 % 4;
    const size_t first = part % 2 * 16;
    const std::byte* lower = block + part / 8 * 64 + run % 2 * 32 + first;
    const std::byte* upper = block + 128 + part / 8 * 32 + first;
    int8_t codes[16];
    for (size_t i = 0; i < 16; ++i) {
      const int32_t code = (Unsigned(lower[i]) >> (run < 2 ? 0 : 4) & 15) |
                           (Unsigned(upper[i]) >> 2 * run & 3) << 4;
      codes[i] = static_cast<int8_t>(code - 32);
    }
    PackCodes(codes, 16, to + kPackedColumns * 4 + column * 4);
  }
}

// Packs one row of `in` elements as a column of its group.
void PackRow(TensorType type, size_t in, const std::byte* row, uint8_t* group,
             size_t column) {
  if (type == TensorType::kF32) {
    return PackFloats<float>(row, in, group, column);
  }
  if (type == TensorType::kF16 || type == TensorType::kBF16) {
    return PackFloats<uint16_t>(row, in, group, column);
  }
  const auto pack = type == TensorType::kQ8_0   ? PackQ80
                    : type == TensorType::kQ4_1 ? PackQ41
                    : type == TensorType::kQ5_0 ? PackQ50
                    : type == TensorType::kQ4_K ? PackQ4K
                                                : PackQ6K;
  const PackedFormat format = FormatOf(type);
  const auto block_elements = static_cast<size_t>(BlockElements(type));
  const auto block_bytes = static_cast<size_t>(BlockBytes(type));
  const size_t packed_bytes =
      block_elements / PackedBlockElements(format) * PackedBlockBytes(format);
  for (size_t block = 0; block < in / block_elements; ++block) {
    pack(row + block * block_bytes, group + block * packed_bytes, column);
  }
}

size_t DivideUp(size_t a, size_t b) { return (a + b - 1) / b; }
size_t RoundUp(size_t a, size_t b) { return DivideUp(a, b) * b; }

}  // namespace

std::shared_ptr<uint8_t[]> WeightMemory::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, kCacheLineBytes);
  if (bytes > chunk_size_ - num_used_) {
    const size_t size = std::max(bytes, chunk_bytes_);
    const size_t page =
        size < kHugePageBytes ? kCacheLineBytes : kHugePageBytes;
    const size_t chunk_size = RoundUp(size, page);
    void* memory = std::aligned_alloc(page, chunk_size);
    if (memory == nullptr) throw std::bad_alloc();
    chunk_size_ = chunk_size;
    num_used_ = 0;
    // A system without huge pages refuses, which is no mistake.
    if (page == kHugePageBytes) madvise(memory, chunk_size_, MADV_HUGEPAGE);
    chunk_.reset(static_cast<uint8_t*>(memory), std::free);
  }
  uint8_t* begin = chunk_.get() + num_used_;
  num_used_ += bytes;
  std::memset(begin, 0, bytes);
  return {chunk_, begin};
}

PackedMatrix PackedMatrix::Pack(TensorType type, int32_t in, int32_t out,
                                std::span<const std::byte> rows,
                                std::span<const int32_t> row_order,
                                WeightMemory* memory) {
  BM_CHECK(in > 0 && out > 0 && in % BlockElements(type) == 0);
  BM_CHECK(row_order.empty() || std::ssize(row_order) == out);
  PackedMatrix matrix;
  matrix.in_ = in;
  matrix.out_ = out;
  matrix.format_ = FormatOf(type);
  const auto row_bytes = static_cast<size_t>(RowBytes(type, in));
  const size_t num_rows = rows.size() / row_bytes;
  BM_CHECK(rows.size() % row_bytes == 0);
  BM_CHECK(!row_order.empty() || num_rows == static_cast<size_t>(out));
  const PackedView view = matrix.View();
  matrix.num_bytes_ = matrix.num_groups() * view.group_bytes + kPackedPadding;
  WeightMemory own(0);
  matrix.bytes_ =
      (memory == nullptr ? own : *memory).Allocate(matrix.num_bytes_);
  uint8_t* groups = matrix.bytes_.get();
  for (size_t i = 0; i < static_cast<size_t>(out); ++i) {
    const size_t row =
        row_order.empty() ? i : static_cast<size_t>(row_order[i]);
    BM_CHECK(row < num_rows);
    PackRow(type, static_cast<size_t>(in), rows.data() + row * row_bytes,
            groups + i / kPackedColumns * view.group_bytes, i % kPackedColumns);
  }
  return matrix;
}

size_t PackedMatrix::num_groups() const {
  return DivideUp(static_cast<size_t>(out_), kPackedColumns);
}

PackedView PackedMatrix::View() const {
  const auto in = static_cast<size_t>(in_);
  return {.format = format_,
          .in = in,
          .out = static_cast<size_t>(out_),
          .group_bytes =
              in / PackedBlockElements(format_) * PackedBlockBytes(format_),
          .groups = bytes_.get()};
}

void PackedMatrix::Multiply(std::span<const float> input,
                            std::span<float> output,
                            ThreadPool* threads) const {
  if (output.empty()) return;
  const PackedView view = View();
  const size_t num_rows = output.size() / view.out;
  BM_CHECK(output.size() == num_rows * view.out);
  BM_CHECK(input.size() == num_rows * view.in);
  const size_t groups = num_groups();
  if (threads == nullptr || num_rows * view.in * view.out < kMinProducts) {
    MultiplyGroups(view, 0, groups, input.data(), num_rows, output.data());
    return;
  }
  const size_t per_piece = DivideUp(
      groups, static_cast<size_t>(threads->num_threads()) * kPiecesPerThread);
  threads->ParallelFor(
      static_cast<int32_t>(DivideUp(groups, per_piece)), [&](int32_t piece) {
        const size_t first = static_cast<size_t>(piece) * per_piece;
        MultiplyGroups(view, first, std::min(first + per_piece, groups),
                       input.data(), num_rows, output.data());
      });
}

void PackedMatrix::UnpackRow(int32_t index, std::span<float> weights) const {
  BM_CHECK(index >= 0 && index < out_ && std::ssize(weights) == in_);
  UnpackColumn(View(), static_cast<size_t>(index), weights.data());
}

}  // namespace blockmgr
