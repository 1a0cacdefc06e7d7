#include "engine/reference/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include "blockmgr/base/dtype.h"
#include "engine/gguf/tensor_type.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/every_target.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitizers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAreArray;

std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), [](float value) {
    return std::bit_cast<uint32_t>(value);
  });
  return bits;
}

std::vector<float> RandomInput(size_t size, Rng& rng) {
  std::vector<float> values(size);
  for (float& value : values) {
    value = static_cast<float>(RandomFraction(rng) * 2 - 1);
  }
  return values;
}

// Returns random bytes, with finite numbers where they are floating-point.
std::vector<std::byte> RandomRows(TensorType type, int64_t in, int64_t out,
                                  Rng& rng) {
  std::vector<std::byte> bytes(static_cast<size_t>(RowBytes(type, in) * out));
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(RandomInt(rng, 0, 255));
  }
  const auto put = [&](auto number, size_t at) {
    std::memcpy(bytes.data() + at, &number, sizeof(number));
  };
  const auto block_bytes = static_cast<size_t>(BlockBytes(type));
  for (size_t block = 0; block < bytes.size(); block += block_bytes) {
    // Some are zero, some are subnormal.
    const double magnitude = std::ldexp(1.0, RandomInt(rng, -26, 0));
    const auto number =
        static_cast<float>((RandomFraction(rng) * 2 - 1) * magnitude);
    switch (type) {
      case TensorType::kF32:
        put(number, block);
        break;
      case TensorType::kBF16:
        put(ToBFloat16(number), block);
        break;
      case TensorType::kQ6_K:
        put(ToFloat16(number), block + 208);
        break;
      case TensorType::kQ4_1:
      case TensorType::kQ4_K:
        put(ToFloat16(number / 3), block + 2);
        [[fallthrough]];
      default:
        put(ToFloat16(number), block);
    }
  }
  return bytes;
}

// Rows of a tensor, as DequantizeRow gives them.
std::vector<std::vector<float>> Dequantized(TensorType type, int32_t in,
                                            std::span<const std::byte> rows) {
  const auto row_bytes = static_cast<size_t>(RowBytes(type, in));
  std::vector<std::vector<float>> weights;
  for (size_t at = 0; at < rows.size(); at += row_bytes) {
    weights.emplace_back(static_cast<size_t>(in));
    DequantizeRow(type, rows.subspan(at, row_bytes), weights.back());
  }
  return weights;
}

// Computes the product as packed_matrix.h defines it.
std::vector<float> Product(const std::vector<std::vector<float>>& weights,
                           std::span<const float> input, bool fused) {
  std::vector<float> output;
  const size_t in = weights[0].size();
  for (size_t begin = 0; begin < input.size(); begin += in) {
    for (const std::vector<float>& row : weights) {
      float sum = 0;
      for (size_t i = 0; i < in; ++i) {
        const float x = input[begin + i];
        // Doubles keep the compiler from fusing these by itself.
        const auto product = static_cast<float>(double{x} * row[i]);
        sum = fused ? std::fma(x, row[i], sum)
                    : static_cast<float>(double{sum} + double{product});
      }
      output.push_back(sum);
    }
  }
  return output;
}

std::vector<float> Multiply(const PackedMatrix& matrix,
                            std::span<const float> input,
                            ThreadPool* threads = nullptr) {
  const auto in = static_cast<size_t>(matrix.in());
  const auto out = static_cast<size_t>(matrix.out());
  std::vector<float> output(input.size() / in * out, NAN);
  matrix.Multiply(input, output, threads);
  return output;
}

// A few blocks, of more elements than are unpacked at a time.
int32_t LongIn(TensorType type) {
  const auto block = static_cast<int32_t>(BlockElements(type));
  return (512 / block + 1) * block;
}

class PackedMatrixTest : public EveryTargetTest {
 protected:
  static bool Fuses() {
#if HWY_ARCH_X86
    return GetParam() < HWY_SSE4;  // better targets have lower numbers
#else
    return GetParam() != HWY_SCALAR && GetParam() != HWY_EMU128;
#endif
  }
};
BM_FOR_EVERY_TARGET(PackedMatrixTest);

TEST_P(PackedMatrixTest, SumsFusedMultiplyAddsOverInAscending) {
  constexpr size_t kMaxRows = 27;
  Rng rng(1);
  for (const TensorType type : kTensorTypes) {
    const auto block = static_cast<int32_t>(BlockElements(type));
    for (const int32_t in : {block, LongIn(type)}) {
      for (const int32_t out : {3, 70}) {
        SCOPED_TRACE(testing::Message()
                     << TensorTypeName(type) << " " << in << " x " << out);
        const std::vector<std::byte> rows = RandomRows(type, in, out, rng);
        const PackedMatrix matrix = PackedMatrix::Pack(type, in, out, rows);
        const std::vector<float> input =
            RandomInput(kMaxRows * static_cast<size_t>(in), rng);
        const std::vector<uint32_t> expected =
            Bits(Product(Dequantized(type, in, rows), input, Fuses()));
        for (const size_t num_rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 27}) {
          const std::vector<float> output = Multiply(
              matrix,
              std::span(input).first(num_rows * static_cast<size_t>(in)));
          EXPECT_TRUE(std::ranges::equal(
              Bits(output), std::span(expected).first(output.size())))
              << num_rows << " rows";
        }
      }
    }
  }
}

TEST_P(PackedMatrixTest, UnpacksWhatItPacked) {
  Rng rng(2);
  for (const TensorType type : kTensorTypes) {
    SCOPED_TRACE(TensorTypeName(type));
    const int32_t in = LongIn(type);
    const std::vector<std::byte> rows = RandomRows(type, in, 40, rng);
    const PackedMatrix matrix = PackedMatrix::Pack(type, in, 40, rows);
    const std::vector<std::vector<float>> expected =
        Dequantized(type, in, rows);
    for (int32_t row = 0; row < 40; ++row) {
      std::vector<float> weights(static_cast<size_t>(in));
      matrix.UnpackRow(row, weights);
      EXPECT_TRUE(Bits(weights) == Bits(expected[static_cast<size_t>(row)]));
    }
  }
}

TEST(PackedMatrixOrderTest, OutputsFollowTheRowOrder) {
  Rng rng(3);
  const std::vector<std::byte> rows =
      RandomRows(TensorType::kQ8_0, 64, 50, rng);
  const std::vector<int32_t> order = {49, 0, 7, 7, 31};
  const PackedMatrix matrix =
      PackedMatrix::Pack(TensorType::kQ8_0, 64, 5, rows, order);
  EXPECT_EQ(matrix.out(), 5);
  const std::vector<float> input = RandomInput(64, rng);
  const std::vector<float> all =
      Multiply(PackedMatrix::Pack(TensorType::kQ8_0, 64, 50, rows), input);
  EXPECT_THAT(Multiply(matrix, input),
              ElementsAreArray({all[49], all[0], all[7], all[7], all[31]}));
}

TEST(WeightMemoryTest, GivesZerosSideBySide) {
  for (const size_t chunk_bytes : {0, 1000, 5000000}) {
    std::vector<std::shared_ptr<uint8_t[]>> pieces;
    {
      WeightMemory memory(chunk_bytes);
      for (size_t i = 0; i < 20; ++i) {
        const size_t bytes = i == 9 ? 3000000 : 100 * i + 1;
        pieces.push_back(memory.Allocate(bytes));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i].get()) % 64, 0);
        EXPECT_EQ(std::count(pieces[i].get(), pieces[i].get() + bytes, 0),
                  static_cast<ptrdiff_t>(bytes));
        std::memset(pieces[i].get(), static_cast<int>(i + 1), bytes);
      }
    }
    // Neither another piece nor the end of `memory` has changed a piece.
    for (size_t i = 0; i < pieces.size(); ++i) {
      const size_t bytes = i == 9 ? 3000000 : 100 * i + 1;
      EXPECT_EQ(std::count(pieces[i].get(), pieces[i].get() + bytes, i + 1),
                static_cast<ptrdiff_t>(bytes));
    }
  }
}

TEST(WeightMemoryTest, ThrowsWhenTheSystemRefuses) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process";
  WeightMemory memory(size_t{1} << 62);
  EXPECT_THROW(memory.Allocate(1), std::bad_alloc);
}

TEST(WeightMemoryTest, MatricesOutliveIt) {
  Rng rng(8);
  const std::vector<std::byte> rows =
      RandomRows(TensorType::kQ4_1, 64, 50, rng);
  const std::vector<float> input = RandomInput(64, rng);
  std::vector<PackedMatrix> matrices;
  {
    WeightMemory memory;
    for (int32_t i = 0; i < 3; ++i) {
      matrices.push_back(
          PackedMatrix::Pack(TensorType::kQ4_1, 64, 50, rows, {}, &memory));
    }
  }
  matrices.pop_back();
  const std::vector<float> expected =
      Multiply(PackedMatrix::Pack(TensorType::kQ4_1, 64, 50, rows), input);
  for (const PackedMatrix& matrix : matrices) {
    EXPECT_TRUE(Bits(Multiply(matrix, input)) == Bits(expected));
  }
}

TEST(PackedMatrixThreadsTest, BitsAreThoseOfOneThread) {
  Rng rng(4);
  const int32_t in = 256;
  const int32_t out = 1100;
  const std::vector<std::byte> rows =
      RandomRows(TensorType::kQ4_1, in, out, rng);
  const PackedMatrix matrix =
      PackedMatrix::Pack(TensorType::kQ4_1, in, out, rows);
  for (const int32_t num_threads : {1, 2, 3, 100}) {
    ThreadPool threads(num_threads);
    for (const size_t num_rows : {1, 6, 40}) {
      const std::vector<float> input =
          RandomInput(num_rows * static_cast<size_t>(in), rng);
      EXPECT_TRUE(Bits(Multiply(matrix, input, &threads)) ==
                  Bits(Multiply(matrix, input)));
    }
  }
}

TEST(PackedMatrixSizeTest, TakesTwoBytesAWeightAtMost) {
  Rng rng(6);
  for (const TensorType type : kTensorTypes) {
    if (type == TensorType::kF32) continue;
    const std::vector<std::byte> rows = RandomRows(type, 512, 64, rng);
    EXPECT_LE(PackedMatrix::Pack(type, 512, 64, rows).num_bytes(),
              512 * 64 * 2 + 64)
        << TensorTypeName(type);
  }
}

}  // namespace
}  // namespace blockmgr
