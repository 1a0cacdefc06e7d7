// What NaiveModel knows of the host tier.

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::vector<NaiveModel::Piece> NaiveModel::PiecesOf(
    const NaiveSequence& sequence, int32_t num_tokens) const {
  std::vector<Piece> pieces;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const GroupBook& book = sequence.groups[group];
    const auto num_blocks = static_cast<int32_t>(book.region.blocks.size());
    for (int32_t i = -num_blocks; i < 0; ++i) pieces.emplace_back(group, i);
    const PageRange pages = rules_.PagesBehind(book, group, num_tokens);
    for (int32_t i = pages.begin; i < pages.end; ++i) {
      pieces.emplace_back(group, i);
    }
  }
  return pieces;
}

BlockId NaiveModel::BlockOf(const NaiveSequence& sequence,
                            const Piece& piece) const {
  const auto& [group, index] = piece;
  if (index >= 0) return BlockAt(sequence, group, index);
  const std::vector<BlockId>& blocks = sequence.groups[group].region.blocks;
  return blocks.at(blocks.size() - static_cast<size_t>(-index));
}

std::optional<int32_t> NaiveModel::HostBlocksNeeded(SequenceSlot slot) const {
  const NaiveSequence& sequence = at(slot);
  const std::vector<Piece> pieces = PiecesOf(sequence, sequence.num_settled);
  for (const Piece& piece : pieces) {
    if (BlockOf(sequence, piece) == kNullBlock) return std::nullopt;
  }
  return static_cast<int32_t>(pieces.size());
}

std::vector<HostBlockId> NaiveModel::HostBlocksOf(const Swap& swap) {
  std::vector<HostBlockId> blocks;
  for (const auto& [piece, block] : swap.pieces) blocks.push_back(block);
  return blocks;
}

int32_t NaiveModel::num_free_host() const {
  int32_t num_free = num_host_blocks_;
  for (const auto& [id, swap] : swaps_) {
    num_free -= static_cast<int32_t>(HostBlocksOf(swap).size());
  }
  for (const auto& [block, step] : host_released_) {
    num_free -= step > acknowledged_ ? 1 : 0;
  }
  return num_free;
}

std::vector<SwapId> NaiveModel::Swaps() const {
  std::vector<SwapId> swaps;
  for (const auto& [id, swap] : swaps_) {
    if (std::ranges::count(leaving_swaps_, id) == 0) swaps.push_back(id);
  }
  return swaps;
}

void NaiveModel::CheckHost(const BlockManager& manager) const {
  const HostTier& host = manager.host();
  EXPECT_EQ(host.num_blocks(), num_host_blocks_);
  EXPECT_EQ(host.num_free(), num_free_host());
  EXPECT_EQ(host.num_sequences(), std::ssize(swaps_));
  int32_t num_used = 0;
  for (const auto& [id, swap] : swaps_) {
    ASSERT_TRUE(host.Contains(id));
    EXPECT_EQ(host.at(id).num_tokens, swap.sequence.num_settled);
    EXPECT_EQ(host.at(id).regions.front().cut(), swap.sequence.cut());
    EXPECT_EQ(host.at(id).blocks, HostBlocksOf(swap));
    num_used += static_cast<int32_t>(host.at(id).blocks.size());
  }
  EXPECT_EQ(host.num_used(), num_used);
}

void NaiveModel::CopyOut(const BlockTransfer& transfer) {
  for (int32_t i = 0; i < layout_.page_size; ++i) {
    const auto row = rows_.find({transfer.block, i});
    host_rows_.erase({transfer.host, i});
    if (row != rows_.end()) host_rows_[{transfer.host, i}] = row->second;
  }
}

void NaiveModel::CopyIn(const BlockTransfer& transfer) {
  for (int32_t i = 0; i < layout_.page_size; ++i) {
    const auto row = host_rows_.find({transfer.host, i});
    if (row != host_rows_.end()) rows_[{transfer.block, i}] = row->second;
  }
}

void NaiveModel::SwapOut(SequenceSlot slot, SwapId id,
                         std::span<const BlockTransfer> transfers) {
  Swap swap = {.sequence = at(slot), .pieces = {}};
  std::set<HostBlockId> used;
  for (const auto& [other, swapped] : swaps_) {
    for (const HostBlockId block : HostBlocksOf(swapped)) used.insert(block);
  }
  const std::vector<Piece> pieces =
      PiecesOf(swap.sequence, swap.sequence.num_settled);
  ASSERT_EQ(transfers.size(), pieces.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    const auto& [block, host] = transfers[i];
    EXPECT_TRUE(used.insert(host).second) << "a host block has two holders";
    EXPECT_LE(host_released_[host], acknowledged_)
        << "a step in flight may touch the host block";
    CopyOut(transfers[i]);
    EXPECT_EQ(block, BlockOf(swap.sequence, pieces[i]));
    swap.pieces[pieces[i]] = host;
  }
  EXPECT_TRUE(swaps_.emplace(id, std::move(swap)).second);
}

bool NaiveModel::HasPastOf(SwapId id, const PrefixMatch& match) const {
  const NaiveSequence& sequence = SwappedAt(id);
  if (sequence.was_evicted_in_windows) return false;
  if (match.region == PrefixCache::kNone) return sequence.region().kept.empty();
  const Region& region = regions_.at(static_cast<uint64_t>(match.region));
  return ContextOf(region.name) == sequence.context;
}

void NaiveModel::MatchSwapped(SwapId id, int32_t num_tokens,
                              NaiveMatch* match) const {
  if (match->num_tokens >= num_tokens) return;
  const Swap& swap = swaps_.at(id);
  const std::vector<Piece> pieces = PiecesOf(swap.sequence, num_tokens);
  for (const Piece& piece : pieces) {
    if (!swap.pieces.contains(piece)) return;
  }
  match->DropPart(layout_.page_size);
  // A prefix that has left its window cannot be found again.
  if (layout_.window > 0 || !HasPastOf(id, *match)) *match = NaiveMatch();
  match->window_blocks.clear();
  match->swap = id;
  match->cost.num_reclaimable = 0;
  match->cost.num_cooling = 0;
  CountReclaimable(match);
  match->num_tokens = num_tokens;
  const auto count = [&](const auto& is_wanted) {
    return static_cast<int32_t>(std::ranges::count_if(pieces, is_wanted));
  };
  match->num_window_blocks =
      count([](const Piece& piece) { return piece.first > 0; });
  match->num_tail_ins = count([](const Piece& piece) {
                          return piece.first == 0 && piece.second >= 0;
                        }) -
                        static_cast<int32_t>(match->blocks.size());
  match->num_ins = match->num_window_blocks + match->num_tail_ins;
  if (match->region == PrefixCache::kNone) {
    match->num_ins +=
        static_cast<int32_t>(swap.sequence.region().blocks.size());
  }
}

void NaiveModel::MoveRegion(const NaiveSequence& from,
                            std::span<const BlockId> blocks,
                            NaiveSequence* sequence) {
  GroupBook& book = sequence->groups[0];
  book.region = BookRules::OnBlocks(from.region(), blocks);
  book.pages.assign(from.cut() / layout_.page_size, kNullBlock);
  sequence->lineage = from.lineage;
  BreakChain(sequence);
}

void NaiveModel::ReturnValues(const NaiveSequence& from, int32_t num_cached,
                              NaiveSequence* sequence) {
  for (size_t group = 0; group < from.groups.size(); ++group) {
    const std::vector<uint64_t>& old = from.groups[group].values;
    std::vector<uint64_t>& values = sequence->groups[group].values;
    values.resize(group == 0 ? num_cached : 0);
    values.insert(values.end(), old.begin() + std::ssize(values),
                  old.begin() + sequence->num_settled);
  }
}

void NaiveModel::ReturnWindowRegions(const NaiveSequence& from,
                                     NaiveSequence* sequence) {
  for (int32_t group = 1; group < num_groups(); ++group) {
    BookRegion& region = sequence->groups[group].region;
    region = BookRules::OnBlocks(from.groups[group].region, region.blocks);
  }
  sequence->was_evicted_in_windows = true;
  sequence->lineage = from.lineage;
  BreakChain(sequence);
}

void NaiveModel::SwapIn(SequenceSlot slot, const NaiveMatch& match,
                        std::span<const BlockTransfer> transfers,
                        int32_t num_free) {
  const int32_t page_size = layout_.page_size;
  const Swap& swap = swaps_.at(match.swap);
  const NaiveSequence& from = swap.sequence;
  const int32_t cut = match.region == PrefixCache::kNone ? 0 : from.cut();
  NaiveMatch cached = match;
  cached.num_tokens =
      cut + static_cast<int32_t>(match.blocks.size()) * page_size;
  NaiveSequence opened;
  opened.tokens = from.tokens;
  opened.scope = from.scope;
  opened.wishes = from.wishes;
  opened.names = from.names;
  Open(slot, std::move(opened), cached);

  ASSERT_EQ(std::ssize(transfers), match.num_ins);
  std::vector<BlockId> taken;
  for (const BlockTransfer& transfer : transfers) {
    taken.push_back(transfer.block);
  }
  HandOut(taken, num_free);
  NaiveSequence& sequence = at(slot);
  size_t next = 0;
  if (match.region == PrefixCache::kNone && !from.region().kept.empty()) {
    next = from.region().blocks.size();
    MoveRegion(from, std::span(taken).first(next), &sequence);
    sequence.num_offered = match.num_tokens / page_size;
  }
  const std::vector<Piece> pieces = PiecesOf(from, match.num_tokens);
  for (size_t i = 0; i < next; ++i) {
    EXPECT_EQ(transfers[i].host, swap.pieces.at(pieces[i]));
  }
  for (const Piece& piece : pieces) {
    const auto& [group, page] = piece;
    const int32_t in_tail = page - sequence.cut() / page_size;
    if (group == 0 && (page < 0 || in_tail < std::ssize(match.blocks))) {
      continue;
    }
    EXPECT_EQ(transfers[next].host, swap.pieces.at(piece));
    const BlockId block = taken[next];
    if (page >= 0) CopyIn(transfers[next]);
    ++next;
    GroupBook& book = sequence.groups[group];
    if (page < 0) {
      book.region.blocks.push_back(block);
      continue;
    }
    // Of what is behind the window nothing is left to find it by.
    if (group == 0 && page > std::ssize(book.pages)) sequence.chain = 0;
    book.pages.resize(static_cast<size_t>(page), kNullBlock);
    book.pages.push_back(block);
  }
  for (GroupBook& book : sequence.groups) {
    const int32_t num_pages = CeilDiv(match.num_tokens, page_size);
    book.pages.resize(static_cast<size_t>(num_pages), kNullBlock);
  }
  if (from.was_evicted_in_windows) ReturnWindowRegions(from, &sequence);
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  ReturnValues(from, cached.num_tokens, &sequence);
  for (const BlockId part : PartBlocks(sequence)) writers_[part] = slot;
  for (int32_t i = 0; i < match.num_tokens / page_size; ++i) {
    Write(sequence, i);
  }
  leaving_swaps_.push_back(match.swap);
}

void NaiveModel::DropSwapped(SwapId id) {
  for (const HostBlockId block : HostBlocksOf(swaps_.at(id))) {
    host_released_[block] = dispatched_;
  }
  swaps_.erase(id);
}

std::vector<SwapId> NaiveModel::LoseHostBlocks(
    const std::set<HostBlockId>& lost) {
  std::vector<SwapId> losers;
  for (const auto& [id, swap] : swaps_) {
    const std::vector<HostBlockId> blocks = HostBlocksOf(swap);
    if (std::ranges::any_of(
            blocks, [&](HostBlockId block) { return lost.contains(block); })) {
      losers.push_back(id);
    }
  }
  for (const SwapId id : losers) DropSwapped(id);
  return losers;
}

}  // namespace blockmgr
