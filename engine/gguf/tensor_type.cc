#include "engine/gguf/tensor_type.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"

namespace blockmgr {
namespace {

// Numbers are copied as they are in the file.
static_assert(std::endian::native == std::endian::little);

struct TypeFacts {
  absl::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};

constexpr TypeFacts Facts(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {"F32", 1, 4};
    case TensorType::kF16:
      return {"F16", 1, 2};
    case TensorType::kBF16:
      return {"BF16", 1, 2};
    case TensorType::kQ8_0:
      return {"Q8_0", 32, 2 + 32};
    case TensorType::kQ4_1:
      return {"Q4_1", 32, 2 + 2 + 16};
    case TensorType::kQ5_0:
      return {"Q5_0", 32, 2 + 4 + 16};
    case TensorType::kQ4_K:
      return {"Q4_K", 256, 2 + 2 + 12 + 128};
    case TensorType::kQ6_K:
      return {"Q6_K", 256, 128 + 64 + 16 + 2};
  }
  return {};
}

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float LoadF16(const std::byte* bytes) {
  return FromFloat16(Load<uint16_t>(bytes));
}

int32_t Unsigned(std::byte byte) { return std::to_integer<int32_t>(byte); }
int32_t Signed(std::byte byte) { return std::to_integer<int8_t>(byte); }
int32_t Low(std::byte byte) { return Unsigned(byte) & 15; }
int32_t High(std::byte byte) { return Unsigned(byte) >> 4; }

// Writes one block. Products of a scale and integers are exact in fp32, but for
// the last operation.
template <TensorType type>
void DequantizeBlock(const std::byte* block, float* elements);

template <>
void DequantizeBlock<TensorType::kF32>(const std::byte* block,
                                       float* elements) {
  *elements = Load<float>(block);
}

template <>
void DequantizeBlock<TensorType::kF16>(const std::byte* block,
                                       float* elements) {
  *elements = LoadF16(block);
}

template <>
void DequantizeBlock<TensorType::kBF16>(const std::byte* block,
                                        float* elements) {
  *elements = FromBFloat16(Load<uint16_t>(block));
}

template <>
void DequantizeBlock<TensorType::kQ8_0>(const std::byte* block,
                                        float* elements) {
  const float scale = LoadF16(block);
  for (int i = 0; i < 32; ++i) {
    elements[i] = scale * static_cast<float>(Signed(block[2 + i]));
  }
}

// The low halves of the bytes are the first 16 elements.
template <>
void DequantizeBlock<TensorType::kQ4_1>(const std::byte* block,
                                        float* elements) {
  const float scale = LoadF16(block);
  const float minimum = LoadF16(block + 2);
  const std::byte* quants = block + 4;
  for (int i = 0; i < 16; ++i) {
    elements[i] = scale * static_cast<float>(Low(quants[i])) + minimum;
    elements[i + 16] = scale * static_cast<float>(High(quants[i])) + minimum;
  }
}

template <>
void DequantizeBlock<TensorType::kQ5_0>(const std::byte* block,
                                        float* elements) {
  const float scale = LoadF16(block);
  const auto fifths = Load<uint32_t>(block + 2);
  const std::byte* quants = block + 6;
  for (int i = 0; i < 16; ++i) {
    const int32_t low_fifth = static_cast<int32_t>(fifths >> i & 1u) << 4;
    const int32_t high_fifth = static_cast<int32_t>(fifths >> (i + 16) & 1u)
                               << 4;
    elements[i] = scale * static_cast<float>((Low(quants[i]) | low_fifth) - 16);
    elements[i + 16] =
        scale * static_cast<float>((High(quants[i]) | high_fifth) - 16);
  }
}

// The scale and the minimum of 32 elements of Q4_K, 6 bits each:
//
//   byte i      (i < 4)   |two upper bits of scale i + 4  | scale i  |
//   byte i + 4            |two upper bits of minimum i + 4| minimum i|
//   byte i + 8            |low half of minimum i + 4|low half of scale i + 4|
struct SmallScale {
  int32_t scale;
  int32_t minimum;
};

SmallScale SmallScaleAt(const std::byte* packed, int64_t i) {
  if (i < 4) {
    return {Unsigned(packed[i]) & 63, Unsigned(packed[i + 4]) & 63};
  }
  return {Low(packed[i + 4]) | Unsigned(packed[i - 4]) >> 6 << 4,
          High(packed[i + 4]) | Unsigned(packed[i]) >> 6 << 4};
}

// 32 bytes hold 64 elements: the first 32 in the low halves.
template <>
void DequantizeBlock<TensorType::kQ4_K>(const std::byte* block,
                                        float* elements) {
  const float scale = LoadF16(block);
  const float minimum = LoadF16(block + 2);
  for (int64_t part = 0; part < 8; ++part) {
    const SmallScale small = SmallScaleAt(block + 4, part);
    const float part_scale = scale * static_cast<float>(small.scale);
    const float part_minimum = minimum * static_cast<float>(small.minimum);
    const std::byte* quants = block + 16 + part / 2 * 32;
    for (int64_t i = 0; i < 32; ++i) {
      const int32_t quant = part % 2 == 0 ? Low(quants[i]) : High(quants[i]);
      elements[part * 32 + i] =
          part_scale * static_cast<float>(quant) - part_minimum;
    }
  }
}

// A half has 128 elements: element 32 p + i has its lower bits in byte
// 32 (p % 2) + i, in the high half of the byte if p >= 2, and its upper bits
// in byte i, from bit 2 p on.
template <>
void DequantizeBlock<TensorType::kQ6_K>(const std::byte* block,
                                        float* elements) {
  const float scale = LoadF16(block + 208);
  for (int64_t part = 0; part < 8; ++part) {
    const int64_t half = part / 4;
    const int64_t p = part % 4;
    const std::byte* lower = block + half * 64 + p % 2 * 32;
    const std::byte* upper = block + 128 + half * 32;
    const std::byte* small = block + 192 + part * 2;
    for (int64_t i = 0; i < 32; ++i) {
      const float part_scale =
          scale * static_cast<float>(Signed(small[i / 16]));
      const int32_t bits = p < 2 ? Low(lower[i]) : High(lower[i]);
      const int32_t quant = bits | (Unsigned(upper[i]) >> 2 * p & 3) << 4;
      elements[part * 32 + i] = part_scale * static_cast<float>(quant - 32);
    }
  }
}

template <TensorType type>
void DequantizeBlocks(std::span<const std::byte> row,
                      std::span<float> elements) {
  constexpr auto kElements = static_cast<size_t>(Facts(type).block_elements);
  constexpr auto kBytes = static_cast<size_t>(Facts(type).block_bytes);
  const size_t num_blocks = elements.size() / kElements;
  for (size_t i = 0; i < num_blocks; ++i) {
    DequantizeBlock<type>(row.data() + i * kBytes,
                          elements.data() + i * kElements);
  }
}

}  // namespace

bool IsKnown(uint32_t type) {
  return std::ranges::any_of(kTensorTypes, [type](TensorType known) {
    return static_cast<uint32_t>(known) == type;
  });
}

absl::string_view TensorTypeName(TensorType type) { return Facts(type).name; }

int64_t BlockElements(TensorType type) { return Facts(type).block_elements; }

int64_t BlockBytes(TensorType type) { return Facts(type).block_bytes; }

int64_t RowBytes(TensorType type, int64_t elements) {
  const TypeFacts facts = Facts(type);
  BM_CHECK(elements >= 0 && elements % facts.block_elements == 0);
  return elements / facts.block_elements * facts.block_bytes;
}

void DequantizeRow(TensorType type, std::span<const std::byte> row,
                   std::span<float> elements) {
  BM_CHECK(static_cast<int64_t>(row.size()) ==
           RowBytes(type, static_cast<int64_t>(elements.size())));
  switch (type) {
    case TensorType::kF32:
      return DequantizeBlocks<TensorType::kF32>(row, elements);
    case TensorType::kF16:
      return DequantizeBlocks<TensorType::kF16>(row, elements);
    case TensorType::kBF16:
      return DequantizeBlocks<TensorType::kBF16>(row, elements);
    case TensorType::kQ8_0:
      return DequantizeBlocks<TensorType::kQ8_0>(row, elements);
    case TensorType::kQ4_1:
      return DequantizeBlocks<TensorType::kQ4_1>(row, elements);
    case TensorType::kQ5_0:
      return DequantizeBlocks<TensorType::kQ5_0>(row, elements);
    case TensorType::kQ4_K:
      return DequantizeBlocks<TensorType::kQ4_K>(row, elements);
    case TensorType::kQ6_K:
      return DequantizeBlocks<TensorType::kQ6_K>(row, elements);
  }
}

}  // namespace blockmgr
