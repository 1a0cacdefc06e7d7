// Sequences of NaiveModel that are cut back, and lost blocks.

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

bool NaiveModel::CanGoBack(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  if (num_tokens == 0) return true;
  if (num_tokens < sequence.cut()) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const GroupBook& book = sequence.groups[group];
    // A query before that attends to entries that are not there.
    const bool is_before = num_tokens < book.region.length;
    if (books_.rules.WindowOf(group) > 0 && is_before) return false;
    if (!books_.rules.CanGoOn(book, group, num_tokens)) return false;
  }
  return true;
}

void NaiveModel::CutBack(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  Return(slot);
  sequence.num_reserved = num_tokens;
  sequence.num_settled = num_tokens;
  Pop(&sequence, num_tokens, true);
  sequence.num_found = std::min(sequence.num_found, num_tokens);
  for (NaiveGroup& group : sequence.groups) group.values.resize(num_tokens);
  if (num_tokens == 0 && sequence.was_evicted()) {
    sequence.context.clear();
    sequence.lineage = 0;
    for (NaiveGroup& group : sequence.groups) {
      for (const BlockId block : group.region.blocks) {
        books_.fences.Release(block);
      }
      group.region = BookRegion();
      group.was_evicted = false;
    }
  }
  StopWriting(slot);

  const int32_t num_full = num_tokens / page_size();
  if (num_full == 0 && sequence.region().kept.empty()) {
    sequence.chain = 1;
    sequence.num_offered = 0;
  }
  if (num_full >= sequence.num_offered) return;
  sequence.num_offered = num_full;
  if (sequence.chain != 0) sequence.chain = cache_.ChainAt(sequence, num_full);
}

int32_t NaiveModel::CountSoundTokens(SequenceSlot slot,
                                     const std::set<BlockId>& lost) {
  const NaiveSequence& sequence = at(slot);
  const auto is_sound = [&](int32_t position) {
    return std::ranges::none_of(sequence.groups, [&](const NaiveGroup& group) {
      return lost.contains(group.At(position / page_size()));
    });
  };
  int32_t num_tokens = 0;
  while (num_tokens < sequence.num_settled && is_sound(num_tokens)) {
    ++num_tokens;
  }
  if (num_tokens < sequence.cut()) return 0;
  for (const GroupBook& book : sequence.groups) {
    for (const BlockId block : book.region.blocks) {
      if (lost.contains(block)) num_tokens = 0;
    }
  }
  if (CanGoBack(slot, num_tokens)) return num_tokens;
  ++books_.tally->stuck;
  return 0;
}

std::map<SequenceSlot, int32_t> NaiveModel::LoseBlocks(
    const std::set<BlockId>& lost) {
  const std::set<uint64_t> gone = cache_.LoseBlocks(lost);
  std::vector<SequenceSlot> losers;
  for (const auto& [slot, sequence] : sequences()) {
    std::vector<BlockId> held = sequence.Held();
    for (const CopyOnWrite& copy : books_.copies) {
      if (copy.slot == slot) held.push_back(copy.blocks.source);
    }
    bool has_lost = false;
    for (const BlockId block : held) has_lost |= lost.contains(block);
    if (has_lost) losers.push_back(slot);
  }
  std::map<SequenceSlot, int32_t> left;
  for (const SequenceSlot slot : losers) {
    std::set<BlockId> unsound = lost;
    for (int32_t group = 0; group < num_groups(); ++group) {
      const std::optional<BookOrder>& order = at(slot).groups[group].pending;
      if (!order.has_value()) continue;
      unsound.insert(order->own.begin(), order->own.end());
      AbortEviction(slot, group);
    }
    for (const CopyOnWrite& copy : books_.copies) {
      // Neither of the two has what the other misses, or is to have.
      if (copy.slot == slot && unsound.contains(copy.blocks.destination)) {
        unsound.insert(copy.blocks.source);
      }
    }
    Return(slot);
    left[slot] = CountSoundTokens(slot, unsound);
    CutBack(slot, left[slot]);
  }
  for (auto& [slot, sequence] : books_.sequences) {
    if (gone.contains(sequence.chain)) sequence.chain = 0;
  }
  for (const BlockId block : lost) books_.arena.Clear(block);
  // The cache gave up blocks that wait for their fence.
  if (has_steps_in_flight()) books_.fences.MakeBounds(true);
  return left;
}

}  // namespace blockmgr
