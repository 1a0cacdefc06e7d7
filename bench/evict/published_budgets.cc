#include "bench/evict/published_budgets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// The largest whole number not above a / b, b > 0, as Python's // has it for
// floats: from the exact remainder, not from the rounded quotient.
double FloorDivide(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder < 0.0) remainder += b;
  return std::round((a - remainder) / b);
}

// Ends of the line; `least` need not be below `most`.
struct Ends {
  double most = 0.0;
  double least = 0.0;
};

// From a mean and its smallest share; what exceeds `limit` is taken from the
// first layer and given to the last.
Ends ClampLine(double mean, double least, double limit) {
  const double most = mean * 2.0 - least;
  if (most >= limit) return {limit, mean * 2.0 - limit};
  return {most, least};
}

std::vector<double> Powers(std::span<const float> scores, double unit,
                           double exponent) {
  std::vector<double> powers;
  powers.reserve(scores.size());
  for (const float score : scores) {
    powers.push_back(std::pow(score / unit, exponent));
  }
  return powers;
}

// In pairs, as numerical libraries do: the order matters in float32.
float PairwiseSum(std::span<const float> values) {
  if (values.size() == 1) return values[0];
  const size_t half = values.size() / 2;
  return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
}

}  // namespace

std::vector<int64_t> PyramidKvPress(const PyramidLine& line, double kept) {
  const auto length = static_cast<double>(line.length);
  const double window = line.window;
  // The program adds the window and takes it off again, which rounds.
  const double mean = (window + kept) - window;
  const Ends ends = ClampLine(mean, mean / line.beta, length - window);
  std::vector<int64_t> budgets(line.num_layers);
  const bool fits = length >= ends.most && ends.most >= ends.least &&
                    ends.least >= window && line.num_layers > 1;
  for (int32_t layer = 0; layer < line.num_layers; ++layer) {
    const double budget = fits ? ends.most - layer * ((ends.most - ends.least) /
                                                      (line.num_layers - 1))
                               : kept;
    budgets[layer] = std::llrint(budget);  // half to even
  }
  return budgets;
}

std::vector<int64_t> PyramidAdaKv(const PyramidLine& line, int64_t base) {
  std::vector<int64_t> budgets(line.num_layers, base);
  if (line.num_layers == 1) return budgets;
  const auto mean = static_cast<double>(base);
  const Ends ends = ClampLine(mean, FloorDivide(mean, line.beta),
                              static_cast<double>(line.length - line.window));
  const double step = FloorDivide(ends.most - ends.least, line.num_layers - 1);
  for (int32_t layer = 0; layer < line.num_layers; ++layer) {
    budgets[layer] = static_cast<int64_t>(ends.most - layer * step);
  }
  return budgets;
}

std::vector<int64_t> PyramidFactory(const PyramidLine& line, int64_t base) {
  if (line.length < 2 * base) {
    return std::vector<int64_t>(static_cast<size_t>(line.num_layers), base);
  }
  return PyramidAdaKv(line, base);
}

std::vector<int64_t> HeadKvBudgetsReleased(std::span<const float> scores,
                                           int64_t base, double beta,
                                           double temp) {
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  BM_CHECK(sum > 0.0);
  std::vector<double> parts = Powers(scores, sum, temp);
  double parts_sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  if (parts_sum == 0.0) {
    parts =
        Powers(scores, *std::max_element(scores.begin(), scores.end()), temp);
    parts_sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  }
  const auto mean = static_cast<double>(base);
  const double share = FloorDivide(mean, beta);
  const double pool = share * static_cast<double>(scores.size());
  std::vector<int64_t> budgets;
  budgets.reserve(scores.size());
  for (const double part : parts) {
    budgets.push_back(std::llrint(part / parts_sum * pool + (mean - share)));
  }
  return budgets;
}

std::vector<int64_t> LuKvBudgetsPaper(std::span<const float> r,
                                      int64_t length) {
  std::vector<int64_t> budgets;
  budgets.reserve(r.size());
  for (const float evicted : r) {
    budgets.push_back(static_cast<int64_t>(
        std::floor((1.0 - evicted) * static_cast<double>(length))));
  }
  return budgets;
}

std::vector<int64_t> LuKvBudgetsKvPress(std::span<const float> r,
                                        int64_t length) {
  BM_CHECK(!r.empty());
  const auto size = static_cast<int64_t>(r.size());
  std::vector<float> ideal;
  std::vector<float> fractions;
  std::vector<int64_t> budgets;
  int64_t left = 0;
  for (const float evicted : r) {
    ideal.push_back(std::clamp(1.0f - evicted, 0.0f, 1.0f) *
                    static_cast<float>(length));
    budgets.push_back(static_cast<int64_t>(ideal.back()));
    fractions.push_back(ideal.back() - std::floor(ideal.back()));
    left -= budgets.back();
  }
  left +=
      std::clamp<int64_t>(std::llrint(PairwiseSum(ideal)), size, size * length);
  std::vector<size_t> order(r.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return fractions[a] > fractions[b];
  });
  for (int64_t i = 0; i < std::min(left, size); ++i) ++budgets[order[i]];
  for (int64_t& budget : budgets) {
    budget = std::clamp(budget, int64_t{1}, std::max(length, int64_t{1}));
  }
  return budgets;
}

}  // namespace blockmgr
