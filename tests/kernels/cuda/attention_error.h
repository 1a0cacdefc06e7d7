// How far attention is from a reference.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_ERROR_H_
#define TESTS_KERNELS_CUDA_ATTENTION_ERROR_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/cuda/simt.h"

namespace blockmgr {

struct HeadAttention {
  std::vector<double> output;  // [head_dim]
  double lse = -std::numeric_limits<double>::infinity();
};

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

#endif  // TESTS_KERNELS_CUDA_ATTENTION_ERROR_H_
