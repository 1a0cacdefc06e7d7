// One random case of every copy of rows, on a device and on the CPU: bit for
// bit the same, and nothing else written.
#ifndef TESTS_KERNELS_CUDA_ROWS_ROW_CHECKS_H_
#define TESTS_KERNELS_CUDA_ROWS_ROW_CHECKS_H_

#include <cstdint>
#include <string>

namespace blockmgr {

// Each returns what is wrong, or "".
std::string CheckAppend(uint64_t seed);
std::string CheckGather(uint64_t seed);
std::string CheckMoves(uint64_t seed);
std::string CheckCopyBlocks(uint64_t seed);
// Pages out to staging, then into other pages of the pool.
std::string CheckSwap(uint64_t seed);

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ROWS_ROW_CHECKS_H_
