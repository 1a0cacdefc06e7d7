// What NaiveModel knows of shared blocks, and the rows that the engine writes.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::optional<BlockId> NaiveModel::PartBlock(
    const NaiveSequence& sequence) const {
  if (sequence.num_reserved % layout_.page_size == 0) return std::nullopt;
  return sequence.tail.back();
}

bool NaiveModel::CanFork(SequenceSlot slot) const {
  return !at(slot).pending.has_value() &&
         std::ranges::none_of(copies_, [slot](const CopyOnWrite& copy) {
           return copy.slot == slot;
         });
}

void NaiveModel::Fork(SequenceSlot parent, SequenceSlot child) {
  const int32_t num_settled = at(parent).num_settled;
  const bool is_settled = num_settled == at(parent).num_reserved;
  if (is_settled) StopWriting(parent);
  EXPECT_TRUE(sequences_.emplace(child, NaiveSequence(at(parent))).second);
  if (!is_settled) CutBack(child, num_settled);
}

void NaiveModel::ForkPart(SequenceSlot parent, SequenceSlot child,
                          int32_t num_tokens) {
  EXPECT_TRUE(sequences_.emplace(child, NaiveSequence(at(parent))).second);
  CutBack(child, num_tokens);
}

void NaiveModel::MatchPart(int32_t scope, const std::vector<int32_t>& tokens,
                           int32_t max_tokens, PrefixMatch* match) const {
  const bool over = match->region != PrefixCache::kNone;
  uint64_t parent = over ? static_cast<uint64_t>(match->region) : 1;
  if (match->blocks.size() > (over ? 1 : 0)) {
    parent = cached_.at(match->blocks.back()).id;
  }
  const int32_t begin = match->num_tokens;
  const int32_t end = std::min({max_tokens, begin + layout_.page_size - 1,
                                static_cast<int32_t>(tokens.size())});
  // The youngest with the same first token first.
  std::map<uint64_t, BlockId, std::greater<>> candidates;
  for (const auto& [block, entry] : cached_) {
    if (begin < end && entry.scope == scope && entry.parent == parent &&
        entry.prefix[begin] == tokens[begin]) {
      candidates.emplace(entry.id, block);
    }
  }
  int32_t num_looks = 0;
  int32_t best = begin;
  for (const auto& [id, block] : candidates) {
    if (++num_looks > PrefixCache::kMaxPartLooks) break;
    int32_t same = begin;
    while (same < end && cached_.at(block).prefix[same] == tokens[same]) ++same;
    if (same <= best) continue;
    best = same;
    if (match->has_part) match->blocks.pop_back();
    match->has_part = true;
    match->blocks.push_back(block);
    match->part_is_reclaimable = Holders()[Index(block)] == 0 &&
                                 released_.at(Index(block)) <= acknowledged_;
  }
  match->num_tokens = best;
}

std::vector<TokenDemand> NaiveModel::Leavers(
    std::span<const TokenDemand> demands) const {
  std::vector<TokenDemand> leavers;
  for (const TokenDemand& demand : demands) {
    const std::optional<BlockId> part = PartBlock(at(demand.slot));
    if (demand.num_tokens == 0 || !part.has_value()) continue;
    if (IsWriter(demand.slot, *part)) continue;
    bool shared = IsCached(*part);
    const int32_t num_rows = at(demand.slot).num_reserved % layout_.page_size;
    for (const CopyOnWrite& copy : copies_) {
      // If the copy is taken back, it finds the rows that it left.
      shared |= copy.blocks.source == *part && copy.num_tokens > num_rows;
    }
    for (const auto& [slot, sequence] : sequences_) {
      if (slot == demand.slot) continue;
      if (std::ranges::count(sequence.tail, *part) == 0) continue;
      const bool leaves =
          std::ranges::count(leavers, slot, &TokenDemand::slot) > 0;
      const int32_t others = sequence.num_reserved % layout_.page_size;
      shared |= !leaves || others > num_rows;
    }
    if (shared) leavers.push_back(demand);
  }
  return leavers;
}

void NaiveModel::Leave(const CopyOnWrite& copy) {
  at(copy.slot).tail.back() = copy.blocks.destination;
  copies_.push_back(copy);
}

void NaiveModel::Return(SequenceSlot slot) {
  NaiveSequence& sequence = at(slot);
  for (const CopyOnWrite& copy : copies_) {
    if (copy.slot != slot) continue;
    std::ranges::replace(sequence.tail, copy.blocks.destination,
                         copy.blocks.source);
  }
  std::erase_if(copies_, [slot = slot](const CopyOnWrite& copy) {
    return copy.slot == slot;
  });
  if (!sequence.was_writer) StopWriting(slot);
}

bool NaiveModel::IsWriter(SequenceSlot slot, BlockId block) const {
  const auto writer = writers_.find(block);
  return writer != writers_.end() && writer->second == slot;
}

void NaiveModel::StopWriting(SequenceSlot slot) {
  const std::optional<BlockId> part = PartBlock(at(slot));
  if (part.has_value() && IsWriter(slot, *part)) writers_.erase(*part);
}

void NaiveModel::Rollback(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  for (int32_t i = 0; i < num_tokens; ++i) {
    --sequence.num_reserved;
    if (std::ssize(sequence.values) > sequence.num_reserved) {
      sequence.values.pop_back();
    }
    const int32_t place = sequence.num_reserved - sequence.cut;
    if (place % layout_.page_size != 0) continue;
    const BlockId block = sequence.tail.back();
    sequence.tail.pop_back();
    Released(block);
  }
  if (num_tokens > 0 && sequence.num_reserved == sequence.num_settled) {
    Return(slot);
  }
}

void NaiveModel::Execute(std::span<const NaiveRun> runs) {
  std::map<std::pair<BlockId, int32_t>, uint64_t> copied;
  for (const CopyOnWrite& copy : copies_) {
    for (int32_t i = 0; i < copy.num_tokens; ++i) {
      const auto row = rows_.find({copy.blocks.source, i});
      EXPECT_NE(row, rows_.end()) << "a copy of what was never written";
      if (row == rows_.end()) continue;
      EXPECT_TRUE(
          copied.emplace(std::pair(copy.blocks.destination, i), row->second)
              .second)
          << "two copies to one block";
    }
  }
  for (const auto& [row, value] : copied) rows_[row] = value;
  for (const NaiveRun& run : runs) {
    NaiveSequence& sequence = at(run.slot);
    for (int32_t i = 0; i < run.num_tokens; ++i) {
      const auto position = static_cast<int32_t>(sequence.values.size());
      const uint64_t before = position == 0 ? 0 : sequence.values.back();
      const auto token = static_cast<uint64_t>(sequence.tokens[position]);
      const uint64_t value =
          SplitMix64(SplitMix64(before ^ token ^ (sequence.lineage << 32)) ^
                     static_cast<uint64_t>(sequence.scope));
      sequence.values.push_back(value);
      const int32_t in_tail = (position - sequence.cut) / layout_.page_size;
      rows_[{sequence.tail[in_tail], position % layout_.page_size}] = value;
    }
  }
  for (const auto& [slot, sequence] : sequences_) {
    const auto end = static_cast<int32_t>(sequence.values.size());
    for (int32_t i = sequence.cut; i < end; ++i) {
      const BlockId block =
          sequence.tail[(i - sequence.cut) / layout_.page_size];
      const auto row = rows_.find({block, i % layout_.page_size});
      EXPECT_TRUE(row != rows_.end() && row->second == sequence.values[i])
          << "position " << i << " of slot " << Index(slot)
          << " was overwritten in block " << Index(block);
    }
  }
}

}  // namespace blockmgr
