// Where a tiny engine's attention, scores, selections and moves are computed.
#ifndef ENGINE_REFERENCE_TINY_BACKENDS_H_
#define ENGINE_REFERENCE_TINY_BACKENDS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/cuda_backend.h"

namespace blockmgr {

struct TinyBackendOptions {
  bool cuda = false;
  // Of CUDA:
  int32_t device = 0;  // all shards are there
  // Only kChunked has what TinyEngine says of bits: that they depend neither on
  // the batch nor on how tokens were split into steps; but for the scores of
  // all queries that h2o adds up (CudaBackend).
  CudaBackendOptions::Decode decode = CudaBackendOptions::Decode::kChunked;
};

// One backend for each shard of the model. InvalidArgument, naming the field,
// for layouts that do not exist there; Unimplemented where the library was
// built without CUDA; the device's own error where there is none or it has no
// room.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateTinyBackends(
    const ModelLayout& layout, const TinyBackendOptions& options);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_BACKENDS_H_
