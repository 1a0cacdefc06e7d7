// The Python module blockmgr._core.
#include <nanobind/nanobind.h>

#include "python/core/core.h"
#include "python/core/errors.h"

NB_MODULE(_core, m) {
  namespace python = blockmgr::python;
  m.doc() = "The compiled part of the package blockmgr.";
  python::BindErrors();
  python::BindLayout(m);
  python::BindPolicy(m);
  python::BindEviction(m);
  python::BindKernels(m);
  python::BindCuda(m);
  python::BindOptions(m);
  python::BindRequest(m);
  python::BindPlan(m);
  python::BindResult(m);
  python::BindScheduler(m);
  python::BindTables(m);
}
