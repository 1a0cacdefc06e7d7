// Whether an eviction order fits the tables. The checks read the tables through
// a const TablesState.
#ifndef ENGINE_TABLES_ORDER_CHECKS_H_
#define ENGINE_TABLES_ORDER_CHECKS_H_

#include <cstdint>
#include <span>

#include <absl/status/status.h>

#include "blockmgr/step_plan.h"
#include "engine/tables/tables_state.h"

namespace blockmgr {

// See EngineTables::CheckOrder.
absl::Status CheckEvictionOrder(const TablesState& state, const StepPlan& plan,
                                const EvictionOrder& order);
// See EngineTables::CheckCounts.
absl::Status CheckKeptCounts(const TablesState& state,
                             const EvictionOrder& order,
                             std::span<const int32_t> counts);

}  // namespace blockmgr

#endif  // ENGINE_TABLES_ORDER_CHECKS_H_
