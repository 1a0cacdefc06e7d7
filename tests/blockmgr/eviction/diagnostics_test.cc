#include "blockmgr/eviction/diagnostics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kSlack = 1e-9;

// One query of one query head, and the naive mathematics of it.
struct Head {
  std::vector<double> attention;  // [n]
  std::vector<uint8_t> kept;      // [n]
  std::vector<float> values;      // [n, head_dim]
  std::vector<float> projection;  // [head_dim, model_dim]
  std::vector<double> projected;  // V W_O, [n, model_dim]
  std::vector<double> sizes;      // [n]
  size_t model_dim = 0;

  void Project(size_t head_dim) {
    const size_t n = attention.size();
    model_dim = projection.size() / head_dim;
    projected.assign(n * model_dim, 0.0);
    sizes.assign(n, 0.0);
    for (size_t j = 0; j < n; ++j) {
      for (size_t m = 0; m < model_dim; ++m) {
        double& out = projected[j * model_dim + m];
        for (size_t d = 0; d < head_dim; ++d) {
          out += double{values[j * head_dim + d]} *
                 double{projection[d * model_dim + m]};
        }
        sizes[j] += std::abs(out);
      }
    }
  }
  double Sigma() const {
    double sigma = 0.0;
    for (size_t j = 0; j < kept.size(); ++j) {
      if (kept[j] != 0) sigma += attention[j];
    }
    return sigma;
  }
  // y - y^, from the definitions.
  std::vector<double> Perturbation() const {
    const double sigma = Sigma();
    std::vector<double> difference(model_dim, 0.0);
    for (size_t j = 0; j < attention.size(); ++j) {
      double after = 0.0;
      if (kept[j] != 0 && sigma >= std::numeric_limits<double>::min()) {
        after = attention[j] / sigma;
      }
      for (size_t m = 0; m < model_dim; ++m) {
        difference[m] += (attention[j] - after) * projected[j * model_dim + m];
      }
    }
    return difference;
  }
  // The papers' formulas as they print them.
  double PrintedTheta() const {
    double size = 0.0;
    double kept_size = 0.0;
    for (size_t j = 0; j < attention.size(); ++j) {
      size += attention[j] * sizes[j];
      if (kept[j] != 0) kept_size += attention[j] * sizes[j];
    }
    return size - (2.0 - 1.0 / Sigma()) * kept_size;
  }
};

std::vector<double> RandomAttention(size_t n, std::mt19937& rng) {
  std::normal_distribution<double> normal;
  // From even to so sharp that weights underflow.
  const double sharpness = std::array{0.0, 0.5, 3.0, 30.0, 400.0}[rng() % 5];
  std::vector<double> attention(n);
  double sum = 0.0;
  for (double& weight : attention) {
    weight = std::exp(sharpness * (normal(rng) - 3.0));
    sum += weight;
  }
  if (sum == 0.0) return std::vector<double>(n, 1.0 / static_cast<double>(n));
  for (double& weight : attention) weight /= sum;
  return attention;
}

std::vector<float> RandomFloats(size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

Head RandomHead(size_t n, size_t head_dim, size_t model_dim,
                std::mt19937& rng) {
  Head head;
  head.attention = RandomAttention(n, rng);
  head.values = RandomFloats(n * head_dim, rng);
  head.projection = RandomFloats(head_dim * model_dim, rng);
  head.kept.resize(n);
  const double keep = std::array{0.0, 0.1, 0.5, 0.9, 1.0}[rng() % 5];
  std::bernoulli_distribution draw(keep);
  for (uint8_t& kept : head.kept) kept = draw(rng) ? 1 : 0;
  head.Project(head_dim);
  return head;
}

double Max(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// The perturbation by the functions under test.
std::vector<double> Perturbation(const Head& head) {
  std::vector<double> change(head.attention.size());
  AttentionChange(head.attention, head.kept, change);
  std::vector<double> values(head.projection.size() / head.model_dim);
  AddWeightedRows(change, head.values, values);
  std::vector<double> output(head.model_dim);
  AddWeightedRows(values, head.projection, output);
  return output;
}

TEST(DiagnosticsTest, MeasuresWhatTheDefinitionsSay) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    const Head head = RandomHead(1 + rng() % 40, 4, 6, rng);
    const AttentionLoss loss =
        MeasureLoss(head.attention, head.kept, head.sizes);
    EXPECT_NEAR(loss.kept_mass, head.Sigma(), 1e-12);
    EXPECT_NEAR(loss.lost_mass, 1.0 - head.Sigma(), 1e-12);
    const double scale = Max(head.sizes);
    // The printed form divides by sigma, so cancels digits as sigma falls.
    if (head.Sigma() > 1e-6) {
      EXPECT_NEAR(CriticalKvBound(loss), head.PrintedTheta(), 1e-9 * scale);
    }
    EXPECT_NEAR(AdaKvBound(loss, scale), 2.0 * scale * (1.0 - head.Sigma()),
                1e-11 * scale);
    const std::vector<double> expected = head.Perturbation();
    const std::vector<double> got = Perturbation(head);
    for (size_t m = 0; m < expected.size(); ++m) {
      EXPECT_NEAR(got[m], expected[m], 1e-9 * scale);
    }
  }
}

TEST(DiagnosticsTest, NoPerturbationExceedsItsBounds) {
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    const size_t n = 1 + rng() % 30;
    const size_t head_dim = 1 + rng() % 5;
    const size_t model_dim = 1 + rng() % 7;
    const Head head = RandomHead(n, head_dim, model_dim, rng);
    const AttentionLoss loss =
        MeasureLoss(head.attention, head.kept, head.sizes);
    const double actual = L1Norm(Perturbation(head));
    const double theta = CriticalKvBound(loss);
    EXPECT_LE(actual, theta * (1.0 + kSlack));
    EXPECT_LE(theta, AdaKvBound(loss, Max(head.sizes)) * (1.0 + kSlack));
    if (loss.lost_mass == 0.0) {
      EXPECT_EQ(actual, 0.0);
      EXPECT_EQ(theta, 0.0);
    }
    ASSERT_FALSE(HasFailure());
  }
}

// 1 / sigma is infinite.
TEST(DiagnosticsTest, SubnormalKeptMassIsNone) {
  Head head;
  head.attention = {1.0, std::numeric_limits<double>::denorm_min()};
  head.kept = {0, 1};
  head.values = {2, 3};
  head.projection = {1};
  head.Project(1);
  const AttentionLoss loss = MeasureLoss(head.attention, head.kept, head.sizes);
  EXPECT_DOUBLE_EQ(CriticalKvBound(loss), 2.0);
  EXPECT_DOUBLE_EQ(L1Norm(Perturbation(head)), 2.0);
  EXPECT_LE(CriticalKvBound(loss), AdaKvBound(loss, 3.0));
}

TEST(DiagnosticsTest, NoLayerExceedsTheSumOfItsHeadsBounds) {
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    const size_t n = 1 + rng() % 20;
    const size_t model_dim = 1 + rng() % 7;
    std::vector<Head> heads;
    double max_size = 0.0;
    for (size_t h = 0; h < 1 + seed % 4; ++h) {
      heads.push_back(RandomHead(n, 3, model_dim, rng));
      max_size = std::max(max_size, Max(heads.back().sizes));
    }
    std::vector<double> change(model_dim);
    double sum_actual = 0.0, sum_theta = 0.0, sum_ada = 0.0;
    for (const Head& head : heads) {
      const AttentionLoss loss =
          MeasureLoss(head.attention, head.kept, head.sizes);
      const std::vector<double> own = Perturbation(head);
      for (size_t m = 0; m < model_dim; ++m) change[m] += own[m];
      sum_actual += L1Norm(own);
      sum_theta += CriticalKvBound(loss);
      sum_ada += AdaKvBound(loss, max_size);
    }
    EXPECT_LE(L1Norm(change), sum_actual * (1.0 + kSlack));
    EXPECT_LE(sum_actual, sum_theta * (1.0 + kSlack));
    EXPECT_LE(sum_theta, sum_ada * (1.0 + kSlack));
    ASSERT_FALSE(HasFailure());
  }
}

// Kept values that point one way and evicted ones that point the other.
TEST(DiagnosticsTest, BothBoundsAreReachedByOppositeValues) {
  Head head;
  head.attention = {0.25, 0.25, 0.375, 0.125};
  head.kept = {1, 1, 0, 0};
  head.values = {2, 2, -2, -2};
  head.projection = {1.5, -0.5};
  head.Project(1);
  const AttentionLoss loss = MeasureLoss(head.attention, head.kept, head.sizes);
  EXPECT_THAT(head.sizes, Each(DoubleEq(4.0)));
  EXPECT_DOUBLE_EQ(L1Norm(Perturbation(head)), 4.0);
  EXPECT_DOUBLE_EQ(CriticalKvBound(loss), 4.0);
  EXPECT_DOUBLE_EQ(AdaKvBound(loss, 4.0), 4.0);
}

// Of different sizes: theta is still reached, Ada-KV's bound is not.
TEST(DiagnosticsTest, ThetaIsReachedByOppositeValuesOfAnySize) {
  Head head;
  head.attention = {0.25, 0.25, 0.375, 0.125};
  head.kept = {1, 1, 0, 0};
  head.values = {1, 3, -2, -8};
  head.projection = {1};
  head.Project(1);
  const AttentionLoss loss = MeasureLoss(head.attention, head.kept, head.sizes);
  EXPECT_DOUBLE_EQ(L1Norm(Perturbation(head)), 2.75);
  EXPECT_DOUBLE_EQ(CriticalKvBound(loss), 2.75);
  EXPECT_DOUBLE_EQ(AdaKvBound(loss, 8.0), 8.0);
}

TEST(DiagnosticsTest, KeepingEverythingChangesNothing) {
  std::mt19937 rng(1);
  Head head = RandomHead(17, 3, 5, rng);
  std::fill(head.kept.begin(), head.kept.end(), 1);
  const AttentionLoss loss = MeasureLoss(head.attention, head.kept, head.sizes);
  EXPECT_THAT(Perturbation(head), Each(0.0));
  EXPECT_EQ(loss.lost_mass, 0.0);
  EXPECT_EQ(CriticalKvBound(loss), 0.0);
  EXPECT_EQ(AdaKvBound(loss, 1e30), 0.0);
}

TEST(DiagnosticsTest, EvictingWhatHasNoWeightChangesNothing) {
  const std::vector<double> attention = {0.75, 0.0, 0.25, 0.0};
  const std::vector<uint8_t> kept = {1, 0, 1, 1};
  std::vector<double> change(4);
  AttentionChange(attention, kept, change);
  EXPECT_THAT(change, Each(0.0));
}

TEST(DiagnosticsTest, WithoutKeptMassTheOutputIsZero) {
  const std::vector<double> attention = {0.75, 0.0, 0.25};
  for (const std::vector<uint8_t>& kept :
       {std::vector<uint8_t>{0, 0, 0}, std::vector<uint8_t>{0, 1, 0}}) {
    std::vector<double> change(3);
    AttentionChange(attention, kept, change);
    EXPECT_THAT(change, ElementsAre(0.75, 0.0, 0.25));
    const AttentionLoss loss =
        MeasureLoss(attention, kept, std::vector<double>{4.0, 1.0, 8.0});
    EXPECT_DOUBLE_EQ(CriticalKvBound(loss), 5.0);
    EXPECT_DOUBLE_EQ(AdaKvBound(loss, 8.0), 16.0);
  }
}

TEST(DiagnosticsTest, AddWeightedRowsAdds) {
  std::vector<double> sum = {1.0, 10.0};
  AddWeightedRows(std::vector<double>{2.0, 0.0, -1.0},
                  std::vector<float>{1, 2, 99, 99, 3, 4}, sum);
  EXPECT_THAT(sum, ElementsAre(0.0, 10.0));
  // A weight of 0 hides even what is no number.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  AddWeightedRows(std::vector<double>{0.0}, std::vector<float>{nan, nan}, sum);
  EXPECT_THAT(sum, ElementsAre(0.0, 10.0));
}

// CriticalKV's choice of `budget` entries: `first` by attention, then by
// attention times size.
std::vector<uint8_t> TwoStages(const Head& head, size_t budget, size_t first) {
  const size_t n = head.attention.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto weight = [&](size_t j) { return head.attention[j]; };
  const auto product = [&](size_t j) { return weight(j) * head.sizes[j]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight(a) > weight(b); });
  std::stable_sort(order.begin() + static_cast<std::ptrdiff_t>(first),
                   order.end(),
                   [&](size_t a, size_t b) { return product(a) > product(b); });
  std::vector<uint8_t> kept(n);
  for (size_t i = 0; i < budget; ++i) kept[order[i]] = 1;
  return kept;
}

AttentionLoss LossOf(const Head& head, const std::vector<uint8_t>& kept) {
  return MeasureLoss(head.attention, kept, head.sizes);
}

// The paper's theorem, exactly: with the factor of the first stage, no choice
// of the rest has a smaller bound than the second stage's, top-k included.
TEST(CriticalKvTest, SecondStageMinimisesTheRelaxedBound) {
  int num_asserted = 0;
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    const Head head = RandomHead(2 + rng() % 8, 2, 3, rng);
    const size_t n = head.attention.size();
    const size_t first = 1 + rng() % n;
    const size_t budget = first + rng() % (n - first + 1);
    const std::vector<uint8_t> stage_one = TwoStages(head, first, first);
    const double stage_one_mass = LossOf(head, stage_one).kept_mass;
    if (stage_one_mass <= 0.5) continue;
    ++num_asserted;
    const AttentionLoss chosen = LossOf(head, TwoStages(head, budget, first));
    const double relaxed = CriticalKvRelaxedBound(chosen, stage_one_mass);
    // 1 / mass - 1 cancels digits as the mass nears 1.
    const double rounding = 1e-13 * (chosen.kept_size + chosen.lost_size);
    EXPECT_LE(CriticalKvBound(chosen), relaxed * (1.0 + kSlack) + rounding);
    // Every way to fill the rest; top-k is one of them.
    for (uint32_t mask = 0; mask < (1u << n); ++mask) {
      std::vector<uint8_t> kept(n);
      bool has_stage_one = true;
      size_t size = 0;
      for (size_t j = 0; j < n; ++j) {
        kept[j] = (mask >> j) & 1u;
        size += kept[j];
        if (stage_one[j] != 0 && kept[j] == 0) has_stage_one = false;
      }
      if (!has_stage_one || size != budget) continue;
      const double other =
          CriticalKvRelaxedBound(LossOf(head, kept), stage_one_mass);
      EXPECT_LE(relaxed, other * (1.0 + kSlack) + rounding);
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(num_asserted, 10000);
}

// Theta itself may grow: the second stage takes the larger product and with it
// the smaller weight, so sigma falls from .85 to .65.
TEST(CriticalKvTest, ThetaMayExceedTopKsEvenAboveHalfTheMass) {
  Head head;
  head.attention = {0.55, 0.3, 0.1, 0.05};
  head.values = {0.01f, 1.0f, 3.01f, 0.0f};
  head.projection = {1};
  head.kept = {1, 1, 1, 1};
  head.Project(1);
  const std::vector<uint8_t> critical = TwoStages(head, 2, 1);
  const std::vector<uint8_t> top_k = TwoStages(head, 2, 2);
  ASSERT_THAT(critical, ElementsAre(1, 0, 1, 0));
  ASSERT_THAT(top_k, ElementsAre(1, 1, 0, 0));
  const AttentionLoss critical_loss = LossOf(head, critical);
  const AttentionLoss top_k_loss = LossOf(head, top_k);
  EXPECT_GT(CriticalKvBound(critical_loss), CriticalKvBound(top_k_loss));
  EXPECT_LT(CriticalKvRelaxedBound(critical_loss, 0.55),
            CriticalKvRelaxedBound(top_k_loss, 0.55));
}

}  // namespace
}  // namespace blockmgr
