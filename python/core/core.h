// The parts of the Python module blockmgr._core, and what they share.
//
// The calls of one interpreter come one after another, because they hold its
// lock (the GIL). Only pure functions on large arrays give it up, and the calls
// of CpuKernels, which has a lock of its own.
#ifndef PYTHON_CORE_CORE_H_
#define PYTHON_CORE_CORE_H_

#include <memory>
#include <utility>

#include <nanobind/nanobind.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"
#include "python/core/argument.h"

namespace blockmgr::python {

namespace nb = nanobind;

// A Policy, or text or stages to parse.
struct PolicyArgument : Argument {
  static constexpr auto kType =
      nb::detail::const_name("Policy | blockmgr.policies.Stages | str");
};
// Raises InvalidArgumentError.
EvictionPolicy PolicyOf(const PolicyArgument& argument);

// A Target, a ratio (float or text) or tokens per head (int).
struct TargetArgument : Argument {
  static constexpr auto kType =
      nb::detail::const_name("Target | float | int | str");
};
// Raises InvalidArgumentError.
EvictionTarget TargetOf(const TargetArgument& argument);

// Loaded once, shared by all evictions that name it.
using TableHandle = std::shared_ptr<const BudgetTable>;
struct PyBudgetTable {
  TableHandle table;
};
// Returns null for None.
TableHandle TableOf(const PyBudgetTable* table);

// Returns an __init__ that stores what `make` returns.
template <typename T, typename... Arguments>
auto InitBy(T (*make)(Arguments...)) {
  return [make](T* self, Arguments... arguments) {
    new (self) T(make(std::forward<Arguments>(arguments)...));
  };
}

// __eq__ of a class whose objects equal no object of another class.
template <typename T>
bool IsEqual(const T& self, nb::handle other) {
  return nb::isinstance<T>(other) && self == nb::cast<const T&>(other);
}

void BindCuda(nb::module_& m);       // cuda.cc
void BindLayout(nb::module_& m);     // layout.cc
void BindPolicy(nb::module_& m);     // policy.cc
void BindEviction(nb::module_& m);   // eviction.cc
void BindKernels(nb::module_& m);    // kernels.cc
void BindOptions(nb::module_& m);    // options.cc
void BindRequest(nb::module_& m);    // request.cc
void BindPlan(nb::module_& m);       // plan.cc
void BindResult(nb::module_& m);     // result.cc
void BindScheduler(nb::module_& m);  // scheduler.cc
void BindTables(nb::module_& m);     // tables.cc

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_CORE_H_
