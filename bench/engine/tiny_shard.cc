#include "bench/engine/tiny_shard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {

TinyShard::TinyShard(const TinyModel* model, const EngineTables* tables,
                     int32_t shard, std::unique_ptr<Backend> backend,
                     int32_t max_drafts)
    : model_(*model),
      tables_(*tables),
      shard_(shard),
      backend_(std::move(backend)),
      layout_(backend_->layout()),
      scale_(1.0f / std::sqrt(static_cast<float>(layout_.head_dim))),
      scoring_(model, tables->layout(), shard, backend_.get(), max_drafts),
      host_(static_cast<size_t>(tables->num_host_blocks() *
                                layout_.block_bytes())) {
  BM_CHECK(layout_ == tables->layout().ShardLayout());
}

void TinyShard::Reset() {
  sequences_.clear();
  regions_.clear();
  swapped_.clear();
}

void TinyShard::Start(const StepPlan& plan) {
  for (const SequenceSlot slot : plan.released) sequence(slot) = Sequence();
  for (const SequenceStart& start : plan.starts) {
    const auto index = static_cast<size_t>(Index(start.slot));
    if (index >= sequences_.size()) sequences_.resize(index + 1);
    scoring_.Start(start, &sequences_[index].scoring);
    if (start.swap != kNoSwap) {
      sequences_[index].region = SwapIn(plan, start);
    } else if (start.region != kNoRegion) {
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

void TinyShard::BeginStep(const StepPlan& plan, const TinyBatch& batch) {
  entries_.assign(plan.slots.size(), EntryIndex());
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (sequence(plan.slots[i]).scoring.kind == ScorerState::kAttentionSums) {
      entries_[i] = AllEntries(plan.slots[i]);
    }
  }
  if (tables_.layout().num_shards == 1) return;
  attention_.resize(batch.num_rows() *
                    static_cast<size_t>(layout_.num_q_heads) *
                    static_cast<size_t>(layout_.head_dim));
}

const float* TinyShard::Columns(std::span<const float> rows, size_t num_rows,
                                std::vector<float>* own) const {
  const auto num_shards = static_cast<size_t>(tables_.layout().num_shards);
  if (num_shards == 1) return rows.data();
  const size_t width = rows.size() / num_rows;
  const size_t own_width = width / num_shards;
  own->resize(num_rows * own_width);
  for (size_t row = 0; row < num_rows; ++row) {
    std::copy_n(
        rows.data() + row * width + static_cast<size_t>(shard_) * own_width,
        own_width, own->data() + row * own_width);
  }
  return own->data();
}

SequenceKv TinyShard::KvOf(SequenceSlot slot, const LayerPlace& place) const {
  const SequenceTable& table = tables_.row(slot);
  if (place.group > 0) {
    const auto index = static_cast<size_t>(place.group - 1);
    return {.tail_blocks = table.window_blocks[index].data(),
            .tail_length = table.num_computed};
  }
  SequenceKv kv{.tail_blocks = table.tail_blocks.data(),
                .tail_length = table.tail_length()};
  if (const RaggedRegion* region = sequence(slot).layout()) {
    const int32_t first_head = layout_.head_index(place.slot, 0);
    kv.region_pages = region->page_list().data();
    kv.region_offsets = region->page_offsets().data() + first_head;
    kv.region_lengths = region->kept().data() + first_head;
  }
  return kv;
}

void TinyShard::RunLayer(const StepPlan& plan, const TinyBatch& batch,
                         int32_t layer, TinyForward* forward) {
  const size_t num_rows = batch.num_rows();
  const LayerPlace& place = model_.groups().layers[static_cast<size_t>(layer)];
  backend_->Append(AppendBatch{
      .layer = place.slot,
      .slot_mapping = batch.slot_mappings[static_cast<size_t>(place.group)],
      .keys = Columns(forward->keys(), num_rows, &keys_),
      .values = Columns(forward->values(), num_rows, &values_)});
  const float* queries = Columns(forward->queries(), num_rows, &queries_);
  if (place.group == 0) {
    Observe(plan, batch, place.slot, queries,
            Columns(forward->raw_queries(), num_rows, &raw_queries_));
  }
  kv_.clear();
  for (const SequenceSlot slot : plan.slots) kv_.push_back(KvOf(slot, place));
  const bool is_alone = tables_.layout().num_shards == 1;
  const std::span<float> all = forward->attention();
  backend_->Attention(
      AttentionBatch{.layer = place.slot,
                     .sequences = kv_,
                     .query_offsets = batch.query_offsets,
                     .queries = queries,
                     .output = is_alone ? all.data() : attention_.data(),
                     .scale = scale_,
                     .window = place.window});
  if (is_alone) return;
  const size_t own_width = attention_.size() / num_rows;
  for (size_t row = 0; row < num_rows; ++row) {
    std::copy_n(attention_.data() + row * own_width, own_width,
                all.data() + row * (all.size() / num_rows) +
                    static_cast<size_t>(shard_) * own_width);
  }
}

void TinyShard::Observe(const StepPlan& plan, const TinyBatch& batch,
                        int32_t layer, const float* queries,
                        const float* raw_queries) {
  const auto width = static_cast<size_t>(layout_.num_q_heads) *
                     static_cast<size_t>(layout_.head_dim);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const int32_t begin = batch.query_offsets[i];
    const size_t first = static_cast<size_t>(begin) * width;
    scoring_.Observe(layer, plan.positions[i],
                     batch.query_offsets[i + 1] - begin, queries + first,
                     raw_queries + first, entries_[i],
                     &sequence(plan.slots[i]).scoring);
  }
}

EntryIndex TinyShard::AllEntries(SequenceSlot slot) const {
  const Sequence& state = sequence(slot);
  const SequenceTable& table = tables_.row(slot);
  return IndexEntries(layout_, CacheView{state.layout(), table.tail_blocks},
                      state.region == nullptr
                          ? std::span<const int32_t>()
                          : std::span(state.region->positions),
                      table.num_computed);
}

absl::StatusOr<TinySelection> TinyShard::Select(const EvictionOrder& order) {
  TinySelection selection;
  ScoredEntries& scored = selection.scored;
  BM_RETURN_IF_ERROR(scoring_.Score(order, tables_.row(order.slot),
                                    sequence(order.slot).scoring,
                                    AllEntries(order.slot), &scored));
  std::vector<int32_t> external;
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
      external.push_back((*order.budgets)[static_cast<size_t>(
          tables_.layout().shard_head_index(shard_, i))]);
    }
  }
  selection.keep = SelectEntries(
      order.policy, order.target,
      HeadShape{layout_.num_layers, layout_.num_heads, layout_.page_size},
      EvictionRange{order.cut, order.length},
      EntriesView{scored.candidates.offsets, scored.candidates.positions,
                  scored.scores, scored.value_norms, scored.products},
      external);
  return selection;
}

void TinyShard::Evict(const StepPlan& plan, const EvictionOrder& order,
                      const TinySelection& selection) {
  const SequenceTable& table = tables_.row(order.slot);
  Sequence& state = sequence(order.slot);
  std::vector<int32_t> counts;
  for (size_t i = 0; i + 1 < selection.keep.offsets.size(); ++i) {
    counts.push_back(selection.count(i));
  }
  const CacheView covered{
      state.layout(), std::span(table.tail_blocks)
                          .first(static_cast<size_t>((order.cut - table.cut) /
                                                     layout_.page_size))};
  RaggedRegion next = RaggedRegion::LayOut(
      layout_, covered, EngineTables::Destinations(plan, order), counts,
      order.cut);
  CompactionPlan compaction = PlanCompaction(
      layout_, selection.scored.candidates, selection.keep, next);
  backend_->Move(compaction.moves);
  state.region = std::make_shared<const Region>(
      Region{std::move(next), std::move(compaction.positions)});
  if (order.region != kNoRegion) regions_[order.region] = state.region;
}

void TinyShard::Lose(std::span<const BlockId> blocks) {
  std::vector<int64_t> slots;
  for (const BlockId block : blocks) {
    for (int32_t i = 0; i < layout_.page_size; ++i) {
      slots.push_back(int64_t{Index(block)} * layout_.page_size + i);
    }
  }
  const std::vector<float> rows(slots.size() *
                                    static_cast<size_t>(layout_.num_heads) *
                                    static_cast<size_t>(layout_.head_dim),
                                std::numeric_limits<float>::quiet_NaN());
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    backend_->Append(AppendBatch{.layer = layer,
                                 .slot_mapping = slots,
                                 .keys = rows.data(),
                                 .values = rows.data()});
  }
}

}  // namespace blockmgr
