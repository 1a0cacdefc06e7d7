#include "bench/evict/tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include <absl/strings/str_cat.h>

#include "bench/evict/prefixed.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// One kind of file: its dimensions, as the sizes they must equal in the other
// files, and the place where a layer of it goes.
struct FileKind {
  const char* flag;
  std::string TensorPaths::*path;
  std::array<const char*, 3> names;  // of the dimensions; null: fewer
  std::array<int32_t Tensors::*, 3> sizes;
  std::vector<float> LayerTensors::*values;
};

constexpr std::array<FileKind, 6> kKinds = {{
    {"queries",
     &TensorPaths::queries,
     {"query heads", "positions", "head dim"},
     {&Tensors::num_q_heads, &Tensors::length, &Tensors::head_dim},
     &LayerTensors::queries},
    {"raw queries",
     &TensorPaths::raw_queries,
     {"query heads", "positions", "head dim"},
     {&Tensors::num_q_heads, &Tensors::length, &Tensors::head_dim},
     &LayerTensors::raw_queries},
    {"keys",
     &TensorPaths::keys,
     {"KV heads", "positions", "head dim"},
     {&Tensors::num_heads, &Tensors::length, &Tensors::head_dim},
     &LayerTensors::keys},
    {"values",
     &TensorPaths::values,
     {"KV heads", "positions", "head dim"},
     {&Tensors::num_heads, &Tensors::length, &Tensors::head_dim},
     &LayerTensors::values},
    {"output projection",
     &TensorPaths::output_projection,
     {"query heads", "head dim", "model dim"},
     {&Tensors::num_q_heads, &Tensors::head_dim, &Tensors::model_dim},
     &LayerTensors::output_projection},
    {"scores",
     &TensorPaths::scores,
     {"KV heads", "positions", nullptr},
     {&Tensors::num_heads, &Tensors::length, nullptr},
     &LayerTensors::scores},
}};

// The sizes seen so far are in `tensors`, 0 where none was; num_layers beside
// them, for layers are made last.
absl::Status TakeShape(const FileKind& kind, const std::string& path,
                       std::span<const int64_t> shape, int64_t* num_layers,
                       Tensors* tensors) {
  const size_t dims = kind.names[2] == nullptr ? 2 : 3;
  if (shape.size() != dims && shape.size() != dims + 1) {
    return Invalid(path, ": ", kind.flag, ": expected ", dims,
                   " dimensions, or ", dims + 1,
                   " with layers first, got shape ", ShapeText(shape));
  }
  const bool layered = shape.size() == dims + 1;
  const int64_t layers = layered ? shape[0] : 1;
  if (layers < 1 || (*num_layers != 0 && layers != *num_layers)) {
    return Invalid(path, ": ", kind.flag, ": layers: expected ",
                   *num_layers == 0 ? "at least 1" : absl::StrCat(*num_layers),
                   ", got ", layers);
  }
  *num_layers = layers;
  for (size_t dim = 0; dim < dims; ++dim) {
    const int64_t size = shape[dim + (layered ? 1 : 0)];
    int32_t& known = tensors->*kind.sizes[dim];
    if (size < 1 || size > std::numeric_limits<int32_t>::max() ||
        (known != 0 && size != known)) {
      return Invalid(path, ": ", kind.flag, ": ", kind.names[dim],
                     ": expected ",
                     known == 0 ? "1 to 2^31 - 1" : absl::StrCat(known),
                     ", got ", size, " (shape ", ShapeText(shape), ")");
    }
    known = static_cast<int32_t>(size);
  }
  return absl::OkStatus();
}

// Uniform in [0, 1), a function of the stream and the index alone.
double Uniform(uint64_t stream, uint64_t index) {
  return std::ldexp(
      static_cast<double>(SplitMix64(stream ^ SplitMix64(index)) >> 11), -53);
}

// About normal, of mean 0 and variance 1: the sum of four uniforms.
float Normal(uint64_t stream, uint64_t index) {
  const uint64_t bits = SplitMix64(stream ^ SplitMix64(index));
  const uint64_t sum = (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                       (bits >> 32 & 0xFFFF) + (bits >> 48);
  // The sum has mean 2 * 65535 and variance 4 / 12 * 65536^2.
  return (static_cast<float>(sum) - 131070.0f) / 37837.23f;
}

void AddNormal(uint64_t stream, float scale, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] += scale * Normal(stream, i);
  }
}

// Tokens come in runs of one topic.
constexpr int32_t kRunTokens = 16;
constexpr uint64_t kNumTopics = 24;
// The logit q k / sqrt(dim) of a query and a key of the same topic and nothing
// else, for a query of sharpness 1, whatever the dimension.
constexpr double kTopicLogit = 8.0;
constexpr float kNoiseSize = 0.7f;  // of a direction's
// How much every query likes the first token, so that sharp heads spend about
// as much on it as on a topic's tokens.
constexpr float kFirstTokenSize = 1.2f;
constexpr double kFlattest = 0.1;
constexpr double kSharpest = 1.2;

// Names one stream of random numbers.
enum class Stream : uint64_t {
  kTopic,
  kRun,
  kRecall,
  kKey,
  kValue,
  kSize,
  kQuery,
  kOutput,
  kSharpness
};

class LayerMaker {
 public:
  LayerMaker(const SyntheticShape& shape, uint64_t seed, int32_t layer)
      : shape_(shape),
        base_(SplitMix64(SplitMix64(seed) + Unsigned(layer))),
        direction_size_(static_cast<float>(std::sqrt(
            kTopicLogit / std::sqrt(static_cast<double>(shape.head_dim))))) {}

  LayerTensors Make() const {
    LayerTensors layer;
    const size_t dim = Unsigned(shape_.head_dim);
    const size_t rows = Unsigned(shape_.length);
    layer.keys.resize(Unsigned(shape_.num_heads) * rows * dim);
    layer.values.resize(layer.keys.size());
    layer.queries.resize(Unsigned(shape_.num_q_heads) * rows * dim);
    const size_t head_values = rows * dim;
    for (size_t head = 0; head < Unsigned(shape_.num_heads); ++head) {
      const std::vector<float> topics = Topics(head);
      MakeKeys(head, topics,
               std::span(layer.keys).subspan(head * head_values, head_values));
      MakeValues(
          head,
          std::span(layer.values).subspan(head * head_values, head_values));
      const size_t group =
          Unsigned(shape_.num_q_heads) / Unsigned(shape_.num_heads);
      for (size_t q_head = head * group; q_head < (head + 1) * group;
           ++q_head) {
        MakeQueries(head, q_head, topics,
                    std::span(layer.queries)
                        .subspan(q_head * head_values, head_values));
      }
    }
    layer.output_projection.resize(Unsigned(shape_.num_q_heads) * dim *
                                   Unsigned(shape_.model_dim));
    AddNormal(Of(Stream::kOutput, 0), 1.0f / std::sqrt(static_cast<float>(dim)),
              layer.output_projection);
    return layer;
  }

 private:
  static size_t Unsigned(int32_t value) { return static_cast<size_t>(value); }

  uint64_t Of(Stream stream, size_t head) const {
    return SplitMix64(base_ + (static_cast<uint64_t>(stream) << 32) + head);
  }

  // One direction per topic, and one more that the first token has and every
  // query likes.
  std::vector<float> Topics(size_t head) const {
    std::vector<float> topics((kNumTopics + 1) * Unsigned(shape_.head_dim));
    AddNormal(Of(Stream::kTopic, head), direction_size_, topics);
    return topics;
  }

  std::span<const float> Topic(std::span<const float> topics,
                               uint64_t topic) const {
    const size_t dim = Unsigned(shape_.head_dim);
    return topics.subspan(topic * dim, dim);
  }

  // All heads of a layer see the same text.
  uint64_t TopicAt(size_t position) const {
    return SplitMix64(Of(Stream::kRun, 0) + position / kRunTokens) % kNumTopics;
  }

  void Add(std::span<const float> direction, float size,
           std::span<float> row) const {
    for (size_t i = 0; i < row.size(); ++i) row[i] += size * direction[i];
  }

  void MakeKeys(size_t head, std::span<const float> topics,
                std::span<float> keys) const {
    AddNormal(Of(Stream::kKey, head), kNoiseSize * direction_size_, keys);
    const size_t dim = Unsigned(shape_.head_dim);
    for (size_t position = 0; position < keys.size() / dim; ++position) {
      const uint64_t topic = position == 0 ? kNumTopics : TopicAt(position);
      Add(Topic(topics, topic), 1.0f, keys.subspan(position * dim, dim));
    }
  }

  // The sizes of values differ by factors; the first token's is small.
  void MakeValues(size_t head, std::span<float> values) const {
    AddNormal(Of(Stream::kValue, head), 1.0f, values);
    const size_t dim = Unsigned(shape_.head_dim);
    for (size_t position = 0; position < values.size() / dim; ++position) {
      const float size =
          position == 0
              ? 0.1f
              : std::exp(0.5f * Normal(Of(Stream::kSize, head), position));
      for (float& value : values.subspan(position * dim, dim)) value *= size;
    }
  }

  void MakeQueries(size_t head, size_t q_head, std::span<const float> topics,
                   std::span<float> queries) const {
    AddNormal(Of(Stream::kQuery, q_head), kNoiseSize * direction_size_,
              queries);
    // Heads of a group are alike, groups are not.
    const double at = (static_cast<double>(head) +
                       0.5 * Uniform(Of(Stream::kSharpness, q_head), 0)) /
                      std::max(1, shape_.num_heads - 1);
    const auto sharpness = static_cast<float>(
        kFlattest * std::pow(kSharpest / kFlattest, std::min(at, 1.0)));
    const size_t dim = Unsigned(shape_.head_dim);
    for (size_t position = 0; position < queries.size() / dim; ++position) {
      // Recalls the topic of an earlier token, now and then its own.
      const auto recalled = static_cast<size_t>(
          Uniform(Of(Stream::kRecall, q_head), position / 4) *
          static_cast<double>(position + 1));
      const std::span<float> row = queries.subspan(position * dim, dim);
      Add(Topic(topics, TopicAt(recalled)), 1.0f, row);
      Add(Topic(topics, kNumTopics), kFirstTokenSize, row);
      for (float& value : row) value *= sharpness;
    }
  }

  const SyntheticShape& shape_;
  const uint64_t base_;
  const float direction_size_;  // of one component
};

}  // namespace

float Tensors::AttentionScale() const {
  if (score_scale != 0.0f) return score_scale;
  // Tensors of scores alone have no head_dim, and nobody asks.
  return 1.0f / std::sqrt(static_cast<float>(std::max(head_dim, 1)));
}

absl::StatusOr<Tensors> LoadTensors(const TensorPaths& paths) {
  Tensors tensors;
  int64_t num_layers = 0;
  for (const FileKind& kind : kKinds) {
    const std::string& path = paths.*kind.path;
    if (path.empty()) continue;
    const absl::StatusOr<NpyArray> read = ReadNpy(path);
    if (!read.ok()) return Prefixed(kind.flag, read.status());
    const NpyArray& array = *read;
    BM_RETURN_IF_ERROR(
        TakeShape(kind, path, array.shape, &num_layers, &tensors));
    tensors.layers.resize(static_cast<size_t>(num_layers));
    const size_t per_layer = array.values.size() / tensors.layers.size();
    for (size_t layer = 0; layer < tensors.layers.size(); ++layer) {
      const auto begin =
          array.values.begin() + static_cast<int64_t>(layer * per_layer);
      (tensors.layers[layer].*kind.values)
          .assign(begin, begin + static_cast<int64_t>(per_layer));
    }
  }
  if (num_layers == 0) return Invalid("tensors: expected a file, got none");
  if (tensors.num_heads == 0) {
    return Invalid("tensors: expected keys, values or scores, got none");
  }
  if (tensors.num_q_heads == 0) tensors.num_q_heads = tensors.num_heads;
  if (tensors.num_q_heads % tensors.num_heads != 0) {
    return Invalid("tensors: query heads: expected a multiple of the ",
                   tensors.num_heads, " KV heads, got ", tensors.num_q_heads);
  }
  return tensors;
}

Tensors MakeSyntheticTensors(const SyntheticShape& shape, uint64_t seed) {
  BM_CHECK(shape.num_layers > 0 && shape.num_heads > 0);
  BM_CHECK(shape.num_q_heads % shape.num_heads == 0);
  BM_CHECK(shape.length > 0 && shape.head_dim > 0 && shape.model_dim > 0);
  Tensors tensors;
  tensors.num_q_heads = shape.num_q_heads;
  tensors.num_heads = shape.num_heads;
  tensors.length = shape.length;
  tensors.head_dim = shape.head_dim;
  tensors.model_dim = shape.model_dim;
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    tensors.layers.push_back(LayerMaker(shape, seed, layer).Make());
  }
  return tensors;
}

}  // namespace blockmgr
