// A kernel as the interpreter runs it: what nvcc made of the kernels' sources,
// in PTX (Parallel Thread Execution ISA, NVIDIA), decoded once.
#ifndef TESTS_KERNELS_PTX_PTX_KERNEL_H_
#define TESTS_KERNELS_PTX_PTX_KERNEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace blockmgr::ptx {

inline constexpr uint32_t kLanes = 32;
using LaneMask = uint32_t;
inline constexpr LaneMask kAllLanes = ~LaneMask{0};

class Warp;
struct Instruction;

// Carries an instruction out for the lanes of the mask, of which there is one
// at least.
using Operation = void (*)(Warp& warp, const Instruction& instruction,
                           LaneMask mask);

enum class Flow : uint8_t {
  kNext,
  kBranch,
  kExit,
  kBlockBarrier,  // bar.sync, bar.red
  kGather,        // the lanes that are named, or all of the warp, come together
};

// What the counts of a launch tell apart.
enum class Pipe : uint8_t { kArithmetic, kMemory, kTensor, kOther };

// State spaces. Generic addresses are those of global memory, and of a window
// on shared memory.
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParam };

// A row is a register's values in all lanes, beside each other; a predicate's
// is a LaneMask. Constants have rows, too, so that no operation need know them.
// A row is named by its first byte in the warp's rows.
inline constexpr uint32_t kNoRow = ~0u;

struct Instruction {
  static constexpr std::size_t kMaxOperands = 14;

  Operation run = nullptr;
  Flow flow = Flow::kNext;
  Pipe pipe = Pipe::kArithmetic;
  bool negated = false;  // the guard
  uint32_t guard = kNoRow;
  uint32_t target = 0;  // of a branch
  uint32_t line = 0;    // of the kernel's text
  // Of kGather: the row of the lanes that must come, or all that there are.
  uint32_t members = kNoRow;
  std::array<uint32_t, kMaxOperands> rows = {};  // results first
  std::array<uint8_t, kMaxOperands> bytes = {};  // of a value; 0: a predicate
  std::array<int64_t, 2> offsets = {};           // of addresses, in order
  // Loads and stores; operands are as many.
  Space space = Space::kGeneric;
  uint8_t num_elements = 0;
  uint8_t element_bytes = 0;
  bool sign_extends = false;
};

enum class SpecialRegister : uint8_t {
  kThreadX,
  kBlockX,
  kBlockY,
  kBlockZ,
  kBlockThreads,
  kGridX,
  kGridY,
  kGridZ,
};

struct SpecialRow {
  SpecialRegister which;
  uint32_t row;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<std::string> lines;    // of the text, for messages
  std::vector<std::string> sources;  // by line: "file:line", or ""
  // What a warp's rows are at the start: constants, and registers full of 0xFF.
  std::vector<std::byte> rows;
  std::vector<SpecialRow> special_rows;
  std::vector<std::size_t> param_offsets;
  std::vector<std::size_t> param_sizes;
  std::size_t param_bytes = 0;
  uint32_t max_threads = 0;
};

// Where shared memory and params begin in their own address spaces. Not at 0,
// which a lost base would give.
inline constexpr uint64_t kSharedBase = 1024;
inline constexpr uint64_t kParamBase = 512;
// Generic addresses of shared memory: of no host's memory.
inline constexpr uint64_t kSharedWindow = uint64_t{0xFFFF} << 48;

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_KERNEL_H_
