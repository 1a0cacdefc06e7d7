// Memory that loses its content, as a host engine would notice and report it.

#include <algorithm>
#include <span>

#include "engine/reference/tiny_engine.h"

namespace blockmgr {

void TinyEngine::ForgetLosses(const StepPlan& plan, StepResult* result) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const auto start =
        std::ranges::find(plan.starts, plan.slots[i], &SequenceStart::slot);
    const bool starts_on_blocks =
        start != plan.starts.end() && start->source == kNoSequenceSlot;
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      // Shared blocks come first. NoteSwapIns sees to those of them that are
      // copied back.
      int32_t num_cached = 0;
      if (starts_on_blocks) {
        const TableRegion& region = tables_.row(plan.slots[i])
                                        .groups[static_cast<size_t>(group)]
                                        .region;
        num_cached =
            (start->num_cached_tokens - region.cut) / layout_.page_size;
      }
      for (const BlockId block :
           plan.NewBlocks(layout_, i, group)
               .subspan(static_cast<size_t>(num_cached))) {
        lost_.erase(block);
      }
    }
  }
  for (const CopyOnWrite& copy : plan.copies) {
    lost_.erase(copy.blocks.destination);
    if (!lost_.contains(copy.blocks.source)) continue;
    lost_.insert(copy.blocks.destination);
    result->lost_blocks.push_back(copy.blocks.destination);
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
  const auto is_lost = [this](BlockId block) { return lost_.contains(block); };
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupTable& own = table.groups[static_cast<size_t>(group)];
    const TableRegion* region = own.attended_region();
    const int32_t first =
        layout_.FirstPage(group, length) - own.region.cut / layout_.page_size;
    const auto begin =
        std::min(static_cast<size_t>(std::max(first, 0)), own.blocks.size());
    if (std::ranges::any_of(std::span(own.blocks).subspan(begin), is_lost) ||
        (region != nullptr && std::ranges::any_of(region->blocks, is_lost))) {
      return true;
    }
  }
  return false;
}

bool TinyEngine::IsDamaged(SequenceSlot slot) const {
  if (lost_.empty()) return false;
  const SequenceTable& table = tables_.row(slot);
  return IsLostTo(table, table.num_computed);
}

}  // namespace blockmgr
