// DeviceForward: a forward pass on a device.
#ifndef ENGINE_REFERENCE_DEVICE_FORWARD_H_
#define ENGINE_REFERENCE_DEVICE_FORWARD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "engine/reference/device_buffer.h"
#include "engine/reference/device_weights.h"
#include "engine/reference/forward_pass.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// DeviceForward owns the weights and the rows on the device, and enqueues all
// work on the runtime's stream. A step uploads tokens and the cosines and sines
// of their positions, and downloads the tokens drawn. Sines come from the
// host's doubles: a table of all positions would take more memory than it
// saves.
//
// Inputs of matrix products are rounded to the weights' 16-bit elements;
// products add in fp32. The residual, norms and gates are fp32. With our own
// kernel for products, the bits of a row do not depend on the other rows. With
// the vendor's library (DeviceRuntime::UseProductLibrary) the last bits may.
//
// Buffers grow to the largest step: a steady step allocates nothing. If the
// device is full when a step needs more, the process aborts. Appends and
// attention are the backend's. Model and runtime are borrowed.
// Thread-compatible.
class DeviceForward final : public ForwardPass, public DevicePass {
 public:
  // `layout` is the whole model's; its pool's elements are those of queries,
  // keys and values. Products are the vendor's library's where there is one.
  // Errors: InvalidArgument for a layout that has no kernels;
  // ResourceExhausted if the device has no room; the device's own.
  static absl::StatusOr<std::unique_ptr<DeviceForward>> Create(
      const LanguageModel* model, const ModelLayout& layout,
      DeviceRuntime* runtime);

  void Begin(std::span<const int32_t> tokens,
             std::span<const int32_t> positions) override;
  void Project(int32_t layer) override;
  void Finish(int32_t layer) override;
  void ComputeLogits(std::span<const size_t> rows) override;
  std::span<const float> Logits(size_t row) override;
  DevicePass* device() override { return this; }
  HostRows host_rows() override;

  const std::string& products() const override { return products_; }
  DeviceRuntime& runtime() override { return runtime_; }
  absl::Status PrepareDecode(std::span<const int32_t> tokens,
                             std::span<const int32_t> positions,
                             int32_t num_rows,
                             std::vector<uint64_t>* arguments) override;
  const char* decode_queries() override { return query_memory_.data(); }
  void BeginDecode() override;
  void FinishDecode() override;
  DeviceRows rows(int32_t shard) override;
  void CopyQueries(int32_t shard, int32_t first, int32_t num_rows,
                   float* queries) override;
  void CopyRawQueries(int32_t shard, int32_t first, int32_t num_rows,
                      float* queries) override;
  void DrawTokens(std::span<const LogitEdit> edits,
                  std::span<const RowDraw> draws,
                  std::span<int32_t> tokens) override;

 private:
  // The rows of a pass, all in one buffer.
  struct Rows {
    float* residual = nullptr;     // [rows, hidden]
    char* operand = nullptr;       // [rows, widest], inputs of products
    float* product = nullptr;      // [rows, widest], outputs
    char* queries = nullptr;       // [shards, rows, q_width / shards]
    char* keys = nullptr;          // [rows, kv_width]
    char* values = nullptr;        // [rows, kv_width]
    char* attention = nullptr;     // as queries
    float* gate_scales = nullptr;  // [rows]
    // The inputs of the pass, uploaded together.
    char* inputs = nullptr;
  };
  // The inputs, in the order of their bytes. Cosines and sines of layers
  // without and with a window, [rows, head_dim / 2].
  struct Inputs {
    size_t tokens = 0;
    std::array<size_t, 2> cosines = {};
    std::array<size_t, 2> sines = {};
    size_t size = 0;
  };

  DeviceForward(const LanguageModel* model, const ModelLayout& layout,
                DeviceRuntime* runtime, std::string products,
                std::unique_ptr<DeviceWeights> weights);

  // Lays inputs_ and rows_ out for so many rows. Fails like Reserve.
  absl::Status PlaceRows(size_t num_rows);
  // Lays out and uploads the inputs of a pass of num_rows rows.
  [[nodiscard]] absl::Status Prepare(std::span<const int32_t> tokens,
                                     std::span<const int32_t> positions,
                                     size_t num_rows);
  void UploadInputs(std::span<const int32_t> tokens,
                    std::span<const int32_t> positions);
  // Computes output = weights * operand.
  void Multiply(const void* weights, int32_t in, int32_t out,
                const void* input);
  // Enqueues the logits after num_rows rows. Null places are rows 0, 1, ..
  void EnqueueLogits(size_t num_rows, const int32_t* places);
  // Adds the last product to the residual, and normalises it with `gains`
  // unless they are null.
  void AddProduct(const float* delta_gains, const float* delta_scales,
                  const float* gains);
  void Download(std::span<std::byte> host, const void* from);
  size_t num_logits() const { return logit_rows_.size(); }

  const LanguageModel& model_;
  const ModelLayout layout_;
  const RowShape pool_shape_;
  DeviceRuntime& runtime_;
  const std::string products_;
  const std::unique_ptr<DeviceWeights> weights_;
  RotaryTables rotary_;
  // A layer of each kind of rotary embedding; -1 if there is none.
  std::array<int32_t, 2> layer_of_kind_ = {-1, -1};
  size_t num_rows_ = 0;
  DeviceBuffer row_memory_;
  Rows rows_;
  Inputs inputs_;
  // The queries of the last Project, as Rows::queries.
  char* queries_ = nullptr;
  // Bytes from one layer's queries to the next; 0 if layers share
  // rows_.queries.
  size_t query_stride_ = 0;
  DeviceBuffer query_memory_;        // of a decode step, [layers, ..]
  std::vector<int32_t> token_rows_;  // of the embedding
  std::vector<std::byte> host_inputs_;
  std::vector<size_t> logit_rows_;
  // FinishDecode computes the logits after so many rows. 0 once they may have
  // changed.
  size_t num_decode_logits_ = 0;
  DeviceBuffer logit_memory_;  // logits, [rows, vocabulary], then their places
  float* logits_ = nullptr;
  std::vector<int32_t> places_;
  std::vector<float> host_logits_;  // [vocabulary]
  DeviceBuffer draw_memory_;        // tokens, draws, edits
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_DEVICE_FORWARD_H_
