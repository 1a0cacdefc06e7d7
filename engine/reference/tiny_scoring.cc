#include "engine/reference/tiny_scoring.h"

#include <algorithm>
#include <limits>
#include <span>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/random_scores.h"
#include "kernels/cpu/query_stats.h"

namespace blockmgr {
namespace {

// The entries of positions [0, cut) out of those of a longer range, with what
// is known of them. Positions ascend per head, so they are a prefix of each.
class TakerBelow {
 public:
  TakerBelow(int32_t cut, const EntryIndex& all) {
    offsets_.push_back(0);
    for (size_t head = 0; head + 1 < all.offsets.size(); ++head) {
      const auto first = all.positions.begin() + all.offsets[head];
      const auto last = all.positions.begin() + all.offsets[head + 1];
      begins_.push_back(all.offsets[head]);
      offsets_.push_back(offsets_.back() +
                         (std::lower_bound(first, last, cut) - first));
    }
  }

  const std::vector<int64_t>& offsets() const { return offsets_; }

  template <typename T>
  void Take(const std::vector<T>& all, std::vector<T>* below) const {
    if (all.empty()) return;
    below->reserve(static_cast<size_t>(offsets_.back()));
    for (size_t head = 0; head < begins_.size(); ++head) {
      const auto first = all.begin() + begins_[head];
      below->insert(below->end(), first,
                    first + (offsets_[head + 1] - offsets_[head]));
    }
  }

 private:
  std::vector<int64_t> begins_;   // in the whole, by head
  std::vector<int64_t> offsets_;  // CSR of what is below
};

}  // namespace

TinyScoring::TinyScoring(const LanguageModel* model, const ModelLayout& whole,
                         int32_t shard, Backend* backend, int32_t max_drafts)
    : model_(*model),
      backend_(*backend),
      whole_(whole),
      shard_(shard),
      layout_(backend->layout()),
      scale_(model->score_scale()),
      max_drafts_(max_drafts) {}

void TinyScoring::Start(const SequenceStart& start, ScoringState* state) const {
  state->first_query = start.num_cached_tokens;
  state->num_rows =
      start.query_window == 0 ? 0 : start.query_window + max_drafts_;
  state->queries.resize(
      static_cast<size_t>(layout_.num_groups() * layout_.num_layers) *
      static_cast<size_t>(state->num_rows) * q_width());
  state->kind = start.scorer_state;
  state->begin = start.state_begin;
  if (state->kind == ScorerState::kAttentionSums) {
    state->attention_sums.resize(
        static_cast<size_t>(layout_.pages_per_block()));
  } else if (state->kind == ScorerState::kQueryStatistics) {
    const auto width = q_width();
    state->statistics.resize(
        static_cast<size_t>(layout_.num_layers),
        {.count = 0,
         .sums = std::vector<double>(width),
         .products = std::vector<double>(
             width * static_cast<size_t>(layout_.head_dim))});
  }
}

TinyScoring::LayerEntries TinyScoring::SliceLayer(const EntryIndex& entries,
                                                  int32_t layer) const {
  LayerEntries slice;
  const auto first = static_cast<size_t>(layout_.head_index(layer, 0));
  const auto num_heads = static_cast<size_t>(layout_.num_heads);
  slice.begin = entries.offsets[first];
  slice.offsets.reserve(num_heads + 1);
  for (size_t head = 0; head <= num_heads; ++head) {
    slice.offsets.push_back(entries.offsets[first + head] - slice.begin);
  }
  const auto begin = static_cast<size_t>(slice.begin);
  const auto count = static_cast<size_t>(slice.offsets.back());
  slice.list = {
      .offsets = slice.offsets,
      .slots = std::span(entries.slots).subspan(begin, count),
      .positions = std::span(entries.positions).subspan(begin, count)};
  return slice;
}

void TinyScoring::KeepQueries(int32_t row, int32_t begin, int32_t count,
                              const float* queries, ScoringState* state) const {
  const auto width = q_width();
  const int32_t num_rows = state->num_rows;
  float* ring = state->queries.data() + static_cast<size_t>(row) *
                                            static_cast<size_t>(num_rows) *
                                            width;
  for (int32_t i = std::max(0, count - num_rows); i < count; ++i) {
    std::copy_n(queries + static_cast<size_t>(i) * width, width,
                ring + static_cast<size_t>((begin + i) % num_rows) * width);
  }
}

void TinyScoring::Observe(int32_t layer, int32_t begin, int32_t count,
                          const float* queries, const float* raw_queries,
                          const EntryIndex& entries, ScoringState* state) {
  const auto width = q_width();
  KeepQueries(layer, begin, count, queries, state);
  const int32_t skipped = std::clamp(state->begin - begin, 0, count);
  const size_t offset = static_cast<size_t>(skipped) * width;
  if (skipped == count) return;
  if (state->kind == ScorerState::kAttentionSums) {
    AddAttention(layer, begin + skipped, count - skipped, queries + offset,
                 entries, state);
  } else if (state->kind == ScorerState::kQueryStatistics) {
    backend_.AddQueries(raw_queries + offset, count - skipped,
                        &state->statistics[static_cast<size_t>(layer)]);
  }
}

void TinyScoring::AddAttention(int32_t layer, int32_t begin, int32_t count,
                               const float* queries, const EntryIndex& entries,
                               ScoringState* state) {
  const LayerEntries slice = SliceLayer(entries, layer);
  const auto first = static_cast<size_t>(layout_.head_index(layer, 0));
  const auto num_heads = static_cast<size_t>(layout_.num_heads);
  sums_.clear();
  for (size_t head = 0; head < num_heads; ++head) {
    std::vector<float>& sums = state->attention_sums[first + head];
    sums.resize(static_cast<size_t>(begin) + static_cast<size_t>(count));
    for (int64_t i = slice.offsets[head]; i < slice.offsets[head + 1]; ++i) {
      sums_.push_back(sums[static_cast<size_t>(
          slice.list.positions[static_cast<size_t>(i)])]);
    }
  }
  backend_.AddAttention(
      {.layer = layer,
       .scale = scale_,
       .entries = slice.list,
       .window = {.queries = queries, .count = count, .length = begin + count},
       .sums = sums_});
  for (size_t head = 0; head < num_heads; ++head) {
    std::vector<float>& sums = state->attention_sums[first + head];
    for (int64_t i = slice.offsets[head]; i < slice.offsets[head + 1]; ++i) {
      sums[static_cast<size_t>(slice.list.positions[static_cast<size_t>(i)])] =
          sums_[static_cast<size_t>(i)];
    }
  }
}

void TinyScoring::CopyWindow(const ScoringState& state, int32_t layer,
                             int32_t first, int32_t count) {
  const auto width = q_width();
  window_.resize(static_cast<size_t>(count) * width);
  for (int32_t i = 0; i < count; ++i) {
    const int64_t row =
        int64_t{layer} * state.num_rows + (first + i) % state.num_rows;
    std::copy_n(state.queries.data() + static_cast<size_t>(row) * width, width,
                window_.data() + static_cast<size_t>(i) * width);
  }
}

absl::Status TinyScoring::CheckState(const EvictionOrder& order,
                                     const SequenceTable& table,
                                     const ScoringState& state) const {
  if (order.policy.score_source() == ScoreSource::kBackend &&
      !backend_.HasScorer(order.policy.scorer.kind)) {
    return absl::UnimplementedError(
        absl::StrCat("policy: this backend has no scorer ",
                     EnumName(order.policy.scorer.kind)));
  }
  const ScorerState needed = order.policy.scorer_state();
  BM_CHECK(needed == ScorerState::kNone || order.group == 0);
  if (needed != ScorerState::kNone && needed != state.kind) {
    return absl::FailedPreconditionError(absl::StrCat(
        "policy: expected a sequence started with the scorer state of ",
        FormatPolicy(order.policy), ", got slot ", Index(order.slot),
        " without"));
  }
  if (needed == ScorerState::kQueryStatistics &&
      order.policy.scorer.n_sink != state.begin) {
    return absl::FailedPreconditionError(absl::StrCat(
        "policy: expected_attention: n_sink: expected ", state.begin,
        ", from which on the sequence's queries were observed, got ",
        order.policy.scorer.n_sink));
  }
  if (order.policy.needs_query_stats() &&
      (query_stats_ == nullptr ||
       !query_stats_->contains(order.policy.scorer.stats))) {
    return absl::NotFoundError(absl::StrCat(
        "policy: expected_attention: stats: expected the name of a table of "
        "this engine, got '",
        order.policy.scorer.stats, "'"));
  }
  if (order.policy.query_window() == 0) return absl::OkStatus();
  if (std::min(table.query_window, order.length - state.first_query) < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("policy: ", EnumName(order.policy.scorer.kind),
                     " needs queries, but slot ", Index(order.slot),
                     " was started with query_window 0"));
  }
  return absl::OkStatus();
}

void TinyScoring::AddValueNorms(const EvictionOrder& order,
                                const LayerEntries& slice, ScoreBatch* batch,
                                ScoredEntries* whole) {
  const SelectorSpec& selector = order.policy.selector;
  const bool product = selector.gqa_product;
  const auto begin = static_cast<size_t>(slice.begin);
  output_projection_.resize(q_width() *
                            static_cast<size_t>(model_.shape().hidden));
  model_.UnpackOutput(model_.groups().LayerAt(batch->layer, order.group),
                      shard_ * layout_.num_q_heads, output_projection_);
  const auto count = static_cast<size_t>(slice.offsets.back());
  norms_.resize(count *
                (product ? static_cast<size_t>(layout_.group_size()) : 1));
  backend_.ValueNorms({.layer = batch->layer,
                       .norm = selector.norm,
                       .entries = slice.list,
                       .output_projection = output_projection_.data(),
                       .model_dim = model_.shape().hidden,
                       .per_query_head = product,
                       .norms = norms_});
  if (product) {
    batch->q_head_norms = norms_;
    batch->product_eps = static_cast<float>(selector.eps);
    batch->products = std::span(whole->products).subspan(begin, count);
  } else {
    std::copy(norms_.begin(), norms_.end(),
              whole->value_norms.begin() + slice.begin);
  }
}

void TinyScoring::AddQueryState(const EvictionPolicy& policy,
                                const ScoringState& state, int32_t model_layer,
                                const LayerEntries& slice, ScoreBatch* batch) {
  if (policy.needs_query_stats()) {
    statistics_ =
        StatisticsOf(*query_stats_->at(policy.scorer.stats), model_layer,
                     shard_ * layout_.num_q_heads, layout_.num_q_heads);
    batch->statistics = &statistics_;
  } else if (policy.scorer_state() == ScorerState::kQueryStatistics) {
    batch->statistics = &state.statistics[static_cast<size_t>(batch->layer)];
  } else if (policy.scorer_state() == ScorerState::kAttentionSums) {
    sums_.clear();
    const auto first = static_cast<size_t>(layout_.head_index(batch->layer, 0));
    for (size_t head = 0; head + 1 < slice.offsets.size(); ++head) {
      for (int64_t i = slice.offsets[head]; i < slice.offsets[head + 1]; ++i) {
        sums_.push_back(state.attention_sums[first + head][static_cast<size_t>(
            slice.list.positions[static_cast<size_t>(i)])]);
      }
    }
    batch->attention_sums = sums_;
  }
}

void TinyScoring::ScoreLayer(const EvictionOrder& order,
                             const SequenceTable& table,
                             const ScoringState& state, int32_t layer,
                             const EntryIndex& all, ScoredEntries* whole) {
  const EvictionPolicy& policy = order.policy;
  const LayerEntries slice = SliceLayer(all, layer);
  const int32_t model_layer = model_.groups().LayerAt(layer, order.group);
  if (model_layer < 0) {
    // Padding, which nobody has written: behind all others.
    if (!whole->scores.empty()) {
      std::fill_n(whole->scores.begin() + slice.begin, slice.offsets.back(),
                  -std::numeric_limits<float>::infinity());
    }
    return;
  }
  const int32_t row = order.group * layout_.num_layers + layer;
  const auto begin = static_cast<size_t>(slice.begin);
  const auto count = static_cast<size_t>(slice.offsets.back());
  ScoreBatch batch;
  batch.layer = layer;
  batch.scorer = policy.scorer;
  batch.scale = scale_;
  batch.entries = slice.list;
  batch.window.length = order.length;
  batch.inverse_frequencies = model_.InverseFrequencies(model_layer);
  if (policy.query_window() > 0) {
    batch.window.count = std::min({policy.query_window(), table.query_window,
                                   order.length - state.first_query});
    CopyWindow(state, row, order.length - batch.window.count,
               batch.window.count);
    batch.window.queries = window_.data();
  }
  AddQueryState(policy, state, model_layer, slice, &batch);
  if (policy.selector.kind == SelectorKind::kCritical) {
    AddValueNorms(order, slice, &batch, whole);
  }
  const std::span<float> scores =
      std::span(whole->scores).subspan(begin, count);
  if (policy.score_source() == ScoreSource::kRandom) {
    for (size_t head = 0; head + 1 < slice.offsets.size(); ++head) {
      const auto from = static_cast<size_t>(slice.offsets[head]);
      const auto size = static_cast<size_t>(slice.offsets[head + 1]) - from;
      RandomScores(policy.scorer.seed, row,
                   shard_ * layout_.num_heads + static_cast<int32_t>(head),
                   slice.list.positions.subspan(from, size),
                   scores.subspan(from, size));
    }
  } else if (policy.score_source() == ScoreSource::kBackend) {
    batch.scores = scores;
    backend_.Score(batch);
  }
}

absl::Status TinyScoring::Score(const EvictionOrder& order,
                                const SequenceTable& table,
                                const ScoringState& state,
                                const EntryIndex& all, ScoredEntries* scored) {
  BM_RETURN_IF_ERROR(CheckState(order, table, state));
  const SelectorSpec& selector = order.policy.selector;
  const bool critical = selector.kind == SelectorKind::kCritical;
  const size_t count = all.positions.size();
  ScoredEntries whole;
  if (order.policy.score_source() != ScoreSource::kPosition) {
    whole.scores.resize(count);
  }
  if (critical && selector.gqa_product) whole.products.resize(count);
  if (critical && !selector.gqa_product) whole.value_norms.resize(count);
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    ScoreLayer(order, table, state, layer, all, &whole);
  }
  const TakerBelow below(order.cut, all);
  scored->candidates.offsets = below.offsets();
  below.Take(all.positions, &scored->candidates.positions);
  below.Take(all.slots, &scored->candidates.slots);
  below.Take(whole.scores, &scored->scores);
  below.Take(whole.value_norms, &scored->value_norms);
  below.Take(whole.products, &scored->products);
  if (!order.policy.has_external_scores()) return absl::OkStatus();
  // By position, of all shards: [num_layers, num_heads, cut].
  const EntryIndex& candidates = scored->candidates;
  for (size_t head = 0; head + 1 < candidates.offsets.size(); ++head) {
    const auto place = static_cast<size_t>(
        whole_.shard_head_index(shard_, static_cast<int32_t>(head)));
    const float* by_position =
        order.scores->data() + place * static_cast<size_t>(order.cut);
    for (int64_t i = candidates.offsets[head]; i < candidates.offsets[head + 1];
         ++i) {
      const auto entry = static_cast<size_t>(i);
      scored->scores[entry] =
          by_position[static_cast<size_t>(candidates.positions[entry])];
    }
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
