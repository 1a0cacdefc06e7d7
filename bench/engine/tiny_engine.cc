#include "bench/engine/tiny_engine.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "bench/engine/prompt_lookup.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
TinyEngine::TinyEngine(std::shared_ptr<const TinyModel> model,
                       std::unique_ptr<Backend> backend, int32_t max_sequences,
                       int32_t max_drafts)
    : model_(std::move(model)),
      backend_(std::move(backend)),
      layout_(backend_->layout()),
      scale_(1.0f / std::sqrt(static_cast<float>(layout_.head_dim))),
      max_drafts_(max_drafts),
      forward_(model_.get()),
      scoring_(model_.get(), backend_.get(), max_drafts),
      tables_(layout_, max_sequences) {
  BM_CHECK(layout_ == MakeLayout(model_->shape(), layout_.page_size,
                                 layout_.dtype, layout_.num_blocks));
}

void TinyEngine::Reset() {
  tables_.Reset();
  sequences_.clear();
  regions_.clear();
  lost_.clear();
}

absl::Status TinyEngine::Run(const StepPlan& plan, StepResult* result) {
  BM_RETURN_IF_ERROR(tables_.Apply(plan));
  result->id = plan.id;
  result->sampled.assign(plan.slots.size(), -1);
  result->evictions.assign(plan.evictions.size(), {});
  result->num_accepted.assign(plan.num_drafts.size(), 0);
  result->accepted.clear();
  result->num_drafts.assign(max_drafts_ > 0 ? plan.slots.size() : 0, 0);
  result->lost_blocks.clear();
  if (!lost_.empty()) ForgetLosses(plan, result);
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
  if (fault_) Lose(fault_(plan), result);
  return absl::OkStatus();
}

void TinyEngine::StartSequences(const StepPlan& plan) {
  for (const SequenceSlot slot : plan.released) sequence(slot) = Sequence();
  for (const SequenceStart& start : plan.starts) {
    const auto index = static_cast<size_t>(Index(start.slot));
    if (index >= sequences_.size()) sequences_.resize(index + 1);
    if (observer_.on_start) observer_.on_start(start);
    scoring_.Start(start, &sequences_[index].scoring);
    if (start.region != kNoRegion) {
      sequences_[index].region = regions_.at(start.region);
    } else if (start.source != kNoSequenceSlot) {
      sequences_[index].region = sequence(start.source).region;
    }
  }
  for (const RegionId region : plan.dropped_regions) regions_.erase(region);
  if (plan.copies.empty()) return;
  std::vector<BlockCopy> copies;
  for (const CopyOnWrite& copy : plan.copies) copies.push_back(copy.blocks);
  backend_->CopyBlocks(copies);
}

void TinyEngine::LayOutBatch(const StepPlan& plan) {
  tokens_.clear();
  positions_.clear();
  slot_mapping_.clear();
  query_offsets_.assign(1, 0);
  kv_.resize(plan.slots.size());
  entries_.assign(plan.slots.size(), EntryIndex());
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
    if (sequence(plan.slots[i]).scoring.kind == ScorerState::kAttentionSums) {
      entries_[i] = AllEntries(plan.slots[i]);
    }
  }
}

void TinyEngine::RunLayer(const StepPlan& plan, int32_t layer) {
  forward_.Project(layer);
  backend_->Append(AppendBatch{.layer = layer,
                               .slot_mapping = slot_mapping_,
                               .keys = forward_.keys().data(),
                               .values = forward_.values().data()});
  Observe(plan, layer);
  const int32_t first_head = layout_.head_index(layer, 0);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const RaggedRegion* region = sequence(plan.slots[i]).layout();
    if (region == nullptr) continue;
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

void TinyEngine::Observe(const StepPlan& plan, int32_t layer) {
  const auto width = static_cast<size_t>(model_->shape().q_width());
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const size_t first = static_cast<size_t>(query_offsets_[i]) * width;
    scoring_.Observe(layer, plan.positions[i],
                     query_offsets_[i + 1] - query_offsets_[i],
                     forward_.queries().data() + first,
                     forward_.raw_queries().data() + first, entries_[i],
                     &sequence(plan.slots[i]).scoring);
  }
}

EntryIndex TinyEngine::AllEntries(SequenceSlot slot) {
  const Sequence& state = sequence(slot);
  const SequenceTable& table = tables_.row(slot);
  return IndexEntries(layout_, CacheView{state.layout(), table.tail_blocks},
                      state.region == nullptr
                          ? std::span<const int32_t>()
                          : std::span(state.region->positions),
                      table.num_computed);
}

int32_t TinyEngine::SampleAfter(SequenceSlot slot, size_t row) {
  const std::span<const float> logits = forward_.Logits(row);
  if (observer_.on_logits && !IsDamaged(slot)) {
    observer_.on_logits(slot, positions_[row], logits);
  }
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                              logits.begin());
}

void TinyEngine::Sample(const StepPlan& plan, StepResult* result) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.samples[i] == 0) continue;
    const SequenceSlot slot = plan.slots[i];
    const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[i];
    auto row = static_cast<size_t>(query_offsets_[i + 1] - 1 - num_drafts);
    int32_t token = SampleAfter(slot, row);
    if (num_drafts > 0) {
      int32_t& num_accepted = result->num_accepted[i];
      while (num_accepted < num_drafts && token == tokens_[row + 1]) {
        result->accepted.push_back(token);
        ++num_accepted;
        token = SampleAfter(slot, ++row);
      }
      tables_.RejectDrafts(slot, num_drafts, num_accepted);
    }
    result->sampled[i] = token;
    tables_.AddSampled(slot, token);
    if (max_drafts_ == 0) continue;
    const std::span<const int32_t> drafts =
        LookUpDrafts(tables_.row(slot).tokens, max_drafts_);
    tables_.SetDrafts(slot, drafts);
    result->num_drafts[i] = static_cast<int32_t>(drafts.size());
  }
}

absl::Status TinyEngine::Evict(const StepPlan& plan, const EvictionOrder& order,
                               std::vector<int32_t>* counts) {
  BM_RETURN_IF_ERROR(tables_.CheckOrder(plan, order));
  if (IsDamaged(order.slot)) {
    return absl::DataLossError("the sequence holds lost blocks");
  }
  ScoredEntries scored;
  BM_RETURN_IF_ERROR(scoring_.Score(order, tables_.row(order.slot),
                                    sequence(order.slot).scoring,
                                    AllEntries(order.slot), &scored));
  std::span<const int32_t> external;
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    external = *order.budgets;
  }
  const KeepSets keep = SelectEntries(
      order.policy, order.target,
      HeadShape{layout_.num_layers, layout_.num_heads, layout_.page_size},
      EvictionRange{order.cut, order.length},
      EntriesView{scored.candidates.offsets, scored.candidates.positions,
                  scored.scores, scored.value_norms, scored.products},
      external);
  for (size_t head = 0; head + 1 < keep.offsets.size(); ++head) {
    counts->push_back(
        static_cast<int32_t>(keep.offsets[head + 1] - keep.offsets[head]));
  }
  BM_RETURN_IF_ERROR(tables_.CheckCounts(order, *counts));
  if (observer_.on_eviction) {
    observer_.on_eviction(order, scored, keep);
  }

  const SequenceTable& table = tables_.row(order.slot);
  Sequence& state = sequence(order.slot);
  const CacheView covered{
      state.layout(), std::span(table.tail_blocks)
                          .first(static_cast<size_t>((order.cut - table.cut) /
                                                     layout_.page_size))};
  RaggedRegion next = RaggedRegion::LayOut(
      layout_, covered, EngineTables::Destinations(plan, order), *counts,
      order.cut);
  CompactionPlan compaction =
      PlanCompaction(layout_, scored.candidates, keep, next);
  backend_->Move(compaction.moves);
  state.region = std::make_shared<const Region>(
      Region{std::move(next), std::move(compaction.positions)});
  if (order.region != kNoRegion) regions_[order.region] = state.region;
  tables_.Commit(plan, order, *counts);
  for (const BlockId block : EngineTables::Destinations(plan, order)) {
    lost_.erase(block);
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
