// From measured importances to LU-KV's profile (arXiv 2602.08585, section 4 and
// appendix E).
#ifndef BENCH_EVICT_CALIBRATION_H_
#define BENCH_EVICT_CALIBRATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/eviction/lukv_profile.h"

namespace blockmgr {

// One context, and what queries about it turned out to need.
struct Calibration {
  int32_t num_queries = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;  // KV heads
  int32_t length = 0;     // entries
  // [num_queries, num_layers, num_heads, length], finite, >= 0: how much the
  // query used the entry. Equal scales for all layers and contexts.
  std::vector<float> oracle;
  // [num_layers, num_heads, length]: the scorer's, higher keeps.
  std::vector<float> scores;
};

struct CalibrationOptions {
  int32_t sinks = 4;        // first entries, which the scorer always keeps
  int32_t window = 0;       // last entries, the same
  int32_t unit = 1;         // what budgets are multiples of: entries
  double min_keep = 0.01;   // of every head, whatever the query
  int32_t num_steps = 100;  // of rho from 0 to 1
  // The unprotected entries are kept in the order of what the query used, not
  // of their scores: LU-KV without its optimality gap, to compare with.
  bool oracle_order = false;
};

// Positions of one head in the order in which a scorer keeps them: the first
// `sinks`, the last `window`, then by score; NaN is best, ties to the lower
// position. O(n log n). REQUIRES: sinks + window <= scores.size().
std::vector<int32_t> KeepOrder(std::span<const float> scores, int32_t sinks,
                               int32_t window);

// For every query the budgets that keep most of what it used, at every rho;
// their evicted fractions, averaged over the queries of all contexts, which
// must be of one shape and length. Steps of rho beyond which
// heads would fall below their minimum are left out, and rho is where rounding
// to whole units put it. Fills all but `scorer` and `model`; valid.
// Errors name the field, expected and got. O(queries * entries of all heads)
// and a sort of each head.
absl::StatusOr<LuKvProfile> SolveProfile(std::span<const Calibration> contexts,
                                         const CalibrationOptions& options);

// Returns, for every query, what the solver's budgets keep of what it used
// over the most that any budgets of the same total keep, which dynamic
// programming finds. `keep` is the fraction of all entries. Errors are those of
// SolveProfile, and of a `keep` below what every head keeps.
// O(queries * heads * total units * units of a head).
absl::StatusOr<std::vector<double>> SolverShares(
    std::span<const Calibration> contexts, const CalibrationOptions& options,
    double keep);

}  // namespace blockmgr

#endif  // BENCH_EVICT_CALIBRATION_H_
