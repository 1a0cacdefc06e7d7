#include "engine/reference/device_forward.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/host/cuda_backend.h"

namespace blockmgr {
namespace {

constexpr size_t kElementBytes = 2;
// Room for so many rows is made at once: a step of vLLM's default size.
constexpr size_t kFirstRows = 2048;

// Counts bytes, each part aligned.
class Placer {
 public:
  // Returns where the part begins.
  size_t Add(size_t bytes) {
    const size_t begin = size_;
    size_ +=
        (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    return begin;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

RowShape PoolShape(const ModelLayout& layout) {
  return {.type = layout.dtype == DType::kFloat16 ? ElementType::kHalf
                                                  : ElementType::kBFloat16,
          .head_dim = layout.head_dim};
}

// The widest rows that products read and write.
size_t WidestInput(const ModelShape& shape) {
  return static_cast<size_t>(
      std::max({shape.hidden, shape.q_width(), shape.mlp}));
}
size_t WidestOutput(const ModelShape& shape) {
  return static_cast<size_t>(std::max(
      {shape.hidden, shape.q_width() + 2 * shape.kv_width(), 2 * shape.mlp}));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceForward>> DeviceForward::Create(
    const LanguageModel* model, const ModelLayout& layout,
    DeviceRuntime* runtime) {
  BM_RETURN_IF_ERROR(CudaBackend::CheckLayout(layout.ShardLayout()));
  ThreadPool threads(ThreadPool::CountHardwareThreads());
  BM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceWeights> weights,
                      DeviceWeights::Create(*model, runtime, &threads));
  const absl::StatusOr<std::string> library = runtime->UseProductLibrary();
  BM_RETURN_IF_ERROR(runtime->status());
  std::string products = library.ok()
                             ? *library
                             : absl::StrCat("our own kernel, which is slow (",
                                            library.status().message(), ")");
  std::unique_ptr<DeviceForward> forward(new DeviceForward(
      model, layout, runtime, std::move(products), std::move(weights)));
  // So that a device without room says so now.
  BM_RETURN_IF_ERROR(forward->PlaceRows(kFirstRows));
  return forward;
}

DeviceForward::DeviceForward(const LanguageModel* model,
                             const ModelLayout& layout, DeviceRuntime* runtime,
                             std::string products,
                             std::unique_ptr<DeviceWeights> weights)
    : model_(*model),
      layout_(layout),
      pool_shape_(PoolShape(layout)),
      runtime_(*runtime),
      products_(std::move(products)),
      weights_(std::move(weights)),
      rotary_(model),
      row_memory_(runtime),
      query_memory_(runtime),
      logit_memory_(runtime),
      draw_memory_(runtime) {
  for (int32_t layer = 0; layer < model_.shape().num_layers; ++layer) {
    layer_of_kind_[model_.shape().window_of(layer) > 0 ? 1 : 0] = layer;
  }
}

absl::Status DeviceForward::PlaceRows(size_t num_rows) {
  const ModelShape& shape = model_.shape();
  const size_t q_bytes =
      num_rows * static_cast<size_t>(shape.q_width()) * kElementBytes;
  const size_t kv_bytes =
      num_rows * static_cast<size_t>(shape.kv_width()) * kElementBytes;
  const size_t table_bytes =
      num_rows * static_cast<size_t>(shape.head_dim / 2) * sizeof(float);
  Placer inputs;
  inputs_.tokens = inputs.Add(num_rows * sizeof(int32_t));
  for (size_t kind = 0; kind < layer_of_kind_.size(); ++kind) {
    if (layer_of_kind_[kind] < 0) continue;
    inputs_.cosines[kind] = inputs.Add(table_bytes);
    inputs_.sines[kind] = inputs.Add(table_bytes);
  }
  inputs_.size = inputs.size();
  Placer rows;
  const size_t residual =
      rows.Add(num_rows * static_cast<size_t>(shape.hidden) * sizeof(float));
  const size_t operand =
      rows.Add(num_rows * WidestInput(shape) * kElementBytes);
  const size_t product =
      rows.Add(num_rows * WidestOutput(shape) * sizeof(float));
  const size_t queries = rows.Add(q_bytes);
  const size_t keys = rows.Add(kv_bytes);
  const size_t values = rows.Add(kv_bytes);
  const size_t attention = rows.Add(q_bytes);
  const size_t scales = rows.Add(num_rows * sizeof(float));
  const size_t input = rows.Add(inputs_.size);
  BM_RETURN_IF_ERROR(row_memory_.Reserve(rows.size()));
  char* const base = row_memory_.data();
  rows_ = {.residual = reinterpret_cast<float*>(base + residual),
           .operand = base + operand,
           .product = reinterpret_cast<float*>(base + product),
           .queries = base + queries,
           .keys = base + keys,
           .values = base + values,
           .attention = base + attention,
           .gate_scales = reinterpret_cast<float*>(base + scales),
           .inputs = base + input};
  return absl::OkStatus();
}

void DeviceForward::UploadInputs(std::span<const int32_t> tokens,
                                 std::span<const int32_t> positions) {
  // Rows without a token have token 0.
  host_inputs_.resize(inputs_.size);
  std::ranges::fill(host_inputs_, std::byte{0});
  const auto put = [this](size_t place, const auto* from, size_t count) {
    std::memcpy(host_inputs_.data() + place, from, count * sizeof(*from));
  };
  token_rows_.clear();
  for (const int32_t token : tokens) {
    token_rows_.push_back(model_.EmbeddingRow(token));
  }
  put(inputs_.tokens, token_rows_.data(), token_rows_.size());
  rotary_.Begin(positions);
  for (size_t kind = 0; kind < layer_of_kind_.size(); ++kind) {
    if (layer_of_kind_[kind] < 0) continue;
    const RotaryTables::Rows& rows = rotary_.Of(layer_of_kind_[kind]);
    put(inputs_.cosines[kind], rows.cosines.data(), rows.cosines.size());
    put(inputs_.sines[kind], rows.sines.data(), rows.sines.size());
  }
  runtime_.Upload(rows_.inputs, host_inputs_);
}

absl::Status DeviceForward::Prepare(std::span<const int32_t> tokens,
                                    std::span<const int32_t> positions,
                                    size_t num_rows) {
  BM_CHECK(tokens.size() == positions.size());
  num_rows_ = num_rows;
  logit_rows_.clear();
  num_decode_logits_ = 0;
  query_stride_ = 0;
  BM_RETURN_IF_ERROR(PlaceRows(num_rows_));
  UploadInputs(tokens, positions);
  return absl::OkStatus();
}

void DeviceForward::Begin(std::span<const int32_t> tokens,
                          std::span<const int32_t> positions) {
  BM_CHECK_OK(Prepare(tokens, positions, tokens.size()));
  BeginDecode();
}

absl::Status DeviceForward::PrepareDecode(std::span<const int32_t> tokens,
                                          std::span<const int32_t> positions,
                                          int32_t num_rows,
                                          std::vector<uint64_t>* arguments) {
  const ModelShape& shape = model_.shape();
  BM_RETURN_IF_ERROR(Prepare(tokens, positions, static_cast<size_t>(num_rows)));
  BM_CHECK(tokens.size() <= num_rows_);
  query_stride_ =
      num_rows_ * static_cast<size_t>(shape.q_width()) * kElementBytes;
  BM_RETURN_IF_ERROR(query_memory_.Reserve(
      static_cast<size_t>(shape.num_layers) * query_stride_));
  // There is also room for the places that ComputeLogits puts behind as many
  // logits. A step that is no decode step then moves no memory of graphs.
  Placer placer;
  placer.Add(num_rows_ * static_cast<size_t>(shape.vocabulary) * sizeof(float));
  placer.Add(num_rows_ * sizeof(int32_t));
  BM_RETURN_IF_ERROR(logit_memory_.Reserve(placer.size()));
  num_decode_logits_ = num_rows_;
  logits_ = reinterpret_cast<float*>(logit_memory_.data());
  arguments->push_back(num_rows_);
  for (const char* memory :
       {row_memory_.data(), query_memory_.data(), logit_memory_.data()}) {
    arguments->push_back(reinterpret_cast<uintptr_t>(memory));
  }
  return absl::OkStatus();
}

void DeviceForward::BeginDecode() {
  const ModelShape& shape = model_.shape();
  runtime_.Embed({.num_rows = static_cast<int32_t>(num_rows_),
                  .width = shape.hidden,
                  .tokens = reinterpret_cast<const int32_t*>(rows_.inputs +
                                                             inputs_.tokens),
                  .embedding = weights_->embedding(),
                  .scale = shape.embedding_scale,
                  .residual = rows_.residual},
                 weights_->type());
  runtime_.Normalize({.num_rows = static_cast<int32_t>(num_rows_),
                      .width = shape.hidden,
                      .epsilon = shape.norm_epsilon,
                      .residual = rows_.residual,
                      .gains = weights_->layer(0).attention_norm,
                      .normalized = rows_.operand},
                     weights_->type());
}

void DeviceForward::Multiply(const void* weights, int32_t in, int32_t out,
                             const void* input) {
  runtime_.Multiply({.num_rows = static_cast<int32_t>(num_rows_),
                     .in = in,
                     .out = out,
                     .weights = weights,
                     .input = input,
                     .output = rows_.product},
                    weights_->type());
}

void DeviceForward::Project(int32_t layer) {
  const ModelShape& shape = model_.shape();
  const DeviceLayer& weights = weights_->layer(layer);
  Multiply(weights.projections, shape.hidden,
           shape.q_width() + 2 * shape.kv_width(), rows_.operand);
  const size_t kind = shape.window_of(layer) > 0 ? 1 : 0;
  queries_ =
      query_stride_ == 0
          ? rows_.queries
          : query_memory_.data() + static_cast<size_t>(layer) * query_stride_;
  runtime_.PrepareHeads(
      {.num_rows = static_cast<int32_t>(num_rows_),
       .num_q_heads = shape.num_q_heads,
       .num_heads = shape.num_heads,
       .num_shards = layout_.num_shards,
       .epsilon = shape.norm_epsilon,
       .projected = rows_.product,
       .bias = weights.bias,
       .query_gains = weights.query_norm,
       .key_gains = weights.key_norm,
       .cosines =
           reinterpret_cast<const float*>(rows_.inputs + inputs_.cosines[kind]),
       .sines =
           reinterpret_cast<const float*>(rows_.inputs + inputs_.sines[kind]),
       .queries = queries_,
       .keys = rows_.keys,
       .values = rows_.values},
      pool_shape_);
}

void DeviceForward::AddProduct(const float* delta_gains,
                               const float* delta_scales, const float* gains) {
  runtime_.Normalize({.num_rows = static_cast<int32_t>(num_rows_),
                      .width = model_.shape().hidden,
                      .epsilon = model_.shape().norm_epsilon,
                      .residual = rows_.residual,
                      .delta = rows_.product,
                      .delta_scales = delta_scales,
                      .delta_gains = delta_gains,
                      .gains = gains,
                      .normalized = gains == nullptr ? nullptr : rows_.operand},
                     weights_->type());
}

void DeviceForward::Finish(int32_t layer) {
  const ModelShape& shape = model_.shape();
  const DeviceLayer& weights = weights_->layer(layer);
  const bool is_merged =
      layout_.num_shards == 1 && pool_shape_.type == weights_->type();
  if (!is_merged) {
    runtime_.MergeAttention({.num_rows = static_cast<int32_t>(num_rows_),
                             .width = shape.q_width(),
                             .num_shards = layout_.num_shards,
                             .attention = rows_.attention,
                             .merged = rows_.operand},
                            weights_->type(), pool_shape_.type);
  }
  Multiply(weights.output, shape.q_width(), shape.hidden,
           is_merged ? rows_.attention : rows_.operand);
  AddProduct(weights.attention_post_norm, nullptr, weights.mlp_norm);
  Multiply(weights.gate_up, shape.hidden, 2 * shape.mlp, rows_.operand);
  runtime_.Gate({.num_rows = static_cast<int32_t>(num_rows_),
                 .width = shape.mlp,
                 .gelu = shape.gate == GateFunction::kGeluTanh,
                 .gate_up = rows_.product,
                 .gated = rows_.operand,
                 .scales = rows_.gate_scales},
                weights_->type());
  Multiply(weights.down, shape.mlp, shape.hidden, rows_.operand);
  AddProduct(weights.mlp_post_norm, rows_.gate_scales,
             layer + 1 < shape.num_layers
                 ? weights_->layer(layer + 1).attention_norm
                 : nullptr);
}

void DeviceForward::FinishDecode() { EnqueueLogits(num_rows_, nullptr); }

void DeviceForward::ComputeLogits(std::span<const size_t> rows) {
  logit_rows_.assign(rows.begin(), rows.end());
  BM_CHECK(std::ranges::is_sorted(logit_rows_));
  if (rows.empty()) return;
  BM_CHECK(rows.back() < num_rows_);
  const bool are_first_rows = rows.back() + 1 == rows.size();
  const bool are_computed = are_first_rows && num_decode_logits_ > rows.back();
  num_decode_logits_ = 0;
  if (are_computed) return;
  Placer placer;
  const size_t logits =
      placer.Add(rows.size() * static_cast<size_t>(model_.shape().vocabulary) *
                 sizeof(float));
  const size_t places = placer.Add(rows.size() * sizeof(int32_t));
  BM_CHECK_OK(logit_memory_.Reserve(placer.size()));
  logits_ = reinterpret_cast<float*>(logit_memory_.data() + logits);
  char* const device_places = logit_memory_.data() + places;
  places_.assign(rows.begin(), rows.end());
  runtime_.Upload(device_places,
                  std::as_bytes(std::span<const int32_t>(places_)));
  EnqueueLogits(rows.size(), reinterpret_cast<const int32_t*>(device_places));
  runtime_.StopTimer();
}

void DeviceForward::EnqueueLogits(size_t num_rows, const int32_t* places) {
  const ModelShape& shape = model_.shape();
  runtime_.Normalize({.num_rows = static_cast<int32_t>(num_rows),
                      .width = shape.hidden,
                      .epsilon = shape.norm_epsilon,
                      .places = places,
                      .residual = rows_.residual,
                      .gains = weights_->final_norm(),
                      .normalized = rows_.operand},
                     weights_->type());
  runtime_.Multiply({.num_rows = static_cast<int32_t>(num_rows),
                     .in = shape.hidden,
                     .out = shape.vocabulary,
                     .weights = weights_->head(),
                     .input = rows_.operand,
                     .output = logits_},
                    weights_->type());
}

std::span<const float> DeviceForward::Logits(size_t row) {
  auto found = std::ranges::lower_bound(logit_rows_, row);
  if (found == logit_rows_.end() || *found != row) {
    ComputeLogits({&row, 1});
    found = logit_rows_.begin();
  }
  host_logits_.resize(static_cast<size_t>(model_.shape().vocabulary));
  Download(std::as_writable_bytes(std::span(host_logits_)),
           logits_ + static_cast<size_t>(found - logit_rows_.begin()) *
                         host_logits_.size());
  return host_logits_;
}

HostRows DeviceForward::host_rows() {
  constexpr bool kRowsAreOnHost = false;
  BM_CHECK(kRowsAreOnHost);
  return {};
}

DeviceRows DeviceForward::rows(int32_t shard) {
  const auto index = static_cast<size_t>(shard);
  const auto num_shards = static_cast<size_t>(layout_.num_shards);
  const size_t kv_bytes =
      static_cast<size_t>(model_.shape().kv_width()) * kElementBytes;
  const size_t q_offset = index * num_rows_ *
                          static_cast<size_t>(model_.shape().q_width()) /
                          num_shards * kElementBytes;
  const size_t kv_offset = index * (kv_bytes / num_shards);
  return {.queries = queries_ + q_offset,
          .keys = rows_.keys + kv_offset,
          .values = rows_.values + kv_offset,
          .kv_stride = static_cast<int64_t>(kv_bytes),
          .attention = rows_.attention + q_offset};
}

void DeviceForward::Download(std::span<std::byte> host, const void* from) {
  runtime_.Download(host, static_cast<const char*>(from));
  // If the device fails in the middle of a step, no recovery is possible.
  BM_CHECK_OK(runtime_.status());
}

void DeviceForward::CopyQueries(int32_t shard, int32_t first, int32_t num_rows,
                                float* queries) {
  const size_t width = static_cast<size_t>(model_.shape().q_width()) /
                       static_cast<size_t>(layout_.num_shards);
  const auto begin =
      static_cast<size_t>(shard) * num_rows_ + static_cast<size_t>(first);
  std::vector<uint16_t> elements(static_cast<size_t>(num_rows) * width);
  Download(std::as_writable_bytes(std::span(elements)),
           queries_ + begin * width * kElementBytes);
  std::ranges::transform(
      elements, queries,
      pool_shape_.type == ElementType::kHalf ? FromFloat16 : FromBFloat16);
}

void DeviceForward::CopyRawQueries(int32_t shard, int32_t first,
                                   int32_t num_rows, float* queries) {
  const ModelShape& shape = model_.shape();
  const auto q_width = static_cast<size_t>(shape.q_width());
  const size_t stride = q_width + 2 * static_cast<size_t>(shape.kv_width());
  const size_t width = q_width / static_cast<size_t>(layout_.num_shards);
  std::vector<float> rows(static_cast<size_t>(num_rows) * stride);
  Download(std::as_writable_bytes(std::span(rows)),
           rows_.product + static_cast<size_t>(first) * stride);
  for (size_t row = 0; row < static_cast<size_t>(num_rows); ++row) {
    std::copy_n(
        rows.begin() + static_cast<ptrdiff_t>(
                           row * stride + static_cast<size_t>(shard) * width),
        width, queries + row * width);
  }
}

void DeviceForward::DrawTokens(std::span<const LogitEdit> edits,
                               std::span<const RowDraw> draws,
                               std::span<int32_t> tokens) {
  BM_CHECK(draws.size() == tokens.size());
  if (draws.empty()) return;
  Placer placer;
  const size_t drawn = placer.Add(tokens.size_bytes());
  const size_t device_draws = placer.Add(draws.size_bytes());
  const size_t device_edits = placer.Add(edits.size_bytes());
  BM_CHECK_OK(draw_memory_.Reserve(placer.size()));
  char* const base = draw_memory_.data();
  runtime_.Upload(base + device_draws, std::as_bytes(draws));
  if (!edits.empty()) {
    runtime_.Upload(base + device_edits, std::as_bytes(edits));
    runtime_.EditLogits(
        {.num_edits = std::ssize(edits),
         .vocabulary = model_.shape().vocabulary,
         .edits = reinterpret_cast<const LogitEdit*>(base + device_edits),
         .logits = logits_});
  }
  runtime_.DrawTokens(
      {.num_draws = static_cast<int32_t>(draws.size()),
       .vocabulary = model_.shape().vocabulary,
       .draws = reinterpret_cast<const RowDraw*>(base + device_draws),
       .logits = logits_,
       .tokens = reinterpret_cast<int32_t*>(base + drawn)});
  runtime_.StopTimer();
  Download(std::as_writable_bytes(tokens), base + drawn);
}

}  // namespace blockmgr
