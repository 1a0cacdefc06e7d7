// Memory that loses its content, as a host engine would notice and report it.

#include <algorithm>

#include <absl/container/flat_hash_map.h>

#include "engine/reference/tiny_engine.h"

namespace blockmgr {

void TinyEngine::ForgetLosses(const StepPlan& plan, StepResult* result) {
  absl::flat_hash_map<SequenceSlot, int32_t> num_cached;  // blocks
  for (const SequenceStart& start : plan.starts) {
    if (start.source != kNoSequenceSlot) continue;
    const SequenceTable& table = tables_.row(start.slot);
    const int32_t num_tokens = start.num_cached_tokens - table.cut;
    num_cached[start.slot] = num_tokens / layout_.page_size;
    if (start.swap == kNoSwap) continue;
    const auto num_region =
        start.region == kNoRegion
            ? static_cast<int32_t>(std::ssize(table.region_blocks))
            : 0;
    int32_t num_tail_transfers = start.num_transfers - num_region;
    const int32_t num_pages =
        CeilDiv(start.num_cached_tokens, layout_.page_size);
    for (int32_t group = 1; group < layout_.num_groups(); ++group) {
      // Its region, if that came back, too, and the pages behind it.
      const TableRegion& region =
          table.window_regions[static_cast<size_t>(group - 1)];
      const int32_t first =
          std::max(layout_.FirstPage(group, start.num_cached_tokens),
                   region.cut / layout_.page_size);
      num_tail_transfers -=
          static_cast<int32_t>(std::ssize(region.blocks)) + num_pages - first;
    }
    num_cached[start.slot] =
        CeilDiv(num_tokens, layout_.page_size) - num_tail_transfers;
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const auto cached = num_cached.find(plan.slots[i]);
    const int64_t first = plan.block_offsets[i] +
                          (cached == num_cached.end() ? 0 : cached->second);
    for (int64_t j = first; j < plan.block_offsets[i + 1]; ++j) {
      lost_.erase(plan.blocks[static_cast<size_t>(j)]);
    }
    ForgetWindowLosses(plan, i, cached != num_cached.end());
  }
  for (const CopyOnWrite& copy : plan.copies) {
    lost_.erase(copy.blocks.destination);
    if (!lost_.contains(copy.blocks.source)) continue;
    lost_.insert(copy.blocks.destination);
    result->lost_blocks.push_back(copy.blocks.destination);
  }
}

void TinyEngine::ForgetWindowLosses(const StepPlan& plan, size_t run,
                                    bool starts_on_blocks) {
  int32_t num_cached = 0;  // blocks
  if (starts_on_blocks) {
    const auto start =
        std::ranges::find(plan.starts, plan.slots[run], &SequenceStart::slot);
    // What comes back from the host tier is all that a window group has.
    if (start->swap == kNoSwap) {
      num_cached = start->num_cached_tokens / layout_.page_size;
    }
  }
  const auto num_groups = static_cast<size_t>(layout_.num_window_groups());
  for (size_t i = run * num_groups; i < (run + 1) * num_groups; ++i) {
    for (int64_t j = plan.window_offsets[i] + num_cached;
         j < plan.window_offsets[i + 1]; ++j) {
      lost_.erase(plan.window_blocks[static_cast<size_t>(j)]);
    }
  }
}

void TinyEngine::SpreadLosses(const StepPlan& plan) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (!IsLostTo(tables_.row(plan.slots[i]), plan.positions[i] + 1)) continue;
    for (const std::vector<int64_t>& mapping : slot_mappings_) {
      for (int32_t row = query_offsets_[i]; row < query_offsets_[i + 1];
           ++row) {
        lost_.insert(BlockId{static_cast<int32_t>(
            mapping[static_cast<size_t>(row)] / layout_.page_size)});
      }
    }
  }
}

void TinyEngine::Lose(std::span<const BlockId> blocks, StepResult* result) {
  if (blocks.empty()) return;
  for (const BlockId block : blocks) {
    lost_.insert(block);
    result->lost_blocks.push_back(block);
  }
  for (TinyShard& shard : shards_) shard.Lose(blocks);
}

bool TinyEngine::IsLostTo(const SequenceTable& table, int32_t length) const {
  const auto is_lost = [&](int32_t group, const std::vector<BlockId>& blocks) {
    const auto first = static_cast<size_t>(layout_.FirstPage(group, length));
    return std::ranges::any_of(
        std::span(blocks).subspan(std::min(first, blocks.size())),
        [this](BlockId block) { return lost_.contains(block); });
  };
  if (is_lost(0, table.tail_blocks)) return true;
  const auto region_is_lost = [this](const std::vector<BlockId>& blocks) {
    return std::ranges::any_of(
        blocks, [this](BlockId block) { return lost_.contains(block); });
  };
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const TableRegion* region = table.window_region(group);
    if (is_lost(group, table.window_blocks[static_cast<size_t>(group - 1)]) ||
        (region != nullptr && region_is_lost(region->blocks))) {
      return true;
    }
  }
  return region_is_lost(table.region_blocks);
}

bool TinyEngine::IsDamaged(SequenceSlot slot) const {
  if (lost_.empty()) return false;
  const SequenceTable& table = tables_.row(slot);
  return IsLostTo(table, table.num_computed);
}

}  // namespace blockmgr
