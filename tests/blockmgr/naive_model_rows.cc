// The rows that the engine writes, by NaiveModel.

#include <algorithm>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

void NaiveModel::Write(const NaiveSequence& sequence, int32_t page) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    books_.arena.written.try_emplace(
        sequence.groups[group].At(page),
        NaiveArena::Written{books_.Prefix(sequence.tokens, page + 1),
                            sequence.context, group});
  }
}

void NaiveModel::FindRows(NaiveSequence* sequence) {
  for (NaiveGroup& group : sequence->groups) {
    group.values.resize(sequence->num_settled);
    for (int32_t i = 0; i < sequence->num_settled; ++i) {
      const BlockId block = group.At(i / page_size());
      if (block == kNullBlock) continue;
      group.values[i] = books_.arena.rows.at({block, i % page_size()});
    }
  }
}

void NaiveModel::Execute(std::span<const NaiveRun> runs) {
  auto& rows = books_.arena.rows;
  std::map<std::pair<BlockId, int32_t>, uint64_t> copied;
  for (const CopyOnWrite& copy : books_.copies) {
    for (int32_t i = 0; i < copy.num_tokens; ++i) {
      const auto row = rows.find({copy.blocks.source, i});
      EXPECT_NE(row, rows.end()) << "a copy of what was never written";
      if (row == rows.end()) continue;
      EXPECT_TRUE(
          copied.emplace(std::pair(copy.blocks.destination, i), row->second)
              .second)
          << "two copies to one block";
    }
  }
  for (const auto& [row, value] : copied) rows[row] = value;
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
      for (int32_t group = 0; group < num_groups(); ++group) {
        NaiveGroup& own = sequence.groups[group];
        const uint64_t row = value + static_cast<uint64_t>(group);
        own.values.push_back(row);
        rows[{own.At(position / page_size()), position % page_size()}] = row;
      }
    }
  }
  for (const auto& [slot, sequence] : sequences()) CheckRows(slot);
}

void NaiveModel::CheckRows(SequenceSlot slot) const {
  const NaiveSequence& sequence = at(slot);
  const auto& rows = books_.arena.rows;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const NaiveGroup& own = sequence.groups[group];
    // Positions that the next one attends to, and those after it.
    const int32_t window = books_.rules.WindowOf(group);
    int32_t i = own.region.cut;
    if (window > 0) i = std::max(i, sequence.num_settled - window + 1);
    for (; i < std::ssize(own.values); ++i) {
      const BlockId block = own.At(i / page_size());
      const auto row = rows.find({block, i % page_size()});
      EXPECT_TRUE(row != rows.end() && row->second == own.values[i])
          << "position " << i << " of slot " << Index(slot)
          << " was overwritten in block " << Index(block) << ", group "
          << group;
    }
  }
}

}  // namespace blockmgr
