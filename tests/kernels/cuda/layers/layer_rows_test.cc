// The arithmetic of layers on rows, and products, against float64.
#include "kernels/cuda/layers/layer_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Half of a unit in the last place, relative.
template <typename T>
constexpr double kRounding = std::is_same_v<T, simt::Half> ? 0x1p-11 : 0x1p-8;

SharedVector<float> RandomRow(int64_t count, float limit,
                              std::mt19937_64* random) {
  std::uniform_real_distribution<float> number(-limit, limit);
  SharedVector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = number(*random);
  return values;
}

template <typename T>
SharedVector<T> RandomElements(int64_t count, float limit,
                               std::mt19937_64* random) {
  SharedVector<T> elements;
  for (const float x : RandomRow(count, limit, random)) {
    elements.push_back(simt::FromFloat<T>(x));
  }
  return elements;
}

// ||got - expected|| <= limit * ||expected||
template <typename Got, typename Expected>
void ExpectNear(const Got& got, const Expected& expected, double limit) {
  ASSERT_EQ(got.size(), expected.size());
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    double x;
    if constexpr (std::is_floating_point_v<typename Got::value_type>) {
      x = double{got[i]};
    } else {
      x = double{simt::ToFloat(got[i])};
    }
    error += (x - expected[i]) * (x - expected[i]);
    norm += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm));
}

template <typename T>
class LayerRowsTest : public DeviceTest {
 protected:
  static constexpr ElementType kType = ElementTypeOf<T>();
};
using Elements = testing::Types<simt::BFloat16, simt::Half>;
TYPED_TEST_SUITE(LayerRowsTest, Elements);

TYPED_TEST(LayerRowsTest, EmbedsScaledRows) {
  using T = TypeParam;
  std::mt19937_64 random(1);
  const auto embedding = RandomElements<T>(5 * 48, 2.0f, &random);
  const auto tokens = Shared(std::vector<int32_t>{4, 0, 4});
  SharedVector<float> residual(3 * 48, kNan);
  ASSERT_EQ(RunKernel({}, &DeviceRuntime::Embed,
                      {.num_rows = 3,
                       .width = 48,
                       .tokens = tokens.data(),
                       .embedding = embedding.data(),
                       .scale = 1.5f,
                       .residual = residual.data()},
                      this->kType)
                .error,
            "");
  for (size_t i = 0; i < residual.size(); ++i) {
    const auto from = static_cast<size_t>(tokens[i / 48]) * 48 + i % 48;
    EXPECT_EQ(residual[i], 1.5f * simt::ToFloat(embedding[from])) << i;
  }
}

std::vector<double> RmsNorm(const std::vector<double>& row,
                            const SharedVector<float>& gains, double epsilon) {
  double sum = 0.0;
  for (const double x : row) sum += x * x;
  const double scale =
      1.0 / std::sqrt(sum / static_cast<double>(row.size()) + epsilon);
  std::vector<double> normalized;
  for (size_t i = 0; i < row.size(); ++i) {
    normalized.push_back(row[i] * scale * double{gains[i]});
  }
  return normalized;
}

// One warp, a few with an incomplete turn, and all warps of a block.
TYPED_TEST(LayerRowsTest, AddsWhatAHalfHasComputedAndNormalizes) {
  using T = TypeParam;
  for (const int32_t width : {32, 720, 2512}) {
    for (const bool has_gains : {false, true}) {
      std::mt19937_64 random(2);
      const auto before = RandomRow(2 * width, 3.0f, &random);
      const auto delta = RandomRow(2 * width, 2.0f, &random);
      const auto delta_gains = RandomRow(width, 1.0f, &random);
      const auto gains = RandomRow(width, 1.0f, &random);
      const auto scales = Shared(std::vector<float>{0.5f, 4.0f});
      SharedVector<float> residual;
      SharedVector<T> normalized;
      ExpectSchedulesDoNotMatter(
          [&](const simt::Schedule& schedule) {
            residual = before;
            normalized.assign(before.size(), T{0x7FFF});
            return RunKernel(
                       schedule, &DeviceRuntime::Normalize,
                       {.num_rows = 2,
                        .width = width,
                        .epsilon = 0.1f,
                        .residual = residual.data(),
                        .delta = delta.data(),
                        .delta_scales = scales.data(),
                        .delta_gains = has_gains ? delta_gains.data() : nullptr,
                        .gains = gains.data(),
                        .normalized = normalized.data()},
                       this->kType)
                .error;
          },
          [&] { return std::vector<float>(residual.begin(), residual.end()); });
      std::vector<double> sums;
      std::vector<double> expected;
      for (size_t row = 0; row < 2; ++row) {
        const size_t begin = row * static_cast<size_t>(width);
        std::vector<double> added;
        for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
          added.push_back(double{scales[row]} * double{delta[begin + i]});
        }
        if (has_gains) added = RmsNorm(added, delta_gains, 0.1);
        for (size_t i = 0; i < added.size(); ++i) {
          added[i] += double{before[begin + i]};
        }
        sums.insert(sums.end(), added.begin(), added.end());
        const std::vector<double> next = RmsNorm(added, gains, 0.1);
        expected.insert(expected.end(), next.begin(), next.end());
      }
      ExpectNear(residual, sums, 1e-6);
      ExpectNear(normalized, expected, kRounding<T>);
    }
  }
}

TYPED_TEST(LayerRowsTest, NormalizesChosenRowsOnly) {
  using T = TypeParam;
  std::mt19937_64 random(3);
  auto residual = RandomRow(4 * 64, 3.0f, &random);
  const auto before = residual;
  const auto gains = RandomRow(64, 1.0f, &random);
  const auto places = Shared(std::vector<int32_t>{1, 3});
  SharedVector<T> normalized(2 * 64, T{0x7FFF});
  ASSERT_EQ(RunKernel({}, &DeviceRuntime::Normalize,
                      {.num_rows = 2,
                       .width = 64,
                       .epsilon = 1e-5f,
                       .places = places.data(),
                       .residual = residual.data(),
                       .gains = gains.data(),
                       .normalized = normalized.data()},
                      this->kType)
                .error,
            "");
  EXPECT_EQ(residual, before);
  std::vector<double> expected;
  for (const auto place : {1, 3}) {
    const auto begin = residual.begin() + place * 64;
    const std::vector<double> row =
        RmsNorm(std::vector<double>(begin, begin + 64), gains, 1e-5);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  ExpectNear(normalized, expected, kRounding<T>);
}

struct HeadCase {
  int32_t head_dim = 64;
  int32_t num_shards = 1;
  bool has_bias = false;
  bool has_norms = false;
};

// Random projections of three rows, what the kernel makes of them, and what it
// should.
template <typename T>
class HeadRunner {
 public:
  explicit HeadRunner(const HeadCase& heads)
      : heads_(heads), half_(static_cast<size_t>(heads.head_dim / 2)) {
    const int64_t dim = heads.head_dim;
    std::mt19937_64 random(4);
    before_ = RandomRow(kRows * kAll * dim, 2.0f, &random);
    projected_ = before_;
    bias_ = RandomRow(kAll * dim, 1.0f, &random);
    query_gains_ = RandomRow(dim, 1.0f, &random);
    key_gains_ = RandomRow(dim, 1.0f, &random);
    for (const float angle : RandomRow(kRows * dim / 2, 3.0f, &random)) {
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
    queries_.assign(static_cast<size_t>(kRows * kQHeads * dim), T{0x7FFF});
    keys_.assign(static_cast<size_t>(kRows * kHeads * dim), T{0x7FFF});
    values_ = keys_;
  }

  std::string Run() {
    return RunKernel(
               {}, &DeviceRuntime::PrepareHeads,
               {.num_rows = kRows,
                .num_q_heads = kQHeads,
                .num_heads = kHeads,
                .num_shards = heads_.num_shards,
                .epsilon = 0.1f,
                .projected = projected_.data(),
                .bias = heads_.has_bias ? bias_.data() : nullptr,
                .query_gains = heads_.has_norms ? query_gains_.data() : nullptr,
                .key_gains = heads_.has_norms ? key_gains_.data() : nullptr,
                .cosines = cosines_.data(),
                .sines = sines_.data(),
                .queries = queries_.data(),
                .keys = keys_.data(),
                .values = values_.data()},
               {.type = ElementTypeOf<T>(), .head_dim = heads_.head_dim})
        .error;
  }

  void ExpectHeads() const {
    std::vector<double> raw;
    std::vector<double> got_raw;
    std::vector<double> queries(queries_.size());
    std::vector<double> keys;
    std::vector<double> values;
    for (int32_t index = 0; index < kRows * kAll; ++index) {
      const int32_t row = index / kAll;
      const int32_t head = index % kAll;
      std::vector<double> x = Projected(index, head);
      if (head >= kQHeads + kHeads) {
        values.insert(values.end(), x.begin(), x.end());
        continue;
      }
      if (head >= kQHeads) {
        Rotate(row, &x);
        keys.insert(keys.end(), x.begin(), x.end());
        continue;
      }
      raw.insert(raw.end(), x.begin(), x.end());
      const auto begin = projected_.begin() + index * std::ssize(x);
      got_raw.insert(got_raw.end(), begin, begin + std::ssize(x));
      Rotate(row, &x);
      const int32_t own = kQHeads / heads_.num_shards;
      const int32_t place = (head / own * kRows + row) * own + head % own;
      std::ranges::copy(x, queries.begin() + place * std::ssize(x));
    }
    ExpectNear(got_raw, raw, 1e-6);
    ExpectNear(queries_, queries, kRounding<T>);
    ExpectNear(keys_, keys, kRounding<T>);
    ExpectNear(values_, values, kRounding<T>);
  }

 private:
  static constexpr int32_t kRows = 3;
  static constexpr int32_t kQHeads = 4;
  static constexpr int32_t kHeads = 2;
  static constexpr int32_t kAll = kQHeads + 2 * kHeads;

  // A head before it is rotated.
  std::vector<double> Projected(int32_t index, int32_t head) const {
    const auto begin = before_.begin() + index * int64_t{heads_.head_dim};
    std::vector<double> x(begin, begin + heads_.head_dim);
    for (size_t i = 0; heads_.has_bias && i < x.size(); ++i) {
      x[i] += double{bias_[static_cast<size_t>(head) * x.size() + i]};
    }
    if (!heads_.has_norms || head >= kQHeads + kHeads) return x;
    return RmsNorm(x, head < kQHeads ? query_gains_ : key_gains_, 0.1);
  }
  void Rotate(int32_t row, std::vector<double>* x) const {
    for (size_t i = 0; i < half_; ++i) {
      const size_t angle = static_cast<size_t>(row) * half_ + i;
      const double cosine = double{cosines_[angle]};
      const double sine = double{sines_[angle]};
      double& low = (*x)[i];
      double& high = (*x)[half_ + i];
      const double old = low;
      low = old * cosine - high * sine;
      high = high * cosine + old * sine;
    }
  }

  const HeadCase heads_;
  const size_t half_;
  SharedVector<float> before_;
  SharedVector<float> projected_;
  SharedVector<float> bias_;
  SharedVector<float> query_gains_;
  SharedVector<float> key_gains_;
  SharedVector<float> cosines_;
  SharedVector<float> sines_;
  SharedVector<T> queries_;
  SharedVector<T> keys_;
  SharedVector<T> values_;
};

TYPED_TEST(LayerRowsTest, PreparesHeads) {
  for (const HeadCase& heads : std::vector<HeadCase>{
           {},
           {.head_dim = 128, .num_shards = 2, .has_bias = true},
           {.head_dim = 256, .has_norms = true},
           {.num_shards = 2, .has_bias = true, .has_norms = true}}) {
    HeadRunner<TypeParam> runner(heads);
    ASSERT_EQ(runner.Run(), "");
    runner.ExpectHeads();
  }
}

TYPED_TEST(LayerRowsTest, MergesTheShardsOfAttention) {
  using T = TypeParam;
  std::mt19937_64 random(5);
  const auto attention = RandomElements<simt::Half>(3 * 128, 2.0f, &random);
  SharedVector<T> merged(attention.size(), T{0x7FFF});
  ASSERT_EQ(RunKernel({}, &DeviceRuntime::MergeAttention,
                      {.num_rows = 3,
                       .width = 128,
                       .num_shards = 2,
                       .attention = attention.data(),
                       .merged = merged.data()},
                      this->kType, ElementType::kHalf)
                .error,
            "");
  for (size_t i = 0; i < merged.size(); ++i) {
    const size_t from = (i % 128 / 64 * 3 + i / 128) * 64 + i % 64;
    const T expected = simt::FromFloat<T>(simt::ToFloat(attention[from]));
    EXPECT_EQ(merged[i].bits, expected.bits) << i;
  }
}

double Activation(bool gelu, double x) {
  if (!gelu) return x / (1.0 + std::exp(-x));
  const double u =
      std::sqrt(2.0 / 3.14159265358979) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(u));
}

// The second row is beyond fp16's range, the third below it.
TYPED_TEST(LayerRowsTest, GatesRowsOfAnyMagnitude) {
  using T = TypeParam;
  for (const int32_t width : {64, 2512}) {
    for (const bool gelu : {false, true}) {
      std::mt19937_64 random(6);
      auto gate_up = RandomRow(int64_t{4} * 2 * width, 6.0f, &random);
      const auto row_size = static_cast<size_t>(2 * width);
      const auto up = [&](size_t row, size_t i) -> float& {
        return gate_up[row * row_size + row_size / 2 + i];
      };
      for (size_t i = 0; i < row_size / 2; ++i) {
        up(1, i) *= 1e6f;
        up(2, i) *= 1e-7f;
        up(3, i) = 0.0f;
      }
      SharedVector<T> gated(static_cast<size_t>(4 * width), T{0x7FFF});
      SharedVector<float> scales(4, kNan);
      ASSERT_EQ(RunKernel({}, &DeviceRuntime::Gate,
                          {.num_rows = 4,
                           .width = width,
                           .gelu = gelu,
                           .gate_up = gate_up.data(),
                           .gated = gated.data(),
                           .scales = scales.data()},
                          this->kType)
                    .error,
                "");
      for (size_t row = 0; row < 4; ++row) {
        std::vector<double> got;
        std::vector<double> expected;
        for (size_t i = 0; i < row_size / 2; ++i) {
          got.push_back(double{scales[row]} *
                        double{simt::ToFloat(gated[row * row_size / 2 + i])});
          expected.push_back(
              Activation(gelu, double{gate_up[row * row_size + i]}) *
              double{up(row, i)});
        }
        ExpectNear(got, expected, kRounding<T>);
      }
    }
  }
}

// Rows and outputs that fill no tile, and an input of half a step.
TYPED_TEST(LayerRowsTest, MultipliesRows) {
  using T = TypeParam;
  for (const int32_t num_rows : {1, 37}) {
    const int32_t in = 80;
    const int32_t out = 75;
    std::mt19937_64 random(7);
    const auto weights = RandomElements<T>(int64_t{out} * in, 1.0f, &random);
    const auto input = RandomElements<T>(int64_t{num_rows} * in, 1.0f, &random);
    SharedVector<float> output(static_cast<size_t>(num_rows * out), kNan);
    ASSERT_EQ(RunKernel({}, &DeviceRuntime::Multiply,
                        {.num_rows = num_rows,
                         .in = in,
                         .out = out,
                         .weights = weights.data(),
                         .input = input.data(),
                         .output = output.data()},
                        this->kType)
                  .error,
              "");
    std::vector<double> expected;
    for (int32_t row = 0; row < num_rows; ++row) {
      for (int32_t o = 0; o < out; ++o) {
        double sum = 0.0;
        for (int32_t i = 0; i < in; ++i) {
          sum +=
              double{simt::ToFloat(weights[static_cast<size_t>(o * in + i)])} *
              double{simt::ToFloat(input[static_cast<size_t>(row * in + i)])};
        }
        expected.push_back(sum);
      }
    }
    ExpectNear(output, expected, 1e-6);
  }
}

// A row has the same bits alone and beside others.
TYPED_TEST(LayerRowsTest, ProductsOfARowDoNotDependOnOthers) {
  using T = TypeParam;
  std::mt19937_64 random(8);
  const auto weights = RandomElements<T>(16 * 96, 1.0f, &random);
  const auto input = RandomElements<T>(40 * 96, 1.0f, &random);
  SharedVector<float> all(40 * 16, kNan);
  SharedVector<float> alone(16, kNan);
  const KernelReport report = RunKernels({}, [&](DeviceRuntime& device) {
    ProductParams params = {.num_rows = 40,
                            .in = 96,
                            .out = 16,
                            .weights = weights.data(),
                            .input = input.data(),
                            .output = all.data()};
    device.Multiply(params, this->kType);
    params.num_rows = 1;
    params.input = input.data() + 37 * 96;
    params.output = alone.data();
    device.Multiply(params, this->kType);
  });
  ASSERT_EQ(report.error, "");
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i], all[37 * 16 + i]);
  }
}

}  // namespace
}  // namespace blockmgr
