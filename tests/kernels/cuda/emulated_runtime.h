// DeviceRuntime on the emulator: device memory is the host's, kernels run
// there and then, under one schedule after another, or under a given one.
#ifndef TESTS_KERNELS_CUDA_EMULATED_RUNTIME_H_
#define TESTS_KERNELS_CUDA_EMULATED_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "kernels/cuda/host/device_runtime.h"
#include "tests/kernels/cuda/emulated_launcher.h"
#include "tests/kernels/simt/simt_emulator.h"

namespace blockmgr {

class EmulatedRuntime : public DeviceRuntime {
 public:
  // Schedules follow from the seed. Allocations beyond `max_bytes` together
  // fail, and all memory must be free at the end.
  EmulatedRuntime(uint64_t seed, int64_t max_bytes);
  // Every kernel under this schedule; no memory of its own.
  explicit EmulatedRuntime(const simt::Schedule& schedule);
  // No kernel is run, the observer is told of each.
  explicit EmulatedRuntime(LaunchObserver observer);
  ~EmulatedRuntime() override;

  const absl::Status& status() const override { return status_; }
  absl::Status TakeStatus() override {
    return std::exchange(status_, absl::OkStatus());
  }
  void UseStream(void*) override {}
  absl::StatusOr<char*> Allocate(int64_t bytes) override;
  void Free(char* memory) override;
  void Upload(char* to, std::span<const std::byte> host) override;
  void Download(std::span<std::byte> host, const char* from) override;
  void DownloadRows(std::span<std::byte> host, const char* from,
                    int64_t row_bytes, int64_t stride) override;
  void Copy(char* to, const char* from, int64_t bytes) override;
  void Fill(char* to, uint8_t byte, int64_t bytes) override;
  void BeginCapture() override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override;
  // Runs what was recorded, with the arguments of then. A failure if memory
  // that an argument points to has been freed since.
  void Launch(const DeviceGraph& graph) override;
  // The timer counts launches, a second each.
  void StartTimer() override { timer_begin_ = counts_.kernels; }
  void StopTimer() override { timer_end_ = counts_.kernels; }
  double TimerSeconds() override {
    return static_cast<double>(timer_end_ - timer_begin_);
  }
  int32_t CountDecodeCtas(const RowShape& shape, int32_t group_size) override;
  absl::StatusOr<std::string> UseProductLibrary() override {
    return absl::UnimplementedError("the emulator has no library");
  }

  void Append(const AppendRows& append, RowConversion conversion) override;
  void Gather(const GatherRows& gather, RowConversion conversion) override;
  void Move(const MoveRows& move) override;
  void CopyBlocks(const CopyBlockRows& copy) override;
  void PackPages(const StagePages& stage) override;
  void UnpackPages(const StagePages& stage) override;
  void PlanDecode(const DecodePlanParams& params) override;
  void Decode(const DecodeParams& params, const RowShape& shape) override;
  void Chunk(const ChunkParams& params, const RowShape& shape,
             int32_t num_blocks) override;
  void WindowStats(const WindowParams& params, const RowShape& shape) override;
  void WindowColumns(const WindowParams& params,
                     const RowShape& shape) override;
  void PoolWindow(const PoolParams& params) override;
  void Tova(const TovaParams& params) override;
  void AddDecodeAttention(const DecodeSumParams& params) override;
  void FinishH2o(const H2oScoreParams& params) override;
  void KeyScores(const KeyScoreParams& params, const RowShape& shape) override;
  void ExpectedScores(const ExpectedParams& params,
                      const RowShape& shape) override;
  void ValueNorms(const ValueNormParams& params,
                  const RowShape& shape) override;
  void IndexEntries(const EntryIndexParams& params,
                    int32_t longest_tail) override;
  void Select(const SelectProblem& problem) override;
  void PlanMoves(const SelectMoves& moves) override;
  void Embed(const EmbedParams& params, ElementType type) override;
  void Normalize(const NormParams& params, ElementType type) override;
  void PrepareHeads(const HeadParams& params, const RowShape& shape) override;
  void MergeAttention(const MergeParams& params, ElementType type,
                      ElementType pool_type) override;
  void Gate(const GateParams& params, ElementType type) override;
  void Multiply(const ProductParams& params, ElementType type) override;
  void EditLogits(const EditParams& params) override;
  void DrawTokens(const DrawParams& params) override;

  // The calls of the host since the start.
  struct Counts {
    int64_t launches = 0;  // of kernels and fills, one by one
    int64_t graphs = 0;    // that were launched
    int64_t captures = 0;
    int64_t uploads = 0;
    int64_t copies = 0;  // inside the device's memory
    int64_t waits = 0;
    int64_t kernels = 0;  // launches, and those inside of graphs

    Counts operator-(const Counts& earlier) const {
      return {launches - earlier.launches, graphs - earlier.graphs,
              captures - earlier.captures, uploads - earlier.uploads,
              copies - earlier.copies,     waits - earlier.waits,
              kernels - earlier.kernels};
    }
  };
  const Counts& counts() const { return counts_; }
  // The next captures fail.
  void FailCaptures(int64_t count) { captures_to_fail_ = count; }
  // The next allocations find the device full.
  void FailAllocations(int64_t count) { allocations_to_fail_ = count; }

  int64_t num_allocations() const { return num_allocations_; }
  // See simt::LaunchReport; of all kernels together.
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  struct Memory {
    int64_t bytes = 0;
    int64_t id = 0;  // of all allocations
    std::unique_ptr<std::byte[]> owner;
  };

  // Runs a sequence of launches unless something failed before.
  template <typename Run, typename... Arguments>
  void Do(Run run, const Arguments&... arguments) {
    if (!status_.ok()) return;
    if (capture_ != nullptr) {
      (NoteUses(std::as_bytes(std::span(&arguments, 1))), ...);
      capture_->work.push_back(
          [this, run, arguments...] { Do(run, arguments...); });
      return;
    }
    Count();
    EmulatedLauncher launcher(NextSchedule(), observer_);
    if (!run(arguments..., launcher)) status_ = Failure(launcher.error());
    bank_conflicts_ += launcher.bank_conflicts();
  }
  // Work with copies of its arguments, as a graph of CUDA has them.
  struct Graph final : DeviceGraph {
    std::vector<std::function<void()>> work;
    // By the ids of allocations, where arguments point to.
    std::map<int64_t, const char*> uses;
  };

  // Counts a launch by the host, or by a graph.
  void Count() {
    ++counts_.kernels;
    if (!replays_) ++counts_.launches;
  }
  // Notes the allocations that words of an argument point into.
  void NoteUses(std::span<const std::byte> argument);
  // Whether a capture is under way, which then fails, as does the call.
  bool BreaksCapture();
  simt::Schedule NextSchedule();
  static absl::Status Failure(const std::string& error);
  // Returns the allocation that an address is in, or null.
  const Memory* Find(const char* address) const;
  // Whether the range is inside one allocation; else it is a failure.
  bool CheckRange(const char* begin, int64_t bytes);

  uint64_t seed_ = 0;
  const std::optional<simt::Schedule> schedule_;
  const LaunchObserver observer_;
  const int64_t max_bytes_ = 0;
  int64_t num_bytes_ = 0;
  int64_t num_allocations_ = 0;
  int64_t bank_conflicts_ = 0;
  absl::Status status_;
  std::map<const char*, Memory> memory_;
  // Memory that was freed after a capture. No allocation gets its addresses, so
  // that a graph that uses it is found.
  std::vector<std::unique_ptr<std::byte[]>> freed_;
  std::unique_ptr<Graph> capture_;  // null if there is none
  bool replays_ = false;
  int64_t captures_to_fail_ = 0;
  int64_t allocations_to_fail_ = 0;
  Counts counts_;
  int64_t timer_begin_ = 0;
  int64_t timer_end_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_EMULATED_RUNTIME_H_
