// Shared blocks of NaiveModel.

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::vector<BlockId> NaiveModel::PartBlocks(
    const NaiveSequence& sequence) const {
  std::vector<BlockId> parts;
  if (sequence.num_reserved % page_size() == 0) return parts;
  for (const NaiveGroup& group : sequence.groups) {
    parts.push_back(group.At(sequence.num_reserved / page_size()));
    EXPECT_NE(parts.back(), kNullBlock);
  }
  return parts;
}

bool NaiveModel::CanFork(SequenceSlot slot) const {
  // A sequence that has come back is published with its next tokens.
  return !at(slot).has_pending() && !WillPublish(slot, 0) &&
         std::ranges::count(books_.copies, slot, &CopyOnWrite::slot) == 0;
}

void NaiveModel::Fork(SequenceSlot parent, SequenceSlot child,
                      int32_t num_tokens) {
  EXPECT_TRUE(
      books_.sequences.emplace(child, NaiveSequence(at(parent))).second);
  CutBack(child, num_tokens);
}

int32_t NaiveModel::CountFullBlocks(SequenceSlot slot,
                                    int32_t num_tokens) const {
  int32_t num_blocks = 0;
  for (const NaiveGroup& group : at(slot).groups) {
    num_blocks += static_cast<int32_t>(group.region.blocks.size());
    for (int32_t i = 0; (i + 1) * page_size() <= num_tokens; ++i) {
      num_blocks += group.At(i) != kNullBlock ? 1 : 0;
    }
  }
  return num_blocks;
}

bool NaiveModel::IsShared(SequenceSlot slot, BlockId part,
                          std::span<const TokenDemand> leavers) const {
  const int32_t num_rows = at(slot).num_reserved % page_size();
  bool shared = cache_.Contains(part);
  for (const CopyOnWrite& copy : books_.copies) {
    // If the copy is taken back, it finds the rows that it left.
    shared |= copy.blocks.source == part && copy.num_tokens > num_rows;
  }
  for (const auto& [other, sequence] : sequences()) {
    if (other == slot) continue;
    const std::vector<BlockId> held = sequence.Held();
    if (std::ranges::count(held, part) == 0) continue;
    // Its last block, that is, and no other.
    const bool leaves =
        std::ranges::count(leavers, other, &TokenDemand::slot) > 0 &&
        std::ranges::count(PartBlocks(sequence), part) > 0;
    const int32_t others = sequence.num_reserved % page_size();
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
  BlockId& block =
      sequence.groups[copy.group].pages.at(sequence.num_reserved / page_size());
  EXPECT_EQ(block, copy.blocks.source);
  block = copy.blocks.destination;
  books_.copies.push_back(copy);
}

void NaiveModel::Return(SequenceSlot slot) {
  NaiveSequence& sequence = at(slot);
  for (const CopyOnWrite& copy : books_.copies) {
    if (copy.slot != slot) continue;
    std::ranges::replace(sequence.groups[copy.group].pages,
                         copy.blocks.destination, copy.blocks.source);
  }
  std::erase_if(books_.copies, [slot = slot](const CopyOnWrite& copy) {
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

}  // namespace blockmgr
