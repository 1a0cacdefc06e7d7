// KernelFamilies: the table of all cases of the benchmark of the kernels.
#ifndef BENCH_KERNEL_FAMILIES_H_
#define BENCH_KERNEL_FAMILIES_H_

#include <string>
#include <vector>

#include "bench/kernel_case.h"

namespace blockmgr {

// A family is cases that share their work space.
struct KernelFamily {
  std::vector<std::string> kernels;  // the names of its cases
  void (*add)(CaseBuilder& builder) = nullptr;
};

// Returns all families, ceilings first. Families that write to pools come after
// those that only read them, which find the elements of the problem there.
const std::vector<KernelFamily>& KernelFamilies();

}  // namespace blockmgr

#endif  // BENCH_KERNEL_FAMILIES_H_
