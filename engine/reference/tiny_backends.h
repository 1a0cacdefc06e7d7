// The backends that compute a tiny engine's attention, scores, selections and
// moves.
#ifndef ENGINE_REFERENCE_TINY_BACKENDS_H_
#define ENGINE_REFERENCE_TINY_BACKENDS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "engine/reference/forward_pass.h"
#include "engine/reference/tiny_model.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/cuda_backend.h"

namespace blockmgr {

struct TinyBackendOptions {
  bool cuda = false;
  // The rest is for CUDA only.
  int32_t device = 0;  // of all shards
  // Only kChunked gives the bits that TinyEngine promises: they depend neither
  // on the batch nor on how tokens were split into steps. The sums of h2o are
  // an exception (CudaBackend).
  CudaBackendOptions::Decode decode = CudaBackendOptions::Decode::kChunked;
};

// Creates one backend for each shard of the model. Shards on a GPU share its
// stream. Errors:
//   InvalidArgument   the backend does not support the layout; names the field
//   Unimplemented     the library was built without CUDA
//   the device's      there is no device, or it has too little memory
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateTinyBackends(
    const ModelLayout& layout, const TinyBackendOptions& options);

// Creates the forward pass of an engine with these backends, with the model's
// weights on their device. Returns null for the CPU, as TinyEngine takes it.
// `layout` is the whole model's. REQUIRES: the backends share a device, and
// outlive the result, as does the model. Errors: those of DeviceForward.
absl::StatusOr<std::unique_ptr<ForwardPass>> CreateTinyForward(
    const LanguageModel* model, const ModelLayout& layout,
    std::span<const std::unique_ptr<Backend>> backends);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_BACKENDS_H_
