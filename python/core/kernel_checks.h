// Checks that CpuKernels and CudaKernels share.
#ifndef PYTHON_CORE_KERNEL_CHECKS_H_
#define PYTHON_CORE_KERNEL_CHECKS_H_

#include <cstdint>
#include <optional>

#include <nanobind/ndarray.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "python/core/core.h"

namespace blockmgr::python {

// Returns the type of the pool's elements.
nb::dlpack::dtype ElementTypeOf(DType dtype);

// Returns the layout if kernels of one layer group without a sliding window can
// work on its pool. Raises InvalidArgumentError.
const ModelLayout& CheckedLayout(const ModelLayout& layout);

// Raises InvalidArgumentError unless the layout has the layer.
void CheckLayer(const ModelLayout& layout, int32_t layer);

// Returns the scale of logits, 1 / sqrt(head_dim) by default. Raises
// InvalidArgumentError if it is not a number above 0.
float CheckedScale(const ModelLayout& layout, std::optional<float> scale);

// Returns a policy whose scorer reads the pool, and no queries but the last
// ones. Raises InvalidArgumentError.
EvictionPolicy CheckedScorer(const PolicyArgument& text);

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_KERNEL_CHECKS_H_
