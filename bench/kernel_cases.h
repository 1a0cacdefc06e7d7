// A problem on a GPU, and every kernel that can be launched on it.
#ifndef BENCH_KERNEL_CASES_H_
#define BENCH_KERNEL_CASES_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/kernel_problem.h"
#include "bench/kernel_report.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/row_mover.h"
#include "kernels/cuda/select.h"

namespace blockmgr {

// One kernel, or the few that belong together, ready to be launched.
struct KernelCase {
  std::string kernel;
  KernelCeiling ceiling = KernelCeiling::kRead;
  double useful_bytes = 0;
  double flops = 0;
  // On copy `copy` of the pool.
  std::function<cudaError_t(int32_t copy, cudaStream_t stream)> launch;
};

absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// DeviceProblem holds copies of a problem's pool, so that launches that take
// them in turn find nothing in the second-level cache, and everything that the
// kernels need beside it. Owns its device memory. Thread-compatible.
class DeviceProblem {
 public:
  // At least one copy, and as many as `rotated_bytes` takes, at most 16.
  // ResourceExhausted where the device has no room.
  static absl::StatusOr<std::unique_ptr<DeviceProblem>> Create(
      const KernelProblem& problem, int64_t rotated_bytes);
  DeviceProblem(const DeviceProblem&) = delete;
  DeviceProblem& operator=(const DeviceProblem&) = delete;
  ~DeviceProblem();

  int32_t num_copies() const { return static_cast<int32_t>(pools_.size()); }
  // Ceilings first. Valid as long as this is; each may be launched any number
  // of times, in any order.
  const std::vector<KernelCase>& cases() const { return cases_; }
  // The bf16 output of the last decode, [num_sequences, q_heads, head_dim].
  absl::StatusOr<std::vector<uint16_t>> ReadDecodeOutput() const;
  // What kernels of the row mover complained about; 0 if nothing.
  absl::StatusOr<uint32_t> ReadErrorWord() const;

 private:
  explicit DeviceProblem(const KernelProblem& problem);

  // Zeroed device memory; null, and a status, once something has failed.
  void* AllocateBytes(int64_t bytes);
  template <typename T>
  T* Allocate(int64_t count) {
    return static_cast<T*>(
        AllocateBytes(std::max<int64_t>(1, count) * int64_t{sizeof(T)}));
  }
  // [count] of bf16, Element(seed, i) of kernel_problem.h.
  uint16_t* AllocateElements(int64_t count, uint64_t seed);
  template <typename T>
  T* Send(std::span<const T> values) {
    T* memory = Allocate<T>(std::ssize(values));
    if (!status_.ok()) return nullptr;
    status_ = CudaStatus(cudaMemcpy(memory, values.data(), values.size_bytes(),
                                    cudaMemcpyHostToDevice),
                         "upload");
    return memory;
  }
  absl::Status FillPools(int64_t rotated_bytes);
  void SendLists();
  void AddCeilings();
  void AddDecode(const char* name, int32_t chunk_tiles);
  void AddChunk();
  void AddAppend();
  void AddCopies();
  void AddSnapKv();
  void AddKeyScores();
  void AddValueNorms();
  // Scores of all entries, as skewed as those of attention are (exponentially
  // distributed): those that a kernel has left would depend on which ran.
  const float* SendScores();
  void AddSelection(const char* name, SelectBudget budget, const float* scores);
  PagedPool PoolOf(int32_t copy) const;
  // Of the row mover's launches.
  uint32_t max_row_blocks() const;
  // A row of K and one of V.
  double pair_bytes() const {
    return 2.0 * static_cast<double>(problem_.row_bytes());
  }
  int64_t num_lists() const {
    return static_cast<int64_t>(problem_.lengths.size());
  }

  // snapkv's default window, and what evictions keep.
  static constexpr int32_t kWindow = 32;
  static constexpr double kKeepRatio = 0.2;

  const KernelProblem problem_;
  const RowShape shape_;
  const double kv_bytes_;
  absl::Status status_;
  std::vector<void*> memory_;
  int32_t num_processors_ = 1;
  int32_t num_blocks_ = 0;
  std::vector<char*> pools_;
  uint16_t* queries_ = nullptr;
  uint16_t* output_ = nullptr;
  uint32_t* error_ = nullptr;
  AttentionLists lists_;
  EntryLists entries_;
  int32_t longest_ = 0;         // entries
  int32_t* lengths_ = nullptr;  // of sequences: the longest of their lists
  std::vector<int64_t> slots_;  // of all entries
  std::vector<int64_t> offsets_;
  float* scores_ = nullptr;  // [entries]
  std::vector<KernelCase> cases_;
};

}  // namespace blockmgr

#endif  // BENCH_KERNEL_CASES_H_
