// Between tables of query statistics and the sums that scorers read.
#ifndef KERNELS_CPU_QUERY_STATS_H_
#define KERNELS_CPU_QUERY_STATS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "kernels/backend.h"

namespace blockmgr {

// Returns the statistics of one layer for query heads [first_q_head,
// first_q_head + num_q_heads): those of a single query whose mean and
// covariance are the table's. REQUIRES: a valid table that has these heads.
// Cost: O(num_q_heads * head_dim^2).
QueryStatistics StatisticsOf(const QueryStatsTable& table, int32_t layer,
                             int32_t first_q_head, int32_t num_q_heads);

// QueryStatsBuilder measures a table: it sums up the queries of a model, over
// any number of texts. Thread-compatible. Memory: the sums in double, 8 *
// head_dim * (head_dim + 1) bytes per layer and query head.
class QueryStatsBuilder {
 public:
  // REQUIRES: all numbers are at least 1, and head_dim is a multiple of 4, as
  // in every layout.
  QueryStatsBuilder(int32_t num_layers, int32_t num_q_heads, int32_t head_dim);

  // Adds queries of a layer before rotation, [num_tokens, num_q_heads,
  // head_dim]. Leave out the first tokens of a text, whose queries are unlike
  // all others (n_sink).
  void AddQueries(int32_t layer, std::span<const float> queries);

  // Returns mean and covariance of the queries added so far. InvalidArgument if
  // a layer has none or has not as many as the others, or if the table would
  // not be valid.
  absl::StatusOr<QueryStatsTable> Finish(const std::string& model) const;

 private:
  ModelLayout layout_;  // the layout of one layer
  std::vector<QueryStatistics> layers_;
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_QUERY_STATS_H_
