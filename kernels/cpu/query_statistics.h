// Sums of queries and of their outer products, and the future queries that
// expected_attention predicts from them.
#ifndef KERNELS_CPU_QUERY_STATISTICS_H_
#define KERNELS_CPU_QUERY_STATISTICS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"

namespace blockmgr {

// Adds queries before rotation, [num_tokens, num_q_heads, head_dim], to the
// statistics. Empty statistics get their size first. A product of two floats is
// exact in double, and tokens are added in order. The sums are therefore the
// same, bit for bit, for every split into calls and on every machine. Cost:
// O(tokens * num_q_heads * head_dim^2). A call of few tokens is bound by the
// memory of the sums.
void AddQueriesTo(const ModelLayout& layout, const float* queries,
                  int32_t num_tokens, QueryStatistics* statistics);

// The rotation of rotary embeddings, averaged over positions: y = c x + s
// rotate_half(x), with c and s per frequency.
struct MeanRotation {
  std::vector<double> cosines;  // [head_dim / 2]
  std::vector<double> sines;
};

// Returns the mean rotation over positions [first, first + count). Cost:
// O(head_dim).
MeanRotation AverageRotation(std::span<const double> inverse_frequencies,
                             int64_t first, int64_t count);

// The future queries of one query head, as a normal distribution: the mean and
// the covariance of the queries seen so far, rotated.
struct FutureQueries {
  std::vector<float> mean;        // [head_dim]
  std::vector<float> covariance;  // [head_dim, head_dim]; symmetric
};

// Returns R mean and R covariance R^T. REQUIRES: statistics.count > 0. Cost:
// O(head_dim^2).
FutureQueries PredictQueries(const QueryStatistics& statistics,
                             const MeanRotation& rotation, int32_t q_head);

}  // namespace blockmgr

#endif  // KERNELS_CPU_QUERY_STATISTICS_H_
