#include "tests/testing/gguf_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"

namespace blockmgr {

void AppendGgufString(absl::string_view text, std::string* bytes) {
  AppendNumber(uint64_t{text.size()}, bytes);
  absl::StrAppend(bytes, text);
}

void GgufWriter::Add(absl::string_view key, absl::string_view value) {
  std::string bytes;
  AppendGgufString(value, &bytes);
  AddValue(key, kGgufString, bytes);
}

void GgufWriter::Add(absl::string_view key,
                     const std::vector<std::string>& values) {
  std::string bytes;
  for (const std::string& value : values) AppendGgufString(value, &bytes);
  AddArray(key, kGgufString, values.size(), bytes);
}

void GgufWriter::SetAlignment(uint32_t alignment) {
  BM_CHECK(data_.empty());
  alignment_ = alignment;
  Add("general.alignment", alignment);
}

void GgufWriter::AddTensor(absl::string_view name, TensorType type,
                           std::span<const int64_t> shape,
                           std::span<const std::byte> data) {
  Align(&data_);
  const std::vector<uint64_t> sizes(shape.begin(), shape.end());
  AddTensorInfo(name, sizes, static_cast<uint32_t>(type), data_.size());
  AddData({reinterpret_cast<const char*>(data.data()), data.size()});
}

std::string GgufWriter::Finish() const {
  std::string file = "GGUF";
  AppendNumber(version_, &file);
  AppendNumber(num_tensors_, &file);
  AppendNumber(num_keys_, &file);
  file += keys_;
  file += tensors_;
  Align(&file);
  file += data_;
  return file;
}

void GgufWriter::AddValue(absl::string_view key, uint32_t type,
                          absl::string_view bytes) {
  AppendGgufString(key, &keys_);
  AppendNumber(type, &keys_);
  absl::StrAppend(&keys_, bytes);
  ++num_keys_;
}

void GgufWriter::AddArray(absl::string_view key, uint32_t type, uint64_t count,
                          absl::string_view bytes) {
  std::string array;
  AppendNumber(type, &array);
  AppendNumber(count, &array);
  absl::StrAppend(&array, bytes);
  AddValue(key, kGgufArray, array);
}

void GgufWriter::AddTensorInfo(absl::string_view name,
                               std::span<const uint64_t> shape, uint32_t type,
                               uint64_t offset) {
  AppendGgufString(name, &tensors_);
  AppendNumber(static_cast<uint32_t>(shape.size()), &tensors_);
  for (const uint64_t size : shape) AppendNumber(size, &tensors_);
  AppendNumber(type, &tensors_);
  AppendNumber(offset, &tensors_);
  ++num_tensors_;
}

void GgufWriter::Align(std::string* bytes) const {
  if (alignment_ == 0) return;
  bytes->resize((bytes->size() + alignment_ - 1) / alignment_ * alignment_);
}

namespace {

// Bytes of a row in the making.
class RowBuilder {
 public:
  void Byte(int32_t value) {
    row_.push_back(static_cast<std::byte>(value & 0xFF));
  }
  void Half(float value) {
    const uint16_t bits = ToFloat16(value);
    Byte(bits);
    Byte(bits >> 8);
  }
  template <typename T>
  void Number(T value) {
    std::string bytes;
    AppendNumber(value, &bytes);
    for (const char byte : bytes) Byte(byte);
  }
  std::vector<std::byte> Finish() && { return std::move(row_); }

 private:
  std::vector<std::byte> row_;
};

// The value that fp16 has of it.
float AsHalf(float value) { return FromFloat16(ToFloat16(value)); }

// The nearest whole multiple of `unit`, in [low, high].
int32_t Multiple(float value, float unit, int32_t low, int32_t high) {
  if (unit == 0) return std::clamp(0, low, high);
  const float multiple = std::round(value / unit);
  return static_cast<int32_t>(
      std::clamp(multiple, static_cast<float>(low), static_cast<float>(high)));
}

float Largest(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  return largest;
}

void QuantizeQ80(std::span<const float> values, RowBuilder* row) {
  const float scale = AsHalf(std::abs(Largest(values)) / 127);
  row->Half(scale);
  for (const float value : values) {
    row->Byte(Multiple(value, scale, -128, 127));
  }
}

void QuantizeQ41(std::span<const float> values, RowBuilder* row) {
  const auto [low, high] = std::ranges::minmax(values);
  const float minimum = AsHalf(low);
  const float scale = AsHalf((high - low) / 15);
  row->Half(scale);
  row->Half(minimum);
  for (size_t i = 0; i < 16; ++i) {
    row->Byte(Multiple(values[i] - minimum, scale, 0, 15) |
              Multiple(values[i + 16] - minimum, scale, 0, 15) << 4);
  }
}

// The largest value becomes -16.
void QuantizeQ50(std::span<const float> values, RowBuilder* row) {
  const float scale = AsHalf(Largest(values) / -16);
  std::array<int32_t, 32> quants;
  uint32_t fifths = 0;
  for (size_t i = 0; i < 32; ++i) {
    quants[i] = Multiple(values[i], scale, -16, 15) + 16;
    fifths |= static_cast<uint32_t>(quants[i] >> 4) << i;
  }
  row->Half(scale);
  row->Number(fifths);
  for (size_t i = 0; i < 16; ++i) {
    row->Byte((quants[i] & 15) | (quants[i + 16] & 15) << 4);
  }
}

// 32 elements are scale * small_scale * quant - minimum * small_minimum.
void QuantizeQ4K(std::span<const float> values, RowBuilder* row) {
  std::array<float, 8> scales;
  std::array<float, 8> minimums;
  for (size_t part = 0; part < 8; ++part) {
    const auto [low, high] = std::ranges::minmax(values.subspan(part * 32, 32));
    minimums[part] = std::max(-low, 0.0f);
    scales[part] = std::max(high + minimums[part], 0.0f) / 15;
  }
  const float scale = AsHalf(Largest(scales) / 63);
  const float minimum = AsHalf(Largest(minimums) / 63);
  std::array<int32_t, 8> s;
  std::array<int32_t, 8> m;
  for (size_t part = 0; part < 8; ++part) {
    s[part] = Multiple(scales[part], scale, 0, 63);
    m[part] = Multiple(minimums[part], minimum, 0, 63);
  }
  row->Half(scale);
  row->Half(minimum);
  for (size_t i = 0; i < 4; ++i) row->Byte(s[i] | s[i + 4] >> 4 << 6);
  for (size_t i = 0; i < 4; ++i) row->Byte(m[i] | m[i + 4] >> 4 << 6);
  for (size_t i = 4; i < 8; ++i) row->Byte((s[i] & 15) | (m[i] & 15) << 4);
  const auto quant = [&](size_t part, size_t i) {
    const float above =
        values[part * 32 + i] + minimum * static_cast<float>(m[part]);
    return Multiple(above, scale * static_cast<float>(s[part]), 0, 15);
  };
  for (size_t part = 0; part < 8; part += 2) {
    for (size_t i = 0; i < 32; ++i) {
      row->Byte(quant(part, i) | quant(part + 1, i) << 4);
    }
  }
}

// 16 elements are scale * small_scale * (quant - 32).
void QuantizeQ6K(std::span<const float> values, RowBuilder* row) {
  std::array<float, 16> scales;
  for (size_t part = 0; part < 16; ++part) {
    scales[part] = Largest(values.subspan(part * 16, 16)) / -32;
  }
  const float scale = AsHalf(Largest(scales) / -128);
  std::array<int32_t, 16> small;
  std::array<int32_t, 256> quants;
  for (size_t part = 0; part < 16; ++part) {
    small[part] = Multiple(scales[part], scale, -128, 127);
    for (size_t i = part * 16; i < part * 16 + 16; ++i) {
      const float unit = scale * static_cast<float>(small[part]);
      quants[i] = Multiple(values[i], unit, -32, 31) + 32;
    }
  }
  for (size_t half = 0; half < 256; half += 128) {
    for (size_t i = half; i < half + 64; ++i) {
      row->Byte((quants[i] & 15) | (quants[i + 64] & 15) << 4);
    }
  }
  for (size_t half = 0; half < 256; half += 128) {
    for (size_t i = half; i < half + 32; ++i) {
      row->Byte(quants[i] >> 4 | quants[i + 32] >> 4 << 2 |
                quants[i + 64] >> 4 << 4 | quants[i + 96] >> 4 << 6);
    }
  }
  for (const int32_t value : small) row->Byte(value);
  row->Half(scale);
}

void QuantizeBlock(TensorType type, std::span<const float> values,
                   RowBuilder* row) {
  switch (type) {
    case TensorType::kF32:
      return row->Number(values[0]);
    case TensorType::kF16:
      return row->Half(values[0]);
    case TensorType::kBF16:
      return row->Number(ToBFloat16(values[0]));
    case TensorType::kQ8_0:
      return QuantizeQ80(values, row);
    case TensorType::kQ4_1:
      return QuantizeQ41(values, row);
    case TensorType::kQ5_0:
      return QuantizeQ50(values, row);
    case TensorType::kQ4_K:
      return QuantizeQ4K(values, row);
    case TensorType::kQ6_K:
      return QuantizeQ6K(values, row);
  }
}

}  // namespace

std::vector<std::byte> QuantizeRow(TensorType type,
                                   std::span<const float> values) {
  size_t block = 256;
  if (type == TensorType::kF32 || type == TensorType::kF16 ||
      type == TensorType::kBF16) {
    block = 1;
  } else if (type != TensorType::kQ4_K && type != TensorType::kQ6_K) {
    block = 32;
  }
  BM_CHECK(values.size() % block == 0);
  RowBuilder row;
  for (size_t i = 0; i < values.size(); i += block) {
    QuantizeBlock(type, values.subspan(i, block), &row);
  }
  return std::move(row).Finish();
}

}  // namespace blockmgr
