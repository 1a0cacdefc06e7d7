// Arguments that a call looks into itself.
#ifndef PYTHON_CORE_ARGUMENT_H_
#define PYTHON_CORE_ARGUMENT_H_

#include <concepts>
#include <cstdint>

#include <nanobind/nanobind.h>

namespace blockmgr::python {

namespace nb = nanobind;

// Any object. A class that is derived from Argument says in kType which type
// the stubs name.
struct Argument {
  nb::handle value;
  bool is_none() const { return value.is_none(); }
};

}  // namespace blockmgr::python

namespace nanobind::detail {

template <std::derived_from<blockmgr::python::Argument> T>
struct type_caster<T> {
  NB_TYPE_CASTER(T, T::kType)
  bool from_python(handle source, uint32_t /*flags*/,
                   cleanup_list* /*cleanup*/) noexcept {
    value.value = source;
    return true;
  }
};

}  // namespace nanobind::detail

#endif  // PYTHON_CORE_ARGUMENT_H_
