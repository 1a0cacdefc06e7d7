// Bugs that tests plant in kernels, to prove that the tests would find them.
//
// A kernel that can be mutated takes a template argument `int kBug` and guards
// each place with `kBug == k...`. Only test code passes anything but kNoBug, so
// what nvcc compiles contains none of it.
#ifndef KERNELS_CUDA_PLANTED_BUG_H_
#define KERNELS_CUDA_PLANTED_BUG_H_

namespace blockmgr {

inline constexpr int kNoBug = 0;

}  // namespace blockmgr

#endif  // KERNELS_CUDA_PLANTED_BUG_H_
