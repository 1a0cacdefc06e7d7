// Runs expected_attention's scores on an EntryCase, and the same in float64
// from the definition.
#ifndef TESTS_KERNELS_CUDA_SCORES_EXPECTED_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_EXPECTED_RUNNER_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/base/dtype.h"
#include "kernels/cuda/host/split_covariance.h"
#include "kernels/cuda/scores/expected_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/score_cases.h"

namespace blockmgr {

struct ExpectedOptions {
  int32_t n_sink = 4;
  bool cov = true;
  bool vnorm = true;
  float eps = 0.02f;
  simt::Schedule schedule = {};
};

template <typename T>
class ExpectedRunner {
 public:
  // The case is borrowed. Draws the queries to come: means and covariances of
  // which logits vary by some units.
  explicit ExpectedRunner(EntryCase<T>* test);

  // Returns what went wrong, or "".
  std::string Run(const ExpectedOptions& options);
  // Of one list; infinite for sinks. The covariances are those before they were
  // split.
  std::vector<double> Naive(const ExpectedOptions& options, int32_t list) const;
  // ||scores - naive|| / ||naive|| over what is not a sink; infinite if that
  // differs.
  double Error(const ExpectedOptions& options) const;

  const SharedVector<float>& scores() const { return scores_; }
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  double Key(int64_t entry, int32_t element) const {
    return double{test_.cache().Value(test_.slot(entry), false, element)};
  }
  std::vector<double> Logits(const ExpectedOptions& options, int32_t list,
                             int32_t q_head, int32_t num_sinks) const;

  EntryCase<T>& test_;
  const int64_t dim_;
  SharedVector<float> means_;
  std::vector<float> covariances_;  // [lists, group_size, dim, dim]
  SharedVector<uint16_t> parts_;
  SharedVector<float> units_;
  SharedVector<float> scores_;
  int64_t bank_conflicts_ = 0;
};

template <typename T>
ExpectedRunner<T>::ExpectedRunner(EntryCase<T>* test)
    : test_(*test), dim_(test->shape().head_dim) {
  constexpr int32_t kRank = 8;
  Rng& rng = test_.cache().rng();
  const int64_t num_rows =
      int64_t{test_.num_lists()} * test_.shape().group_size;
  const int64_t size = dim_ * dim_;
  means_ = Shared(RandomFloats(rng, num_rows * dim_));
  covariances_.resize(num_rows * size);
  parts_.resize(2 * num_rows * size);
  constexpr DType kDType = ElementTypeOf<T>() == ElementType::kHalf
                               ? DType::kFloat16
                               : DType::kBFloat16;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto covariance = std::span(covariances_).subspan(row * size, size);
    for (int32_t rank = 0; rank < kRank; ++rank) {
      const std::vector<float> x = RandomFloats(rng, dim_);
      for (int64_t i = 0; i < size; ++i) {
        covariance[i] += x[i / dim_] * x[i % dim_];
      }
    }
    units_.push_back(
        SplitCovariance(covariance, static_cast<int32_t>(dim_), kDType,
                        std::span(parts_).subspan(2 * row * size, 2 * size)));
  }
}

template <typename T>
std::string ExpectedRunner<T>::Run(const ExpectedOptions& options) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const int32_t group_size = test_.shape().group_size;
  SharedVector<float> logits(test_.num_entries() * group_size, kNan);
  SharedVector<float> lse(int64_t{test_.num_lists()} * group_size, kNan);
  scores_.assign(test_.num_entries(), kNan);
  ExpectedParams params;
  params.entries = test_.Lists();
  params.pool = test_.cache().Pool();
  params.group_size = group_size;
  params.scale = test_.cache().scale();
  params.n_sink = options.n_sink;
  params.means = means_.data();
  params.covariances = options.cov ? parts_.data() : nullptr;
  params.units = options.cov ? units_.data() : nullptr;
  params.vnorm = options.vnorm;
  params.eps = options.eps;
  params.logits = logits.data();
  params.lse = lse.data();
  params.scores = scores_.data();
  const KernelReport report =
      RunKernel(options.schedule, &DeviceRuntime::ExpectedScores, params,
                test_.cache().row_shape());
  bank_conflicts_ = report.bank_conflicts;
  return report.error;
}

template <typename T>
std::vector<double> ExpectedRunner<T>::Logits(const ExpectedOptions& options,
                                              int32_t list, int32_t q_head,
                                              int32_t num_sinks) const {
  const double scale = double{test_.cache().scale()};
  const int64_t row = int64_t{list} * test_.shape().group_size + q_head;
  const float* mean = &means_[row * dim_];
  const float* covariance = &covariances_[row * dim_ * dim_];
  std::vector<double> logits;
  for (int32_t e = num_sinks; e < test_.size(list); ++e) {
    std::vector<double> key(dim_);
    for (int32_t i = 0; i < dim_; ++i) key[i] = Key(test_.offset(list) + e, i);
    double z = 0.0;
    for (int64_t i = 0; i < dim_; ++i) {
      double w = 0.0;
      for (int64_t j = 0; j < dim_ && options.cov; ++j) {
        w += double{covariance[i * dim_ + j]} * key[j];
      }
      z += key[i] * (scale * double{mean[i]} + scale * scale / 2.0 * w);
    }
    logits.push_back(z);
  }
  return logits;
}

template <typename T>
std::vector<double> ExpectedRunner<T>::Naive(const ExpectedOptions& options,
                                             int32_t list) const {
  const int32_t size = test_.size(list);
  const int64_t begin = test_.offset(list);
  const int32_t group_size = test_.shape().group_size;
  int32_t num_sinks = 0;
  while (num_sinks < size &&
         test_.position(begin + num_sinks) < options.n_sink) {
    ++num_sinks;
  }
  std::vector<double> scores(size);
  std::fill_n(scores.begin(), num_sinks,
              std::numeric_limits<double>::infinity());
  for (int32_t g = 0; g < group_size; ++g) {
    const std::vector<double> weights =
        NaiveSoftmax(Logits(options, list, g, num_sinks));
    for (int32_t e = num_sinks; e < size; ++e) {
      scores[e] += weights[e - num_sinks] / group_size;
    }
  }
  for (int32_t e = num_sinks; e < size && options.vnorm; ++e) {
    double square = 0.0;
    for (int32_t i = 0; i < dim_; ++i) {
      square += std::pow(
          double{test_.cache().Value(test_.slot(begin + e), true, i)}, 2);
    }
    scores[e] = (scores[e] + double{options.eps}) * std::sqrt(square);
  }
  return scores;
}

template <typename T>
double ExpectedRunner<T>::Error(const ExpectedOptions& options) const {
  double error = 0.0;
  double norm = 0.0;
  for (int32_t list = 0; list < test_.num_lists(); ++list) {
    const std::vector<double> naive = Naive(options, list);
    for (int32_t e = 0; e < test_.size(list); ++e) {
      const double got = double{scores_[test_.offset(list) + e]};
      if (std::isinf(naive[e]) && got == naive[e]) continue;
      if (!std::isfinite(naive[e]) || !std::isfinite(got)) {
        return std::numeric_limits<double>::infinity();
      }
      error += std::pow(got - naive[e], 2);
      norm += std::pow(naive[e], 2);
    }
  }
  return std::sqrt(error / norm);
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_EXPECTED_RUNNER_H_
