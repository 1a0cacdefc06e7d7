// Whether this library gives the results of a golden case.
#ifndef BENCH_EVICT_GOLDEN_CHECK_H_
#define BENCH_EVICT_GOLDEN_CHECK_H_

#include <map>
#include <string>

#include <absl/status/status.h>

#include "bench/evict/golden.h"
#include "bench/evict/golden_methods.h"

namespace blockmgr {

// Runs the case by its method's policy, on the case's tensors or scores, or as
// CheckGoldenBudgets says; lukv_solver alone is no policy but the solver. Kept
// positions and budgets must be equal, scores within a tolerance of float32.
// Where the inputs are exact in bfloat16 and float16, kept positions must be
// the same when K and V are stored so.
//
// The error, if any, is the first difference: what, where, expected, got.
absl::Status CheckGoldenCase(
    const GoldenCase& golden,
    const std::map<std::string, GoldenMethod>& methods);

}  // namespace blockmgr

#endif  // BENCH_EVICT_GOLDEN_CHECK_H_
