#include "engine/reference/tiny_shard.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/window_eviction.h"
#include "blockmgr/layout_checksum.h"

namespace blockmgr {

TinyShard::TinyShard(const LanguageModel* model, const EngineTables* tables,
                     int32_t shard, std::unique_ptr<Backend> backend,
                     int32_t max_drafts)
    : model_(*model),
      tables_(*tables),
      shard_(shard),
      backend_(std::move(backend)),
      layout_(backend_->layout()),
      scale_(model->score_scale()),
      scoring_(model, tables->layout(), shard, backend_.get(), max_drafts),
      host_size_(static_cast<size_t>(tables->num_host_blocks() *
                                     layout_.block_bytes())),
      host_(std::make_unique_for_overwrite<std::byte[]>(host_size_)) {
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
    Regions& regions = sequences_[index].regions;
    regions.resize(static_cast<size_t>(layout_.num_groups()));
    if (start.swap != kNoSwap) {
      SwapIn(plan, start);
    } else if (start.region != kNoRegion) {
      regions = regions_.at(start.region);
    } else if (start.source != kNoSequenceSlot) {
      regions = sequence(start.source).regions;
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

SequenceKv TinyShard::KvOf(SequenceSlot slot, const LayerPlace& place,
                           std::vector<BlockId>* whole) const {
  const SequenceTable& table = tables_.row(slot);
  const auto index = static_cast<size_t>(place.group);
  const GroupTable& group = table.groups[index];
  SequenceKv kv{.tail_blocks = group.blocks.data(),
                .tail_length = table.num_computed - group.region.cut,
                .cut = group.region.cut};
  if (group.attended_region() == nullptr) {
    if (kv.cut == 0) return kv;
    // Attention adds up in tiles from the beginning of a list. A list without a
    // region begins at position 0, so that the bits do not tell whether there
    // has been one.
    whole->assign(static_cast<size_t>(kv.cut / layout_.page_size), kNullBlock);
    whole->insert(whole->end(), group.blocks.begin(), group.blocks.end());
    return {.tail_blocks = whole->data(), .tail_length = table.num_computed};
  }
  const Region& region = *sequence(slot).regions[index];
  const int32_t first_head = layout_.head_index(place.slot, 0);
  kv.region_pages = region.layout.page_list().data();
  kv.region_offsets = region.layout.page_offsets().data() + first_head;
  kv.region_lengths = region.layout.kept().data() + first_head;
  if (place.window > 0) kv.region_positions = region.page_positions.data();
  return kv;
}

void TinyShard::RunLayer(const StepPlan& plan, const TinyBatch& batch,
                         int32_t layer, ForwardPass* forward) {
  if (DevicePass* pass = forward->device(); pass != nullptr) {
    RunLayerOnDevice(plan, batch, layer, pass);
    return;
  }
  const HostRows rows = forward->host_rows();
  const size_t num_rows = batch.num_rows();
  const LayerPlace& place = model_.groups().layers[static_cast<size_t>(layer)];
  backend_->Append(AppendBatch{
      .layer = place.slot,
      .slot_mapping = batch.slot_mappings[static_cast<size_t>(place.group)],
      .keys = Columns(rows.keys, num_rows, &keys_),
      .values = Columns(rows.values, num_rows, &values_)});
  const float* queries = Columns(rows.queries, num_rows, &queries_);
  if (place.group == 0) {
    Observe(plan, batch, place.slot, queries,
            Columns(rows.raw_queries, num_rows, &raw_queries_));
  } else {
    KeepQueries(plan, batch, place, queries);
  }
  FindCaches(plan, place);
  const bool is_alone = tables_.layout().num_shards == 1;
  const std::span<float> all = rows.attention;
  backend_->Attention(
      AttentionBatch{.layer = place.slot,
                     .sequences = kv_,
                     .query_offsets = batch.query_offsets,
                     .queries = queries,
                     .output = is_alone ? all.data() : attention_.data(),
                     .scale = scale_,
                     .window = place.window,
                     .threads = rows.threads});
  if (is_alone) return;
  const size_t own_width = attention_.size() / num_rows;
  for (size_t row = 0; row < num_rows; ++row) {
    std::copy_n(attention_.data() + row * own_width, own_width,
                all.data() + row * (all.size() / num_rows) +
                    static_cast<size_t>(shard_) * own_width);
  }
}

void TinyShard::FindCaches(const StepPlan& plan, const LayerPlace& place) {
  kv_.clear();
  whole_tables_.resize(plan.slots.size());
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    kv_.push_back(KvOf(plan.slots[i], place, &whole_tables_[i]));
  }
}

void TinyShard::KeepQueries(const StepPlan& plan, const TinyBatch& batch,
                            const LayerPlace& place, const float* queries) {
  const auto width = static_cast<size_t>(layout_.num_q_heads) *
                     static_cast<size_t>(layout_.head_dim);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const int32_t begin = batch.query_offsets[i];
    scoring_.KeepQueries(place.group * layout_.num_layers + place.slot,
                         plan.positions[i], batch.query_offsets[i + 1] - begin,
                         queries + static_cast<size_t>(begin) * width,
                         &sequence(plan.slots[i]).scoring);
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
  const SequenceTable& table = tables_.row(slot);
  const GroupTable& group = table.groups.front();
  CacheView now{.tail_blocks = group.blocks};
  std::span<const int32_t> positions;
  if (group.attended_region() != nullptr) {
    const Region& region = *sequence(slot).regions.front();
    now.region = &region.layout;
    positions = region.positions;
  }
  return IndexEntries(layout_, now, positions, table.num_computed);
}

CacheView TinyShard::CoveredBy(const EvictionOrder& order) const {
  const EngineTables::CoveredTail covered = tables_.Covered(order);
  const auto index = static_cast<size_t>(order.group);
  return {.region = covered.region == nullptr
                        ? nullptr
                        : &sequence(order.slot).regions[index]->layout,
          .tail_blocks = covered.blocks,
          .tail_begin = covered.begin};
}

EntryIndex TinyShard::EntriesOf(const EvictionOrder& order) const {
  const SequenceTable& table = tables_.row(order.slot);
  const auto index = static_cast<size_t>(order.group);
  const GroupTable& group = table.groups[index];
  CacheView now = CoveredBy(order);
  // To the end of the table.
  now.tail_blocks =
      std::span(group.blocks)
          .subspan(static_cast<size_t>((now.tail_begin - group.region.cut) /
                                       layout_.page_size));
  return IndexEntries(
      layout_, now,
      now.region == nullptr
          ? std::span<const int32_t>()
          : std::span(sequence(order.slot).regions[index]->positions),
      table.num_computed,
      WindowEviction::FirstOf(layout_.window_of(order.group), order.length));
}

KeepSets TinyShard::SelectIn(const EvictionOrder& order,
                             const ScoredEntries& scored,
                             std::span<const int32_t> external) {
  SelectBatch batch{
      .policy = order.policy,
      .target = order.target,
      .shape = {layout_.num_layers, layout_.num_heads, layout_.page_size},
      .range = {order.cut, order.length},
      .entries = {scored.candidates.offsets, scored.candidates.positions,
                  scored.scores, scored.value_norms, scored.products},
      .external = external};
  const int32_t window = layout_.window_of(order.group);
  if (window == 0) return backend_->Select(batch);
  const WindowEviction eviction =
      WindowEviction::Of(order.policy, window, order.cut, order.length);
  std::vector<int32_t> positions = scored.candidates.positions;
  for (int32_t& position : positions) position -= eviction.first;
  batch.policy = eviction.policy;
  batch.range = eviction.range;
  batch.entries.positions = positions;
  const KeepSets all = backend_->Select(batch);
  // Slots that no layer has keep nothing.
  KeepSets keep;
  keep.num_nan = all.num_nan;
  keep.offsets.push_back(0);
  for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
    const auto head = static_cast<size_t>(i);
    if (model_.groups().LayerAt(i / layout_.num_heads, order.group) >= 0) {
      keep.ranks.insert(keep.ranks.end(), all.ranks.begin() + all.offsets[head],
                        all.ranks.begin() + all.offsets[head + 1]);
    }
    keep.offsets.push_back(std::ssize(keep.ranks));
  }
  return keep;
}

absl::StatusOr<TinySelection> TinyShard::Select(const EvictionOrder& order) {
  TinySelection selection;
  ScoredEntries& scored = selection.scored;
  BM_RETURN_IF_ERROR(scoring_.Score(order, tables_.row(order.slot),
                                    sequence(order.slot).scoring,
                                    EntriesOf(order), &scored));
  std::vector<int32_t> external;
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
      external.push_back((*order.budgets)[static_cast<size_t>(
          tables_.layout().shard_head_index(shard_, i))]);
    }
  }
  selection.keep = SelectIn(order, scored, external);
  return selection;
}

uint64_t TinyShard::ChecksumOf(const RaggedRegion& region) const {
  const ModelLayout& model = tables_.layout();
  uint64_t checksum = 0;
  std::vector<PageId> pages;
  for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
    pages.clear();
    for (const PageId page : region.pages(i)) {
      const int32_t head = shard_ * layout_.num_heads + layout_.page_head(page);
      pages.push_back(model.page_id(layout_.page_layer(page),
                                    layout_.page_block(page), head));
    }
    checksum += HeadChecksum(model.shard_head_index(shard_, i),
                             region.kept()[static_cast<size_t>(i)], pages);
  }
  return checksum;
}

uint64_t TinyShard::Evict(const StepPlan& plan, const EvictionOrder& order,
                          const TinySelection& selection) {
  Sequence& state = sequence(order.slot);
  std::vector<int32_t> counts;
  for (size_t i = 0; i + 1 < selection.keep.offsets.size(); ++i) {
    counts.push_back(selection.count(i));
  }
  RaggedRegion next = RaggedRegion::LayOut(
      layout_, CoveredBy(order), EngineTables::Destinations(plan, order),
      counts, order.cut);
  std::vector<int32_t> positions = backend_->Compact(
      CompactionInto(next, selection.scored.candidates, selection.keep));
  auto region = std::make_shared<Region>(
      Region{std::move(next), std::move(positions), {}});
  const uint64_t checksum = ChecksumOf(region->layout);
  if (layout_.kind_of(order.group) == GroupKind::kWindow) {
    region->page_positions = PagePositions(*region);
  }
  const auto index = static_cast<size_t>(order.group);
  state.regions[index] = std::move(region);
  if (order.region != kNoRegion) regions_[order.region] = state.regions;
  if (const RegionId name = tables_.KeptName(order.slot); name != kNoRegion) {
    regions_.at(name)[index] = state.regions[index];
  }
  return checksum;
}

std::vector<int32_t> TinyShard::PagePositions(const Region& region) const {
  std::vector<int32_t> positions;
  auto from = region.positions.begin();
  for (size_t i = 0; i < region.layout.kept().size(); ++i) {
    const int32_t count = region.layout.kept()[i];
    positions.insert(positions.end(), from, from + count);
    // The slots behind the last entry of the head.
    positions.resize(static_cast<size_t>(region.layout.page_offsets()[i + 1]) *
                         static_cast<size_t>(layout_.page_size),
                     -1);
    from += count;
  }
  return positions;
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
