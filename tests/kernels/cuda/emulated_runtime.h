// DeviceRuntime on the emulator: device memory is the host's, kernels run
// there and then, under one schedule after another, or under a given one.
#ifndef TESTS_KERNELS_CUDA_EMULATED_RUNTIME_H_
#define TESTS_KERNELS_CUDA_EMULATED_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

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
  void Fill(char* to, uint8_t byte, int64_t bytes) override;
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

  int64_t num_allocations() const { return num_allocations_; }
  // See simt::LaunchReport; of all kernels together.
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  struct Memory {
    int64_t bytes = 0;
    std::unique_ptr<std::byte[]> owner;
  };

  // Runs a sequence of launches unless something failed before.
  template <typename Run, typename... Arguments>
  void Do(Run run, const Arguments&... arguments) {
    if (!status_.ok()) return;
    EmulatedLauncher launcher(NextSchedule(), observer_);
    if (!run(arguments..., launcher)) status_ = Failure(launcher.error());
    bank_conflicts_ += launcher.bank_conflicts();
  }
  simt::Schedule NextSchedule();
  static absl::Status Failure(const std::string& error);
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
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_EMULATED_RUNTIME_H_
