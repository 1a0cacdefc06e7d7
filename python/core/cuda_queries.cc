// CudaKernels: the queries that expected_attention expects.
#include <span>

#include "blockmgr/eviction/policy.h"
#include "kernels/cpu/query_statistics.h"
#include "kernels/cuda/host/split_covariance.h"
#include "python/core/cuda_kernels.h"
#include "python/core/errors.h"

namespace blockmgr::python {
namespace {

// Returns the statistics of one query that has this mean and this covariance,
// by query head. Without covariances they are zeros.
QueryStatistics OneQuery(int64_t head_dim, std::span<const float> means,
                         std::span<const float> covariances) {
  const auto dim = static_cast<size_t>(head_dim);
  QueryStatistics statistics;
  statistics.count = 1;
  statistics.sums.assign(means.begin(), means.end());
  statistics.products.reserve(means.size() * dim);
  for (size_t row = 0; row < means.size(); ++row) {
    const double* const mean = &statistics.sums[row / dim * dim];
    for (size_t j = 0; j < dim; ++j) {
      const double covariance =
          covariances.empty() ? 0.0 : double{covariances[row * dim + j]};
      statistics.products.push_back(covariance + mean[row % dim] * mean[j]);
    }
  }
  return statistics;
}

}  // namespace

PyFutureQueries PyCudaKernels::PredictQueries(
    const PolicyArgument& text, const PyEntryPlan& plan, ArrayArgument means,
    ArrayArgument covariances, ArrayArgument inverse_frequencies) const {
  CheckPlan(plan);
  const EvictionPolicy policy = PolicyOf(text);
  const ScorerSpec& scorer = policy.scorer;
  if (scorer.kind != ScorerKind::kExpectedAttention) {
    ThrowInvalid("policy: expected expected_attention, got ",
                 FormatPolicy(policy));
  }
  const int64_t dim = layout_.head_dim;
  const int64_t num_q_heads = layout_.num_q_heads;
  const In<float> mean("means", means, {plan.num_groups, num_q_heads, dim});
  In<float> covariance;
  if (scorer.cov) {
    covariance = In<float>("covariances", covariances,
                           {plan.num_groups, num_q_heads, dim, dim});
  }
  const In<double> frequencies("inverse_frequencies", inverse_frequencies,
                               {dim / 2});
  PyFutureQueries future;
  future.layout = layout_;
  future.num_groups = static_cast<size_t>(plan.num_groups);
  const nb::gil_scoped_release release;
  const auto width = static_cast<size_t>(num_q_heads * dim);
  const auto square = static_cast<size_t>(dim * dim);
  future.units.resize(future.num_groups * static_cast<size_t>(num_q_heads));
  future.means.reserve(future.num_groups * width);
  future.covariances.resize(2 * covariance.values().size());
  std::span<uint16_t> parts = future.covariances;
  for (size_t group = 0; group < future.num_groups; ++group) {
    const auto products = static_cast<size_t>(scorer.cov ? dim : 0) * width;
    const QueryStatistics statistics =
        OneQuery(dim, mean.values().subspan(group * width, width),
                 covariance.values().subspan(group * products, products));
    const MeanRotation rotation = AverageRotation(
        frequencies.values(), plan.lengths[group], scorer.n_future);
    for (int32_t q_head = 0; q_head < num_q_heads; ++q_head) {
      const FutureQueries queries =
          blockmgr::PredictQueries(statistics, rotation, q_head);
      future.means.insert(future.means.end(), queries.mean.begin(),
                          queries.mean.end());
      if (!scorer.cov) continue;
      future.units[group * static_cast<size_t>(num_q_heads) +
                   static_cast<size_t>(q_head)] =
          SplitCovariance(queries.covariance, layout_.head_dim, layout_.dtype,
                          parts.first(2 * square));
      parts = parts.subspan(2 * square);
    }
  }
  return future;
}

}  // namespace blockmgr::python
