#include "blockmgr/eviction/diagnostics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "blockmgr/base/check.h"

namespace blockmgr {

namespace {

constexpr size_t kBlock = 8;

// Returns whether a mass can be divided by. A subnormal mass has too few
// digits, and its inverse is infinite.
bool HasWeight(double kept_mass) {
  return kept_mass >= std::numeric_limits<double>::min();
}

// out[k] += sum over r of weight[r] * row[r][first + k], for k < kSize.
template <size_t kSize>
void AddBlock(const std::array<double, 4>& weight,
              const std::array<const float*, 4>& row, size_t first,
              double* out) {
  const float* r0 = row[0] + first;
  const float* r1 = row[1] + first;
  const float* r2 = row[2] + first;
  const float* r3 = row[3] + first;
  for (size_t k = 0; k < kSize; ++k) {
    out[k] += weight[0] * double{r0[k]} + weight[1] * double{r1[k]} +
              weight[2] * double{r2[k]} + weight[3] * double{r3[k]};
  }
}

}  // namespace

AttentionLoss MeasureLoss(std::span<const double> attention,
                          std::span<const uint8_t> kept,
                          std::span<const double> sizes) {
  BM_CHECK(kept.size() == attention.size());
  BM_CHECK(sizes.size() == attention.size());
  AttentionLoss loss;
  for (size_t j = 0; j < attention.size(); ++j) {
    (kept[j] != 0 ? loss.kept_mass : loss.lost_mass) += attention[j];
    (kept[j] != 0 ? loss.kept_size : loss.lost_size) += attention[j] * sizes[j];
  }
  return loss;
}

double AdaKvBound(const AttentionLoss& loss, double max_size) {
  return 2.0 * max_size * loss.lost_mass;
}

double CriticalKvBound(const AttentionLoss& loss) {
  if (!HasWeight(loss.kept_mass)) return loss.lost_size + loss.kept_size;
  // The paper has 1 / sigma - 1, which is (1 - sigma) / sigma.
  return loss.lost_size + loss.kept_size * (loss.lost_mass / loss.kept_mass);
}

double CriticalKvRelaxedBound(const AttentionLoss& loss,
                              double stage_one_mass) {
  BM_CHECK(stage_one_mass > 0.0);
  // Rounding may have made a mass of 1 a little larger.
  const double gain = std::max(0.0, 1.0 / stage_one_mass - 1.0);
  return loss.lost_size + loss.kept_size * gain;
}

void AttentionChange(std::span<const double> attention,
                     std::span<const uint8_t> kept, std::span<double> change) {
  BM_CHECK(kept.size() == attention.size());
  BM_CHECK(change.size() == attention.size());
  double kept_mass = 0.0;
  double lost_mass = 0.0;
  for (size_t j = 0; j < attention.size(); ++j) {
    (kept[j] != 0 ? kept_mass : lost_mass) += attention[j];
  }
  // A - A / sigma is computed as -A (1 - sigma) / sigma, without cancellation.
  const double gain = HasWeight(kept_mass) ? lost_mass / kept_mass : -1.0;
  for (size_t j = 0; j < attention.size(); ++j) {
    change[j] = kept[j] != 0 ? -gain * attention[j] : attention[j];
  }
}

void AddWeightedRows(std::span<const double> weights,
                     std::span<const float> rows, std::span<double> sum) {
  const size_t width = sum.size();
  BM_CHECK(rows.size() == weights.size() * width);
  // Rows are added four at a time. So `sum` is read and written a quarter as
  // often.
  size_t count = 0;
  std::array<double, 4> weight;
  std::array<const float*, 4> row;
  const auto add = [&] {
    size_t i = 0;
    // Blocks have a fixed length, so compilers turn them into vectors.
    for (; i + kBlock <= width; i += kBlock) {
      AddBlock<kBlock>(weight, row, i, &sum[i]);
    }
    for (; i < width; ++i) AddBlock<1>(weight, row, i, &sum[i]);
    count = 0;
  };
  for (size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] == 0.0) continue;
    weight[count] = weights[j];
    row[count] = &rows[j * width];
    if (++count == weight.size()) add();
  }
  for (; count > 0 && count < weight.size(); ++count) {
    // The last row is repeated with the weight 0. If it has an infinity or a
    // NaN, the sum becomes NaN.
    weight[count] = 0.0;
    row[count] = row[count - 1];
  }
  if (count > 0) add();
}

double L1Norm(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += std::abs(value);
  return sum;
}

}  // namespace blockmgr
