#include "kernels/cuda/host/cuda_device_runtime.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <cuda_runtime_api.h>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/host/cublas_products.h"
#include "kernels/cuda/layers/layer_launch.h"
#include "kernels/cuda/rows/row_mover_launch.h"
#include "kernels/cuda/selection/select_launch.h"

namespace blockmgr {
namespace {

constexpr int64_t kStagingBytes = int64_t{8} << 20;
// The shared memory of a block on compute capability 8.0, which the largest
// kernels fit in. 8.6, 8.9 and 12.0 have 99 KiB.
constexpr int32_t kSharedBytes = 163 << 10;

absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

// Makes a device current as long as it lives. The caller's device is current
// again afterwards: callers of Python use several, and memory is freed there at
// any time, by a garbage collector. Costs next to nothing if both are the same.
class CurrentDevice {
 public:
  explicit CurrentDevice(int32_t device)
      : device_(device), earlier_(device), error_(cudaGetDevice(&earlier_)) {
    if (error_ == cudaSuccess && earlier_ != device_) {
      error_ = cudaSetDevice(device_);
    }
  }
  ~CurrentDevice() {
    if (earlier_ != device_) static_cast<void>(cudaSetDevice(earlier_));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  const int device_;
  int earlier_;
  cudaError_t error_;
};

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t exec) : exec_(exec) {}
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  // CUDA keeps the graph until launches under way have ended.
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(exec_)); }

  cudaGraphExec_t exec() const { return exec_; }

 private:
  const cudaGraphExec_t exec_;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  // Without a stream, which may be the device's default one, null, it makes
  // its own.
  CudaRuntime(int32_t device, std::optional<cudaStream_t> stream)
      : device_(device), stream_(stream.value_or(nullptr)) {
    int32_t num_processors = 0;
    const Use use(this);
    if (!use) return;
    Keep(cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount,
                                device),
         "multiprocessors");
    if (!stream.has_value()) {
      Keep(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking),
           "stream");
      stream_ = own_stream_;
    }
    max_row_blocks_ =
        kRowBlocksPerProcessor * static_cast<uint32_t>(num_processors);
  }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;
  // Errors have nobody to go to by now.
  ~CudaRuntime() override {
    const CurrentDevice current(device_);
    // A stream of the caller's that reads nothing of the runtime's may not even
    // exist any more.
    if (staged_ > 0 || products_ != nullptr) {
      static_cast<void>(cudaStreamSynchronize(stream_));
    }
    products_.reset();
    for (const cudaEvent_t event : timer_) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
    if (own_stream_ != nullptr) {
      static_cast<void>(cudaStreamSynchronize(own_stream_));
      static_cast<void>(cudaStreamDestroy(own_stream_));
    }
    if (staging_ != nullptr) static_cast<void>(cudaFreeHost(staging_));
  }

  const absl::Status& status() const override { return status_; }

  absl::Status TakeStatus() override {
    // CUDA keeps the error, too, for the next launch to report.
    if (!status_.ok()) static_cast<void>(cudaGetLastError());
    return std::exchange(status_, absl::OkStatus());
  }

  void UseStream(void* stream) override {
    const bool nothing_is_staged = staged_ == 0 && products_ == nullptr;
    BM_CHECK(nothing_is_staged);
    stream_ = static_cast<cudaStream_t>(stream);
  }

  absl::StatusOr<char*> Allocate(int64_t bytes) override {
    BM_CHECK(bytes > 0);
    const Use use(this);
    if (!use) return status_;
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
    // Memory goes back after a failure too.
    const CurrentDevice current(device_);
    Wait();
    Keep(cudaFree(memory), "freeing");
  }

  void Upload(char* to, std::span<const std::byte> host) override {
    const Use use(this);
    if (!host.empty()) {
      RefuseCapture();
      MakeStaging();
    }
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
    const Use use(this);
    if (!use) return;
    Keep(cudaMemcpyAsync(host.data(), from, host.size(), cudaMemcpyDeviceToHost,
                         stream_),
         "download");
    Wait();
  }

  void DownloadRows(std::span<std::byte> host, const char* from,
                    int64_t row_bytes, int64_t stride) override {
    const Use use(this);
    if (!use) return;
    const auto width = static_cast<std::size_t>(row_bytes);
    Keep(cudaMemcpy2DAsync(
             host.data(), width, from, static_cast<std::size_t>(stride), width,
             host.size() / width, cudaMemcpyDeviceToHost, stream_),
         "download of rows");
    Wait();
  }

  void Copy(char* to, const char* from, int64_t bytes) override {
    const Use use(this);
    if (!use) return;
    Keep(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes),
                         cudaMemcpyDeviceToDevice, stream_),
         "copy");
  }

  void Fill(char* to, uint8_t byte, int64_t bytes) override {
    const Use use(this);
    if (!use) return;
    Keep(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), stream_),
         "fill");
  }

  void BeginCapture() override {
    if (const Use use(this); use) {
      Keep(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
           "beginning a capture");
    }
  }

  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override {
    // The capture ends after a failure too.
    const CurrentDevice current(device_);
    cudaGraph_t graph = nullptr;
    Keep(cudaStreamEndCapture(stream_, &graph), "ending a capture");
    cudaGraphExec_t exec = nullptr;
    if (status_.ok()) {
      // cudaGraphInstantiate has other parameters before CUDA 12.
      Keep(cudaGraphInstantiateWithFlags(&exec, graph, 0), "making a graph");
    }
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    BM_RETURN_IF_ERROR(TakeStatus());
    return std::make_unique<CudaGraph>(exec);
  }

  void Launch(const DeviceGraph& graph) override {
    if (const Use use(this); use) {
      Keep(
          cudaGraphLaunch(static_cast<const CudaGraph&>(graph).exec(), stream_),
          "launching a graph");
    }
  }

  void StartTimer() override { RecordTime(0); }
  void StopTimer() override { RecordTime(1); }

  double TimerSeconds() override {
    float milliseconds = 0.0f;
    if (const Use use(this); use) {
      Keep(cudaEventSynchronize(timer_[1]), "timer");
      Keep(cudaEventElapsedTime(&milliseconds, timer_[0], timer_[1]), "timer");
    }
    return double{milliseconds} / 1000;
  }

  int32_t CountDecodeCtas(const RowShape& shape, int32_t group_size) override {
    int32_t num_ctas = 1;
    const Use use(this);
    if (!use) return num_ctas;
    Keep(blockmgr::CountDecodeCtas(shape, group_size, &num_ctas),
         "decode attention");
    return num_ctas;
  }

  absl::StatusOr<std::string> UseProductLibrary() override {
    const Use use(this);
    if (!use) return status_;
    BM_ASSIGN_OR_RETURN(products_, CublasProducts::Create(stream_));
    return products_->name();
  }

  void Append(const AppendRows& append, RowConversion conversion) override {
    Do("append", LaunchAppend, append, conversion, max_row_blocks_);
  }
  void Gather(const GatherRows& gather, RowConversion conversion) override {
    Do("gather", LaunchGather, gather, conversion, max_row_blocks_);
  }
  void Move(const MoveRows& move) override {
    Do("move", LaunchMove, move, max_row_blocks_);
  }
  void CopyBlocks(const CopyBlockRows& copy) override {
    Do("copy of blocks", LaunchCopyBlocks, copy, max_row_blocks_);
  }
  void PackPages(const StagePages& stage) override {
    Do("packing of pages", LaunchPackPages, stage, max_row_blocks_);
  }
  void UnpackPages(const StagePages& stage) override {
    Do("unpacking of pages", LaunchUnpackPages, stage, max_row_blocks_);
  }
  void PlanDecode(const DecodePlanParams& params) override {
    Do("plan of decode attention", LaunchPlanDecode, params);
  }
  void Decode(const DecodeParams& params, const RowShape& shape) override {
    Do("decode attention", LaunchDecodeAttention, params, shape);
  }
  void Chunk(const ChunkParams& params, const RowShape& shape,
             int32_t num_blocks) override {
    Do("chunk attention", LaunchChunkAttention, params, shape, num_blocks);
  }
  void WindowStats(const WindowParams& params, const RowShape& shape) override {
    Do("window statistics", LaunchWindowStats, params, shape);
  }
  void WindowColumns(const WindowParams& params,
                     const RowShape& shape) override {
    Do("window columns", LaunchWindowColumns, params, shape);
  }
  void PoolWindow(const PoolParams& params) override {
    Do("pooling", LaunchPoolWindowScores, params);
  }
  void Tova(const TovaParams& params) override {
    Do("tova", LaunchTovaScores, params);
  }
  void AddDecodeAttention(const DecodeSumParams& params) override {
    Do("sums of decode attention", LaunchAddDecodeAttention, params);
  }
  void FinishH2o(const H2oScoreParams& params) override {
    Do("h2o", LaunchFinishH2oScores, params);
  }
  void KeyScores(const KeyScoreParams& params, const RowShape& shape) override {
    Do("scores of keys", LaunchKeyScores, params, shape);
  }
  void ExpectedScores(const ExpectedParams& params,
                      const RowShape& shape) override {
    Do("expected attention", LaunchExpectedScores, params, shape);
  }
  void ValueNorms(const ValueNormParams& params,
                  const RowShape& shape) override {
    Do("sizes of values", LaunchValueNorms, params, shape);
  }
  void IndexEntries(const EntryIndexParams& params,
                    int32_t longest_tail) override {
    Do("index of entries", LaunchIndexEntries, params, longest_tail);
  }
  void Select(const SelectProblem& problem) override {
    Do("selection", LaunchSelect, problem);
  }
  void PlanMoves(const SelectMoves& moves) override {
    Do("plan of moves", LaunchSelectMoves, moves);
  }
  void Embed(const EmbedParams& params, ElementType type) override {
    Do("embedding", LaunchEmbed, params, type);
  }
  void Normalize(const NormParams& params, ElementType type) override {
    Do("norms", LaunchNormalize, params, type);
  }
  void PrepareHeads(const HeadParams& params, const RowShape& shape) override {
    Do("heads", LaunchPrepareHeads, params, shape);
  }
  void MergeAttention(const MergeParams& params, ElementType type,
                      ElementType pool_type) override {
    Do("merge of heads", LaunchMergeAttention, params, type, pool_type);
  }
  void Gate(const GateParams& params, ElementType type) override {
    Do("gates", LaunchGate, params, type);
  }
  void Multiply(const ProductParams& params, ElementType type) override {
    if (products_ == nullptr) {
      Do("product", LaunchMultiply, params, type);
    } else if (const Use use(this); use) {
      status_ = products_->Multiply(params, type);
    }
  }
  void EditLogits(const EditParams& params) override {
    Do("edits of logits", LaunchEditLogits, params);
  }
  void DrawTokens(const DrawParams& params) override {
    Do("draws of tokens", LaunchDrawTokens, params);
  }

 private:
  // Keeps what the launcher returns, unless something has failed before.
  template <typename Launch, typename... Arguments>
  void Do(absl::string_view what, Launch launch,
          const Arguments&... arguments) {
    if (const Use use(this); use) Keep(launch(arguments..., stream_), what);
  }
  // Makes the runtime's device current as long as it lives. False if that, or
  // anything before, has failed. The calling thread may have used another
  // device, or none: calls without a stream, and launches on one, are for the
  // thread's current one.
  class Use {
   public:
    explicit Use(CudaRuntime* runtime) : current_(runtime->device_) {
      runtime->Keep(current_.error(), "choosing the device");
      is_ready_ = runtime->status_.ok();
    }
    explicit operator bool() const { return is_ready_; }

   private:
    const CurrentDevice current_;
    bool is_ready_ = false;
  };
  void Keep(cudaError_t error, absl::string_view what) {
    if (status_.ok()) status_ = ToStatus(error, what);
  }
  void RecordTime(std::size_t index) {
    const Use use(this);
    if (!use) return;
    if (timer_[index] == nullptr) {
      Keep(cudaEventCreate(&timer_[index]), "timer");
    }
    if (status_.ok()) Keep(cudaEventRecord(timer_[index], stream_), "timer");
  }
  // A graph would upload what the staging memory holds when it is launched.
  void RefuseCapture() {
    if (!status_.ok()) return;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    Keep(cudaStreamIsCapturing(stream_, &capture), "upload");
    if (!status_.ok() || capture == cudaStreamCaptureStatusNone) return;
    status_ = absl::FailedPreconditionError(
        "upload: expected a stream that no graph is captured from, got one "
        "that is: its graph would upload other bytes");
  }
  void MakeStaging() {
    if (staging_ != nullptr || !status_.ok()) return;
    void* staging = nullptr;
    Keep(cudaHostAlloc(&staging, kStagingBytes, cudaHostAllocDefault),
         "pinned memory");
    staging_ = static_cast<std::byte*>(staging);
  }
  // For the stream: then nothing reads the staging memory any more. Not if a
  // graph is captured, which refuses to wait.
  void Wait() {
    const cudaError_t error = cudaStreamSynchronize(stream_);
    Keep(error, "waiting");
    if (error == cudaSuccess) staged_ = 0;
  }

  const int32_t device_;
  cudaStream_t own_stream_ = nullptr;  // null if stream_ is the caller's
  cudaStream_t stream_ = nullptr;
  std::byte* staging_ = nullptr;
  int64_t staged_ = 0;  // bytes since the last wait
  uint32_t max_row_blocks_ = 1;
  std::array<cudaEvent_t, 2> timer_ = {};
  // Null if our own kernel computes the products.
  std::unique_ptr<CublasProducts> products_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<int32_t> CountCudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  // Without a driver the runtime says that it is too old.
  int driver = 0;
  const bool has_driver =
      cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  if (error == cudaErrorNoDevice || !has_driver) return 0;
  return ToStatus(error, "counting the devices");
}

absl::Status CheckCudaDevice(int32_t device, int32_t num_devices) {
  if (num_devices == 0) {
    return absl::UnavailableError(
        "device: expected a CUDA device and its driver, found none that this "
        "process can use (nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides "
        "them)");
  }
  if (device >= 0 && device < num_devices) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("device: expected 0 to ", num_devices - 1,
                   ", a CUDA device that this process can use, got ", device));
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(
    int32_t device, std::optional<cudaStream_t> stream) {
  BM_ASSIGN_OR_RETURN(const int32_t num_devices, CountCudaDevices());
  BM_RETURN_IF_ERROR(CheckCudaDevice(device, num_devices));
  cudaDeviceProp properties;
  BM_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device),
                              "properties of the device"));
  if (properties.sharedMemPerBlockOptin < std::size_t{kSharedBytes}) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device: expected at least ", kSharedBytes,
        " bytes of shared memory for a block (compute capability 8.0, 9.0 or "
        "10.0), got ",
        properties.sharedMemPerBlockOptin, " on ", properties.name, ", ",
        properties.major, ".", properties.minor));
  }
  auto runtime = std::make_unique<CudaRuntime>(device, stream);
  BM_RETURN_IF_ERROR(runtime->status());
  return runtime;
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CreateCudaBackend(
    const ModelLayout& layout, const CudaBackendOptions& options,
    int32_t device) {
  BM_RETURN_IF_ERROR(CudaBackend::CheckLayout(layout));
  BM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime,
                      CreateCudaRuntime(device));
  return CudaBackend::Create(layout, options, std::move(runtime));
}

}  // namespace blockmgr
