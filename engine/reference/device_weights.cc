#include "engine/reference/device_weights.h"

#include <algorithm>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/packed_products.h"

namespace blockmgr {
namespace {

// A matrix is unpacked and uploaded in parts of about so many elements.
constexpr size_t kUploadElements = size_t{1} << 22;

bool HasBFloat16(const LanguageModel& model) {
  const auto is = [](const PackedMatrix& matrix) {
    return matrix.format() == PackedFormat::kBFloat16;
  };
  const ModelWeights& weights = model.weights();
  return is(weights.embedding) || is(model.head()) ||
         std::ranges::any_of(weights.layers, [&](const ModelLayer& layer) {
           return is(layer.query) || is(layer.key) || is(layer.value) ||
                  is(layer.output) || is(layer.gate) || is(layer.up) ||
                  is(layer.down);
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Create(
    const LanguageModel& model, DeviceRuntime* runtime, ThreadPool* threads) {
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights(runtime));
  weights->type_ =
      HasBFloat16(model) ? ElementType::kBFloat16 : ElementType::kHalf;
  weights->Place(model, threads);
  BM_ASSIGN_OR_RETURN(
      weights->memory_,
      runtime->Allocate(static_cast<int64_t>(weights->num_bytes_)));
  weights->num_bytes_ = 0;
  weights->Place(model, threads);
  weights->rows_ = {};
  BM_RETURN_IF_ERROR(runtime->status());
  return weights;
}

DeviceWeights::~DeviceWeights() {
  if (memory_ != nullptr) runtime_->Free(memory_);
}

void DeviceWeights::Place(const LanguageModel& model, ThreadPool* threads) {
  const ModelWeights& weights = model.weights();
  layers_.clear();
  const auto matrices = [&](std::initializer_list<const PackedMatrix*> parts) {
    return AddMatrices({parts.begin(), parts.size()}, threads);
  };
  const auto vectors =
      [&](std::initializer_list<const std::vector<float>*> parts) {
        return AddVectors({parts.begin(), parts.size()});
      };
  embedding_ = matrices({&weights.embedding});
  head_ = weights.head.out() == 0 ? embedding_ : matrices({&weights.head});
  final_norm_ = vectors({&weights.final_norm});
  const ModelShape& shape = model.shape();
  const std::vector<float> no_q_bias(static_cast<size_t>(shape.q_width()));
  const std::vector<float> no_kv_bias(static_cast<size_t>(shape.kv_width()));
  for (const ModelLayer& layer : weights.layers) {
    DeviceLayer& to = layers_.emplace_back();
    to.projections = matrices({&layer.query, &layer.key, &layer.value});
    to.output = matrices({&layer.output});
    to.gate_up = matrices({&layer.gate, &layer.up});
    to.down = matrices({&layer.down});
    const bool has_bias = !layer.query_bias.empty() ||
                          !layer.key_bias.empty() || !layer.value_bias.empty();
    if (has_bias) {
      to.bias =
          vectors({layer.query_bias.empty() ? &no_q_bias : &layer.query_bias,
                   layer.key_bias.empty() ? &no_kv_bias : &layer.key_bias,
                   layer.value_bias.empty() ? &no_kv_bias : &layer.value_bias});
    }
    to.attention_norm = vectors({&layer.attention_norm});
    to.query_norm = vectors({&layer.query_norm});
    to.key_norm = vectors({&layer.key_norm});
    to.attention_post_norm = vectors({&layer.attention_post_norm});
    to.mlp_norm = vectors({&layer.mlp_norm});
    to.mlp_post_norm = vectors({&layer.mlp_post_norm});
  }
}

char* DeviceWeights::Take(size_t bytes) {
  char* const place = memory_ == nullptr ? nullptr : memory_ + num_bytes_;
  num_bytes_ +=
      (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  return place;
}

const void* DeviceWeights::AddMatrices(
    std::span<const PackedMatrix* const> matrices, ThreadPool* threads) {
  const auto bytes_of = [](const PackedMatrix& matrix) {
    return static_cast<size_t>(matrix.in()) *
           static_cast<size_t>(matrix.out()) * sizeof(uint16_t);
  };
  size_t bytes = 0;
  for (const PackedMatrix* matrix : matrices) bytes += bytes_of(*matrix);
  char* const place = Take(bytes);
  if (place == nullptr) return nullptr;
  char* to = place;
  for (const PackedMatrix* matrix : matrices) {
    UploadRows(*matrix, to, threads);
    to += bytes_of(*matrix);
  }
  return place;
}

void DeviceWeights::UploadRows(const PackedMatrix& matrix, char* to,
                               ThreadPool* threads) {
  const auto in = static_cast<size_t>(matrix.in());
  const auto out = static_cast<size_t>(matrix.out());
  // The columns of a group are unpacked together, so that they are read from
  // memory once.
  const size_t num_pieces =
      std::max(kUploadElements / (in * kPackedColumns), size_t{1});
  const size_t step = num_pieces * kPackedColumns;
  for (size_t first = 0; first < out; first += step) {
    const size_t count = std::min(step, out - first);
    rows_.resize(count * in);
    threads->ParallelFor(
        static_cast<int32_t>((count + kPackedColumns - 1) / kPackedColumns),
        [&](int32_t piece) {
          std::vector<float> row(in);
          const size_t begin = static_cast<size_t>(piece) * kPackedColumns;
          const size_t end = std::min(begin + kPackedColumns, count);
          for (size_t i = begin; i < end; ++i) {
            matrix.UnpackRow(static_cast<int32_t>(first + i), row);
            std::ranges::transform(
                row, rows_.begin() + static_cast<ptrdiff_t>(i * in),
                type_ == ElementType::kHalf ? ToFloat16 : ToBFloat16);
          }
        });
    runtime_->Upload(to + first * in * sizeof(uint16_t),
                     std::as_bytes(std::span(rows_)));
  }
}

const float* DeviceWeights::AddVectors(
    std::span<const std::vector<float>* const> vectors) {
  std::vector<float> all;
  for (const std::vector<float>* vector : vectors) {
    all.insert(all.end(), vector->begin(), vector->end());
  }
  if (all.empty()) return nullptr;
  char* const place = Take(all.size() * sizeof(float));
  if (place == nullptr) return nullptr;
  runtime_->Upload(place, std::as_bytes(std::span<const float>(all)));
  return reinterpret_cast<const float*>(place);
}

}  // namespace blockmgr
