// What NaiveModel knows of shared blocks, and the rows that the engine writes.

#include <algorithm>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::vector<BlockId> NaiveModel::PartBlocks(
    const NaiveSequence& sequence) const {
  std::vector<BlockId> parts;
  if (sequence.num_reserved % layout_.page_size == 0) return parts;
  for (int32_t group = 0; group < num_groups(); ++group) {
    parts.push_back(
        BlockAt(sequence, group, sequence.num_reserved / layout_.page_size));
    EXPECT_NE(parts.back(), kNullBlock);
  }
  return parts;
}

bool NaiveModel::CanFork(SequenceSlot slot) const {
  // What has come back is published with its next tokens.
  return !at(slot).has_pending() && !WillPublish(slot, 0) &&
         std::ranges::none_of(copies_, [slot](const CopyOnWrite& copy) {
           return copy.slot == slot;
         });
}

void NaiveModel::Fork(SequenceSlot parent, SequenceSlot child,
                      int32_t num_tokens) {
  EXPECT_TRUE(sequences_.emplace(child, NaiveSequence(at(parent))).second);
  CutBack(child, num_tokens);
}

bool NaiveModel::IsShared(SequenceSlot slot, BlockId part,
                          std::span<const TokenDemand> leavers) const {
  const int32_t num_rows = at(slot).num_reserved % layout_.page_size;
  bool shared = IsCached(part);
  for (const CopyOnWrite& copy : copies_) {
    // If the copy is taken back, it finds the rows that it left.
    shared |= copy.blocks.source == part && copy.num_tokens > num_rows;
  }
  for (const auto& [other, sequence] : sequences_) {
    if (other == slot) continue;
    const std::vector<BlockId> held = Held(sequence);
    if (std::ranges::count(held, part) == 0) continue;
    // Its last block, that is, and no other.
    const bool leaves =
        std::ranges::count(leavers, other, &TokenDemand::slot) > 0 &&
        std::ranges::count(PartBlocks(sequence), part) > 0;
    const int32_t others = sequence.num_reserved % layout_.page_size;
    shared |= !leaves || others > num_rows;
  }
  return shared;
}

std::vector<TokenDemand> NaiveModel::Leavers(
    std::span<const TokenDemand> demands) const {
  std::vector<TokenDemand> leavers;
  for (const TokenDemand& demand : demands) {
    const std::vector<BlockId> parts = PartBlocks(at(demand.slot));
    if (demand.num_tokens == 0 || parts.empty()) continue;
    const bool writes = IsWriter(demand.slot, parts.front());
    bool shared = false;
    for (const BlockId part : parts) {
      EXPECT_EQ(IsWriter(demand.slot, part), writes);
      shared |= !writes && IsShared(demand.slot, part, leavers);
    }
    if (shared) leavers.push_back(demand);
  }
  return leavers;
}

void NaiveModel::Leave(const CopyOnWrite& copy) {
  NaiveSequence& sequence = at(copy.slot);
  BlockId& block = sequence.groups[copy.group].pages.at(sequence.num_reserved /
                                                        layout_.page_size);
  EXPECT_EQ(block, copy.blocks.source);
  block = copy.blocks.destination;
  copies_.push_back(copy);
}

void NaiveModel::Return(SequenceSlot slot) {
  NaiveSequence& sequence = at(slot);
  for (const CopyOnWrite& copy : copies_) {
    if (copy.slot != slot) continue;
    for (GroupBook& book : sequence.groups) {
      std::ranges::replace(book.pages, copy.blocks.destination,
                           copy.blocks.source);
    }
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
  for (const BlockId part : PartBlocks(at(slot))) {
    if (IsWriter(slot, part)) writers_.erase(part);
  }
}

void NaiveModel::Rollback(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  sequence.num_reserved -= num_tokens;
  Pop(&sequence, sequence.num_reserved, true);
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
      const std::vector<uint64_t>& values = sequence.groups[0].values;
      const auto position = static_cast<int32_t>(values.size());
      const uint64_t before = position == 0 ? 0 : values.back();
      const auto token = static_cast<uint64_t>(sequence.tokens[position]);
      const uint64_t value =
          SplitMix64(SplitMix64(before ^ token ^ (sequence.lineage << 32)) ^
                     static_cast<uint64_t>(sequence.scope));
      const int32_t page = position / layout_.page_size;
      const int32_t offset = position % layout_.page_size;
      for (int32_t group = 0; group < num_groups(); ++group) {
        const uint64_t row = value + static_cast<uint64_t>(group);
        sequence.groups[group].values.push_back(row);
        rows_[{BlockAt(sequence, group, page), offset}] = row;
      }
    }
  }
  for (const auto& [slot, sequence] : sequences_) CheckRows(slot);
}

void NaiveModel::CheckRows(SequenceSlot slot) const {
  const NaiveSequence& sequence = at(slot);
  for (int32_t group = 0; group < num_groups(); ++group) {
    const std::vector<uint64_t>& values = sequence.groups[group].values;
    // What the next position attends to, and what comes after that.
    const int32_t window = rules_.WindowOf(group);
    int32_t i = sequence.groups[group].region.cut;
    if (window > 0) i = std::max(i, sequence.num_settled - window + 1);
    for (; i < std::ssize(values); ++i) {
      const BlockId block = BlockAt(sequence, group, i / layout_.page_size);
      const auto row = rows_.find({block, i % layout_.page_size});
      EXPECT_TRUE(row != rows_.end() && row->second == values[i])
          << "position " << i << " of slot " << Index(slot)
          << " was overwritten in block " << Index(block) << ", group "
          << group;
    }
  }
}

}  // namespace blockmgr
