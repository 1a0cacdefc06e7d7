// BlockManager: shared blocks, forks and copy on write.

#include <algorithm>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

PrefixMatch BlockManager::MatchFork(SequenceSlot source,
                                    int32_t num_tokens) const {
  BM_CHECK(CanFork(source));
  const SequenceCache& sequence = at(source);
  BM_CHECK(1 <= num_tokens && num_tokens <= sequence.num_settled);
  BM_CHECK(CanGoBack(source, num_tokens));
  PrefixMatch match;
  match.num_tokens = num_tokens;
  match.source = source;
  match.groups.resize(layout_.num_groups());
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    MatchedGroup& own = match.groups[group];
    own.region = cache.region.get();
    own.first_page = sequence.FirstHeld(layout_, group);
    own.begin = static_cast<int32_t>(match.blocks.size());
    const std::span<const BlockId> full =
        cache.Blocks({own.first_page, num_tokens / layout_.page_size});
    match.blocks.insert(match.blocks.end(), full.begin(), full.end());
    own.end = static_cast<int32_t>(match.blocks.size());
    if (layout_.kind_of(group) != GroupKind::kWindow) continue;
    match.cost.num_moving += own.end - own.begin + own.num_region_blocks();
  }
  return match;
}

bool BlockManager::CanFork(SequenceSlot slot) const {
  return !free_slots_.empty() && at(slot).pending_cut() == 0 &&
         !IsComingBack(slot) && copies_.Of(slot).empty();
}

SequenceSlot BlockManager::Duplicate(SequenceSlot slot) {
  BM_CHECK(CanFork(slot));
  const SequenceSlot child_slot = free_slots_.back();
  free_slots_.pop_back();
  SequenceCache& child = sequences_[Index(child_slot)];
  BM_CHECK(!child.open);
  // Reuses the memory of the slot's tables.
  child = at(slot);
  const auto hold = [this](const std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) {
      if (block != kNullBlock) blocks_.pool().AddRef(block);
    }
  };
  for (const GroupCache& cache : child.groups) {
    hold(cache.tail);
    if (cache.region != nullptr) hold(cache.region->blocks);
  }
  if (prefix_caching_) blocks_.cache().AddRootUser(child.root_serial);
  return child_slot;
}

bool BlockManager::NeedsCopy(const SequenceCache& sequence) const {
  if (!sequence.shares_last_block) return false;
  const int32_t num_rows = sequence.num_reserved % layout_.page_size;
  // Sequences share their last blocks in all groups or in none. The cache may
  // hold the last block of some groups.
  return std::ranges::any_of(sequence.groups, [&](const GroupCache& cache) {
    const BlockId block = cache.tail.back();
    const StepCopies::Leaving leaving = copies_.LeavingOf(block);
    return leaving.max_tokens > num_rows ||
           blocks_.pool().num_holders(block) - leaving.num_sequences > 1;
  });
}

void BlockManager::PlanCopy(SequenceSlot slot) {
  const SequenceCache& sequence = at(slot);
  if (!NeedsCopy(sequence)) return;
  const int32_t num_tokens = sequence.num_reserved % layout_.page_size;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const BlockId source = sequence.groups[group].tail.back();
    copies_.Add({.slot = slot,
                 .blocks = {source, kNullBlock},
                 .num_tokens = num_tokens,
                 .group = group});
  }
}

void BlockManager::CarryOut(size_t first, std::vector<CopyOnWrite>* copies) {
  for (size_t i = first; i < copies_.size(); ++i) {
    BlockId destination = kNullBlock;
    blocks_.Take(std::span(&destination, 1));
    copies_.SetDestination(i, destination);
    const CopyOnWrite& copy = copies_.all()[i];
    at(copy.slot).groups[copy.group].tail.back() = destination;
    copies->push_back(copy);
  }
}

void BlockManager::UndoCopy(SequenceSlot slot) {
  const std::span<const CopyOnWrite> undone = copies_.Of(slot);
  if (undone.empty()) return;
  SequenceCache& sequence = at(slot);
  // Nothing was settled since, so the last settled position is in the source.
  const int32_t page = sequence.num_settled / layout_.page_size;
  for (const CopyOnWrite& copy : undone) {
    GroupCache& cache = sequence.groups[copy.group];
    BlockId& block = cache.tail[page - cache.tail_begin];
    BM_CHECK(block == copy.blocks.destination);
    blocks_.pool().ReleaseUntouched(block);
    block = copy.blocks.source;
  }
  sequence.shares_last_block = true;
  copies_.Remove(slot);
}

void BlockManager::ReturnToSettled(SequenceSlot slot) {
  SequenceCache& sequence = at(slot);
  if (sequence.num_reserved != sequence.num_settled) return;
  if (!copies_.empty()) UndoCopy(slot);
  sequence.shares_last_block = sequence.shared_when_settled;
}

void BlockManager::ReleaseCopySources() {
  // The step was dispatched before the release, so the step is the blocks'
  // fence.
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    for (const CopyOnWrite& copy : copies_.all()) {
      if (copy.group == group) blocks_.Release(copy.blocks.source);
    }
  }
  copies_.Clear();
}

}  // namespace blockmgr
