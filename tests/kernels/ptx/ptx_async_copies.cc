// Asynchronous copies: section 9.7.9.25 of the PTX ISA. Their bytes are read,
// and arrive, when they are waited for: as late as may be.
#include <cstring>
#include <span>

#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"

namespace blockmgr::ptx {
namespace {

constexpr std::size_t kCopyBytes = 16;

void Copy(Warp& warp, const Instruction& in, LaneMask mask) {
  const uint32_t* sizes = warp.Row<uint32_t>(in.rows[3]);
  std::array<uint64_t, kLanes> from_addresses;
  std::array<uint64_t, kLanes> to_addresses;
  std::size_t num_read = 0;
  std::size_t num_written = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const uint64_t to_address = warp.Address(in, 0, 0, lane);
    const uint64_t from_address = warp.Address(in, 1, 1, lane);
    std::byte* to = warp.Resolve(in, Space::kShared, to_address, kCopyBytes,
                                 lane, Access::kWrite);
    if (to == nullptr) return;
    if (sizes[lane] > kCopyBytes || from_address % kCopyBytes != 0) {
      warp.Fail(in, "more than 16 bytes, or a misaligned source");
      return;
    }
    const std::byte* from = nullptr;
    if (sizes[lane] > 0) {
      from = warp.Resolve(in, Space::kGlobal, from_address, kCopyBytes, lane,
                          Access::kRead);
      if (from == nullptr) return;
      from_addresses[num_read++] = from_address;
    }
    to_addresses[num_written++] = to_address;
    std::memset(to, 0xFF, kCopyBytes);
    warp.copies().push_back({.lane = lane,
                             .group = warp.copy_groups()[lane],
                             .bytes = sizes[lane],
                             .to_offset = to_address,
                             .to = to,
                             .from = from});
  }
  LaunchCounts& counts = *warp.block().counts;
  if (num_read > 0) {
    counts.CountGlobal(std::span(from_addresses).first(num_read), kCopyBytes);
  }
  counts.CountShared(std::span(to_addresses).first(num_written), kCopyBytes,
                     false);
}

void Commit(Warp& warp, const Instruction&, LaneMask mask) {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    warp.copy_groups()[lane] += mask >> lane & 1u;
  }
}

void Wait(Warp& warp, const Instruction& in, LaneMask mask) {
  const auto pending = static_cast<uint32_t>(in.offsets[0]);
  std::erase_if(warp.copies(), [&](const AsyncCopy& copy) {
    if ((mask >> copy.lane & 1u) == 0 ||
        copy.group + pending >= warp.copy_groups()[copy.lane]) {
      return false;
    }
    // Here is when they are written: nobody may have looked since.
    static_cast<void>(warp.Resolve(in, Space::kShared, copy.to_offset,
                                   kCopyBytes, copy.lane, Access::kWrite));
    std::memset(copy.to, 0, kCopyBytes);
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    return true;
  });
}

}  // namespace

std::optional<Form> FindAsyncCopy(absl::string_view opcode) {
  Form form;
  form.pipe = Pipe::kMemory;
  if (opcode == "cp.async.cg.shared.global.L2::128B") {
    form.run = Copy;
    form.operands = "aaiw";
  } else if (opcode == "cp.async.commit_group") {
    form.run = Commit;
  } else if (opcode == "cp.async.wait_group") {
    form.run = Wait;
    form.operands = "n";
  } else {
    return std::nullopt;
  }
  return form;
}

}  // namespace blockmgr::ptx
