// What a kernel has asked of a device, in the units that hardware works in:
// counted, not timed.
#ifndef TESTS_KERNELS_PTX_PTX_COUNTS_H_
#define TESTS_KERNELS_PTX_PTX_COUNTS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace blockmgr::ptx {

struct LaunchCounts {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  // Of warps, by Pipe.
  std::array<uint64_t, 4> instructions = {};
  // Of global memory, each for a warp: requests, the bytes that lanes asked
  // for, and the sectors of 32 bytes that these are in.
  uint64_t global_requests = 0;
  uint64_t global_bytes = 0;
  uint64_t global_sectors = 0;
  // Of shared memory: requests, the passes that they take over 32 banks of 4
  // bytes, and those that requests without conflicts would.
  uint64_t shared_requests = 0;
  uint64_t shared_passes = 0;
  uint64_t shared_least_passes = 0;

  void CountGlobal(std::span<const uint64_t> addresses, uint32_t bytes);
  // Atomics of one word are carried out one after another.
  void CountShared(std::span<const uint64_t> addresses, uint32_t bytes,
                   bool atomic);
  LaunchCounts& operator+=(const LaunchCounts& other);
  std::string ToString() const;
};

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_COUNTS_H_
