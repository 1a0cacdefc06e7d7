// CudaKernels: the launchers of the CUDA kernels, for tensors of Python.
#ifndef PYTHON_CORE_CUDA_KERNELS_H_
#define PYTHON_CORE_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <absl/status/status.h>
#include <nanobind/nanobind.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/paged_pool.h"
#include "kernels/cuda/scores/window_scores.h"
#include "python/core/arrays.h"
#include "python/core/core.h"
#include "python/core/cuda_lists.h"
#include "python/core/errors.h"

namespace blockmgr::python {

// A stream: a cudaStream_t as an integer, or an object that has one.
struct StreamArgument : Argument {
  static constexpr auto kType = nb::detail::const_name("blockmgr.cuda.Stream");
};

// The tensors of a call of score. Each policy reads some of them.
struct ScoreTensors {
  TensorArgument scores;
  TensorArgument workspace;
  TensorArgument queries;
  TensorArgument num_queries;
  TensorArgument value_norms;
  TensorArgument products;
  TensorArgument means;
  TensorArgument covariances;
  TensorArgument units;
};

// Divides a workspace among the arrays of a call. Without memory it only counts
// the bytes.
class WorkspaceCursor {
 public:
  explicit WorkspaceCursor(char* memory = nullptr) : memory_(memory) {}

  template <typename T>
  T* Take(int64_t count) {
    constexpr int64_t kAlignment = 16;
    char* const begin = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += CeilDiv(count * int64_t{sizeof(T)}, kAlignment) * kAlignment;
    return reinterpret_cast<T*>(begin);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* const memory_;
  int64_t bytes_ = 0;
};

// PyCudaKernels checks the arguments of a launch, fills the launcher's struct
// and launches. A launch does not wait, allocates no device memory and copies
// nothing from or to the host. All tensors are on the device of the pool.
// Several threads of Python may call one object. They take turns.
class PyCudaKernels {
 public:
  // `pool` is a tensor, or a sequence with a tensor for each layer.
  PyCudaKernels(const ModelLayout& layout, nb::handle pool);
  ~PyCudaKernels();
  PyCudaKernels(const PyCudaKernels&) = delete;
  PyCudaKernels& operator=(const PyCudaKernels&) = delete;

  const ModelLayout& layout() const { return layout_; }
  int32_t device() const { return device_; }
  // Waits for the stream, without Python's lock. Raises InvalidArgumentError
  // with what kernels refused since the last call.
  void Check(const StreamArgument& stream);

  // cuda_kernels.cc
  void Append(int32_t layer, TensorArgument slot_mapping, TensorArgument keys,
              TensorArgument values, const StreamArgument& stream);
  void Gather(TensorArgument slots, TensorArgument out,
              const StreamArgument& stream);
  void Move(TensorArgument moves, TensorArgument staged,
            const StreamArgument& stream);
  void CopyBlocks(TensorArgument pairs, const StreamArgument& stream);
  void PackPages(TensorArgument pages, TensorArgument staged,
                 const StreamArgument& stream);
  void UnpackPages(TensorArgument pages, TensorArgument staged,
                   const StreamArgument& stream);

  // cuda_attention.cc
  PyAttentionLists Lists(TensorArgument block_tables,
                         TensorArgument tail_lengths,
                         TensorArgument region_lengths,
                         TensorArgument region_offsets,
                         TensorArgument region_pages) const;
  int64_t DecodeWorkspaceBytes(int32_t num_sequences, int64_t num_slots,
                               bool balanced) const;
  void Decode(int32_t layer, const PyAttentionLists& lists,
              TensorArgument queries, TensorArgument output,
              TensorArgument workspace, TensorArgument lse,
              TensorArgument logits, TensorArgument sinks,
              std::optional<float> scale, bool balanced, bool is_planned,
              const StreamArgument& stream);
  int64_t CountDecodeLogitRows(int32_t num_sequences, int64_t num_slots) const;
  void AddDecodeAttention(int32_t layer, const PyAttentionLists& lists,
                          TensorArgument workspace, TensorArgument logits,
                          TensorArgument lse, TensorArgument sum_offsets,
                          TensorArgument sums, const StreamArgument& stream);
  PyPrefillPlan PlanPrefill(IntsArgument query_offsets) const;
  void Prefill(int32_t layer, const PyAttentionLists& lists,
               const PyPrefillPlan& plan, TensorArgument words,
               TensorArgument queries, TensorArgument output,
               TensorArgument lse, TensorArgument sinks,
               std::optional<float> scale, const StreamArgument& stream);

  // cuda_scores.cc
  std::shared_ptr<PyEntryPlan> PlanEntries(IntsArgument offsets,
                                           IntsArgument lengths) const;
  PyEntryLists Entries(std::shared_ptr<PyEntryPlan> plan, TensorArgument words,
                       TensorArgument slots, TensorArgument positions) const;
  int64_t ScoreWorkspaceBytes(const PolicyArgument& policy,
                              const PyEntryPlan& plan) const;
  void Score(const PolicyArgument& policy, const PyEntryLists& entries,
             const ScoreTensors& tensors, std::optional<float> scale,
             const StreamArgument& stream);
  int64_t AttentionWorkspaceBytes(const PyEntryPlan& plan,
                                  int32_t num_queries) const;
  void AddAttention(const PyEntryLists& entries, TensorArgument queries,
                    TensorArgument sums, TensorArgument workspace,
                    std::optional<float> scale, const StreamArgument& stream);
  void ValueNorms(const PolicyArgument& policy, const PyEntryLists& entries,
                  TensorArgument projection, TensorArgument norms,
                  const StreamArgument& stream);

  // cuda_queries.cc
  PyFutureQueries PredictQueries(const PolicyArgument& policy,
                                 const PyEntryPlan& plan, ArrayArgument means,
                                 ArrayArgument covariances,
                                 ArrayArgument inverse_frequencies) const;

  // cuda_index.cc
  PyIndexPlan PlanIndex(std::shared_ptr<PyEntryPlan> entries,
                        IntsArgument cuts) const;
  void IndexEntries(const PyIndexPlan& plan, TensorArgument words,
                    const PyAttentionLists& lists, TensorArgument slots,
                    TensorArgument positions, TensorArgument workspace,
                    TensorArgument region_positions,
                    const StreamArgument& stream);

  // cuda_selection.cc
  PySelectionPlan PlanSelection(std::shared_ptr<PyEntryPlan> entries,
                                const PolicyArgument& policy,
                                const TargetArgument& target,
                                int32_t cut) const;
  void Select(const PySelectionPlan& plan, TensorArgument words,
              const PyEntryLists& entries, TensorArgument scores,
              TensorArgument workspace, TensorArgument counts,
              TensorArgument survivors, TensorArgument num_nan,
              TensorArgument value_norms, TensorArgument products,
              TensorArgument budgets, const StreamArgument& stream);
  void PlanMoves(const PyEntryLists& entries, TensorArgument survivors,
                 TensorArgument page_offsets, TensorArgument pages,
                 TensorArgument kept, TensorArgument move_offsets,
                 TensorArgument moves, TensorArgument region_positions,
                 const StreamArgument& stream);

 private:
  struct ScoreArrays;
  struct ScoreCall;

  // The tensors of the pool, or of its layers, and how kernels see them.
  void ImportPool(nb::handle pool);
  PagedPool PoolOf(const AnyArray& tensor, size_t first_dimension) const;

  // A tensor on the device of the pool; see ImportTensor.
  AnyArray Import(const char* name, TensorArgument argument,
                  std::initializer_list<nb::dlpack::dtype> dtypes,
                  std::initializer_list<int64_t> shape,
                  const TensorUse& use = {}) const {
    return ImportTensor(name, argument, device_, dtypes, shape, use);
  }
  template <typename T>
  AnyArray ImportOf(const char* name, TensorArgument argument,
                    std::initializer_list<int64_t> shape,
                    bool is_written = false) const {
    return Import(name, argument, {nb::dtype<T>()}, shape,
                  {.is_written = is_written});
  }
  // A contiguous tensor of the pool's elements, whose rows kernels copy in
  // pieces of 16 bytes.
  AnyArray ImportRows(const char* name, TensorArgument argument,
                      std::initializer_list<int64_t> shape,
                      bool is_written = false) const;
  // Return an invalid array for None.
  AnyArray ImportLse(TensorArgument lse, int64_t num_tokens) const;
  AnyArray ImportSinks(TensorArgument sinks) const;
  AnyArray ImportLogits(TensorArgument logits) const;
  // The memory of a workspace of at least `bytes`.
  AnyArray ImportWorkspace(TensorArgument argument, int64_t bytes,
                           const char* function) const;

  // Raise InvalidArgumentError for lists of another layout or device.
  void CheckLists(const PyAttentionLists& lists) const;
  void CheckPlan(const PyEntryPlan& plan) const;
  void CheckEntries(const PyEntryLists& entries) const;

  void StagePagesOf(TensorArgument pages, TensorArgument staged, bool packs,
                    const StreamArgument& stream);
  EvictionPolicy CheckedDeviceScorer(const PolicyArgument& policy,
                                     const PyEntryPlan& plan) const;
  // The arrays that the statistics of queries need.
  static void TakeWindowArrays(const ModelLayout& layout,
                               const PyEntryPlan& plan, int32_t num_queries,
                               ScoreArrays* arrays, WorkspaceCursor* cursor);
  static ScoreArrays TakeScoreArrays(const ModelLayout& layout,
                                     const EvictionPolicy& policy,
                                     const PyEntryPlan& plan,
                                     WorkspaceCursor* cursor);
  ScoreCall ImportScoreCall(const EvictionPolicy& policy,
                            const PyEntryLists& entries,
                            const ScoreTensors& tensors) const;
  WindowParams WindowOf(const PyEntryLists& entries, const ScoreArrays& arrays,
                        const AnyArray& queries, float scale) const;
  void LaunchWindow(const WindowParams& window);
  // Returns the parameters of the kernels behind the weights of a window.
  template <typename Params>
  Params LaunchWeights(const ScoreCall& call);
  using ScoreLaunch = void (PyCudaKernels::*)(const ScoreCall& call);
  // Returns the function that launches the scorer's kernels. Null if this class
  // does not have the scorer.
  static ScoreLaunch LaunchOf(ScorerKind kind);
  void LaunchKeyScores(const ScoreCall& call);
  void LaunchTova(const ScoreCall& call);
  void LaunchSnapKv(const ScoreCall& call);
  void LaunchH2o(const ScoreCall& call);
  void LaunchExpected(const ScoreCall& call);

  // Calls launch(runtime), whose launches are on the stream, and raises the
  // error of the first that fails. Later calls begin without an error.
  template <typename Function>
  void Launch(const StreamArgument& stream, const Function& launch) {
    absl::Status status;
    {
      const std::unique_lock<std::mutex> turn = TakeTurn(stream);
      launch(*runtime_);
      status = runtime_->TakeStatus();
    }
    ThrowIfError(status);
  }
  // Waits until no other thread uses runtime_, and has it launch on the stream.
  // No thread waits for its turn while it holds Python's lock, so the thread
  // whose turn it is can always take that lock.
  std::unique_lock<std::mutex> TakeTurn(const StreamArgument& stream);

  const ModelLayout layout_;
  int32_t device_ = 0;
  std::vector<AnyArray> tensors_;  // keep the pool alive
  PagedPool pool_;
  RowShape shape_;
  std::mutex mutex_;  // one thread at a time uses the runtime
  std::unique_ptr<DeviceRuntime> runtime_;
  int32_t num_decode_ctas_ = 1;
  char* memory_ = nullptr;  // the error word, then layer_bases
};

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_CUDA_KERNELS_H_
