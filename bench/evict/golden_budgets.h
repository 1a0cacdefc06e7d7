// Golden cases of budgets and of LU-KV's solver, which need no policy.
#ifndef BENCH_EVICT_GOLDEN_BUDGETS_H_
#define BENCH_EVICT_GOLDEN_BUDGETS_H_

#include <optional>

#include <absl/status/status.h>

#include "bench/evict/golden.h"

namespace blockmgr {

// Nothing if the case is of another kind; else OK or the first difference.
//   pyramid      the lines kvpress, adakv and factory, as far as they are there
//   headkv       b
//   lukv_online  the lines paper and kvpress
//   lukv_solver  blocks HEAD n sum/count..; solve TOTAL .. value V .. b budgets
std::optional<absl::Status> CheckGoldenBudgets(const GoldenCase& golden);

}  // namespace blockmgr

#endif  // BENCH_EVICT_GOLDEN_BUDGETS_H_
