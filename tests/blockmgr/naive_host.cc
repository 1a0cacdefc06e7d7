#include "tests/blockmgr/naive_host.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

namespace blockmgr {

std::vector<HostBlockId> NaiveHost::Swap::Blocks() const {
  std::vector<HostBlockId> blocks;
  for (const auto& [piece, block] : pieces) blocks.push_back(block);
  return blocks;
}

int32_t NaiveHost::CountFree() const {
  int32_t num_free = num_blocks_;
  for (const auto& [id, swap] : swaps_) {
    num_free -= static_cast<int32_t>(swap.pieces.size());
  }
  for (const auto& [block, step] : released_) {
    num_free -= step > books_.fences.acknowledged() ? 1 : 0;
  }
  return num_free;
}

std::vector<SwapId> NaiveHost::Swaps() const {
  std::vector<SwapId> swaps;
  for (const auto& [id, swap] : swaps_) {
    if (std::ranges::count(leaving_, id) == 0) swaps.push_back(id);
  }
  return swaps;
}

void NaiveHost::Check(const HostTier& host) const {
  EXPECT_EQ(host.num_blocks(), num_blocks_);
  EXPECT_EQ(host.num_free(), CountFree());
  EXPECT_EQ(host.num_sequences(), std::ssize(swaps_));
  int32_t num_used = 0;
  for (const auto& [id, swap] : swaps_) {
    ASSERT_TRUE(host.Contains(id));
    EXPECT_EQ(host.at(id).num_tokens, swap.sequence.num_settled);
    for (int32_t group = 0; group < books_.num_groups(); ++group) {
      EXPECT_EQ(host.at(id).regions[group].cut(),
                swap.sequence.groups[group].region.cut);
    }
    EXPECT_EQ(host.at(id).blocks, swap.Blocks());
    num_used += static_cast<int32_t>(host.at(id).blocks.size());
  }
  EXPECT_EQ(host.num_used(), num_used);
}

void NaiveHost::SwapOut(const NaiveSequence& sequence, SwapId id,
                        std::span<const BlockTransfer> transfers) {
  Swap swap = {.sequence = sequence, .pieces = {}};
  std::set<HostBlockId> used;
  for (const auto& [other, swapped] : swaps_) {
    for (const HostBlockId block : swapped.Blocks()) used.insert(block);
  }
  const std::vector<NaivePiece> pieces =
      books_.PiecesOf(sequence, sequence.num_settled);
  ASSERT_EQ(transfers.size(), pieces.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    const auto& [block, host] = transfers[i];
    EXPECT_TRUE(used.insert(host).second) << "a host block has two holders";
    EXPECT_LE(released_[host], books_.fences.acknowledged())
        << "a step in flight may touch the host block";
    books_.arena.CopyOut(transfers[i]);
    EXPECT_EQ(block, NaiveBooks::BlockOf(sequence, pieces[i]));
    swap.pieces[pieces[i]] = host;
  }
  EXPECT_TRUE(swaps_.emplace(id, std::move(swap)).second);
}

void NaiveHost::Dispatch() {
  for (const SwapId swap : std::exchange(leaving_, {})) Drop(swap);
}

void NaiveHost::Drop(SwapId id) {
  for (const HostBlockId block : at(id).Blocks()) {
    released_[block] = books_.fences.dispatched();
  }
  swaps_.erase(id);
}

std::vector<SwapId> NaiveHost::LoseBlocks(const std::set<HostBlockId>& lost) {
  std::vector<SwapId> losers;
  for (const auto& [id, swap] : swaps_) {
    if (std::ranges::any_of(swap.Blocks(), [&](HostBlockId block) {
          return lost.contains(block);
        })) {
      losers.push_back(id);
    }
  }
  for (const SwapId id : losers) Drop(id);
  return losers;
}

void NaiveHost::Clear() {
  swaps_.clear();
  released_.clear();
}

}  // namespace blockmgr
