// Sequences of NaiveModel that leave for the host tier and come back.

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::optional<int32_t> NaiveModel::CountHostBlocksNeeded(
    SequenceSlot slot) const {
  const NaiveSequence& sequence = at(slot);
  if (!books_.IsWhole(sequence)) return std::nullopt;
  return static_cast<int32_t>(
      books_.PiecesOf(sequence, sequence.num_settled).size());
}

bool NaiveModel::HasPastOf(SwapId swap, const NaiveMatch& match) const {
  const NaiveSequence& sequence = host_.at(swap).sequence;
  // Other groups than 0 bring their regions along.
  for (int32_t group = 1; group < num_groups(); ++group) {
    if (sequence.groups[group].was_evicted) return false;
  }
  if (match.region == 0) return sequence.region().kept.empty();
  return cache_.ContextOf(match.region) == sequence.context;
}

void NaiveModel::MatchSwapped(SwapId id, int32_t num_tokens,
                              NaiveMatch* match) const {
  if (match->num_tokens >= num_tokens) return;
  const NaiveHost::Swap& swap = host_.at(id);
  const std::vector<NaivePiece> pieces =
      books_.PiecesOf(swap.sequence, num_tokens);
  for (const NaivePiece& piece : pieces) {
    if (!swap.pieces.contains(piece)) return;
  }
  match->DropPart(page_size());
  // A prefix that has left its window cannot be found again.
  if (books_.layout.window > 0 || !HasPastOf(id, *match)) {
    *match = NaiveMatch(num_groups());
  }
  // The cache has the first pages of group 0; the rest comes back.
  for (int32_t group = 1; group < num_groups(); ++group) {
    match->regions[group] = BookRegion();
    match->pages[group].clear();
  }
  match->swap = id;
  match->num_tokens = num_tokens;
  cache_.CountUnused(match);
  std::ranges::copy_if(
      pieces, std::back_inserter(match->ins), [&](const NaivePiece& piece) {
        const auto [group, page] = piece;
        return page < 0 ? group > 0 || match->region == 0
                        : page >= std::ssize(match->pages[group]);
      });
}

void NaiveModel::SwapIn(SequenceSlot slot, const NaiveMatch& match,
                        std::span<const BlockTransfer> transfers,
                        int32_t num_free) {
  const NaiveHost::Swap& swap = host_.at(match.swap);
  const NaiveSequence& from = swap.sequence;
  NaiveMatch cached = match;
  cached.num_tokens = static_cast<int32_t>(match.pages[0].size()) * page_size();
  NaiveSequence opened;
  opened.tokens = from.tokens;
  opened.scope = from.scope;
  opened.wishes = from.wishes;
  opened.names = from.names;
  Open(slot, std::move(opened), cached);

  ASSERT_EQ(transfers.size(), match.ins.size());
  std::vector<BlockId> taken;
  for (const BlockTransfer& transfer : transfers) {
    taken.push_back(transfer.block);
  }
  HandOut(taken, num_free);
  NaiveSequence& sequence = at(slot);
  std::vector<std::vector<BlockId>> regions(num_groups());
  for (size_t i = 0; i < transfers.size(); ++i) {
    const auto [group, page] = match.ins[i];
    EXPECT_EQ(transfers[i].host, swap.pieces.at(match.ins[i]));
    books_.arena.CopyIn(transfers[i]);
    if (page < 0) {
      regions[group].push_back(taken[i]);
      continue;
    }
    std::vector<BlockId>& pages = sequence.groups[group].pages;
    // Nothing is left to find it by if a page before it is behind the window.
    if (group == 0 && page > std::ssize(pages)) sequence.chain = 0;
    pages.resize(static_cast<size_t>(page), kNullBlock);
    pages.push_back(taken[i]);
  }
  if (match.region == 0 && from.was_evicted()) {
    sequence.lineage = from.lineage;
    books_.BreakChain(&sequence);
  }
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  for (int32_t group = 0; group < num_groups(); ++group) {
    NaiveGroup& own = sequence.groups[group];
    const NaiveGroup& was = from.groups[group];
    if (group > 0 || match.region == 0) {
      own.region = BookRules::OnBlocks(was.region, regions[group]);
    }
    own.was_evicted = was.was_evicted;
    own.pages.resize(CeilDiv(match.num_tokens, page_size()), kNullBlock);
    // Pages that were found are as the cache has them.
    own.values.resize(match.pages[group].size() *
                      static_cast<size_t>(page_size()));
    own.values.insert(own.values.end(),
                      was.values.begin() + std::ssize(own.values),
                      was.values.begin() + match.num_tokens);
  }
  for (const BlockId part : PartBlocks(sequence)) writers_[part] = slot;
  for (int32_t i = 0; i < match.num_tokens / page_size(); ++i) {
    Write(sequence, i);
  }
  host_.SwapIn(match.swap);
}

}  // namespace blockmgr
