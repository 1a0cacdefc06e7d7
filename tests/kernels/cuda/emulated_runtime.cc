#include "tests/kernels/cuda/emulated_runtime.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "kernels/cuda/layers/layer_sequence.cuh"
#include "kernels/cuda/rows/row_mover_sequence.cuh"
#include "kernels/cuda/selection/select_sequence.cuh"

namespace blockmgr {
namespace {

constexpr int64_t kAlignment = 256;
// Few, so that a block of every kernel takes several turns.
constexpr uint32_t kMaxRowBlocks = 5;
constexpr int32_t kDecodeCtas = 6;

}  // namespace

EmulatedRuntime::EmulatedRuntime(uint64_t seed, int64_t max_bytes)
    : seed_(seed), max_bytes_(max_bytes) {}

EmulatedRuntime::EmulatedRuntime(const simt::Schedule& schedule)
    : schedule_(schedule) {}

EmulatedRuntime::EmulatedRuntime(LaunchObserver observer)
    : observer_(std::move(observer)) {}

EmulatedRuntime::~EmulatedRuntime() { BM_CHECK(memory_.empty()); }

simt::Schedule EmulatedRuntime::NextSchedule() {
  if (schedule_.has_value()) return *schedule_;
  seed_ = SplitMix64(seed_ + 1);
  return {static_cast<simt::Schedule::Order>(seed_ % 3), seed_};
}

absl::Status EmulatedRuntime::Failure(const std::string& error) {
  return absl::InternalError(
      error.empty() ? "a shape or conversion that has no kernel" : error);
}

absl::StatusOr<char*> EmulatedRuntime::Allocate(int64_t bytes) {
  BM_CHECK(bytes > 0);
  if (BreaksCapture()) return status_;
  const bool is_full = allocations_to_fail_ > 0;
  if (is_full) --allocations_to_fail_;
  if (is_full || num_bytes_ + bytes > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device memory: expected at most ",
                     max_bytes_ - num_bytes_, " bytes, got ", bytes));
  }
  Memory memory;
  memory.bytes = bytes;
  memory.id = num_allocations_;
  memory.owner =
      std::make_unique_for_overwrite<std::byte[]>(bytes + kAlignment);
  std::memset(memory.owner.get(), 0xFF, bytes + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.owner.get());
  char* begin = reinterpret_cast<char*>(memory.owner.get()) +
                (kAlignment - address % kAlignment) % kAlignment;
  memory_.emplace(begin, std::move(memory));
  num_bytes_ += bytes;
  ++num_allocations_;
  return begin;
}

void EmulatedRuntime::Free(char* memory) {
  BreaksCapture();
  const auto found = memory_.find(memory);
  BM_CHECK(found != memory_.end());
  num_bytes_ -= found->second.bytes;
  if (counts_.captures > 0) freed_.push_back(std::move(found->second.owner));
  memory_.erase(found);
  ++counts_.waits;
}

const EmulatedRuntime::Memory* EmulatedRuntime::Find(
    const char* address) const {
  auto found = memory_.upper_bound(address);
  if (found == memory_.begin()) return nullptr;
  --found;
  return address < found->first + found->second.bytes ? &found->second
                                                      : nullptr;
}

void EmulatedRuntime::NoteUses(std::span<const std::byte> argument) {
  for (; argument.size() >= sizeof(char*);
       argument = argument.subspan(sizeof(char*))) {
    const char* address = nullptr;
    std::memcpy(&address, argument.data(), sizeof(address));
    if (const Memory* memory = Find(address); memory != nullptr) {
      capture_->uses.emplace(memory->id, address);
    }
  }
}

bool EmulatedRuntime::CheckRange(const char* begin, int64_t bytes) {
  if (!status_.ok()) return false;
  auto found = memory_.upper_bound(begin);
  const bool inside =
      found != memory_.begin() &&
      begin + bytes <= std::prev(found)->first + std::prev(found)->second.bytes;
  if (!inside) status_ = absl::InternalError("a copy outside device memory");
  return inside;
}

void EmulatedRuntime::Upload(char* to, std::span<const std::byte> host) {
  if (host.empty() || BreaksCapture()) return;
  if (!CheckRange(to, std::ssize(host))) return;
  ++counts_.uploads;
  std::ranges::copy(host, reinterpret_cast<std::byte*>(to));
}

void EmulatedRuntime::Download(std::span<std::byte> host, const char* from) {
  if (BreaksCapture()) return;
  if (!CheckRange(from, std::ssize(host))) return;
  ++counts_.waits;
  std::copy_n(reinterpret_cast<const std::byte*>(from), host.size(),
              host.begin());
}

void EmulatedRuntime::DownloadRows(std::span<std::byte> host, const char* from,
                                   int64_t row_bytes, int64_t stride) {
  if (BreaksCapture()) return;
  const int64_t num_rows = std::ssize(host) / row_bytes;
  if (!CheckRange(from, (num_rows - 1) * stride + row_bytes)) return;
  ++counts_.waits;
  for (int64_t row = 0; row < num_rows; ++row) {
    std::memcpy(host.data() + row * row_bytes, from + row * stride, row_bytes);
  }
}

void EmulatedRuntime::Copy(char* to, const char* from, int64_t bytes) {
  if (BreaksCapture()) return;
  if (!CheckRange(to, bytes) || !CheckRange(from, bytes)) return;
  ++counts_.copies;
  std::memcpy(to, from, bytes);
}

void EmulatedRuntime::Fill(char* to, uint8_t byte, int64_t bytes) {
  if (!status_.ok()) return;
  if (capture_ != nullptr) {
    capture_->work.push_back(
        [this, to, byte, bytes] { Fill(to, byte, bytes); });
    return;
  }
  Count();
  if (CheckRange(to, bytes)) std::fill_n(to, bytes, static_cast<char>(byte));
}

bool EmulatedRuntime::BreaksCapture() {
  if (capture_ == nullptr) return false;
  if (status_.ok()) {
    status_ = absl::FailedPreconditionError("a call that no graph can have");
  }
  return true;
}

void EmulatedRuntime::BeginCapture() {
  if (!status_.ok() || BreaksCapture()) return;
  capture_ = std::make_unique<Graph>();
  ++counts_.captures;
  if (captures_to_fail_ == 0) return;
  --captures_to_fail_;
  status_ = absl::InternalError("a capture that was to fail");
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> EmulatedRuntime::EndCapture() {
  std::unique_ptr<Graph> graph = std::exchange(capture_, nullptr);
  if (!status_.ok()) return TakeStatus();
  BM_CHECK(graph != nullptr);
  return graph;
}

void EmulatedRuntime::Launch(const DeviceGraph& graph) {
  if (!status_.ok() || BreaksCapture()) return;
  const auto& captured = static_cast<const Graph&>(graph);
  for (const auto& [id, address] : captured.uses) {
    const Memory* const memory = Find(address);
    if (memory != nullptr && memory->id == id) continue;
    status_ = absl::InternalError("a graph that uses memory that was freed");
    return;
  }
  ++counts_.graphs;
  replays_ = true;
  for (const std::function<void()>& work : captured.work) work();
  replays_ = false;
}

int32_t EmulatedRuntime::CountDecodeCtas(const RowShape&, int32_t) {
  return kDecodeCtas;
}

void EmulatedRuntime::Append(const AppendRows& append,
                             RowConversion conversion) {
  Do(RunAppend<EmulatedLauncher>, append, conversion, kMaxRowBlocks);
}

void EmulatedRuntime::Gather(const GatherRows& gather,
                             RowConversion conversion) {
  Do(RunGather<EmulatedLauncher>, gather, conversion, kMaxRowBlocks);
}

void EmulatedRuntime::Move(const MoveRows& move) {
  Do(RunMove<EmulatedLauncher>, move, kMaxRowBlocks);
}

void EmulatedRuntime::CopyBlocks(const CopyBlockRows& copy) {
  Do(RunCopyBlocks<EmulatedLauncher>, copy, kMaxRowBlocks);
}

void EmulatedRuntime::PackPages(const StagePages& stage) {
  Do(RunPackPages<EmulatedLauncher>, stage, kMaxRowBlocks);
}

void EmulatedRuntime::UnpackPages(const StagePages& stage) {
  Do(RunUnpackPages<EmulatedLauncher>, stage, kMaxRowBlocks);
}

void EmulatedRuntime::IndexEntries(const EntryIndexParams& params,
                                   int32_t longest_tail) {
  Do(RunIndexEntries<EmulatedLauncher>, params, longest_tail);
}

void EmulatedRuntime::Select(const SelectProblem& problem) {
  Do(RunSelect<EmulatedLauncher>, problem);
}

void EmulatedRuntime::PlanMoves(const SelectMoves& moves) {
  Do(RunSelectMoves<EmulatedLauncher>, moves);
}

void EmulatedRuntime::Embed(const EmbedParams& params, ElementType type) {
  Do(RunEmbed<EmulatedLauncher>, params, type);
}

void EmulatedRuntime::Normalize(const NormParams& params, ElementType type) {
  Do(RunNormalize<EmulatedLauncher>, params, type);
}

void EmulatedRuntime::PrepareHeads(const HeadParams& params,
                                   const RowShape& shape) {
  Do(RunPrepareHeads<EmulatedLauncher>, params, shape);
}

void EmulatedRuntime::MergeAttention(const MergeParams& params,
                                     ElementType type, ElementType pool_type) {
  Do(RunMergeAttention<EmulatedLauncher>, params, type, pool_type);
}

void EmulatedRuntime::Gate(const GateParams& params, ElementType type) {
  Do(RunGate<EmulatedLauncher>, params, type);
}

void EmulatedRuntime::Multiply(const ProductParams& params, ElementType type) {
  Do(RunMultiply<EmulatedLauncher>, params, type);
}

void EmulatedRuntime::EditLogits(const EditParams& params) {
  Do(RunEditLogits<EmulatedLauncher>, params);
}

void EmulatedRuntime::DrawTokens(const DrawParams& params) {
  Do(RunDrawTokens<EmulatedLauncher>, params);
}

}  // namespace blockmgr
