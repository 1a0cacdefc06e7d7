#include "engine/reference/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/gguf/tensor_type.h"
#include "engine/reference/packed_matrix.h"

namespace blockmgr {
namespace {

// Widths are a multiple of it, as ModelShape::Validate asks.
constexpr int32_t kWidthMultiple = 16;
constexpr int64_t kMaxCount = 1 << 18;

// The facts that follow from an architecture's name and not from the file's
// keys and tensors.
struct Architecture {
  absl::string_view name;
  // The rotary pair (i, i + head_dim / 2) of a head of Q and K stands in rows
  // 2i and 2i + 1 of the file.
  bool has_interleaved_rows = false;
  bool has_biases = false;      // of Q, K and V
  bool has_head_norms = false;  // of Q and K
  bool has_post_norms = false;
  bool scales_embedding = false;  // by sqrt(hidden)
  bool has_windows = false;
  GateFunction gate = GateFunction::kSilu;
  double rope_theta = 10000.0;  // unless the file says otherwise
};

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .has_interleaved_rows = true},
    {.name = "qwen2", .has_biases = true},
    {.name = "gemma3",
     .has_head_norms = true,
     .has_post_norms = true,
     .scales_embedding = true,
     .has_windows = true,
     .gate = GateFunction::kGeluTanh,
     .rope_theta = 1e6},
};

// Files of gemma3 do not say so, but every sixth layer attends to all tokens,
// and layers with a window rotate by 10,000.
constexpr int64_t kWindowPattern = 6;
constexpr double kWindowTheta = 10000.0;
// Gemma 3 27B has so many layers. It alone scales attention logits by the
// hidden size of a head, hidden / heads, instead of head_dim.
constexpr int32_t kLayersOf27B = 62;

absl::Status Wrong(absl::string_view name, absl::string_view expected,
                   absl::string_view got) {
  return Invalid(name, ": expected ", expected, ", got ", got);
}

// Reads keys and tensors. After the first error, functions return anything and
// the error stays in status().
class Reader {
 public:
  Reader(const GgufFile& file, absl::string_view architecture)
      : file_(file), prefix_(absl::StrCat(architecture, ".")) {}

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status error) { status_.Update(std::move(error)); }
  std::string Key(absl::string_view key) const {
    return absl::StrCat(prefix_, key);
  }
  bool Has(absl::string_view key) const { return file_.Has(Key(key)); }

  // Reads an integer in [multiple, kMaxCount].
  int32_t Count(absl::string_view key, int32_t multiple = 1) {
    const int64_t value = Integer(key);
    if (value < multiple || value > kMaxCount || value % multiple != 0) {
      Fail(Wrong(Key(key),
                 absl::StrCat("a multiple of ", multiple, " in [", multiple,
                              ", ", kMaxCount, "]"),
                 absl::StrCat(value)));
      return multiple;
    }
    return static_cast<int32_t>(value);
  }
  int64_t Integer(absl::string_view key) {
    return Take(file_.Integer(Key(key)), int64_t{0});
  }
  std::optional<uint64_t> ArrayLength(absl::string_view key) const {
    return file_.ArrayLength(Key(key));
  }
  std::vector<int64_t> Integers(absl::string_view key) {
    return Take(file_.Integers(Key(key)), std::vector<int64_t>());
  }
  // Reads a number above `min`.
  double NumberAbove(double min, absl::string_view key) {
    const double value = Take(file_.Number(Key(key)), min + 1);
    if (!(value > min) || !std::isfinite(value)) {
      Fail(Wrong(Key(key), absl::StrCat("a number > ", min),
                 absl::StrCat(value)));
      return min + 1;
    }
    return value;
  }
  absl::string_view String(absl::string_view key) {
    return Take(file_.String(Key(key)), absl::string_view());
  }

  bool HasTensor(absl::string_view name) const {
    return file_.Find(name) != nullptr;
  }
  std::vector<float> Vector(const std::string& name, int32_t size,
                            std::span<const int32_t> order = {}) {
    const GgufTensor* tensor = Find(name, {size});
    if (tensor == nullptr) return {};
    std::vector<float> elements(static_cast<size_t>(size));
    DequantizeRow(tensor->type, tensor->data, elements);
    if (order.empty()) return elements;
    std::vector<float> ordered;
    for (const int32_t i : order) {
      ordered.push_back(elements[static_cast<size_t>(i)]);
    }
    return ordered;
  }
  PackedMatrix Matrix(const std::string& name, int32_t in, int32_t out,
                      std::span<const int32_t> order = {}) {
    const GgufTensor* tensor = Find(name, {in, out});
    if (tensor == nullptr) return {};
    return PackedMatrix::Pack(tensor->type, in, out, tensor->data, order,
                              &memory_);
  }
  // Reads the number of outputs of a matrix, in [1, kMaxCount * 4].
  int32_t CountOutputs(const std::string& name) {
    const GgufTensor* tensor = file_.Find(name);
    if (tensor == nullptr) {
      Fail(Wrong(name, "a tensor", "none"));
      return 1;
    }
    if (tensor->shape.size() != 2 || tensor->shape[1] > 4 * kMaxCount) {
      Fail(Wrong(name,
                 absl::StrCat("a matrix of at most ", 4 * kMaxCount, " rows"),
                 absl::StrCat("[", absl::StrJoin(tensor->shape, ", "), "]")));
      return 1;
    }
    return static_cast<int32_t>(tensor->shape[1]);
  }

  // Fails if the file has a tensor that nobody has read.
  void CheckAllRead() {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (read_.contains(tensor.name)) continue;
      Fail(Wrong(tensor.name, "no such tensor in this architecture",
                 absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]")));
    }
  }

 private:
  template <typename T>
  T Take(absl::StatusOr<T> value, T otherwise) {
    if (value.ok()) return *std::move(value);
    Fail(value.status());
    return otherwise;
  }

  // Returns null, after an error too.
  const GgufTensor* Find(const std::string& name,
                         const std::vector<int64_t>& shape) {
    if (!status_.ok()) return nullptr;
    const GgufTensor* tensor = file_.Find(name);
    const std::string expected =
        absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
    if (tensor == nullptr) {
      Fail(Wrong(name, absl::StrCat("a tensor ", expected), "none"));
      return nullptr;
    }
    if (tensor->shape != shape) {
      Fail(Wrong(name, expected,
                 absl::StrCat("[", absl::StrJoin(tensor->shape, ", "), "]")));
      return nullptr;
    }
    read_.insert(name);
    return tensor;
  }

  const GgufFile& file_;
  WeightMemory memory_;
  const std::string prefix_;
  absl::Status status_;
  absl::flat_hash_set<std::string> read_;
};

// Returns the scale of all rotary frequencies: 1, or the file's linear one.
float LinearDivisor(Reader* reader) {
  if (reader->Has("rope.scaling.type")) {
    const absl::string_view type = reader->String("rope.scaling.type");
    if (type == "none") return 1.0f;
    if (type != "linear") {
      reader->Fail(
          Wrong(reader->Key("rope.scaling.type"), "none or linear", type));
    }
  }
  for (const char* key : {"rope.scaling.factor", "rope.scale_linear"}) {
    if (reader->Has(key)) {
      return static_cast<float>(reader->NumberAbove(0.0, key));
    }
  }
  return 1.0f;
}

void ReadRotary(const Architecture& architecture, Reader* reader,
                ModelShape* shape) {
  if (reader->Has("rope.dimension_count")) {
    const int64_t count = reader->Integer("rope.dimension_count");
    if (count != shape->head_dim) {
      reader->Fail(Wrong(reader->Key("rope.dimension_count"),
                         absl::StrCat(shape->head_dim, ", the size of a head"),
                         absl::StrCat(count)));
    }
  }
  shape->rotary.theta = reader->Has("rope.freq_base")
                            ? reader->NumberAbove(1.0, "rope.freq_base")
                            : architecture.rope_theta;
  shape->window_rotary.theta =
      reader->Has("rope.freq_base_swa")
          ? reader->NumberAbove(1.0, "rope.freq_base_swa")
          : kWindowTheta;
  std::vector<float>& divisors = shape->rotary.divisors;
  if (reader->HasTensor("rope_freqs.weight")) {
    divisors = reader->Vector("rope_freqs.weight", shape->head_dim / 2);
    for (const float divisor : divisors) {
      if (divisor > 0.0f && std::isfinite(divisor)) continue;
      reader->Fail(
          Wrong("rope_freqs.weight", "numbers > 0", absl::StrCat(divisor)));
    }
  }
  const float linear = LinearDivisor(reader);
  if (linear == 1.0f) return;
  if (divisors.empty()) {
    divisors.assign(static_cast<size_t>(shape->head_dim / 2), 1.0f);
  }
  for (float& divisor : divisors) divisor *= linear;
}

void ReadWindows(Reader* reader, ModelShape* shape) {
  const int32_t window = reader->Count("attention.sliding_window");
  const std::string key = "attention.sliding_window_pattern";
  // Files may say which layers have a window, or the distance of those without.
  const std::optional<uint64_t> length = reader->ArrayLength(key);
  if (!length.has_value()) {
    const int64_t pattern =
        reader->Has(key) ? reader->Count(key) : kWindowPattern;
    for (int64_t i = 1; i <= shape->num_layers; ++i) {
      shape->windows.push_back(i % pattern != 0 ? window : 0);
    }
    return;
  }
  // Before the values, of which a file may have any number.
  if (*length != static_cast<uint64_t>(shape->num_layers)) {
    reader->Fail(
        Wrong(reader->Key(key),
              absl::StrCat("one for each of ", shape->num_layers, " layers"),
              absl::StrCat(*length)));
    return;
  }
  for (const int64_t has_window : reader->Integers(key)) {
    shape->windows.push_back(has_window != 0 ? window : 0);
  }
}

// Reads the sizes of heads, and checks them.
void ReadHeads(Reader* reader, ModelShape* shape) {
  shape->num_q_heads = reader->Count("attention.head_count");
  shape->num_heads = reader->Has("attention.head_count_kv")
                         ? reader->Count("attention.head_count_kv")
                         : shape->num_q_heads;
  if (shape->num_q_heads % shape->num_heads != 0) {
    reader->Fail(Wrong(
        reader->Key("attention.head_count_kv"),
        absl::StrCat("a divisor of the ", shape->num_q_heads, " query heads"),
        absl::StrCat(shape->num_heads)));
  }
  if (reader->Has("attention.key_length")) {
    shape->head_dim = reader->Count("attention.key_length", kWidthMultiple);
  } else {
    shape->head_dim = shape->hidden / shape->num_q_heads;
    if (shape->hidden % (shape->num_q_heads * kWidthMultiple) != 0) {
      reader->Fail(Wrong(reader->Key("attention.head_count"),
                         absl::StrCat("heads that divide ", shape->hidden,
                                      " into multiples of ", kWidthMultiple),
                         absl::StrCat(shape->num_q_heads)));
    }
  }
  if (reader->Has("attention.value_length") &&
      reader->Integer("attention.value_length") != shape->head_dim) {
    reader->Fail(
        Wrong(reader->Key("attention.value_length"),
              absl::StrCat(shape->head_dim, ", the length of keys"),
              absl::StrCat(reader->Integer("attention.value_length"))));
  }
  // The width of a matrix is an int32.
  if (int64_t{shape->num_q_heads} * shape->head_dim > kMaxCount) {
    reader->Fail(
        Wrong(reader->Key("attention.head_count"),
              absl::StrCat("at most ", kMaxCount, " elements"),
              absl::StrCat(shape->num_q_heads, " heads of ", shape->head_dim)));
  }
}

ModelShape ReadShape(const Architecture& architecture, Reader* reader) {
  for (const char* key :
       {"expert_count", "attn_logit_softcapping", "final_logit_softcapping"}) {
    const double value = reader->Has(key) ? reader->NumberAbove(-1.0, key) : 0;
    if (value == 0.0) continue;
    reader->Fail(
        Wrong(reader->Key(key), "0 or no such key", absl::StrCat(value)));
  }
  if (!architecture.has_windows && reader->Has("attention.sliding_window")) {
    reader->Fail(
        Wrong(reader->Key("attention.sliding_window"), "no such key",
              absl::StrCat(reader->Integer("attention.sliding_window"))));
  }
  ModelShape shape;
  shape.num_layers = reader->Count("block_count");
  shape.hidden = reader->Count("embedding_length", kWidthMultiple);
  shape.mlp = reader->Count("feed_forward_length", kWidthMultiple);
  shape.vocabulary = reader->CountOutputs("token_embd.weight");
  shape.norm_epsilon = static_cast<float>(
      reader->NumberAbove(0.0, "attention.layer_norm_rms_epsilon"));
  shape.context_tokens = static_cast<int32_t>(
      std::clamp<int64_t>(reader->Integer("context_length"), 1,
                          std::numeric_limits<int32_t>::max()));
  shape.gate = architecture.gate;
  ReadHeads(reader, &shape);
  ReadRotary(architecture, reader, &shape);
  if (architecture.has_windows) ReadWindows(reader, &shape);
  if (architecture.scales_embedding) {
    shape.embedding_scale = std::sqrt(static_cast<float>(shape.hidden));
  }
  if (reader->Has("attention.scale")) {
    shape.score_scale =
        static_cast<float>(reader->NumberAbove(0.0, "attention.scale"));
  } else if (architecture.has_windows && shape.num_layers == kLayersOf27B) {
    shape.score_scale = 1.0f / std::sqrt(static_cast<float>(shape.hidden) /
                                         static_cast<float>(shape.num_q_heads));
  }
  return shape;
}

// Returns the row of the file for each row of Q or K, so that rotary pairs are
// half a head apart. Empty if they are so in the file.
std::vector<int32_t> RowOrder(const Architecture& architecture,
                              int32_t num_heads, int32_t head_dim) {
  std::vector<int32_t> order;
  if (!architecture.has_interleaved_rows) return order;
  for (int32_t head = 0; head < num_heads; ++head) {
    for (int32_t i = 0; i < head_dim; ++i) {
      const int32_t half = head_dim / 2;
      order.push_back(head * head_dim + 2 * (i % half) + i / half);
    }
  }
  return order;
}

ModelLayer ReadLayer(const Architecture& architecture, const ModelShape& shape,
                     int32_t index, Reader* reader) {
  const auto name = [index](absl::string_view part) {
    return absl::StrCat("blk.", index, ".", part);
  };
  const std::vector<int32_t> query_order =
      RowOrder(architecture, shape.num_q_heads, shape.head_dim);
  const std::vector<int32_t> key_order =
      RowOrder(architecture, shape.num_heads, shape.head_dim);
  const int32_t hidden = shape.hidden;
  ModelLayer layer;
  layer.attention_norm = reader->Vector(name("attn_norm.weight"), hidden);
  layer.query = reader->Matrix(name("attn_q.weight"), hidden, shape.q_width(),
                               query_order);
  layer.key = reader->Matrix(name("attn_k.weight"), hidden, shape.kv_width(),
                             key_order);
  layer.value = reader->Matrix(name("attn_v.weight"), hidden, shape.kv_width());
  if (architecture.has_biases) {
    layer.query_bias =
        reader->Vector(name("attn_q.bias"), shape.q_width(), query_order);
    layer.key_bias =
        reader->Vector(name("attn_k.bias"), shape.kv_width(), key_order);
    layer.value_bias = reader->Vector(name("attn_v.bias"), shape.kv_width());
  }
  if (architecture.has_head_norms) {
    layer.query_norm =
        reader->Vector(name("attn_q_norm.weight"), shape.head_dim);
    layer.key_norm = reader->Vector(name("attn_k_norm.weight"), shape.head_dim);
  }
  layer.output =
      reader->Matrix(name("attn_output.weight"), shape.q_width(), hidden);
  layer.mlp_norm = reader->Vector(name("ffn_norm.weight"), hidden);
  if (architecture.has_post_norms) {
    layer.attention_post_norm =
        reader->Vector(name("post_attention_norm.weight"), hidden);
    layer.mlp_post_norm = reader->Vector(name("post_ffw_norm.weight"), hidden);
  }
  layer.gate = reader->Matrix(name("ffn_gate.weight"), hidden, shape.mlp);
  layer.up = reader->Matrix(name("ffn_up.weight"), hidden, shape.mlp);
  layer.down = reader->Matrix(name("ffn_down.weight"), shape.mlp, hidden);
  return layer;
}

// Large models come in several files. Each has only some of the tensors, so
// without this the first tensor of another file would be called missing.
absl::Status CheckNotSplit(const GgufFile& file) {
  constexpr absl::string_view kKey = "split.count";
  if (!file.Has(kKey)) return absl::OkStatus();
  BM_ASSIGN_OR_RETURN(const int64_t num_files, file.Integer(kKey));
  if (num_files <= 1) return absl::OkStatus();
  return Wrong(kKey, "a model in one file (llama-gguf-split --merge makes one)",
               absl::StrCat("one of ", num_files, " files"));
}

absl::StatusOr<Architecture> ArchitectureOf(const GgufFile& file) {
  BM_ASSIGN_OR_RETURN(const absl::string_view name,
                      file.String("general.architecture"));
  const auto found =
      std::ranges::find(kArchitectures, name, &Architecture::name);
  if (found != std::end(kArchitectures)) return *found;
  return Wrong("general.architecture", "llama, qwen2 or gemma3", name);
}

// Returns the tokens that end an answer, as far as the file names them.
absl::StatusOr<std::vector<int32_t>> EndTokens(const GgufFile& file,
                                               int32_t vocabulary) {
  std::vector<int32_t> tokens;
  for (const absl::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (!file.Has(key)) continue;
    BM_ASSIGN_OR_RETURN(const int64_t token, file.Integer(key));
    if (token < 0 || token >= vocabulary) {
      return Wrong(key, absl::StrCat("0 to ", vocabulary - 1),
                   absl::StrCat(token));
    }
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LanguageModel>> LoadGgufModel(
    const GgufFile& file) {
  BM_RETURN_IF_ERROR(CheckNotSplit(file));
  BM_ASSIGN_OR_RETURN(const Architecture architecture, ArchitectureOf(file));
  Reader reader(file, architecture.name);
  ModelShape shape = ReadShape(architecture, &reader);
  BM_RETURN_IF_ERROR(reader.status());
  BM_RETURN_IF_ERROR(shape.Validate());
  BM_ASSIGN_OR_RETURN(shape.end_tokens, EndTokens(file, shape.vocabulary));
  ModelWeights weights;
  weights.embedding =
      reader.Matrix("token_embd.weight", shape.hidden, shape.vocabulary);
  for (int32_t i = 0; i < shape.num_layers && reader.status().ok(); ++i) {
    weights.layers.push_back(ReadLayer(architecture, shape, i, &reader));
  }
  weights.final_norm = reader.Vector("output_norm.weight", shape.hidden);
  if (reader.HasTensor("output.weight")) {
    weights.head =
        reader.Matrix("output.weight", shape.hidden, shape.vocabulary);
  }
  reader.CheckAllRead();
  BM_RETURN_IF_ERROR(reader.status());
  return std::make_shared<LanguageModel>(shape, std::move(weights));
}

}  // namespace blockmgr
