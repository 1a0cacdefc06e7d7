// Every scorer in float64 from its definition, on the dense tensors of a
// reference model: written without the library's kernels, to compare them with.
#ifndef TESTS_E2E_DENSE_SCORES_H_
#define TESTS_E2E_DENSE_SCORES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/tiny_model.h"
#include "tests/testing/dense_reference.h"

namespace blockmgr {

// Of the entries below the order's cut that the reference attends, CSR order:
// (layer, head), then position. Empty where a policy reads none.
struct DenseScores {
  std::vector<float> scores;
  std::vector<float> value_norms;
  std::vector<float> products;
};

// Every shard scores by its own query heads. `first`: the first position that
// the order's group attends to; what is before is as good as not there.
// `offsets`: of the entries, CSR, so that those of slots that no layer has find
// their place; their score is -infinity. `query_stats`: the tables that the
// order may name. REQUIRES: the reference has computed order.length positions.
DenseScores ScoreDensely(const EvictionOrder& order, int32_t first,
                         std::span<const int64_t> offsets,
                         const DenseReference& reference,
                         const LanguageModel& model, int32_t num_shards,
                         const QueryStatsTables& query_stats);

}  // namespace blockmgr

#endif  // TESTS_E2E_DENSE_SCORES_H_
