#include "bench/evict/model_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "bench/evict/model_run.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Copies rows [tokens, heads, dim] to positions from `first` on of an array
// [heads, length, dim].
void CopyByHead(std::span<const float> rows, int32_t num_heads, int32_t first,
                int32_t length, std::vector<float>* by_head) {
  const size_t dim = by_head->size() / Unsigned(num_heads) / Unsigned(length);
  const size_t num_rows = rows.size() / dim / Unsigned(num_heads);
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t head = 0; head < Unsigned(num_heads); ++head) {
      const auto from =
          rows.begin() +
          static_cast<int64_t>((row * Unsigned(num_heads) + head) * dim);
      const size_t to = head * Unsigned(length) + Unsigned(first) + row;
      std::copy_n(from, dim, by_head->begin() + static_cast<int64_t>(to * dim));
    }
  }
}

Tensors EmptyTensors(const LanguageModel& model, int32_t length) {
  const ModelShape& shape = model.shape();
  Tensors tensors;
  tensors.num_q_heads = shape.num_q_heads;
  tensors.num_heads = shape.num_heads;
  tensors.length = length;
  tensors.head_dim = shape.head_dim;
  tensors.model_dim = shape.hidden;
  const std::span<const double> frequencies = model.InverseFrequencies(0);
  tensors.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
  tensors.score_scale = model.score_scale();
  tensors.layers.resize(Unsigned(shape.num_layers));
  for (int32_t i = 0; i < shape.num_layers; ++i) {
    LayerTensors& layer = tensors.layers[Unsigned(i)];
    layer.queries.resize(Unsigned(length) * Unsigned(shape.q_width()));
    layer.raw_queries.resize(layer.queries.size());
    layer.keys.resize(Unsigned(length) * Unsigned(shape.kv_width()));
    layer.values.resize(layer.keys.size());
    layer.output_projection.resize(Unsigned(shape.q_width()) *
                                   Unsigned(shape.hidden));
    model.UnpackOutput(i, 0, layer.output_projection);
  }
  return tensors;
}

// Appends the tokens to the run and keeps what its layers compute. REQUIRES:
// the run is empty, and `tensors` are EmptyTensors of so many tokens.
void RunContext(std::span<const int32_t> tokens, ModelRun* run,
                Tensors* tensors) {
  run->Extend(tokens, [tensors](int32_t layer, int32_t first,
                                const ModelForward& forward) {
    LayerTensors& to = tensors->layers[Unsigned(layer)];
    const int32_t length = tensors->length;
    CopyByHead(forward.queries(), tensors->num_q_heads, first, length,
               &to.queries);
    CopyByHead(forward.raw_queries(), tensors->num_q_heads, first, length,
               &to.raw_queries);
    CopyByHead(forward.keys(), tensors->num_heads, first, length, &to.keys);
    CopyByHead(forward.values(), tensors->num_heads, first, length, &to.values);
  });
}

// How the queries of one layer use the entries of the context.
class LayerUse {
 public:
  // `sizes` are what the attention of a query head is multiplied by, [q_heads,
  // context].
  LayerUse(const Tensors& context, int32_t layer, std::vector<float> sizes,
           int32_t max_tokens)
      : shape_(context),
        sizes_(std::move(sizes)),
        max_tokens_(Unsigned(max_tokens)),
        columns_(Unsigned(context.num_heads) * Unsigned(context.head_dim) *
                 max_tokens_),
        logits_(max_tokens_) {
    const std::vector<float>& keys = context.layers[Unsigned(layer)].keys;
    const size_t rows = Unsigned(context.length);
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t dim = Unsigned(context.head_dim);
      const size_t head = i / (rows * dim);
      columns_[(head * dim + i % dim) * max_tokens_ + i / dim % rows] = keys[i];
    }
  }

  void StartQuery() {
    best_.assign(Unsigned(shape_.num_heads) * Unsigned(shape_.length), 0.0f);
  }

  // Takes in rows of a pass whose first position is `first`.
  void Add(int32_t first, const ModelForward& forward) {
    const size_t dim = Unsigned(shape_.head_dim);
    const size_t width = Unsigned(shape_.num_heads) * dim;
    const std::span<const float> keys = forward.keys();
    for (size_t i = 0; i < keys.size(); ++i) {
      columns_[i % width * max_tokens_ + Unsigned(first) + i / width] = keys[i];
    }
    const size_t num_rows = keys.size() / width;
    const auto q_heads = Unsigned(shape_.num_q_heads);
    for (size_t row = 0; row < num_rows; ++row) {
      for (size_t q_head = 0; q_head < q_heads; ++q_head) {
        AddRow(q_head, Unsigned(first) + row + 1,
               forward.queries().subspan((row * q_heads + q_head) * dim, dim));
      }
    }
  }

  // Returns the largest uses since StartQuery, [KV heads, context].
  const std::vector<float>& best() const { return best_; }
  // Appends them, divided by their sum.
  void AppendTo(std::vector<float>* all) const {
    const double sum = std::accumulate(best_.begin(), best_.end(), 0.0);
    for (const float importance : best_) {
      all->push_back(static_cast<float>(importance / sum));
    }
  }

 private:
  void AddRow(size_t q_head, size_t num_seen, std::span<const float> query) {
    const size_t group =
        Unsigned(shape_.num_q_heads) / Unsigned(shape_.num_heads);
    const size_t head = q_head / group;
    const std::span<float> logits = std::span(logits_).first(num_seen);
    std::ranges::fill(logits, 0.0f);
    for (size_t d = 0; d < query.size(); ++d) {
      const float scaled = query[d] * shape_.score_scale;
      const float* column =
          columns_.data() + (head * query.size() + d) * max_tokens_;
      for (size_t j = 0; j < num_seen; ++j) logits[j] += scaled * column[j];
    }
    const float largest = *std::ranges::max_element(logits);
    float sum = 0.0f;
    for (float& logit : logits) {
      logit = std::exp(logit - largest);
      sum += logit;
    }
    const size_t context = Unsigned(shape_.length);
    const float* sizes = sizes_.data() + q_head * context;
    float* best = best_.data() + head * context;
    for (size_t j = 0; j < context; ++j) {
      best[j] = std::max(best[j], logits[j] / sum * sizes[j]);
    }
  }

  const Tensors& shape_;  // of the context
  const std::vector<float> sizes_;
  const size_t max_tokens_;
  std::vector<float> columns_;  // keys, [KV heads, head_dim, max_tokens]
  std::vector<float> logits_;   // [max_tokens]
  std::vector<float> best_;     // [KV heads, context]
};

// Appends a query to the run, lets the model answer, and returns both.
std::vector<int32_t> RunQuery(const ContextPrompt& prompt,
                              std::vector<int32_t> query,
                              std::vector<LayerUse>* layers, ModelRun* run) {
  run->Truncate(static_cast<int32_t>(prompt.context.size()));
  for (LayerUse& layer : *layers) layer.StartQuery();
  const ModelRun::LayerVisitor visitor = [layers](int32_t layer, int32_t first,
                                                  const ModelForward& forward) {
    (*layers)[Unsigned(layer)].Add(first, forward);
  };
  int32_t next = run->Extend(query, visitor);
  for (int32_t i = 0; i < prompt.answer_tokens; ++i) {
    query.push_back(next);
    next = run->Extend(std::span(query).last(1), visitor);
  }
  return query;
}

int32_t LongestQuery(const ContextPrompt& prompt) {
  size_t longest = 0;
  for (const std::vector<int32_t>& query : prompt.queries) {
    BM_CHECK(!query.empty());
    longest = std::max(longest, query.size());
  }
  return static_cast<int32_t>(longest) + prompt.answer_tokens;
}

}  // namespace

double KeptImportance(const KeepSets& keep, const ModelOracle& oracle) {
  const Tensors& tensors = oracle.tensors;
  double sum = 0.0;
  for (size_t head = 0; head + 1 < keep.offsets.size(); ++head) {
    for (int64_t i = keep.offsets[head]; i < keep.offsets[head + 1]; ++i) {
      sum += oracle.importances[head * Unsigned(tensors.length) +
                                Unsigned(keep.ranks[Unsigned(i)])];
    }
  }
  return sum / tensors.num_layers();
}

absl::Status CheckNoWindows(const char* flag, const LanguageModel& model) {
  for (int32_t i = 0; i < model.shape().num_layers; ++i) {
    if (model.shape().window_of(i) == 0) continue;
    return Invalid(
        flag,
        ": expected a model whose layers attend to all tokens, got one "
        "whose layer ",
        i, " has a window of ", model.shape().window_of(i));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> MeasureTensors(const LanguageModel& model,
                                       const std::vector<int32_t>& tokens,
                                       ThreadPool* threads) {
  BM_CHECK(!tokens.empty());
  const auto length = static_cast<int32_t>(tokens.size());
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRun> run,
                      ModelRun::Create(&model, length, threads));
  Tensors tensors = EmptyTensors(model, length);
  RunContext(tokens, run.get(), &tensors);
  return tensors;
}

absl::StatusOr<ModelOracle> MeasureOracle(const LanguageModel& model,
                                          const ContextPrompt& prompt,
                                          ThreadPool* threads) {
  BM_CHECK(!prompt.context.empty());
  const auto length = static_cast<int32_t>(prompt.context.size());
  const int32_t max_tokens = length + LongestQuery(prompt);
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRun> run,
                      ModelRun::Create(&model, max_tokens, threads));
  ModelOracle oracle;
  oracle.tensors = EmptyTensors(model, length);
  RunContext(prompt.context, run.get(), &oracle.tensors);
  std::vector<LayerUse> layers;
  layers.reserve(static_cast<size_t>(model.shape().num_layers));
  for (int32_t i = 0; i < model.shape().num_layers; ++i) {
    layers.emplace_back(oracle.tensors, i, run->ProjectedSizes(i), max_tokens);
  }
  for (const std::vector<int32_t>& query : prompt.queries) {
    oracle.queries.push_back(RunQuery(prompt, query, &layers, run.get()));
    for (const LayerUse& layer : layers) layer.AppendTo(&oracle.importances);
  }
  return oracle;
}

absl::StatusOr<std::vector<std::vector<float>>> MeasureReplayScores(
    const LanguageModel& model, const std::vector<int32_t>& context,
    const ReplayPrompts& prompts, ThreadPool* threads) {
  // Tokens of one chunk that the next one's prompt ends with.
  constexpr size_t kOverlap = 8;
  BM_CHECK(!context.empty());
  BM_CHECK(prompts.chunk_tokens > 0);
  const size_t chunk = std::min(Unsigned(prompts.chunk_tokens), context.size());
  const auto length = static_cast<int32_t>(context.size());
  const auto max_tokens =
      static_cast<int32_t>(context.size() + chunk + kOverlap +
                           std::max(prompts.whole.size(), prompts.part.size()));
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRun> run,
                      ModelRun::Create(&model, max_tokens, threads));
  Tensors tensors = EmptyTensors(model, length);
  RunContext(context, run.get(), &tensors);
  const size_t num_sizes = Unsigned(model.shape().num_q_heads) * context.size();
  std::vector<LayerUse> layers;
  layers.reserve(static_cast<size_t>(model.shape().num_layers));
  for (int32_t i = 0; i < model.shape().num_layers; ++i) {
    layers.emplace_back(tensors, i, std::vector<float>(num_sizes, 1.0f),
                        max_tokens);
    layers.back().StartQuery();
  }
  for (size_t begin = 0; begin < context.size(); begin += chunk) {
    std::vector<int32_t> query = begin == 0 ? prompts.whole : prompts.part;
    const size_t from = begin - std::min(begin, kOverlap);
    const size_t to = std::min(context.size(), begin + chunk);
    query.insert(query.end(), context.begin() + static_cast<int64_t>(from),
                 context.begin() + static_cast<int64_t>(to));
    run->Truncate(length);
    run->Extend(query, [&layers](int32_t layer, int32_t first,
                                 const ModelForward& forward) {
      layers[Unsigned(layer)].Add(first, forward);
    });
  }
  std::vector<std::vector<float>> scores;
  scores.reserve(layers.size());
  for (const LayerUse& layer : layers) scores.push_back(layer.best());
  return scores;
}

}  // namespace blockmgr
