// Moves planned on a device, compared with the rule move by move.
#ifndef TESTS_KERNELS_CUDA_SELECTION_MOVE_CHECKS_H_
#define TESTS_KERNELS_CUDA_SELECTION_MOVE_CHECKS_H_

#include <cstdint>
#include <string>

namespace blockmgr {

// A sequence's life: evictions in place, copies, and mixes of both. What is
// wrong, or "".
std::string CheckHistory(uint64_t seed);
// Heads of more entries than a block takes in a turn, whose moves are carried
// out too.
std::string CheckLong(uint64_t seed);

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SELECTION_MOVE_CHECKS_H_
