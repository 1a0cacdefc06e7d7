// Shared blocks: the fork, and copy on write.

#include <algorithm>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

PrefixMatch BlockManager::MatchFork(SequenceSlot source,
                                    int32_t num_tokens) const {
  BM_CHECK(CanFork(source));
  const SequenceCache& sequence = at(source);
  BM_CHECK(num_tokens >= std::max(sequence.cut(), 1));
  BM_CHECK(num_tokens <= sequence.num_settled);
  PrefixMatch match;
  match.num_tokens = num_tokens;
  match.source = source;
  match.source_region = sequence.region.get();
  const int32_t num_full = (num_tokens - sequence.cut()) / layout_.page_size;
  BM_CHECK(CanGoBack(source, num_tokens));
  match.blocks.assign(sequence.tail.begin(), sequence.tail.begin() + num_full);
  match.num_out = FirstHeld(source, 0);
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    // As in group 0, less a part, which is copied.
    match.num_window_blocks +=
        num_tokens / layout_.page_size - FirstHeld(source, group) +
        RegionBlocksOf(window(source, group), Owned::kAny);
  }
  match.num_moving = match.num_window_blocks +
                     (layout_.window > 0 ? num_full - match.num_out : 0);
  return match;
}

bool BlockManager::CanFork(SequenceSlot slot) const {
  return !free_slots_.empty() && PendingCut(at(slot)) == 0 &&
         !IsComingBack(slot) &&
         std::ranges::count(copies_, slot, &CopyOnWrite::slot) == 0;
}

SequenceSlot BlockManager::Fork(SequenceSlot slot) {
  SequenceCache& parent = at(slot);
  const SequenceSlot child = Duplicate(slot);
  if (parent.num_settled < parent.num_reserved) {
    // The parent writes behind what the child has, in a block that they share
    // perhaps, and the child copies its rows before it writes there.
    CutBack(child, parent.num_settled);
  } else {
    parent.shares_last_block = parent.num_reserved % layout_.page_size != 0;
    at(child).shares_last_block = parent.shares_last_block;
  }
  return child;
}

SequenceSlot BlockManager::Duplicate(SequenceSlot slot) {
  BM_CHECK(CanFork(slot));
  const SequenceSlot child_slot = free_slots_.back();
  free_slots_.pop_back();
  SequenceCache& child = sequences_[Index(child_slot)];
  BM_CHECK(!child.open);
  // Into the memory of the slot's table, which the copy keeps.
  child = at(slot);
  const auto hold = [this](const std::vector<BlockId>& tail) {
    for (const BlockId block : tail) {
      if (block != kNullBlock) pool_.AddRef(block);
    }
  };
  hold(child.tail);
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const WindowCache& from = window(slot, group);
    WindowCache& to = windows_[WindowIndex(child_slot, group)];
    to.tail = from.tail;
    to.region = from.region;
    to.region_length = from.region_length;
    hold(to.tail);
    if (to.region != nullptr) hold(to.region->blocks);
  }
  if (child.region != nullptr) hold(child.region->blocks);
  if (prefix_caching_) cache_.AddRootUser(child.root_serial);
  return child_slot;
}

bool BlockManager::NeedsCopy(const SequenceCache& sequence) const {
  if (!sequence.shares_last_block) return false;
  int32_t num_leaving = 0;
  const auto leaving = leaving_.find(sequence.tail.back());
  if (leaving != leaving_.end()) {
    const int32_t num_rows = sequence.num_reserved % layout_.page_size;
    if (leaving->second.max_tokens > num_rows) return true;
    num_leaving = leaving->second.num_sequences;
  }
  // Sequences share the last blocks of all groups, or of none; the cache may
  // hold any.
  const auto is_shared = [&](BlockId block) {
    return pool_.num_holders(block) - num_leaving > 1;
  };
  return is_shared(sequence.tail.back()) ||
         std::ranges::any_of(Windows(sequence), [&](const auto& window) {
           return is_shared(window.tail.back());
         });
}

void BlockManager::PlanCopy(SequenceSlot slot) {
  const SequenceCache& sequence = at(slot);
  if (!NeedsCopy(sequence)) return;
  const BlockId source = sequence.tail.back();
  copies_.push_back({.slot = slot,
                     .blocks = {source, kNullBlock},
                     .num_tokens = sequence.num_reserved % layout_.page_size});
  for (const WindowCache& window : Windows(sequence)) {
    window_copies_.push_back({window.tail.back(), kNullBlock});
  }
  LeavingSequences& leaving = leaving_[source];
  ++leaving.num_sequences;
  leaving.max_tokens = std::max(leaving.max_tokens, copies_.back().num_tokens);
}

void BlockManager::ForgetPlanned(size_t num_kept) {
  if (copies_.size() == num_kept) return;
  copies_.resize(num_kept);
  window_copies_.resize(num_kept * layout_.group_windows.size());
  leaving_ = CountLeaving();
}

void BlockManager::CarryOut(size_t copy, std::vector<CopyOnWrite>* copies) {
  CopyOnWrite& first = copies_[copy];
  SequenceCache& sequence = at(first.slot);
  Take(std::span(&first.blocks.destination, 1));
  sequence.tail.back() = first.blocks.destination;
  copies->push_back(first);
  const std::span<WindowCache> windows = Windows(sequence);
  const std::span<BlockCopy> others =
      std::span(window_copies_).subspan(copy * windows.size(), windows.size());
  for (size_t i = 0; i < others.size(); ++i) {
    Take(std::span(&others[i].destination, 1));
    windows[i].tail.back() = others[i].destination;
    CopyOnWrite other = first;
    other.blocks = others[i];
    other.group = static_cast<int32_t>(i) + 1;
    copies->push_back(other);
  }
}

std::span<const BlockCopy> BlockManager::WindowCopies(size_t copy) const {
  const size_t num_groups = layout_.group_windows.size();
  return std::span(window_copies_).subspan(copy * num_groups, num_groups);
}

void BlockManager::UndoCopy(SequenceSlot slot) {
  const auto copy = std::ranges::find(copies_, slot, &CopyOnWrite::slot);
  if (copy == copies_.end()) return;
  SequenceCache& sequence = at(slot);
  // Nothing was settled since, so the last settled position is in the source.
  const auto undo = [&](const BlockCopy& blocks, BlockId* block) {
    BM_CHECK(*block == blocks.destination);
    pool_.ReleaseUntouched(*block);
    *block = blocks.source;
  };
  const int32_t page = sequence.num_settled / layout_.page_size;
  undo(copy->blocks, &sequence.tail[page - sequence.cut() / layout_.page_size]);
  const std::span<const BlockCopy> others =
      WindowCopies(static_cast<size_t>(copy - copies_.begin()));
  const std::span<WindowCache> windows = Windows(sequence);
  for (size_t i = 0; i < others.size(); ++i) {
    undo(others[i], &windows[i].tail[page]);
  }
  sequence.shares_last_block = true;
  const auto first_other = (copy - copies_.begin()) * std::ssize(others);
  window_copies_.erase(
      window_copies_.begin() + first_other,
      window_copies_.begin() + first_other + std::ssize(others));
  copies_.erase(copy);
  leaving_ = CountLeaving();
}

void BlockManager::ReturnToSettled(SequenceSlot slot) {
  SequenceCache& sequence = at(slot);
  if (sequence.num_reserved != sequence.num_settled) return;
  if (!copies_.empty()) UndoCopy(slot);
  sequence.shares_last_block = sequence.shared_when_settled;
}

absl::flat_hash_map<BlockId, LeavingSequences> BlockManager::CountLeaving()
    const {
  absl::flat_hash_map<BlockId, LeavingSequences> by_source;
  for (const CopyOnWrite& copy : copies_) {
    LeavingSequences& leaving = by_source[copy.blocks.source];
    ++leaving.num_sequences;
    leaving.max_tokens = std::max(leaving.max_tokens, copy.num_tokens);
  }
  return by_source;
}

void BlockManager::ReleaseCopySources() {
  // After the step was dispatched, so that it is the fence.
  for (const CopyOnWrite& copy : copies_) ReleaseFrom(copy.blocks.source);
  for (const BlockCopy& copy : window_copies_) ReleaseFrom(copy.source);
  copies_.clear();
  window_copies_.clear();
  leaving_.clear();
}

}  // namespace blockmgr
