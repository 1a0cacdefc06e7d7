// The interface of a device for host code: memory, copies and kernels.
// CudaBackend is written against this interface, so that all of its code except
// the launches runs without a GPU. One implementation drives CUDA
// (cuda_device_runtime.h). The other is for tests, on the emulator.
#ifndef KERNELS_CUDA_HOST_DEVICE_RUNTIME_H_
#define KERNELS_CUDA_HOST_DEVICE_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/layers/layer_rows.h"
#include "kernels/cuda/layers/token_draws.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/scores/expected_scores.h"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/scores/value_norm_scores.h"
#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// DeviceGraph is work that was captured from the stream of a runtime, with its
// arguments. The runtime must outlive it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// DeviceRuntime is one device and one stream. Enqueued work runs in order. All
// pointers except those called `host` are device pointers.
//
// status() keeps the first error. After an error every call does nothing, and
// Download leaves its bytes unchanged. Thread-compatible.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual const absl::Status& status() const = 0;
  // Returns status() and sets it to OK, so that calls work again. For callers
  // who report the errors of each call.
  virtual absl::Status TakeStatus() = 0;

  // Enqueues all further work on a stream of the caller's (cudaStream_t) on
  // this device, instead of the stream before. Does not wait for the stream
  // before. REQUIRES: no upload since the last wait, and no product library.
  virtual void UseStream(void* stream) = 0;

  // Allocates device memory, aligned to 256 bytes. Returns ResourceExhausted if
  // there is no room. status() does not keep this error. REQUIRES: bytes > 0.
  virtual absl::StatusOr<char*> Allocate(int64_t bytes) = 0;
  // Waits for all earlier work.
  virtual void Free(char* memory) = 0;

  // Copies the bytes before it returns. While a graph is captured from the
  // stream, fails with FailedPrecondition: a replay of the graph could not read
  // the bytes again.
  virtual void Upload(char* to, std::span<const std::byte> host) = 0;
  // Waits for all earlier work.
  virtual void Download(std::span<std::byte> host, const char* from) = 0;
  // Downloads host.size() / row_bytes rows, which are `stride` bytes apart.
  // Waits for all earlier work.
  virtual void DownloadRows(std::span<std::byte> host, const char* from,
                            int64_t row_bytes, int64_t stride) = 0;
  // Copies inside the device's memory. The parts do not overlap.
  virtual void Copy(char* to, const char* from, int64_t bytes) = 0;
  virtual void Fill(char* to, uint8_t byte, int64_t bytes) = 0;

  // From BeginCapture to EndCapture, fills and kernels are recorded instead of
  // run. Allocations, uploads, copies and calls that wait must not be made in
  // between. The runtimes of tests fail on all of them.
  virtual void BeginCapture() = 0;
  // Returns what was recorded, or the first error since BeginCapture. The
  // runtime works as before the capture, also after an error.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() = 0;
  // Enqueues all work of a graph of this runtime. The work reads the memory
  // that its arguments point to as the memory then is. REQUIRES: memory that
  // the work uses has not been freed.
  virtual void Launch(const DeviceGraph& graph) = 0;

  // A clock of the stream, for one measurement at a time.
  virtual void StartTimer() = 0;
  virtual void StopTimer() = 0;
  // Waits until the stream has come to StopTimer. Returns the seconds from one
  // to the other, with the gaps in which the device waited for the host.
  virtual double TimerSeconds() = 0;

  // Returns the number of CTAs of decode attention that the device holds at a
  // time.
  virtual int32_t CountDecodeCtas(const RowShape& shape,
                                  int32_t group_size) = 0;

  // From now on has the vendor's library (cuBLAS) compute Multiply. Returns the
  // library's name and version, or why it cannot be used: Multiply then goes on
  // to run our own kernel.
  virtual absl::StatusOr<std::string> UseProductLibrary() = 0;

  // Kernels; see the headers of their parameters.
  virtual void Append(const AppendRows& append, RowConversion conversion) = 0;
  virtual void Gather(const GatherRows& gather, RowConversion conversion) = 0;
  virtual void Move(const MoveRows& move) = 0;
  virtual void CopyBlocks(const CopyBlockRows& copy) = 0;
  virtual void PackPages(const StagePages& stage) = 0;
  virtual void UnpackPages(const StagePages& stage) = 0;
  virtual void PlanDecode(const DecodePlanParams& params) = 0;
  virtual void Decode(const DecodeParams& params, const RowShape& shape) = 0;
  // num_blocks is params.block_offsets[num_sequences].
  virtual void Chunk(const ChunkParams& params, const RowShape& shape,
                     int32_t num_blocks) = 0;
  virtual void WindowStats(const WindowParams& params,
                           const RowShape& shape) = 0;
  virtual void WindowColumns(const WindowParams& params,
                             const RowShape& shape) = 0;
  virtual void PoolWindow(const PoolParams& params) = 0;
  virtual void Tova(const TovaParams& params) = 0;
  virtual void AddDecodeAttention(const DecodeSumParams& params) = 0;
  virtual void FinishH2o(const H2oScoreParams& params) = 0;
  virtual void KeyScores(const KeyScoreParams& params,
                         const RowShape& shape) = 0;
  virtual void ExpectedScores(const ExpectedParams& params,
                              const RowShape& shape) = 0;
  virtual void ValueNorms(const ValueNormParams& params,
                          const RowShape& shape) = 0;
  // longest_tail is in tokens.
  virtual void IndexEntries(const EntryIndexParams& params,
                            int32_t longest_tail) = 0;
  virtual void Select(const SelectProblem& problem) = 0;
  virtual void PlanMoves(const SelectMoves& moves) = 0;
  // Layers. `type` is that of the weights and of the inputs of products.
  virtual void Embed(const EmbedParams& params, ElementType type) = 0;
  virtual void Normalize(const NormParams& params, ElementType type) = 0;
  virtual void PrepareHeads(const HeadParams& params,
                            const RowShape& shape) = 0;
  virtual void MergeAttention(const MergeParams& params, ElementType type,
                              ElementType pool_type) = 0;
  virtual void Gate(const GateParams& params, ElementType type) = 0;
  virtual void Multiply(const ProductParams& params, ElementType type) = 0;
  virtual void EditLogits(const EditParams& params) = 0;
  virtual void DrawTokens(const DrawParams& params) = 0;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DEVICE_RUNTIME_H_
