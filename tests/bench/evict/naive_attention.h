// Attention over tensors in float64, by its definition.
#ifndef TESTS_BENCH_EVICT_NAIVE_ATTENTION_H_
#define TESTS_BENCH_EVICT_NAIVE_ATTENTION_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "bench/evict/tensors.h"

namespace blockmgr {

// Returns the weights that a query head's query at a position gives to entries
// of its KV head: to those at `positions`.
inline std::vector<double> NaiveAttention(const Tensors& tensors, size_t layer,
                                          int32_t q_head, int32_t query,
                                          std::span<const int32_t> positions) {
  const int32_t head = q_head / (tensors.num_q_heads / tensors.num_heads);
  const auto row = [&](const std::vector<float>& values, int64_t of,
                       int32_t position) {
    return values.begin() + (of * tensors.length + position) * tensors.head_dim;
  };
  const auto begin = row(tensors.layers[layer].queries, q_head, query);
  std::vector<double> weights;
  double sum = 0.0;
  for (const int32_t position : positions) {
    const double dot = std::inner_product(
        begin, begin + tensors.head_dim,
        row(tensors.layers[layer].keys, head, position), 0.0, std::plus<>(),
        [](float a, float b) { return double{a} * double{b}; });
    weights.push_back(std::exp(dot / std::sqrt(tensors.head_dim)));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Returns the weights of all entries up to the query.
inline std::vector<double> NaiveAttention(const Tensors& tensors, size_t layer,
                                          int32_t q_head, int32_t query) {
  std::vector<int32_t> positions(static_cast<size_t>(query) + 1);
  std::iota(positions.begin(), positions.end(), 0);
  return NaiveAttention(tensors, layer, q_head, query, positions);
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_EVICT_NAIVE_ATTENTION_H_
