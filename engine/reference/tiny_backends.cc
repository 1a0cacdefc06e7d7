#include "engine/reference/tiny_backends.h"

#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/device_forward.h"
#include "kernels/cuda/host/device_runtime.h"

#if BLOCKMGR_ENGINE_HAS_CUDA
#include "kernels/cuda/host/cuda_device_runtime.h"
#endif

namespace blockmgr {
namespace {

#if BLOCKMGR_ENGINE_HAS_CUDA

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateCudaShards(
    const ModelLayout& layout, const TinyBackendOptions& options) {
  BM_RETURN_IF_ERROR(layout.Validate());
  BM_RETURN_IF_ERROR(CudaBackend::CheckLayout(layout.ShardLayout()));
  BM_ASSIGN_OR_RETURN(std::shared_ptr<DeviceRuntime> runtime,
                      CreateCudaRuntime(options.device));
  std::vector<std::unique_ptr<Backend>> backends;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    BM_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaBackend> backend,
        CudaBackend::Create(layout.ShardLayout(), {.decode = options.decode},
                            runtime));
    backends.push_back(std::move(backend));
  }
  return backends;
}

#else

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateCudaShards(
    const ModelLayout& /*layout*/, const TinyBackendOptions& /*options*/) {
  return absl::UnimplementedError(
      "backend: expected cpu, got cuda: this build has no CUDA kernels "
      "(configure with -DBLOCKMGR_CUDA=ON where nvcc is installed)");
}

#endif

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateTinyBackends(
    const ModelLayout& layout, const TinyBackendOptions& options) {
  return options.cuda ? CreateCudaShards(layout, options)
                      : CreateCpuShards(layout);
}

absl::StatusOr<std::unique_ptr<ForwardPass>> CreateTinyForward(
    const LanguageModel* model, const ModelLayout& layout,
    std::span<const std::unique_ptr<Backend>> backends) {
  DeviceRuntime* const runtime = backends.front()->device_runtime();
  for (const std::unique_ptr<Backend>& backend : backends) {
    BM_CHECK(backend->device_runtime() == runtime);
  }
  if (runtime == nullptr) return nullptr;
  return DeviceForward::Create(model, layout, runtime);
}

}  // namespace blockmgr
