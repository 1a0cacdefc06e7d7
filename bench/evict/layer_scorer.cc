#include "bench/evict/layer_scorer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/random_scores.h"
#include "kernels/cpu/query_stats.h"

namespace blockmgr {
namespace {

// Rows copied at once when token-major views of the tensors are made.
constexpr int32_t kChunkTokens = 256;

// Which tensors a policy reads.
struct Needs {
  bool keys = false;
  bool queries = false;
  bool raw_queries = false;
  bool values = false;
  bool output_projection = false;
  bool scores = false;
};

Needs NeedsOf(const EvictionPolicy& policy) {
  Needs needs;
  const ScorerState state = policy.scorer_state();
  needs.keys = policy.score_source() == ScoreSource::kBackend;
  needs.queries =
      policy.query_window() > 0 || state == ScorerState::kAttentionSums;
  needs.raw_queries = state == ScorerState::kQueryStatistics;
  needs.values = policy.scorer_reads_values();
  needs.scores = policy.has_external_scores();
  if (policy.selector.kind == SelectorKind::kCritical) {
    needs.values = needs.output_projection = true;
  }
  return needs;
}

std::span<const float> RawQueries(const LayerTensors& layer) {
  return layer.raw_queries.empty() ? layer.queries : layer.raw_queries;
}

// [heads, length, head_dim] -> [count, heads, head_dim], positions from begin.
void CopyTokens(std::span<const float> by_head, const Tensors& tensors,
                int32_t begin, int32_t count, std::vector<float>* tokens) {
  const size_t dim = Unsigned(tensors.head_dim);
  const size_t length = Unsigned(tensors.length);
  const size_t heads = by_head.size() / (length * dim);
  tokens->resize(Unsigned(count) * heads * dim);
  for (size_t token = 0; token < Unsigned(count); ++token) {
    for (size_t head = 0; head < heads; ++head) {
      const size_t from = (head * length + Unsigned(begin) + token) * dim;
      std::copy_n(
          by_head.begin() + static_cast<int64_t>(from), dim,
          tokens->begin() + static_cast<int64_t>((token * heads + head) * dim));
    }
  }
}

}  // namespace

absl::Status CheckTensors(const EvictionPolicy& policy,
                          const Tensors& tensors) {
  const Needs needs = NeedsOf(policy);
  const auto check = [&](bool needed, absl::string_view name,
                         absl::string_view why, size_t got, int64_t expected) {
    if (!needed || (got > 0 && got == Unsigned(expected))) {
      return absl::OkStatus();
    }
    return Invalid(name, ": expected ",
                   expected > 0 ? absl::StrCat(expected, " values") : "some",
                   ", for ", why, " reads them, got ",
                   got == 0 ? "none" : absl::StrCat(got));
  };
  const absl::string_view scorer = EnumName(policy.scorer.kind);
  const absl::string_view last =
      policy.selector.kind == SelectorKind::kCritical ? "critical" : scorer;
  const int64_t entries = int64_t{tensors.num_heads} * tensors.length;
  const int64_t rows = entries * tensors.head_dim;
  const int64_t q_rows =
      int64_t{tensors.num_q_heads} * tensors.length * tensors.head_dim;
  for (const LayerTensors& layer : tensors.layers) {
    for (const absl::Status& status :
         {check(needs.keys, "keys", scorer, layer.keys.size(), rows),
          check(needs.queries, "queries", scorer, layer.queries.size(), q_rows),
          check(needs.raw_queries, "queries", scorer, RawQueries(layer).size(),
                q_rows),
          check(needs.values, "values", last, layer.values.size(), rows),
          check(needs.output_projection, "output projection", last,
                layer.output_projection.size(),
                int64_t{tensors.num_q_heads} * tensors.head_dim *
                    tensors.model_dim),
          check(needs.scores, "scores", scorer, layer.scores.size(),
                entries)}) {
      BM_RETURN_IF_ERROR(status);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LayerScorer>> LayerScorer::Create(
    const EvictionPolicy& policy, const Tensors& tensors, int32_t layer,
    int32_t page_size, DType dtype, const QueryStatsTable* query_stats) {
  ModelLayout layout;
  layout.num_layers = 1;
  layout.num_heads = tensors.num_heads;
  // Tensors without queries do not say how many query heads there are.
  layout.num_q_heads =
      query_stats == nullptr ? tensors.num_q_heads : query_stats->num_q_heads;
  layout.head_dim = std::max(tensors.head_dim, 1);
  layout.page_size = page_size;
  layout.dtype = dtype;
  // Block 0 is nobody's.
  layout.num_blocks = CeilDiv(tensors.length, page_size) + 1;
  const Needs needs = NeedsOf(policy);
  std::unique_ptr<Backend> backend;
  if (needs.keys || needs.values) {
    BM_RETURN_IF_ERROR(layout.Validate());
    BM_ASSIGN_OR_RETURN(backend, CreateCpuBackend(layout));
  }
  auto scorer = std::unique_ptr<LayerScorer>(new LayerScorer(
      policy, query_stats, tensors, layer, layout, std::move(backend)));
  if (scorer->backend_ != nullptr) scorer->Store();
  return scorer;
}

LayerScorer::LayerScorer(const EvictionPolicy& policy,
                         const QueryStatsTable* query_stats,
                         const Tensors& tensors, int32_t layer,
                         const ModelLayout& layout,
                         std::unique_ptr<Backend> backend)
    : policy_(policy),
      all_(tensors),
      layer_(layer),
      layout_(layout),
      scale_(tensors.AttentionScale()),
      backend_(std::move(backend)),
      inverse_frequencies_(tensors.inverse_frequencies) {
  const size_t dim = Unsigned(layout.head_dim);
  for (size_t i = inverse_frequencies_.size(); i < dim / 2; ++i) {
    inverse_frequencies_.push_back(
        std::pow(tensors.rope_theta,
                 -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  }
  const size_t q_heads = Unsigned(layout.num_q_heads);
  if (policy.needs_query_stats()) {
    statistics_ = StatisticsOf(*query_stats, layer, 0, layout.num_q_heads);
  } else if (policy.scorer_state() == ScorerState::kQueryStatistics) {
    statistics_.sums.resize(q_heads * dim);
    statistics_.products.resize(q_heads * dim * dim);
  } else if (policy.scorer_state() == ScorerState::kAttentionSums) {
    sums_.resize(Unsigned(layout.num_heads) * Unsigned(tensors.length));
  }
}

const LayerTensors& LayerScorer::tensors() const {
  return all_.layers[Unsigned(layer_)];
}

void LayerScorer::Store() {
  std::vector<float> keys;
  std::vector<float> values;
  for (int32_t begin = 0; begin < all_.length; begin += kChunkTokens) {
    const int32_t count = std::min(kChunkTokens, all_.length - begin);
    const size_t floats = Unsigned(count) * Unsigned(layout_.num_heads) *
                          Unsigned(layout_.head_dim);
    CopyTokens(tensors().keys, all_, begin, count, &keys);
    CopyTokens(tensors().values, all_, begin, count, &values);
    keys.resize(floats);
    values.resize(floats);
    std::vector<int64_t> slots(Unsigned(count));
    std::iota(slots.begin(), slots.end(), int64_t{begin} + layout_.page_size);
    backend_->Append({.layer = 0,
                      .slot_mapping = slots,
                      .keys = keys.data(),
                      .values = values.data()});
  }
}

void LayerScorer::ValueNorms(const EntryList& entries, bool per_query_head,
                             std::span<float> norms) {
  backend_->ValueNorms({.layer = 0,
                        .norm = policy_.selector.norm,
                        .entries = entries,
                        .output_projection = tensors().output_projection.data(),
                        .model_dim = all_.model_dim,
                        .per_query_head = per_query_head,
                        .norms = norms});
}

template <typename Use>
void LayerScorer::ForEach(const EntryList& entries, Use use) const {
  for (size_t head = 0; head + 1 < entries.offsets.size(); ++head) {
    for (size_t i = Unsigned(entries.offsets[head]);
         i < Unsigned(entries.offsets[head + 1]); ++i) {
      use(i, head * Unsigned(all_.length) + Unsigned(entries.positions[i]));
    }
  }
}

void LayerScorer::GatherSums(const EntryList& entries,
                             std::vector<float>* sums) const {
  sums->resize(entries.positions.size());
  ForEach(entries, [&](size_t i, size_t at) { (*sums)[i] = sums_[at]; });
}

void LayerScorer::ScatterSums(const EntryList& entries,
                              std::span<const float> sums) {
  ForEach(entries, [&](size_t i, size_t at) { sums_[at] = sums[i]; });
}

void LayerScorer::MakeRandomScores(const EntryList& entries,
                                   std::span<float> scores) const {
  for (int32_t head = 0; head < layout_.num_heads; ++head) {
    const size_t begin = Unsigned(entries.offsets[Unsigned(head)]);
    const size_t size = Unsigned(entries.offsets[Unsigned(head) + 1]) - begin;
    RandomScores(policy_.scorer.seed, layer_, head,
                 entries.positions.subspan(begin, size),
                 scores.subspan(begin, size));
  }
}

void LayerScorer::Observe(int32_t begin, int32_t end,
                          const EntryList& entries) {
  if (policy_.scorer_state() == ScorerState::kNone) return;
  const bool sums = policy_.scorer_state() == ScorerState::kAttentionSums;
  if (!sums) begin = std::max(begin, policy_.scorer.n_sink);
  std::vector<float> gathered;
  if (sums) GatherSums(entries, &gathered);
  for (; begin < end; begin += kChunkTokens) {
    const int32_t count = std::min(kChunkTokens, end - begin);
    CopyTokens(sums ? std::span<const float>(tensors().queries)
                    : RawQueries(tensors()),
               all_, begin, count, &queries_);
    if (sums) {
      backend_->AddAttention({.layer = 0,
                              .scale = scale_,
                              .entries = entries,
                              .window = {.queries = queries_.data(),
                                         .count = count,
                                         .length = begin + count},
                              .sums = gathered});
    } else {
      backend_->AddQueries(queries_.data(), count, &statistics_);
    }
  }
  if (sums) ScatterSums(entries, gathered);
}

void LayerScorer::Score(int32_t length, const EntryList& entries,
                        std::span<float> scores, std::span<float> value_norms,
                        std::span<float> products) {
  ScoreBatch batch;
  batch.scorer = policy_.scorer;
  batch.scale = scale_;
  batch.entries = entries;
  batch.window.length = length;
  batch.inverse_frequencies = inverse_frequencies_;
  batch.statistics = &statistics_;
  batch.scores = scores;
  batch.products = products;
  batch.window.count = std::min(policy_.query_window(), length);
  if (batch.window.count > 0) {
    CopyTokens(tensors().queries, all_, length - batch.window.count,
               batch.window.count, &queries_);
    batch.window.queries = queries_.data();
  }
  std::vector<float> sums;
  if (policy_.scorer_state() == ScorerState::kAttentionSums) {
    GatherSums(entries, &sums);
    batch.attention_sums = sums;
  }
  std::vector<float> norms;
  if (!value_norms.empty()) ValueNorms(entries, false, value_norms);
  if (!products.empty()) {
    norms.resize(entries.positions.size() * Unsigned(layout_.group_size()));
    ValueNorms(entries, true, norms);
    batch.q_head_norms = norms;
    batch.product_eps = static_cast<float>(policy_.selector.eps);
  }
  if (scores.empty()) return;
  if (policy_.has_external_scores()) {
    ForEach(entries,
            [&](size_t i, size_t at) { scores[i] = tensors().scores[at]; });
  } else if (policy_.score_source() == ScoreSource::kRandom) {
    MakeRandomScores(entries, scores);
  } else {
    backend_->Score(batch);
  }
}

SlotIndex LayerScorer::SlotOf(int32_t head, int32_t position) const {
  const BlockId block{position / layout_.page_size + 1};
  return layout_.slot(layout_.page_id(0, block, head),
                      position % layout_.page_size);
}

}  // namespace blockmgr
