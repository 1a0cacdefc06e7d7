// Step plans that Python holds.
//
// A plan that was issued lives in a StoredPlan. Everything that Python gets of
// it, arrays included, keeps the StoredPlan alive. So no array ever changes or
// dangles, and a scheduler uses the memory of a plan again only when Python has
// dropped it. Once the step is answered, the plan is stale: its properties
// raise StalePlanError.
#ifndef PYTHON_CORE_PLAN_H_
#define PYTHON_CORE_PLAN_H_

#include <cstddef>
#include <memory>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"

namespace blockmgr::python {

struct StoredPlan {
  ModelLayout layout;
  StepPlan plan = {};
  bool is_stale = false;
};

// A plan, an order or a start of it. Objects of Python.
struct PyPlan {
  std::shared_ptr<StoredPlan> stored;
};
struct PyOrder {
  std::shared_ptr<StoredPlan> stored;
  size_t index = 0;
};
struct PyStart {
  std::shared_ptr<StoredPlan> stored;
  size_t index = 0;
};

// Returns the plan. Raises StalePlanError if its step was answered.
const StepPlan& Fresh(const StoredPlan& stored);

inline const EvictionOrder& Fresh(const PyOrder& order) {
  return Fresh(*order.stored).evictions[order.index];
}

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_PLAN_H_
