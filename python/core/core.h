// The parts of the Python module blockmgr._core, and what they share.
//
// The calls of one interpreter come one after another, because they hold its
// lock (the GIL). Only pure functions on large arrays give it up, and the calls
// of CpuKernels, which has a lock of its own.
#ifndef PYTHON_CORE_CORE_H_
#define PYTHON_CORE_CORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include <nanobind/nanobind.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr::python {

namespace nb = nanobind;

// A Policy, or text or stages to parse.
struct PolicyArgument {
  nb::handle value;
};
// Raises InvalidArgumentError.
EvictionPolicy PolicyOf(const PolicyArgument& argument);

// A Target, a ratio (float or text) or tokens per head (int).
struct TargetArgument {
  nb::handle value;
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

namespace nanobind::detail {

template <>
struct type_caster<blockmgr::python::PolicyArgument> {
  NB_TYPE_CASTER(blockmgr::python::PolicyArgument,
                 const_name("Policy | blockmgr.policies.Stages | str"))
  bool from_python(handle source, uint32_t /*flags*/,
                   cleanup_list* /*cleanup*/) noexcept {
    value.value = source;
    return true;
  }
};

template <>
struct type_caster<blockmgr::python::TargetArgument> {
  NB_TYPE_CASTER(blockmgr::python::TargetArgument,
                 const_name("Target | float | int | str"))
  bool from_python(handle source, uint32_t /*flags*/,
                   cleanup_list* /*cleanup*/) noexcept {
    value.value = source;
    return true;
  }
};

}  // namespace nanobind::detail

#endif  // PYTHON_CORE_CORE_H_
