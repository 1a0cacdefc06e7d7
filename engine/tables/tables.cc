#include "engine/tables/tables.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/layout_checksum.h"
#include "blockmgr/region_layout.h"
#include "engine/tables/order_checks.h"
#include "engine/tables/plan_checker.h"
#include "engine/tables/swap_transfers.h"

namespace blockmgr {
namespace {

// Returns the page lists with every block replaced by another one, or null if
// the numbers of blocks differ.
std::shared_ptr<const RegionLayout> OnBlocks(
    const std::shared_ptr<const RegionLayout>& layout,
    std::span<const BlockId> blocks) {
  if (layout == nullptr || layout->blocks().size() != blocks.size()) {
    return nullptr;
  }
  return std::make_shared<const RegionLayout>(
      layout->OnBlocks(layout->blocks(), blocks));
}

}  // namespace

EngineTables::EngineTables(const ModelLayout& layout, int32_t max_sequences,
                           int32_t num_host_blocks)
    : state_(layout, max_sequences, num_host_blocks) {}

absl::Status EngineTables::Apply(const StepPlan& plan) {
  BM_RETURN_IF_ERROR(PlanChecker(state_, plan, &notes_).Check());
  ++state_.num_steps;
  for (const SwapId swap : plan.dropped_swaps) state_.swapped.erase(swap);
  for (const SwapOut& out : plan.swap_outs) Leave(plan, out);
  for (const SequenceSlot slot : plan.released) Release(slot);
  for (const SequenceStart& start : plan.starts) Start(plan, start);
  for (const RegionId name : plan.dropped_regions) state_.regions.erase(name);
  for (const CopyOnWrite& copy : plan.copies) {
    // After a start on cached blocks the table is empty. The run then adds the
    // block.
    std::vector<BlockId>& blocks =
        state_.row(copy.slot).groups[static_cast<size_t>(copy.group)].blocks;
    if (!blocks.empty()) blocks.back() = copy.blocks.destination;
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) Run(plan, i);
  return absl::OkStatus();
}

void EngineTables::Run(const StepPlan& plan, size_t i) {
  SequenceTable& table = state_.row(plan.slots[i]);
  const size_t num_groups = table.groups.size();
  const bool has_windows = state_.layout.has_windows();
  for (size_t g = 0; g < num_groups; ++g) {
    GroupTable& group = table.groups[g];
    if (has_windows && group.region.cut > 0) {
      group.region_is_past = !state_.IsAttended(
          group.region, static_cast<int32_t>(g), table.num_computed + 1);
    }
    const int64_t begin = plan.block_offsets[i * num_groups + g];
    const int64_t end = plan.block_offsets[i * num_groups + g + 1];
    if (begin == end) continue;
    group.blocks.insert(group.blocks.end(), plan.blocks.begin() + begin,
                        plan.blocks.begin() + end);
  }
  table.num_computed += plan.num_tokens[i];
  if (!plan.num_drafts.empty()) {
    table.tokens.insert(table.tokens.end(), table.drafts.begin(),
                        table.drafts.begin() + plan.num_drafts[i]);
  }
  table.drafts.clear();
}

void EngineTables::AddSampled(SequenceSlot slot, int32_t token) {
  SequenceTable& table = state_.row(slot);
  BM_CHECK(table.in_use);
  BM_CHECK(table.num_computed == static_cast<int64_t>(table.tokens.size()));
  table.tokens.push_back(token);
}

void EngineTables::RejectDrafts(SequenceSlot slot, int32_t num_drafts,
                                int32_t num_accepted) {
  SequenceTable& table = state_.row(slot);
  BM_CHECK(num_accepted >= 0);
  BM_CHECK(num_accepted <= num_drafts);
  table.num_computed -= num_drafts - num_accepted;
  table.tokens.resize(static_cast<size_t>(table.num_computed));
  CutBlocks(table.num_computed, &table);
}

void EngineTables::SetDrafts(SequenceSlot slot,
                             std::span<const int32_t> drafts) {
  SequenceTable& table = state_.row(slot);
  BM_CHECK(table.in_use);
  table.drafts.assign(drafts.begin(), drafts.end());
}

void EngineTables::Release(SequenceSlot slot) {
  SequenceTable& table = state_.row(slot);
  table.in_use = false;
  table.tokens.clear();
  table.num_computed = 0;
  for (GroupTable& group : table.groups) {
    group.region = TableRegion();
    group.region_is_past = false;
    group.blocks.clear();
  }
  table.num_evictions = 0;
  table.drafts.clear();
}

void EngineTables::Start(const StepPlan& plan, const SequenceStart& start) {
  const auto index = static_cast<size_t>(Index(start.slot));
  if (index >= state_.rows.size()) state_.rows.resize(index + 1);
  SequenceTable& table = state_.rows[index];
  if (start.source != kNoSequenceSlot) {
    if (start.source != start.slot) table = state_.row(start.source);
    CutBlocks(start.num_cached_tokens, &table);
    table.num_evictions = 0;
  }
  table.groups.resize(static_cast<size_t>(state_.layout.num_groups()));
  table.in_use = true;
  table.drafts.clear();
  table.request = start.request;
  table.query_window = start.query_window;
  const auto first = plan.start_tokens.begin() + start.token_begin;
  table.tokens.assign(first, first + start.num_tokens);
  table.num_computed = start.num_cached_tokens;
  for (int32_t group = 0; group < state_.layout.num_groups(); ++group) {
    const TableRegion* const region = state_.TakenRegion(start, group);
    if (region == nullptr) continue;
    table.groups[static_cast<size_t>(group)].region = *region;
  }
  if (start.swap != kNoSwap) ComeBack(plan, start);
}

void EngineTables::Leave(const StepPlan& plan, const SwapOut& out) {
  const SequenceTable& table = state_.row(out.slot);
  TablesState::Swapped& swapped = state_.swapped[out.swap];
  swapped.tokens.assign(table.tokens.begin(),
                        table.tokens.begin() + out.num_tokens);
  const auto transfers = std::span(plan.transfers_out)
                             .subspan(static_cast<size_t>(out.transfer_begin),
                                      static_cast<size_t>(out.num_transfers));
  const auto split = SplitSwapOut(state_, out, transfers);
  // PlanChecker has checked the transfers.
  BM_CHECK(split.ok());
  swapped.regions = state_.RegionsAt(table, out.num_tokens);
  for (size_t group = 0; group < split->size(); ++group) {
    swapped.regions[group].blocks.assign(
        static_cast<size_t>((*split)[group].num_region), kNullBlock);
  }
  for (const BlockTransfer& transfer : transfers) {
    swapped.blocks.push_back(transfer.host);
    state_.host_holders[static_cast<size_t>(Index(transfer.host))] = out.swap;
  }
}

void EngineTables::ComeBack(const StepPlan& plan, const SequenceStart& start) {
  const std::vector<GroupTransfers> split = SplitSwapIn(state_, start);
  SequenceTable& table = state_.row(start.slot);
  auto transfer = plan.transfers_in.begin() + start.transfer_begin;
  for (size_t group = 0; group < split.size(); ++group) {
    if (state_.NamedRegion(start, static_cast<int32_t>(group)) == nullptr) {
      TableRegion& region = table.groups[group].region;
      for (BlockId& block : region.blocks) block = (transfer++)->block;
      region.layout = OnBlocks(region.layout, region.blocks);
    }
    transfer += split[group].num_pages;
  }
  state_.swapped.erase(start.swap);
}

void EngineTables::CutBlocks(int32_t num_tokens, SequenceTable* table) const {
  for (GroupTable& group : table->groups) {
    const auto num_blocks = static_cast<size_t>(
        CeilDiv(num_tokens - group.region.cut, state_.layout.page_size));
    BM_DCHECK(group.blocks.size() >= num_blocks);
    group.blocks.resize(num_blocks);
  }
}

absl::Status EngineTables::CheckOrder(const StepPlan& plan,
                                      const EvictionOrder& order) const {
  return CheckEvictionOrder(state_, plan, order);
}

absl::Status EngineTables::CheckCounts(const EvictionOrder& order,
                                       std::span<const int32_t> counts) const {
  return CheckKeptCounts(state_, order, counts);
}

void EngineTables::Commit(const StepPlan& plan, const EvictionOrder& order,
                          std::span<const int32_t> counts) {
  std::shared_ptr<const RegionLayout> layout = LayOut(plan, order, counts);
  SequenceTable& table = state_.row(order.slot);
  const auto index = static_cast<size_t>(order.group);
  GroupTable& group = table.groups[index];
  const int32_t num_gone =
      (order.cut - group.region.cut) / state_.layout.page_size;
  group.blocks.erase(group.blocks.begin(), group.blocks.begin() + num_gone);
  const std::span<const BlockId> destinations = Destinations(plan, order);
  group.region = {.cut = order.cut,
                  .blocks = {destinations.begin(), destinations.end()},
                  .kept = {counts.begin(), counts.end()},
                  .shard_entries = ShardEntries(counts),
                  .layout = std::move(layout),
                  .length = order.length};
  group.region_is_past = false;
  if (state_.layout.kind_of(order.group) == GroupKind::kFull) {
    ++table.num_evictions;
  }
  TablesState::Committed committed = state_.CommittedOf(order.slot);
  committed.next_group = order.group + 1;
  if (order.region != kNoRegion) {
    committed.name = order.region;
    state_.regions[order.region] = state_.RegionsAt(table, order.length);
  } else if (committed.name != kNoRegion) {
    state_.regions.at(committed.name)[index] = group.region;
  }
  const auto slot = static_cast<size_t>(Index(order.slot));
  if (slot >= state_.committed.size()) state_.committed.resize(slot + 1);
  state_.committed[slot] = committed;
}

std::shared_ptr<const RegionLayout> EngineTables::LayOut(
    const StepPlan& plan, const EvictionOrder& order,
    std::span<const int32_t> counts) const {
  const CoveredTail covered = state_.Covered(order);
  const RegionLayout* now = nullptr;
  if (covered.region != nullptr) {
    now = covered.region->layout.get();
    if (now == nullptr) return nullptr;
  }
  return std::make_shared<const RegionLayout>(
      RegionLayout::LayOut(state_.layout, now, covered.blocks,
                           Destinations(plan, order), counts, order.cut));
}

std::optional<uint64_t> EngineTables::ChecksumOf(
    const EvictionOrder& order) const {
  const RegionLayout* layout =
      state_.group_of(order.slot, order.group).region.layout.get();
  if (layout == nullptr) return std::nullopt;
  return LayoutChecksum(state_.layout, *layout);
}

std::vector<int64_t> EngineTables::ShardEntries(
    std::span<const int32_t> kept) const {
  std::vector<int64_t> entries(static_cast<size_t>(state_.layout.num_shards),
                               0);
  for (size_t head = 0; head < kept.size(); ++head) {
    const int32_t shard = state_.layout.shard_of(static_cast<int32_t>(head) %
                                                 state_.layout.num_heads);
    entries[static_cast<size_t>(shard)] += kept[head];
  }
  return entries;
}

}  // namespace blockmgr
