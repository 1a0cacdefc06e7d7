#include "bench/evict/perturbation.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/evict/naive_attention.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

std::vector<float> Normals(int64_t n, double size, std::mt19937& rng) {
  std::normal_distribution<double> normal(0.0, size);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(normal(rng));
  return values;
}

struct Shape {
  int32_t num_layers = 1;
  int32_t num_q_heads = 4;
  int32_t num_heads = 2;
  int32_t length = 24;
  int32_t head_dim = 8;
  int32_t model_dim = 12;  // 0: no W_O
};

Tensors RandomTensors(const Shape& shape, std::mt19937& rng) {
  Tensors tensors;
  tensors.num_q_heads = shape.num_q_heads;
  tensors.num_heads = shape.num_heads;
  tensors.length = shape.length;
  tensors.head_dim = shape.head_dim;
  tensors.model_dim = shape.model_dim;
  const int64_t row = int64_t{shape.length} * shape.head_dim;
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    LayerTensors& last = tensors.layers.emplace_back();
    last.queries = Normals(shape.num_q_heads * row, 2.0, rng);
    last.keys = Normals(shape.num_heads * row, 1.0, rng);
    last.values = Normals(shape.num_heads * row, 1.0, rng);
    last.output_projection =
        Normals(int64_t{shape.num_q_heads} * shape.head_dim * shape.model_dim,
                0.3, rng);
  }
  return tensors;
}

// Each entry is kept with probability `keep`.
KeepSets RandomKeep(const Tensors& tensors, double keep, std::mt19937& rng) {
  std::bernoulli_distribution draw(keep);
  KeepSets sets;
  sets.offsets = {0};
  for (int32_t i = 0; i < tensors.num_layers() * tensors.num_heads; ++i) {
    for (int32_t position = 0; position < tensors.length; ++position) {
      if (draw(rng)) sets.ranks.push_back(position);
    }
    sets.offsets.push_back(static_cast<int64_t>(sets.ranks.size()));
  }
  return sets;
}

bool IsKept(const KeepSets& keep, int32_t head_index, int32_t position) {
  const auto begin = keep.ranks.begin() + keep.offsets[head_index];
  const auto end = keep.ranks.begin() + keep.offsets[head_index + 1];
  return std::binary_search(begin, end, position);
}

// The definitions, one sum after another.
class Naive {
 public:
  Naive(const Tensors& tensors, int32_t layer, int32_t query)
      : tensors_(tensors),
        layer_(layer),
        data_(tensors.layers[layer]),
        query_(query) {}

  int32_t Head(int32_t q_head) const {
    return q_head / (tensors_.num_q_heads / tensors_.num_heads);
  }
  std::vector<double> Attention(int32_t q_head) const {
    return NaiveAttention(tensors_, layer_, q_head, query_);
  }
  // V_j of a query head, as wide as the layer's output.
  std::vector<double> Projected(int32_t q_head, int32_t j) const {
    const int32_t dim = tensors_.head_dim;
    const bool given = tensors_.model_dim > 0;
    const int32_t width =
        given ? tensors_.model_dim : tensors_.num_q_heads * dim;
    std::vector<double> out(width);
    for (int32_t d = 0; d < dim; ++d) {
      const double value =
          data_.values[(Head(q_head) * tensors_.length + j) * dim + d];
      if (!given) out[q_head * dim + d] = value;
      for (int32_t m = 0; given && m < width; ++m) {
        out[m] +=
            value *
            double{data_.output_projection[(q_head * dim + d) * width + m]};
      }
    }
    return out;
  }
  static double Norm(const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += std::abs(value);
    return sum;
  }
  double Size(int32_t q_head, int32_t j) const {
    return Norm(Projected(q_head, j));
  }
  double MaxSize() const {
    double max = 0.0;
    for (int32_t q_head = 0; q_head < tensors_.num_q_heads; ++q_head) {
      for (int32_t j = 0; j <= query_; ++j) {
        max = std::max(max, Size(q_head, j));
      }
    }
    return max;
  }
  double Sigma(int32_t q_head, const KeepSets& keep) const {
    const std::vector<double> attention = Attention(q_head);
    double sigma = 0.0;
    for (int32_t j = 0; j <= query_; ++j) {
      if (IsKept(keep, layer_ * tensors_.num_heads + Head(q_head), j)) {
        sigma += attention[j];
      }
    }
    return sigma;
  }
  double Theta(int32_t q_head, const KeepSets& keep) const {
    const std::vector<double> attention = Attention(q_head);
    double size = 0.0, kept_size = 0.0;
    for (int32_t j = 0; j <= query_; ++j) {
      const double own = attention[j] * Size(q_head, j);
      size += own;
      if (IsKept(keep, layer_ * tensors_.num_heads + Head(q_head), j)) {
        kept_size += own;
      }
    }
    const double sigma = Sigma(q_head, keep);
    return sigma == 0.0 ? size : size - (2.0 - 1.0 / sigma) * kept_size;
  }
  // y with the weights before (null) or after an eviction.
  std::vector<double> Output(int32_t q_head, const KeepSets* keep) const {
    const std::vector<double> attention = Attention(q_head);
    const double sigma = keep == nullptr ? 1.0 : Sigma(q_head, *keep);
    std::vector<double> out(Projected(q_head, 0).size());
    for (int32_t j = 0; j <= query_; ++j) {
      if (keep != nullptr &&
          !IsKept(*keep, layer_ * tensors_.num_heads + Head(q_head), j)) {
        continue;
      }
      const std::vector<double> projected = Projected(q_head, j);
      for (size_t m = 0; m < out.size(); ++m) {
        out[m] += attention[j] / sigma * projected[m];
      }
    }
    return out;
  }

 private:
  const Tensors& tensors_;
  const int32_t layer_;
  const LayerTensors& data_;
  const int32_t query_;
};

void AddTo(const std::vector<double>& values, double factor,
           std::vector<double>* sum) {
  sum->resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) (*sum)[i] += factor * values[i];
}

// [num_q_heads] and then the layer.
std::vector<LossMeans> NaiveMeans(const Tensors& tensors, int32_t layer,
                                  const KeepSets& keep, int32_t num_queries) {
  std::vector<LossMeans> means(tensors.num_q_heads + 1);
  LossMeans& whole = means.back();
  const double share = 1.0 / num_queries;
  for (int32_t i = 0; i < num_queries; ++i) {
    const Naive naive(tensors, layer, tensors.length - num_queries + i);
    const double max_size = naive.MaxSize();
    std::vector<double> before, change;
    for (int32_t q_head = 0; q_head < tensors.num_q_heads; ++q_head) {
      LossMeans& own = means[q_head];
      const double sigma = naive.Sigma(q_head, keep);
      own.kept_mass += share * sigma;
      own.ada_kv_bound += share * 2.0 * max_size * (1.0 - sigma);
      own.critical_kv_bound += share * naive.Theta(q_head, keep);
      std::vector<double> own_change;
      const std::vector<double> output = naive.Output(q_head, nullptr);
      AddTo(output, 1.0, &own_change);
      AddTo(naive.Output(q_head, &keep), -1.0, &own_change);
      own.perturbation += share * Naive::Norm(own_change);
      own.output_norm += share * Naive::Norm(output);
      AddTo(output, 1.0, &before);
      AddTo(own_change, 1.0, &change);
    }
    whole.perturbation += share * Naive::Norm(change);
    whole.output_norm += share * Naive::Norm(before);
  }
  for (int32_t q_head = 0; q_head < tensors.num_q_heads; ++q_head) {
    whole.kept_mass += means[q_head].kept_mass / tensors.num_q_heads;
    whole.ada_kv_bound += means[q_head].ada_kv_bound;
    whole.critical_kv_bound += means[q_head].critical_kv_bound;
  }
  return means;
}

void ExpectNear(const LossMeans& got, const LossMeans& expected) {
  // Sizes come from fp32 products, everything else from doubles.
  const double scale = expected.ada_kv_bound + expected.output_norm;
  EXPECT_NEAR(got.kept_mass, expected.kept_mass, 1e-12);
  EXPECT_NEAR(got.ada_kv_bound, expected.ada_kv_bound, 1e-5 * scale);
  EXPECT_NEAR(got.critical_kv_bound, expected.critical_kv_bound, 1e-5 * scale);
  EXPECT_NEAR(got.perturbation, expected.perturbation, 1e-10 * scale);
  EXPECT_NEAR(got.output_norm, expected.output_norm, 1e-10 * scale);
}

TEST(PerturbationTest, IsWhatTheDefinitionsSay) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    Shape shape;
    shape.num_layers = 1 + static_cast<int32_t>(rng() % 2);
    shape.num_heads = 1 + static_cast<int32_t>(rng() % 3);
    shape.num_q_heads = shape.num_heads * (1 + static_cast<int32_t>(rng() % 3));
    shape.length = 1 + static_cast<int32_t>(rng() % 90);
    shape.head_dim = 4 + 4 * static_cast<int32_t>(rng() % 4);
    shape.model_dim = seed % 3 == 0 ? 0 : 1 + static_cast<int32_t>(rng() % 60);
    const Tensors tensors = RandomTensors(shape, rng);
    const std::vector<KeepSets> keep = {RandomKeep(tensors, 0.2, rng),
                                        RandomKeep(tensors, 0.8, rng)};
    PerturbationOptions options;
    options.queries_window =
        1 + static_cast<int32_t>(rng() % std::min(shape.length, 5));
    std::vector<int32_t> layers_done;
    options.on_layer = [&](int32_t done) { layers_done.push_back(done); };
    ASSERT_OK_AND_ASSIGN(const std::vector<PolicyLoss> losses,
                         MeasurePerturbation(tensors, keep, options));
    ASSERT_EQ(losses.size(), keep.size());
    EXPECT_EQ(layers_done.size(), static_cast<size_t>(shape.num_layers));
    for (size_t i = 0; i < keep.size(); ++i) {
      for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
        const std::vector<LossMeans> expected =
            NaiveMeans(tensors, layer, keep[i], options.queries_window);
        ExpectNear(losses[i].layers[layer], expected.back());
        for (int32_t q_head = 0; q_head < shape.num_q_heads; ++q_head) {
          ExpectNear(losses[i].q_heads[layer * shape.num_q_heads + q_head],
                     expected[q_head]);
        }
      }
    }
    ASSERT_FALSE(HasFailure());
  }
}

TEST(PerturbationTest, NeverExceedsItsBounds) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    const Tensors tensors = RandomTensors({.length = 70}, rng);
    const std::vector<KeepSets> keep = {RandomKeep(tensors, 0.5, rng)};
    PerturbationOptions options;
    options.queries_window = 4;
    ASSERT_OK_AND_ASSIGN(const std::vector<PolicyLoss> losses,
                         MeasurePerturbation(tensors, keep, options));
    std::vector<LossMeans> all = losses[0].layers;
    all.insert(all.end(), losses[0].q_heads.begin(), losses[0].q_heads.end());
    for (const LossMeans& means : all) {
      EXPECT_LE(means.perturbation, means.critical_kv_bound * (1 + 1e-5));
      EXPECT_LE(means.critical_kv_bound, means.ada_kv_bound * (1 + 1e-5));
      EXPECT_GT(means.perturbation, 0.0);
    }
  }
}

TEST(PerturbationTest, KeepingEverythingChangesNothing) {
  std::mt19937 rng(1);
  const Tensors tensors = RandomTensors({}, rng);
  const std::vector<KeepSets> keep = {RandomKeep(tensors, 1.0, rng)};
  PerturbationOptions options;
  options.queries_window = 8;
  ASSERT_OK_AND_ASSIGN(const std::vector<PolicyLoss> losses,
                       MeasurePerturbation(tensors, keep, options));
  const LossMeans& layer = losses[0].layers[0];
  EXPECT_DOUBLE_EQ(layer.kept_mass, 1.0);
  EXPECT_EQ(layer.perturbation, 0.0);
  EXPECT_EQ(layer.ada_kv_bound, 0.0);
  EXPECT_EQ(layer.critical_kv_bound, 0.0);
  EXPECT_EQ(layer.relative(), 0.0);
  EXPECT_EQ(MeanRelative(losses[0]), 0.0);
}

// Entries after the query are not its business.
TEST(PerturbationTest, IsCausal) {
  std::mt19937 rng(1);
  const Tensors tensors =
      RandomTensors({.num_q_heads = 1, .num_heads = 1, .length = 2}, rng);
  KeepSets keep;
  keep.offsets = {0, 1};
  keep.ranks = {0};
  PerturbationOptions options;
  options.queries_window = 2;
  ASSERT_OK_AND_ASSIGN(
      const std::vector<PolicyLoss> losses,
      MeasurePerturbation(tensors, std::vector<KeepSets>{keep}, options));
  // The query at 0 sees entry 0 alone, and all of it.
  const double last = Naive(tensors, 0, 1).Attention(0)[0];
  EXPECT_NEAR(losses[0].layers[0].kept_mass, (1.0 + last) / 2.0, 1e-12);
}

TEST(PerturbationTest, RelativeIsTheRatioOfTheMeans) {
  PolicyLoss loss;
  loss.layers.resize(2);
  loss.layers[0].perturbation = 1.0;
  loss.layers[0].output_norm = 4.0;
  EXPECT_EQ(loss.layers[0].relative(), 0.25);
  EXPECT_EQ(loss.layers[1].relative(), 0.0);
  EXPECT_EQ(MeanRelative(loss), 0.125);
}

TEST(PerturbationTest, RefusesWhatItCannotMeasure) {
  std::mt19937 rng(1);
  const Tensors good = RandomTensors({.length = 20}, rng);
  PerturbationOptions options;
  options.queries_window = 20;
  EXPECT_THAT(CheckPerturbationInputs(good, options), IsOk());
  options.queries_window = 21;
  EXPECT_THAT(CheckPerturbationInputs(good, options),
              IsInvalid("--queries-window: expected 1 to the "
                        "tensors' length, 20, got 21"));
  options.queries_window = 0;
  EXPECT_THAT(MeasurePerturbation(good, {}, options),
              IsInvalid("--queries-window"));
  options.queries_window = 1;
  Tensors bad = good;
  bad.layers[0].values.clear();
  EXPECT_THAT(CheckPerturbationInputs(bad, options),
              IsInvalid("--values: expected"));
  bad = good;
  bad.head_dim = 6;
  EXPECT_THAT(CheckPerturbationInputs(bad, options),
              IsInvalid("head_dim: expected a multiple of 4, got 6"));
}

}  // namespace
}  // namespace blockmgr
