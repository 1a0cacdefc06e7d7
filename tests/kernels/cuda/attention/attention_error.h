// Attention in float64, and how far a result is from it.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_ERROR_H_
#define TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_ERROR_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/simt.h"

namespace blockmgr {

struct HeadAttention {
  std::vector<double> output;  // [head_dim]
  double lse = -std::numeric_limits<double>::infinity();
};

// A list's K and V, widened once for all queries over them.
struct ListRows {
  std::vector<double> keys;    // [rows, head_dim]
  std::vector<double> values;  // [rows, head_dim]
};

// Attention of a query, [head_dim], over the rows that it sees. The sink is one
// more logit, of a value of zeros.
inline HeadAttention AttendByDefinition(const std::vector<double>& query,
                                        const ListRows& rows,
                                        const std::vector<int64_t>& seen,
                                        double scale, double sink) {
  const auto head_dim = static_cast<int64_t>(query.size());
  HeadAttention result;
  result.output.assign(query.size(), 0.0);
  result.lse = sink;
  if (seen.empty()) return result;
  // Pointers: these loops are most of what a test without optimisation does.
  const double* const q = query.data();
  std::vector<double> logits;
  logits.reserve(seen.size());
  for (const int64_t row : seen) {
    const double* const key = rows.keys.data() + row * head_dim;
    double dot = 0.0;
    for (int64_t i = 0; i < head_dim; ++i) dot += q[i] * key[i];
    logits.push_back(dot * scale);
  }
  const double max = std::max(sink, *std::ranges::max_element(logits));
  double sum = std::exp(sink - max);
  for (double& logit : logits) sum += logit = std::exp(logit - max);
  double* const output = result.output.data();
  for (std::size_t s = 0; s < seen.size(); ++s) {
    const double weight = logits[s] / sum;
    const double* const value = rows.values.data() + seen[s] * head_dim;
    for (int64_t i = 0; i < head_dim; ++i) output[i] += weight * value[i];
  }
  result.lse = max + std::log(sum);
  return result;
}

// What a kernel's result is compared with.
struct AttentionError {
  double relative = 0.0;  // ||output - reference|| / ||reference||
  double lse = 0.0;       // largest absolute difference
};

// Sums up differences of many rows.
class ErrorSum {
 public:
  template <typename T>
  void Add(const HeadAttention& expected, const T* output, float lse) {
    for (std::size_t i = 0; i < expected.output.size(); ++i) {
      const double got = simt::ToFloat(output[i]);
      error_ += std::pow(got - expected.output[i], 2);
      norm_ += std::pow(expected.output[i], 2);
    }
    double difference = std::abs(lse - expected.lse);
    if (std::isinf(expected.lse) &&
        lse == -std::numeric_limits<float>::infinity()) {
      difference = 0.0;
    }
    // No later row may hide what is NaN or infinite.
    lse_ = std::max(lse_, std::isfinite(difference) ? difference : 1e30);
  }
  AttentionError Get() const {
    return {
        .relative = norm_ > 0.0 ? std::sqrt(error_ / norm_) : std::sqrt(error_),
        .lse = lse_};
  }

 private:
  double error_ = 0.0;
  double norm_ = 0.0;
  double lse_ = 0.0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_ERROR_H_
