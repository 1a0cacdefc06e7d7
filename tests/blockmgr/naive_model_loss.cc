// Sequences of NaiveModel that are cut back, and lost blocks.

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

void NaiveModel::CutBack(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  Return(slot);
  sequence.num_reserved = num_tokens;
  sequence.num_settled = num_tokens;
  Pop(&sequence, num_tokens, true);
  sequence.num_found = std::min(sequence.num_found, num_tokens);
  for (NaiveGroup& group : sequence.groups) group.values.resize(num_tokens);
  const std::vector<BlockId> region_blocks = sequence.region().blocks;
  const bool was_evicted =
      !sequence.region().kept.empty() || sequence.was_evicted_in_windows;
  if (num_tokens == 0 && was_evicted) {
    sequence.context.clear();
    sequence.lineage = 0;
    sequence.was_evicted_in_windows = false;
    for (GroupBook& book : sequence.groups) {
      for (const BlockId block : book.region.blocks) Released(block);
      book.region = BookRegion();
    }
  }
  StopWriting(slot);

  const int32_t num_full = num_tokens / layout_.page_size;
  const int32_t num_before = sequence.cut() / layout_.page_size;
  const bool over = !sequence.region().kept.empty();
  if (num_full == 0 && !over) {
    sequence.chain = 1;
    sequence.num_offered = 0;
  }
  if (num_full >= sequence.num_offered) return;
  sequence.num_offered = num_full;
  if (sequence.chain == 0) return;
  sequence.chain = 0;
  if (!over || num_full > num_before + 1) {
    const auto entry = cached_.find(sequence.groups[0].pages[num_full - 1]);
    if (entry != cached_.end()) sequence.chain = entry->second.id;
  } else if (num_full == num_before + 1) {
    for (const auto& [id, region] : regions_) {
      if (region.book.blocks == region_blocks) sequence.chain = id;
    }
  }
}

std::set<uint64_t> NaiveModel::LoseEntries(const std::set<BlockId>& lost) {
  std::set<uint64_t> gone;
  std::vector<EntryName> lost_regions;
  std::set<uint64_t> sound_tails;  // entries
  for (const auto& [id, region] : regions_) {
    bool sound = !lost.contains(region.tail);
    for (const BlockId block : region.book.blocks) {
      sound &= !lost.contains(block);
    }
    if (sound) {
      sound_tails.insert(region.tail_id);
    } else {
      lost_regions.emplace_back(kNullBlock, id);
      gone.insert(id);
    }
  }
  for (const auto& [block, entry] : cached_) {
    if (lost.contains(block)) gone.insert(entry.id);
  }
  // What comes after something that is gone, until nothing is added.
  for (size_t before = 0; before != gone.size();) {
    before = gone.size();
    for (const auto& [block, entry] : cached_) {
      if (gone.contains(entry.parent)) gone.insert(entry.id);
    }
  }
  std::vector<EntryName> dropped;
  for (const auto& [block, entry] : cached_) {
    if (!gone.contains(entry.id)) continue;
    if (lost.contains(block) || !sound_tails.contains(entry.id)) {
      dropped.emplace_back(block, 0);
    }
  }
  dropped.insert(dropped.end(), lost_regions.begin(), lost_regions.end());
  for (const EntryName& entry : dropped) Drop(entry);
  return gone;
}

std::map<SequenceSlot, int32_t> NaiveModel::LoseBlocks(
    const std::set<BlockId>& lost) {
  const std::set<uint64_t> gone = LoseEntries(lost);
  std::vector<SequenceSlot> losers;
  for (const auto& [slot, sequence] : sequences_) {
    std::vector<BlockId> held = Held(sequence);
    for (const CopyOnWrite& copy : copies_) {
      if (copy.slot == slot) held.push_back(copy.blocks.source);
    }
    bool has_lost = false;
    for (const BlockId block : held) has_lost |= lost.contains(block);
    if (has_lost) losers.push_back(slot);
  }
  std::map<SequenceSlot, int32_t> left;
  for (const SequenceSlot slot : losers) {
    NaiveSequence& sequence = at(slot);
    std::set<BlockId> unsound = lost;
    for (int32_t group = 0; group < num_groups(); ++group) {
      const std::optional<BookOrder>& order = sequence.groups[group].pending;
      if (!order.has_value()) continue;
      unsound.insert(order->own.begin(), order->own.end());
      AbortEviction(slot, group);
    }
    for (const CopyOnWrite& copy : copies_) {
      // Neither of the two has what the other misses, or is to have.
      if (copy.slot == slot && unsound.contains(copy.blocks.destination)) {
        unsound.insert(copy.blocks.source);
      }
    }
    Return(slot);
    int32_t num_tokens = 0;
    const auto is_sound = [&](int32_t position) {
      for (int32_t group = 0; group < num_groups(); ++group) {
        const int32_t page = position / layout_.page_size;
        if (unsound.contains(BlockAt(sequence, group, page))) return false;
      }
      return true;
    };
    while (num_tokens < sequence.num_settled && is_sound(num_tokens)) {
      ++num_tokens;
    }
    if (num_tokens < sequence.cut()) num_tokens = 0;
    for (const GroupBook& book : sequence.groups) {
      for (const BlockId block : book.region.blocks) {
        if (unsound.contains(block)) num_tokens = 0;
      }
    }
    if (!CanGoBack(slot, num_tokens)) {
      num_tokens = 0;
      ++tally_->stuck;
    }
    CutBack(slot, num_tokens);
    left[slot] = num_tokens;
  }
  for (auto& [slot, sequence] : sequences_) {
    if (gone.contains(sequence.chain)) sequence.chain = 0;
  }
  for (const BlockId block : lost) {
    written_.erase(block);
    for (int32_t i = 0; i < layout_.page_size; ++i) rows_.erase({block, i});
  }
  // The cache gave up blocks that wait for their fence.
  fences_are_bounds_ |= has_steps_in_flight();
  return left;
}

}  // namespace blockmgr
