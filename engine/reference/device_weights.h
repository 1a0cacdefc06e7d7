// The weights of a LanguageModel in the memory of a device.
#ifndef ENGINE_REFERENCE_DEVICE_WEIGHTS_H_
#define ENGINE_REFERENCE_DEVICE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "engine/reference/packed_matrix.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// Parts of device memory begin at multiples of this, bytes.
inline constexpr size_t kDeviceAlignment = 256;

// The weights of one layer. Matrices are [out, in], in DeviceWeights::type().
// Vectors are fp32, and null if the model has no such part.
struct DeviceLayer {
  const void* projections = nullptr;  // of queries, keys, values
  const void* output = nullptr;
  const void* gate_up = nullptr;  // gate, then up
  const void* down = nullptr;
  const float* bias = nullptr;  // of the projections
  const float* attention_norm = nullptr;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  const float* attention_post_norm = nullptr;
  const float* mlp_norm = nullptr;
  const float* mlp_post_norm = nullptr;
};

// DeviceWeights takes 2 bytes a parameter: bf16 if the model has a matrix in
// bf16, which is then exact, and fp16 otherwise, which is nearer to fp32 and to
// codes with scales. Fp16 rounds what is above 65504 to that; no weight is. One
// allocation. Immutable. The runtime must outlive it.
class DeviceWeights {
 public:
  // Unpacks and uploads, on `threads`. Errors: ResourceExhausted if the device
  // has no room; the device's own.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Create(
      const LanguageModel& model, DeviceRuntime* runtime, ThreadPool* threads);
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;
  ~DeviceWeights();

  ElementType type() const { return type_; }
  const DeviceLayer& layer(int32_t index) const {
    return layers_[static_cast<size_t>(index)];
  }
  const void* embedding() const { return embedding_; }
  const void* head() const { return head_; }
  const float* final_norm() const { return final_norm_; }

 private:
  explicit DeviceWeights(DeviceRuntime* runtime) : runtime_(runtime) {}

  // Visits every part in order. Without memory, counts its bytes.
  void Place(const LanguageModel& model, ThreadPool* threads);
  // Return the part's place, after uploading it.
  const void* AddMatrices(std::span<const PackedMatrix* const> matrices,
                          ThreadPool* threads);
  const float* AddVectors(std::span<const std::vector<float>* const> vectors);
  char* Take(size_t bytes);
  void UploadRows(const PackedMatrix& matrix, char* to, ThreadPool* threads);

  DeviceRuntime* const runtime_;
  ElementType type_ = ElementType::kHalf;
  char* memory_ = nullptr;
  size_t num_bytes_ = 0;  // taken so far
  std::vector<DeviceLayer> layers_;
  const void* embedding_ = nullptr;
  const void* head_ = nullptr;
  const float* final_norm_ = nullptr;
  std::vector<uint16_t> rows_;  // scratch
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_DEVICE_WEIGHTS_H_
