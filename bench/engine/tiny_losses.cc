// Memory that loses its content, as a host engine would notice and report it.

#include <algorithm>

#include <absl/container/flat_hash_map.h>

#include "bench/engine/tiny_engine.h"

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
    num_cached[start.slot] = CeilDiv(num_tokens, layout_.page_size) -
                             (start.num_transfers - num_region);
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const auto cached = num_cached.find(plan.slots[i]);
    const int64_t first = plan.block_offsets[i] +
                          (cached == num_cached.end() ? 0 : cached->second);
    for (int64_t j = first; j < plan.block_offsets[i + 1]; ++j) {
      lost_.erase(plan.blocks[static_cast<size_t>(j)]);
    }
  }
  for (const CopyOnWrite& copy : plan.copies) {
    lost_.erase(copy.blocks.destination);
    if (!lost_.contains(copy.blocks.source)) continue;
    lost_.insert(copy.blocks.destination);
    result->lost_blocks.push_back(copy.blocks.destination);
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

bool TinyEngine::IsDamaged(SequenceSlot slot) const {
  if (lost_.empty()) return false;
  const SequenceTable& table = tables_.row(slot);
  const auto is_lost = [this](BlockId block) { return lost_.contains(block); };
  return std::ranges::any_of(table.tail_blocks, is_lost) ||
         std::ranges::any_of(table.region_blocks, is_lost);
}

}  // namespace blockmgr
