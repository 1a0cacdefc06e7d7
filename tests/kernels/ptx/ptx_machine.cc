#include "tests/kernels/ptx/ptx_machine.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace blockmgr::ptx {
namespace {

constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

// Of all threads of a block.
uint32_t SpecialValue(const Block& block, SpecialRegister which) {
  switch (which) {
    case SpecialRegister::kThreadX:
      break;
    case SpecialRegister::kBlockX:
      return block.index[0];
    case SpecialRegister::kBlockY:
      return block.index[1];
    case SpecialRegister::kBlockZ:
      return block.index[2];
    case SpecialRegister::kBlockThreads:
      return block.shape.threads;
    case SpecialRegister::kGridX:
      return block.shape.grid[0];
    case SpecialRegister::kGridY:
      return block.shape.grid[1];
    case SpecialRegister::kGridZ:
      return block.shape.grid[2];
  }
  return 0;
}

}  // namespace

Warp::Warp(Block& block, uint32_t index)
    : block_(block), index_(index), rows_(block.kernel->rows) {}

void Warp::Begin() {
  for (const SpecialRow& special : block_.kernel->special_rows) {
    uint32_t* row = Row<uint32_t>(special.row);
    if (special.which == SpecialRegister::kThreadX) {
      std::iota(row, row + kLanes, index_ * kLanes);
    } else {
      std::fill(row, row + kLanes, SpecialValue(block_, special.which));
    }
  }
  alive_ = kAllLanes;
  paths_.clear();
  paths_.push_back({.place = 0, .lanes = kAllLanes, .waits = false});
  state_ = State::kRunning;
  awaited_ = block_.shape.overlaps ? 0 : kAllLanes;
  copies_.clear();
  copy_groups_.fill(0);
}

void Warp::Fail(const Instruction& instruction, absl::string_view what) {
  if (!block_.fault.empty()) return;
  const Kernel& kernel = *block_.kernel;
  block_.fault = absl::StrFormat(
      "%s in %s, block (%d, %d, %d), warp %d, at %s: %s", what, kernel.name,
      block_.index[0], block_.index[1], block_.index[2], index_,
      kernel.sources[instruction.line], kernel.lines[instruction.line]);
}

std::byte* Warp::Resolve(const Instruction& instruction, Space space,
                         uint64_t address, std::size_t bytes, uint32_t lane,
                         Access access) {
  if (address % bytes != 0) {
    Fail(instruction, absl::StrFormat("lane %d: address %#x is not a multiple "
                                      "of %d",
                                      lane, address, bytes));
    return nullptr;
  }
  if (space == Space::kGeneric) {
    space = address >= kSharedWindow ? Space::kShared : Space::kGlobal;
    if (space == Space::kShared) address -= kSharedWindow;
  }
  std::byte* found = nullptr;
  if (space == Space::kShared) {
    const uint64_t offset = address - kSharedBase;
    if (offset <= block_.shared.size() &&
        bytes <= block_.shared.size() - offset) {
      found = block_.shared.data() + offset;
      if (!block_.hazards.Note(offset, bytes, index_, lane, access)) {
        Fail(instruction,
             absl::StrFormat("lane %d: shared memory at %d is used without a "
                             "barrier after %s",
                             lane, offset, block_.hazards.last_conflict()));
      }
    }
  } else if (space == Space::kGlobal) {
    if (block_.memory->Contains(address, bytes)) {
      if (!HasAwaited(LaneMask{1} << lane) &&
          IsTooEarly(instruction, address, bytes, access)) {
        return nullptr;
      }
      if (access != Access::kRead) block_.memory->NoteWrite(address, bytes);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses are device code's
      found = reinterpret_cast<std::byte*>(address);
    }
  }
  if (found == nullptr) {
    Fail(instruction, absl::StrFormat("lane %d: %d bytes at %#x are nobody's",
                                      lane, bytes, address));
  }
  return found;
}

// Those before the last launch have ended: each kernel lets the next begin when
// it has awaited the one before it.
bool Warp::IsTooEarly(const Instruction& instruction, uint64_t address,
                      std::size_t bytes, Access access) {
  if (access != Access::kRead) {
    Fail(instruction, "memory is written before griddepcontrol.wait");
    return true;
  }
  if (!block_.memory->WasJustWritten(address, bytes)) return false;
  Fail(instruction,
       absl::StrFormat("%d bytes at %#x, which the launch before wrote, are "
                       "read before griddepcontrol.wait",
                       bytes, address));
  return true;
}

void Warp::Run(int64_t max_instructions) {
  std::size_t path = 0;
  uint32_t meeting = kNowhere;
  while (max_instructions > 0 && state_ == State::kRunning &&
         block_.fault.empty()) {
    if (paths_.empty()) {
      state_ = State::kDone;
    } else if (Pick(&path, &meeting)) {
      RunPath(path, meeting, &max_instructions);
      if (paths_.size() > 1) Meet();
    } else {
      FailToMeet();
    }
  }
}

// The path that is behind, and where it meets the next one.
bool Warp::Pick(std::size_t* path, uint32_t* meeting) const {
  *meeting = kNowhere;
  bool found = false;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i].waits) continue;
    if (!found || paths_[i].place < paths_[*path].place) *path = i;
    found = true;
  }
  for (const Path& other : paths_) {
    if (found && other.place > paths_[*path].place) {
      *meeting = std::min(*meeting, other.place);
    }
  }
  return found;
}

void Warp::RunPath(std::size_t index, uint32_t meeting, int64_t* budget) {
  const std::vector<Instruction>& code = block_.kernel->code;
  Path path = paths_[index];
  uint64_t* instructions = block_.counts->instructions.data();
  bool goes_on = true;
  while (goes_on && path.place != meeting && *budget > 0) {
    const Instruction& instruction = code[path.place];
    --*budget;
    LaneMask mask = path.lanes;
    if (instruction.guard != kNoRow) {
      const LaneMask guard = Predicate(instruction.guard);
      mask &= instruction.negated ? ~guard : guard;
    }
    ++instructions[static_cast<std::size_t>(instruction.pipe)];
    if (instruction.flow == Flow::kNext) {
      if (mask != 0) instruction.run(*this, instruction, mask);
      ++path.place;
      goes_on = block_.fault.empty();
    } else {
      goes_on = Turn(instruction, mask, &path);
    }
  }
  paths_[index] = path;
  if (path.lanes == 0) {
    paths_.erase(paths_.begin() + static_cast<std::ptrdiff_t>(index));
  }
}

bool Warp::Turn(const Instruction& instruction, LaneMask mask, Path* path) {
  switch (instruction.flow) {
    case Flow::kBranch:
      return Branch(instruction, mask, path);
    case Flow::kExit:
      if (!HasAwaited(mask)) {
        Fail(instruction, "lanes leave without griddepcontrol.wait");
        return false;
      }
      alive_ &= ~mask;
      path->lanes &= ~mask;
      ++path->place;
      return path->lanes != 0;
    case Flow::kBlockBarrier:
    case Flow::kGather:
      return Gather(instruction, mask, path);
    case Flow::kNext:
      break;
  }
  return true;
}

bool Warp::Branch(const Instruction& instruction, LaneMask mask, Path* path) {
  if (mask == 0) {
    ++path->place;
    return true;
  }
  if (mask == path->lanes) {
    path->place = instruction.target;
    return paths_.size() == 1;
  }
  paths_.push_back(
      {.place = instruction.target, .lanes = mask, .waits = false});
  path->lanes &= ~mask;
  ++path->place;
  return false;
}

// Those lanes go on that do not take part.
bool Warp::Gather(const Instruction& instruction, LaneMask mask, Path* path) {
  if (mask == 0) {
    ++path->place;
    return true;
  }
  if (mask != path->lanes) {
    paths_.push_back({.place = path->place + 1,
                      .lanes = path->lanes & ~mask,
                      .waits = false});
    path->lanes = mask;
  }
  LaneMask members = alive_;
  if (instruction.members != kNoRow) {
    const auto first = static_cast<uint32_t>(__builtin_ctz(mask));
    members = Row<LaneMask>(instruction.members)[first];
    if ((members & ~alive_) != 0) {
      Fail(instruction, "a collective names lanes that have left");
      return false;
    }
    if ((mask & ~members) != 0) {
      Fail(instruction, "a collective does not name who takes part");
      return false;
    }
  }
  if (mask != members) {
    path->waits = true;
    return false;
  }
  if (instruction.flow == Flow::kGather) {
    instruction.run(*this, instruction, mask);
    ++path->place;
    return block_.fault.empty() && paths_.size() == 1;
  }
  // bar.red says so with an element.
  if (instruction.num_elements != 0 &&
      (Predicate(instruction.rows[2]) & mask) != 0) {
    block_.barrier_or = true;
  }
  state_ = State::kAtBarrier;
  return false;
}

void Warp::LeaveBarrier() {
  Path& path = paths_.front();
  const Instruction& instruction = block_.kernel->code[path.place];
  if (instruction.num_elements != 0) {
    SetPredicate(instruction.rows[0], block_.barrier_or ? kAllLanes : 0,
                 path.lanes);
  }
  ++path.place;
  path.waits = false;
  state_ = State::kRunning;
}

// Paths at one place are one.
void Warp::Meet() {
  std::sort(paths_.begin(), paths_.end(),
            [](const Path& a, const Path& b) { return a.place < b.place; });
  std::size_t kept = 0;
  for (std::size_t i = 1; i < paths_.size(); ++i) {
    if (paths_[i].place == paths_[kept].place) {
      paths_[kept].lanes |= paths_[i].lanes;
      paths_[kept].waits = false;
    } else {
      paths_[++kept] = paths_[i];
    }
  }
  paths_.resize(kept + 1);
}

void Warp::FailToMeet() {
  std::string where;
  for (const Path& path : paths_) {
    const uint32_t line = block_.kernel->code[path.place].line;
    absl::StrAppendFormat(&where, "; lanes %#010x at %s: %s", path.lanes,
                          block_.kernel->sources[line],
                          block_.kernel->lines[line]);
  }
  Fail(block_.kernel->code[paths_.front().place],
       absl::StrCat("lanes wait for each other", where));
}

namespace {

// How warps take turns, drawn for each block: in order and in reverse, each to
// the next barrier; or in any order, for any time.
class Turns {
 public:
  explicit Turns(uint64_t seed) : random_(seed), style_(random_() % 4) {}

  std::size_t Next(std::size_t num_warps, std::size_t turn) {
    if (style_ == 0) return turn % num_warps;
    if (style_ == 1) return num_warps - 1 - turn % num_warps;
    return random_() % num_warps;
  }
  int64_t Length() {
    if (style_ < 2) return std::numeric_limits<int64_t>::max();
    return 1 + static_cast<int64_t>(random_() % (style_ == 2 ? 400 : 20));
  }

 private:
  std::minstd_rand random_;
  uint64_t style_;
};

void RunBlock(Block& block, std::vector<Warp>& warps, uint64_t seed) {
  std::fill(block.shared.begin(), block.shared.end(), std::byte{0xFF});
  block.hazards.Begin(block.shared.size());
  block.barrier_or = false;
  for (Warp& warp : warps) warp.Begin();
  Turns turns(seed);
  for (std::size_t turn = 0; block.fault.empty(); ++turn) {
    Warp& warp = warps[turns.Next(warps.size(), turn)];
    if (warp.state() == Warp::State::kRunning) {
      warp.Run(turns.Length());
    }
    const auto has_state = [&](Warp::State state) {
      return std::any_of(warps.begin(), warps.end(), [&](const Warp& other) {
        return other.state() == state;
      });
    };
    if (has_state(Warp::State::kRunning)) continue;
    if (!has_state(Warp::State::kAtBarrier)) return;
    block.hazards.PassBarrier();
    for (Warp& other : warps) {
      if (other.state() == Warp::State::kAtBarrier) other.LeaveBarrier();
    }
    block.barrier_or = false;
  }
}

}  // namespace

absl::Status CheckShape(const Kernel& kernel, const LaunchShape& shape) {
  const bool fits = shape.grid[0] > 0 && shape.grid[0] < 1u << 31 &&
                    shape.grid[1] > 0 && shape.grid[1] < 1u << 16 &&
                    shape.grid[2] > 0 && shape.grid[2] < 1u << 16 &&
                    shape.threads > 0 && shape.threads <= kernel.max_threads &&
                    shape.threads % kLanes == 0;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("grid (%d, %d, %d) of %d threads, for at most %d of %s",
                      shape.grid[0], shape.grid[1], shape.grid[2],
                      shape.threads, kernel.max_threads, kernel.name));
}

absl::Status RunKernel(const Kernel& kernel, const LaunchShape& shape,
                       const std::byte* params, DeviceMemory& memory,
                       uint64_t seed, LaunchCounts& counts) {
  Block block;
  block.kernel = &kernel;
  block.memory = &memory;
  block.params = params;
  block.counts = &counts;
  block.shape = shape;
  block.shared.resize(shape.shared_bytes);
  std::vector<Warp> warps;
  warps.reserve(shape.threads / kLanes);
  for (uint32_t i = 0; i < shape.threads / kLanes; ++i) {
    warps.emplace_back(block, i);
  }
  const uint64_t num_blocks =
      uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  counts.blocks += num_blocks;
  memory.BeginLaunch();
  for (uint64_t i = 0; i < num_blocks; ++i) {
    // Every other launch runs its blocks from the last one on.
    const uint64_t number = seed % 2 == 0 ? i : num_blocks - 1 - i;
    block.index = {
        static_cast<uint32_t>(number % shape.grid[0]),
        static_cast<uint32_t>(number / shape.grid[0] % shape.grid[1]),
        static_cast<uint32_t>(number / shape.grid[0] / shape.grid[1])};
    RunBlock(block, warps, seed * 1000003 + number + 1);
    if (!block.fault.empty()) return absl::InternalError(block.fault);
  }
  return absl::OkStatus();
}

}  // namespace blockmgr::ptx
