#include "kernels/cuda/cuda_runtime.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <cuda_runtime_api.h>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/row_mover_launch.h"
#include "kernels/cuda/select_launch.h"

namespace blockmgr {
namespace {

constexpr int64_t kStagingBytes = int64_t{8} << 20;
// Blocks of the row mover per multiprocessor (row_mover_launch.h).
constexpr uint32_t kRowBlocksPerProcessor = 4;

absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int32_t device) {
    int32_t num_processors = 0;
    Keep(cudaSetDevice(device), "choosing the device");
    Keep(cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount,
                                device),
         "multiprocessors");
    Keep(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    void* staging = nullptr;
    Keep(cudaHostAlloc(&staging, kStagingBytes, cudaHostAllocDefault),
         "pinned memory");
    staging_ = static_cast<std::byte*>(staging);
    max_row_blocks_ =
        kRowBlocksPerProcessor * static_cast<uint32_t>(num_processors);
  }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;
  // Errors have nobody to go to by now.
  ~CudaRuntime() override {
    if (stream_ != nullptr) {
      static_cast<void>(cudaStreamSynchronize(stream_));
      static_cast<void>(cudaStreamDestroy(stream_));
    }
    if (staging_ != nullptr) static_cast<void>(cudaFreeHost(staging_));
  }

  const absl::Status& status() const override { return status_; }

  absl::StatusOr<char*> Allocate(int64_t bytes) override {
    BM_CHECK(bytes > 0);
    BM_RETURN_IF_ERROR(status_);
    void* memory = nullptr;
    const cudaError_t error =
        cudaMalloc(&memory, static_cast<std::size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      // Not sticky, and the caller's to live with.
      static_cast<void>(cudaGetLastError());
      return ToStatus(error, absl::StrCat("allocating ", bytes, " bytes"));
    }
    Keep(error, "allocating");
    BM_RETURN_IF_ERROR(status_);
    return static_cast<char*>(memory);
  }

  void Free(char* memory) override {
    Wait();
    Keep(cudaFree(memory), "freeing");
  }

  void Upload(char* to, std::span<const std::byte> host) override {
    while (!host.empty() && status_.ok()) {
      if (staged_ == kStagingBytes) Wait();
      const int64_t size =
          std::min<int64_t>(std::ssize(host), kStagingBytes - staged_);
      std::byte* place = staging_ + staged_;
      std::memcpy(place, host.data(), static_cast<std::size_t>(size));
      Keep(cudaMemcpyAsync(to, place, static_cast<std::size_t>(size),
                           cudaMemcpyHostToDevice, stream_),
           "upload");
      staged_ += size;
      to += size;
      host = host.subspan(static_cast<std::size_t>(size));
    }
  }

  void Download(std::span<std::byte> host, const char* from) override {
    if (!status_.ok()) return;
    Keep(cudaMemcpyAsync(host.data(), from, host.size(), cudaMemcpyDeviceToHost,
                         stream_),
         "download");
    Wait();
  }

  void Fill(char* to, uint8_t byte, int64_t bytes) override {
    if (!status_.ok()) return;
    Keep(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), stream_),
         "fill");
  }

  int32_t CountDecodeCtas(const RowShape& shape, int32_t group_size) override {
    int32_t num_ctas = 1;
    Keep(blockmgr::CountDecodeCtas(shape, group_size, &num_ctas),
         "decode attention");
    return num_ctas;
  }

  void Append(const AppendRows& append, RowConversion conversion) override {
    if (!status_.ok()) return;
    Keep(LaunchAppend(append, conversion, max_row_blocks_, stream_), "append");
  }
  void Gather(const GatherRows& gather, RowConversion conversion) override {
    if (!status_.ok()) return;
    Keep(LaunchGather(gather, conversion, max_row_blocks_, stream_), "gather");
  }
  void Move(const MoveRows& move) override {
    if (!status_.ok()) return;
    Keep(LaunchMove(move, max_row_blocks_, stream_), "move");
  }
  void CopyBlocks(const CopyBlockRows& copy) override {
    if (!status_.ok()) return;
    Keep(LaunchCopyBlocks(copy, max_row_blocks_, stream_), "copy of blocks");
  }
  void PackPages(const StagePages& stage) override {
    if (!status_.ok()) return;
    Keep(LaunchPackPages(stage, max_row_blocks_, stream_), "packing of pages");
  }
  void UnpackPages(const StagePages& stage) override {
    if (!status_.ok()) return;
    Keep(LaunchUnpackPages(stage, max_row_blocks_, stream_),
         "unpacking of pages");
  }
  void PlanDecode(const DecodePlanParams& params) override {
    if (!status_.ok()) return;
    Keep(LaunchPlanDecode(params, stream_), "plan of decode attention");
  }
  void Decode(const DecodeParams& params, const RowShape& shape) override {
    if (!status_.ok()) return;
    Keep(LaunchDecodeAttention(params, shape, stream_), "decode attention");
  }
  void Chunk(const ChunkParams& params, const RowShape& shape,
             int32_t num_blocks) override {
    if (!status_.ok()) return;
    Keep(LaunchChunkAttention(params, shape, num_blocks, stream_),
         "chunk attention");
  }
  void WindowStats(const WindowParams& params, const RowShape& shape) override {
    if (!status_.ok()) return;
    Keep(LaunchWindowStats(params, shape, stream_), "window statistics");
  }
  void WindowColumns(const WindowParams& params,
                     const RowShape& shape) override {
    if (!status_.ok()) return;
    Keep(LaunchWindowColumns(params, shape, stream_), "window columns");
  }
  void PoolWindow(const PoolParams& params, int32_t longest_list) override {
    if (!status_.ok()) return;
    Keep(LaunchPoolWindowScores(params, longest_list, stream_), "pooling");
  }
  void FinishH2o(const H2oScoreParams& params, int32_t longest_list) override {
    if (!status_.ok()) return;
    Keep(LaunchFinishH2oScores(params, longest_list, stream_), "h2o");
  }
  void KeyScores(const KeyScoreParams& params, const RowShape& shape) override {
    if (!status_.ok()) return;
    Keep(LaunchKeyScores(params, shape, stream_), "scores of keys");
  }
  void ValueNorms(const ValueNormParams& params, const RowShape& shape,
                  int32_t longest_list) override {
    if (!status_.ok()) return;
    Keep(LaunchValueNorms(params, shape, longest_list, stream_),
         "sizes of values");
  }
  void Select(const SelectProblem& problem) override {
    if (!status_.ok()) return;
    Keep(LaunchSelect(problem, stream_), "selection");
  }
  void PlanMoves(const SelectMoves& moves) override {
    if (!status_.ok()) return;
    Keep(LaunchSelectMoves(moves, stream_), "plan of moves");
  }

 private:
  void Keep(cudaError_t error, absl::string_view what) {
    if (status_.ok()) status_ = ToStatus(error, what);
  }
  // For the stream: then nothing reads the staging memory any more.
  void Wait() {
    Keep(cudaStreamSynchronize(stream_), "waiting");
    staged_ = 0;
  }

  cudaStream_t stream_ = nullptr;
  std::byte* staging_ = nullptr;
  int64_t staged_ = 0;  // bytes since the last wait
  uint32_t max_row_blocks_ = 1;
  absl::Status status_;
};

}  // namespace

int32_t CountCudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(
    int32_t device) {
  const int32_t num_devices = CountCudaDevices();
  if (device < 0 || device >= num_devices) {
    return absl::UnavailableError(
        absl::StrCat("device: expected one of the ", num_devices,
                     " CUDA devices that this process can use, got ", device));
  }
  auto runtime = std::make_unique<CudaRuntime>(device);
  BM_RETURN_IF_ERROR(runtime->status());
  return runtime;
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CreateCudaBackend(
    const ModelLayout& layout, const CudaBackendOptions& options,
    int32_t device) {
  BM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime,
                      CreateCudaRuntime(device));
  return CudaBackend::Create(layout, options, std::move(runtime));
}

}  // namespace blockmgr
