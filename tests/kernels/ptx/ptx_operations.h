// What PTX instructions do to the lanes of a warp.
#ifndef TESTS_KERNELS_PTX_PTX_OPERATIONS_H_
#define TESTS_KERNELS_PTX_PTX_OPERATIONS_H_

#include <optional>
#include <string>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/string_view.h>

#include "tests/kernels/ptx/ptx_kernel.h"

namespace blockmgr::ptx {

// How an instruction is written. A letter per operand, braces opened:
//   h w d  a value of 16, 32, 64 bits    p  a predicate
//   x      a register of any width       a  an address, [register + offset]
//   m      a mask of lanes that must come together (32 bits)
//   i      a number that is not used
//   n      a number, kept as the offset of the next address
struct Form {
  Operation run = nullptr;
  std::string operands;
  Flow flow = Flow::kNext;
  Pipe pipe = Pipe::kArithmetic;
  Space space = Space::kGeneric;
  uint8_t num_elements = 0;
  uint8_t element_bytes = 0;
  bool sign_extends = false;
};

// By opcode, with all its suffixes.
using Operations = absl::flat_hash_map<std::string, Form>;

inline std::optional<Form> FindIn(const Operations& operations,
                                  absl::string_view opcode) {
  const auto it = operations.find(opcode);
  if (it == operations.end()) return std::nullopt;
  return it->second;
}

// Of an opcode with all its suffixes, as in "add.s32"; none if unknown.
std::optional<Form> FindIntegerOperation(absl::string_view opcode);
std::optional<Form> FindFloatOperation(absl::string_view opcode);
std::optional<Form> FindConversion(absl::string_view opcode);
std::optional<Form> FindMemoryOperation(absl::string_view opcode);
std::optional<Form> FindAsyncCopy(absl::string_view opcode);
std::optional<Form> FindWarpOperation(absl::string_view opcode);
std::optional<Form> FindTensorOperation(absl::string_view opcode);

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_OPERATIONS_H_
