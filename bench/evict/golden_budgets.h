// Golden cases of budgets alone, and of LU-KV's solver.
#ifndef BENCH_EVICT_GOLDEN_BUDGETS_H_
#define BENCH_EVICT_GOLDEN_BUDGETS_H_

#include <map>
#include <optional>
#include <string>

#include <absl/status/status.h>

#include "bench/evict/golden.h"
#include "bench/evict/golden_methods.h"

namespace blockmgr {

// Nothing if the case is of another kind, one with kept positions; else OK or
// the first difference.
//   lukv_solver  blocks HEAD n sum/count..; solve TOTAL .. value V .. b budgets
//   others       lines of budgets: the method of `b` is the case's METHOD, that
//                of a line KIND is METHOD/KIND. As many layers as the case's L
//                says, of one head each; or a layer of as many heads as `tab
//                score` (headkv) or `tab r` (lukv) has values. As many entries
//                per head as its T says; without it, enough for any budget
std::optional<absl::Status> CheckGoldenBudgets(
    const GoldenCase& golden,
    const std::map<std::string, GoldenMethod>& methods);

}  // namespace blockmgr

#endif  // BENCH_EVICT_GOLDEN_BUDGETS_H_
