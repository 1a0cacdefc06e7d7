// Runs kernels in PTX on the CPU: blocks one after another, their warps in
// turns, the lanes of a warp side by side. Lanes that part at a branch go on by
// themselves, those that are behind first, until they meet again.
//
// A launch stops, and says at which line, on: accesses outside all allocations
// or out of a block's shared memory; misaligned vectors; divisions by zero;
// collectives that their lanes do not reach; accesses to shared memory of which
// one writes and no barrier is between them. Bytes of an asynchronous copy are
// 0xFF until they are waited for, as is all shared memory at first.
#ifndef TESTS_KERNELS_PTX_PTX_MACHINE_H_
#define TESTS_KERNELS_PTX_PTX_MACHINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "tests/kernels/ptx/ptx_counts.h"
#include "tests/kernels/ptx/ptx_hazards.h"
#include "tests/kernels/ptx/ptx_kernel.h"
#include "tests/kernels/ptx/ptx_memory.h"

namespace blockmgr::ptx {

struct LaunchShape {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  uint32_t threads = 0;
  uint32_t shared_bytes = 0;
  // May begin before the launch before it has ended.
  bool overlaps = false;
};

// What the warps of a block have in common.
struct Block {
  const Kernel* kernel = nullptr;
  DeviceMemory* memory = nullptr;
  const std::byte* params = nullptr;
  LaunchCounts* counts = nullptr;
  LaunchShape shape;
  std::array<uint32_t, 3> index = {};
  std::vector<std::byte> shared;
  Hazards hazards;
  bool barrier_or = false;  // of bar.red, while warps come to it
  std::string fault;        // the first one, or ""
};

// Bytes on their way to shared memory.
struct AsyncCopy {
  uint32_t lane;
  uint32_t group;      // of the lane's
  uint32_t bytes;      // that are read; the rest of the 16 is zero
  uint64_t to_offset;  // its address in shared memory
  std::byte* to;
  const std::byte* from;
};

// 32 lanes of a block, which outlives it: their registers, where in the code
// they are, and the copies that they wait for. Thread-compatible.
class Warp {
 public:
  enum class State { kRunning, kAtBarrier, kDone };

  Warp(Block& block, uint32_t index);
  void Begin();

  // Runs so many instructions at most, or to the next barrier of the block.
  void Run(int64_t max_instructions);
  void LeaveBarrier();
  State state() const { return state_; }

  // The rest is for operations.
  template <typename T>
  T* Row(uint32_t row) {
    return reinterpret_cast<T*>(rows_.data() + row);
  }
  template <typename T>
  void Store(uint32_t row, const T* values, LaneMask mask) {
    T* to = Row<T>(row);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      to[lane] = (mask >> lane & 1u) != 0 ? values[lane] : to[lane];
    }
  }
  LaneMask Predicate(uint32_t row) { return *Row<LaneMask>(row); }
  void SetPredicate(uint32_t row, LaneMask value, LaneMask mask) {
    LaneMask* to = Row<LaneMask>(row);
    *to = (*to & ~mask) | (value & mask);
  }
  // The address of a lane's operand, with its offset.
  uint64_t Address(const Instruction& instruction, std::size_t operand,
                   std::size_t which, uint32_t lane) {
    const uint32_t row = instruction.rows[operand];
    const uint64_t base = instruction.bytes[operand] == 4
                              ? Row<uint32_t>(row)[lane]
                              : Row<uint64_t>(row)[lane];
    return base + static_cast<uint64_t>(instruction.offsets[which]);
  }
  // Where so many bytes are, or null, after a fault.
  std::byte* Resolve(const Instruction& instruction, Space space,
                     uint64_t address, std::size_t bytes, uint32_t lane,
                     Access access);

  // Of griddepcontrol: until earlier launches have ended, and that the next one
  // may begin.
  void AwaitEarlier(LaneMask mask) { awaited_ |= mask; }
  bool HasAwaited(LaneMask mask) const { return (mask & ~awaited_) == 0; }

  LaneMask& carry() { return carry_; }
  std::vector<AsyncCopy>& copies() { return copies_; }
  std::array<uint32_t, kLanes>& copy_groups() { return copy_groups_; }
  Block& block() { return block_; }
  uint32_t index() const { return index_; }
  void Fail(const Instruction& instruction, absl::string_view what);

 private:
  // Lanes at one place.
  struct Path {
    uint32_t place;
    LaneMask lanes;
    bool waits;
  };

  bool Pick(std::size_t* path, uint32_t* meeting) const;
  void RunPath(std::size_t path, uint32_t meeting, int64_t* budget);
  // Of an instruction that is not like the others. Whether the path goes on.
  bool Turn(const Instruction& instruction, LaneMask mask, Path* path);
  bool Branch(const Instruction& instruction, LaneMask mask, Path* path);
  bool Gather(const Instruction& instruction, LaneMask mask, Path* path);
  void Meet();
  void FailToMeet();
  // Of lanes that have not awaited the launch before.
  bool IsTooEarly(const Instruction& instruction, uint64_t address,
                  std::size_t bytes, Access access);

  Block& block_;
  const uint32_t index_;
  State state_ = State::kDone;
  std::vector<std::byte> rows_;
  std::vector<Path> paths_;
  LaneMask alive_ = 0;
  LaneMask awaited_ = 0;
  LaneMask carry_ = 0;
  std::vector<AsyncCopy> copies_;
  std::array<uint32_t, kLanes> copy_groups_ = {};
};

// InvalidArgument for a shape that the kernel cannot have.
absl::Status CheckShape(const Kernel& kernel, const LaunchShape& shape);

// Internal, with the place, for the first fault. `params` are as the kernel has
// them; the seed draws how blocks and warps take turns. REQUIRES: CheckShape.
absl::Status RunKernel(const Kernel& kernel, const LaunchShape& shape,
                       const std::byte* params, DeviceMemory& memory,
                       uint64_t seed, LaunchCounts& counts);

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_MACHINE_H_
