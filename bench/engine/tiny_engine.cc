#include "bench/engine/tiny_engine.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// The entries of positions [0, cut) out of those of a longer range, and their
// values. Positions ascend per head, so they are a prefix of each head.
void TakeBelow(int32_t cut, const EntryIndex& all,
               std::span<const float> all_scores, EntryIndex* below,
               std::vector<float>* scores) {
  below->offsets.assign(1, 0);
  for (size_t head = 0; head + 1 < all.offsets.size(); ++head) {
    const auto first = all.positions.begin() + all.offsets[head];
    const auto last = all.positions.begin() + all.offsets[head + 1];
    const auto end = std::lower_bound(first, last, cut);
    const auto begin_rank = first - all.positions.begin();
    const auto end_rank = end - all.positions.begin();
    below->positions.insert(below->positions.end(), first, end);
    below->slots.insert(below->slots.end(), all.slots.begin() + begin_rank,
                        all.slots.begin() + end_rank);
    scores->insert(scores->end(), all_scores.begin() + begin_rank,
                   all_scores.begin() + end_rank);
    below->offsets.push_back(static_cast<int64_t>(below->positions.size()));
  }
}

}  // namespace

TinyEngine::TinyEngine(std::shared_ptr<const TinyModel> model,
                       std::unique_ptr<Backend> backend, int32_t max_sequences)
    : model_(std::move(model)),
      backend_(std::move(backend)),
      layout_(backend_->layout()),
      scale_(1.0f / std::sqrt(static_cast<float>(layout_.head_dim))),
      forward_(model_.get()),
      tables_(layout_, max_sequences) {
  BM_CHECK(layout_ == MakeLayout(model_->shape(), layout_.page_size,
                                 layout_.dtype, layout_.num_blocks));
}

void TinyEngine::Reset() {
  tables_.Reset();
  sequences_.clear();
}

absl::Status TinyEngine::Run(const StepPlan& plan, StepResult* result) {
  BM_RETURN_IF_ERROR(tables_.Apply(plan));
  result->id = plan.id;
  result->sampled.assign(plan.slots.size(), -1);
  result->evictions.assign(plan.evictions.size(), {});
  StartSequences(plan);
  if (!plan.slots.empty()) {
    LayOutBatch(plan);
    forward_.Begin(tokens_, positions_);
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      RunLayer(plan, layer);
    }
    Sample(plan, result);
  }
  for (size_t i = 0; i < plan.evictions.size(); ++i) {
    EvictionOutcome& outcome = result->evictions[i];
    const absl::Status status = Evict(plan, plan.evictions[i], &outcome.counts);
    outcome.ok = status.ok();
    outcome.error = std::string(status.message());
    if (!outcome.ok) outcome.counts.clear();
  }
  return absl::OkStatus();
}

void TinyEngine::StartSequences(const StepPlan& plan) {
  for (const SequenceSlot slot : plan.released) sequence(slot) = Sequence();
  for (const SequenceStart& start : plan.starts) {
    const auto index = static_cast<size_t>(Index(start.slot));
    if (index >= sequences_.size()) sequences_.resize(index + 1);
    Sequence& started = sequences_[index];
    started.first_query = start.num_cached_tokens;
    started.queries.resize(static_cast<size_t>(layout_.num_layers) *
                           static_cast<size_t>(start.query_window) *
                           static_cast<size_t>(model_->shape().q_width()));
  }
}

void TinyEngine::LayOutBatch(const StepPlan& plan) {
  tokens_.clear();
  positions_.clear();
  slot_mapping_.clear();
  query_offsets_.assign(1, 0);
  kv_.resize(plan.slots.size());
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const SequenceTable& table = tables_.row(plan.slots[i]);
    for (int32_t p = plan.positions[i]; p < table.num_computed; ++p) {
      tokens_.push_back(table.tokens[static_cast<size_t>(p)]);
      positions_.push_back(p);
      const int32_t row = p - table.cut;
      const BlockId block =
          table.tail_blocks[static_cast<size_t>(row / layout_.page_size)];
      slot_mapping_.push_back(int64_t{Index(block)} * layout_.page_size +
                              row % layout_.page_size);
    }
    query_offsets_.push_back(static_cast<int32_t>(tokens_.size()));
    kv_[i] = SequenceKv{.tail_blocks = table.tail_blocks.data(),
                        .tail_length = table.tail_length()};
  }
}

void TinyEngine::RunLayer(const StepPlan& plan, int32_t layer) {
  forward_.Project(layer);
  KeepQueries(plan, layer);
  backend_->Append(AppendBatch{.layer = layer,
                               .slot_mapping = slot_mapping_,
                               .keys = forward_.keys().data(),
                               .values = forward_.values().data()});
  const int32_t first_head = layout_.head_index(layer, 0);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const std::optional<RaggedRegion>& region = sequence(plan.slots[i]).region;
    if (!region) continue;
    kv_[i].region_pages = region->page_list().data();
    kv_[i].region_offsets = region->page_offsets().data() + first_head;
    kv_[i].region_lengths = region->kept().data() + first_head;
  }
  backend_->Attention(AttentionBatch{.layer = layer,
                                     .sequences = kv_,
                                     .query_offsets = query_offsets_,
                                     .queries = forward_.queries().data(),
                                     .output = forward_.attention().data(),
                                     .scale = scale_});
  forward_.Finish(layer);
}

void TinyEngine::KeepQueries(const StepPlan& plan, int32_t layer) {
  const auto width = static_cast<size_t>(model_->shape().q_width());
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const int32_t window = tables_.row(plan.slots[i]).query_window;
    float* ring =
        sequence(plan.slots[i]).queries.data() +
        static_cast<size_t>(layer) * static_cast<size_t>(window) * width;
    const int32_t end = query_offsets_[i + 1];
    for (int32_t row = std::max(query_offsets_[i], end - window); row < end;
         ++row) {
      const auto token = static_cast<size_t>(row);
      std::copy_n(
          forward_.queries().data() + token * width, width,
          ring + static_cast<size_t>(positions_[token] % window) * width);
    }
  }
}

void TinyEngine::Sample(const StepPlan& plan, StepResult* result) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.samples[i] == 0) continue;
    const auto row = static_cast<size_t>(query_offsets_[i + 1] - 1);
    const std::span<const float> logits = forward_.Logits(row);
    if (observer_.on_logits) {
      observer_.on_logits(plan.slots[i], positions_[row], logits);
    }
    result->sampled[i] = static_cast<int32_t>(
        std::max_element(logits.begin(), logits.end()) - logits.begin());
    tables_.AddSampled(plan.slots[i], result->sampled[i]);
  }
}

absl::Status TinyEngine::Evict(const StepPlan& plan, const EvictionOrder& order,
                               std::vector<int32_t>* counts) {
  BM_RETURN_IF_ERROR(tables_.CheckOrder(plan, order));
  EntryIndex candidates;
  std::vector<float> scores;
  BM_RETURN_IF_ERROR(Score(order, &candidates, &scores));
  std::span<const int32_t> external;
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    external = *order.budgets;
  }
  const KeepSets keep = SelectEntries(
      order.policy, order.target,
      HeadShape{layout_.num_layers, layout_.num_heads, layout_.page_size},
      EvictionRange{order.cut, order.length},
      EntriesView{candidates.offsets, candidates.positions, scores}, external);
  for (size_t head = 0; head + 1 < keep.offsets.size(); ++head) {
    counts->push_back(
        static_cast<int32_t>(keep.offsets[head + 1] - keep.offsets[head]));
  }
  BM_RETURN_IF_ERROR(tables_.CheckCounts(order, *counts));
  if (observer_.on_eviction) {
    observer_.on_eviction(order, candidates, scores, keep);
  }

  const SequenceTable& table = tables_.row(order.slot);
  Sequence& state = sequence(order.slot);
  const CacheView covered{
      state.region ? &*state.region : nullptr,
      std::span(table.tail_blocks)
          .first(static_cast<size_t>((order.cut - table.cut) /
                                     layout_.page_size))};
  RaggedRegion next = RaggedRegion::LayOut(
      layout_, covered, EngineTables::Destinations(plan, order), *counts,
      order.cut);
  CompactionPlan compaction = PlanCompaction(layout_, candidates, keep, next);
  backend_->Move(compaction.moves);
  state.region = std::move(next);
  state.region_positions = std::move(compaction.positions);
  tables_.Commit(plan, order, *counts);
  return absl::OkStatus();
}

absl::Status TinyEngine::Score(const EvictionOrder& order,
                               EntryIndex* candidates,
                               std::vector<float>* scores) {
  if (order.policy.scorer.kind == ScorerKind::kSnapKv) {
    return ScoreSnapKv(order, candidates, scores);
  }
  const Sequence& state = sequence(order.slot);
  *candidates = IndexEntries(layout_,
                             CacheView{state.region ? &*state.region : nullptr,
                                       tables_.row(order.slot).tail_blocks},
                             state.region_positions, order.cut);
  if (order.policy.scorer.kind == ScorerKind::kStreaming) {
    return absl::OkStatus();
  }
  scores->reserve(candidates->positions.size());
  for (size_t head = 0; head + 1 < candidates->offsets.size(); ++head) {
    const float* by_position =
        order.scores->data() + head * static_cast<size_t>(order.cut);
    for (int64_t i = candidates->offsets[head];
         i < candidates->offsets[head + 1]; ++i) {
      scores->push_back(
          by_position[candidates->positions[static_cast<size_t>(i)]]);
    }
  }
  return absl::OkStatus();
}

absl::Status TinyEngine::ScoreSnapKv(const EvictionOrder& order,
                                     EntryIndex* candidates,
                                     std::vector<float>* scores) {
  const SequenceTable& table = tables_.row(order.slot);
  const Sequence& state = sequence(order.slot);
  const int32_t kept =
      std::min(table.query_window, order.length - state.first_query);
  const int32_t num_queries = std::min(order.policy.query_window(), kept);
  if (num_queries < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("policy: snapkv needs queries, but slot ",
                     Index(order.slot), " was started with query_window 0"));
  }
  const EntryIndex all = IndexEntries(
      layout_,
      CacheView{state.region ? &*state.region : nullptr, table.tail_blocks},
      state.region_positions, order.length);
  std::vector<float> all_scores(all.positions.size());
  const auto width = static_cast<size_t>(model_->shape().q_width());
  const auto num_heads = static_cast<size_t>(layout_.num_heads);
  std::vector<float> queries(static_cast<size_t>(num_queries) * width);
  std::vector<int64_t> offsets(num_heads + 1);
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    for (int32_t i = 0; i < num_queries; ++i) {
      const int32_t position = order.length - num_queries + i;
      const int64_t row =
          int64_t{layer} * table.query_window + position % table.query_window;
      std::copy_n(state.queries.data() + static_cast<size_t>(row) * width,
                  width, queries.data() + static_cast<size_t>(i) * width);
    }
    const auto head = static_cast<size_t>(layout_.head_index(layer, 0));
    const int64_t first = all.offsets[head];
    for (size_t h = 0; h <= num_heads; ++h) {
      offsets[h] = all.offsets[head + h] - first;
    }
    const auto begin = static_cast<size_t>(first);
    const auto count = static_cast<size_t>(offsets.back());
    backend_->SnapKvScores(
        SnapKvBatch{.layer = layer,
                    .scorer = order.policy.scorer,
                    .scale = scale_,
                    .queries = queries.data(),
                    .num_queries = num_queries,
                    .length = order.length,
                    .offsets = offsets,
                    .slots = std::span(all.slots).subspan(begin, count),
                    .positions = std::span(all.positions).subspan(begin, count),
                    .scores = std::span(all_scores).subspan(begin, count)});
  }
  TakeBelow(order.cut, all, all_scores, candidates, scores);
  return absl::OkStatus();
}

}  // namespace blockmgr
