// Hamilton's method with bounds, by trying every way of bounds to hold.
#include <algorithm>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "tests/blockmgr/eviction/naive_planner.h"

namespace blockmgr {
namespace {

struct Fraction {
  int64_t numerator;
  int64_t denominator;  // > 0
};

bool Less(const Fraction& a, const Fraction& b) {
  return a.numerator * b.denominator < b.numerator * a.denominator;
}

std::vector<int64_t> RoundByRemainder(int64_t total,
                                      const std::vector<Fraction>& quotas) {
  std::vector<int64_t> units;
  std::vector<std::pair<double, size_t>> fractions;
  for (size_t i = 0; i < quotas.size(); ++i) {
    units.push_back(quotas[i].numerator / quotas[i].denominator);
    total -= units.back();
    // Equal fractions come from equal integers here: all share a denominator.
    fractions.emplace_back(
        -static_cast<double>(quotas[i].numerator % quotas[i].denominator) /
            static_cast<double>(quotas[i].denominator),
        i);
  }
  std::sort(fractions.begin(), fractions.end());
  for (int64_t i = 0; i < total; ++i) ++units[fractions[i].second];
  return units;
}

// The units if lambda lies between `from` and `to`; empty if it does not.
std::vector<int64_t> TrySegment(int64_t total, Fraction from, Fraction to,
                                const std::vector<int64_t>& weights,
                                const std::vector<int64_t>& low,
                                const std::vector<int64_t>& high) {
  std::vector<int64_t> units(weights.size());
  std::vector<size_t> free;
  int64_t free_weight = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0 || !Less({low[i], weights[i]}, to)) {
      units[i] = low[i];
    } else if (!Less(from, {high[i], weights[i]})) {
      units[i] = high[i];
    } else {
      free.push_back(i);
      free_weight += weights[i];
      continue;
    }
    total -= units[i];
  }
  if (free.empty()) return total == 0 ? units : std::vector<int64_t>();
  const Fraction lambda = {total, free_weight};
  if (total < 0 || Less(lambda, from) || Less(to, lambda)) return {};
  std::vector<Fraction> quotas;
  for (const size_t i : free) {
    quotas.push_back({total * weights[i], free_weight});
  }
  const std::vector<int64_t> rounded = RoundByRemainder(total, quotas);
  for (size_t i = 0; i < free.size(); ++i) units[free[i]] = rounded[i];
  return units;
}

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

std::vector<int64_t> ApportionNaively(int64_t total,
                                      const std::vector<int64_t>& weights,
                                      const std::vector<int64_t>& low,
                                      const std::vector<int64_t>& high) {
  total = std::min(total, Sum(high));
  if (weights.empty()) return {};
  if (Sum(weights) == 0) {
    return ApportionNaively(total, std::vector<int64_t>(weights.size(), 1), low,
                            high);
  }
  // Everything that can grow is full and there is some left: the rest shares
  // it.
  int64_t most = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    most += weights[i] > 0 ? high[i] : low[i];
  }
  if (most < total) {
    std::vector<int64_t> zero_low, zero_high, units = high;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] > 0) {
        total -= high[i];
        continue;
      }
      zero_low.push_back(low[i]);
      zero_high.push_back(high[i]);
    }
    const std::vector<int64_t> zeros = ApportionNaively(
        total, std::vector<int64_t>(zero_low.size(), 1), zero_low, zero_high);
    size_t next = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) units[i] = zeros[next++];
    }
    return units;
  }
  std::vector<Fraction> bounds = {{0, 1}, {int64_t{1} << 20, 1}};
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    bounds.push_back({low[i], weights[i]});
    bounds.push_back({high[i], weights[i]});
  }
  std::sort(bounds.begin(), bounds.end(), Less);
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    if (!Less(bounds[i], bounds[i + 1])) continue;
    std::vector<int64_t> units =
        TrySegment(total, bounds[i], bounds[i + 1], weights, low, high);
    if (!units.empty()) return units;
  }
  ADD_FAILURE() << "no lambda found";
  return low;
}

}  // namespace blockmgr
