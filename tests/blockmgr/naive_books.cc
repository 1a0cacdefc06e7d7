#include "tests/blockmgr/naive_books.h"

#include <algorithm>
#include <iterator>

namespace blockmgr {

std::vector<BlockId> NaiveSequence::Held() const {
  std::vector<BlockId> held;
  for (const GroupBook& book : groups) {
    const std::vector<BlockId> blocks = book.Blocks();
    held.insert(held.end(), blocks.begin(), blocks.end());
  }
  return held;
}

int32_t NaiveMatch::CountIns(int32_t group, bool of_region) const {
  return static_cast<int32_t>(
      std::ranges::count_if(ins, [&](const NaivePiece& piece) {
        return piece.first == group && (piece.second < 0) == of_region;
      }));
}

void NaiveMatch::DropPart(int32_t page_size) {
  if (!has_part) return;
  pages[0].pop_back();
  num_tokens -= num_tokens % page_size;
  has_part = part_is_reclaimable = false;
}

void NaiveFences::Release(BlockId block) {
  // Whoever holds it still will release it later, under a later fence.
  released_[Index(block)] = dispatched_;
  Rejuvenate(block);
}

void NaiveFences::Dispatch(uint64_t step, const std::vector<int32_t>& holders) {
  dispatched_ = step;
  for (size_t i = 0; i < holders.size(); ++i) {
    if (holders[i] > 0) touched_[i] = step;
  }
}

void NaiveFences::Acknowledge(uint64_t step) {
  acknowledged_ = step;
  if (!has_steps_in_flight()) are_bounds_ = false;
}

void NaiveArena::Clear(BlockId block) {
  written.erase(block);
  rows.erase(rows.lower_bound({block, 0}),
             rows.upper_bound({block, INT32_MAX}));
}

void NaiveArena::CopyOut(const BlockTransfer& transfer) {
  const auto [block, host] = transfer;
  host_rows.erase(host_rows.lower_bound({host, 0}),
                  host_rows.upper_bound({host, INT32_MAX}));
  for (auto row = rows.lower_bound({block, 0});
       row != rows.end() && row->first.first == block; ++row) {
    host_rows[{host, row->first.second}] = row->second;
  }
}

void NaiveArena::CopyIn(const BlockTransfer& transfer) {
  const auto [block, host] = transfer;
  for (auto row = host_rows.lower_bound({host, 0});
       row != host_rows.end() && row->first.first == host; ++row) {
    rows[{block, row->first.second}] = row->second;
  }
}

std::vector<int32_t> NaiveBooks::Holders() const {
  std::vector<int32_t> holders(layout.num_blocks, 0);
  for (const auto& [slot, sequence] : sequences) {
    for (const BlockId block : sequence.Held()) ++holders[Index(block)];
  }
  for (const CopyOnWrite& copy : copies) ++holders[Index(copy.blocks.source)];
  return holders;
}

std::vector<int32_t> NaiveBooks::Prefix(const std::vector<int32_t>& tokens,
                                        int32_t num_blocks) const {
  return {tokens.begin(),
          tokens.begin() + int64_t{num_blocks} * layout.page_size};
}

std::vector<NaivePiece> NaiveBooks::PiecesOf(const NaiveSequence& sequence,
                                             int32_t num_tokens) const {
  std::vector<NaivePiece> pieces;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const GroupBook& book = sequence.groups[group];
    const auto num_blocks = static_cast<int32_t>(book.region.blocks.size());
    for (int32_t i = -num_blocks; i < 0; ++i) pieces.emplace_back(group, i);
    const PageRange pages = rules.PagesBehind(book, group, num_tokens);
    for (int32_t i = pages.begin; i < pages.end; ++i) {
      pieces.emplace_back(group, i);
    }
  }
  return pieces;
}

BlockId NaiveBooks::BlockOf(const NaiveSequence& sequence,
                            const NaivePiece& piece) {
  const auto& [group, index] = piece;
  if (index >= 0) return sequence.groups[group].At(index);
  const std::vector<BlockId>& blocks = sequence.groups[group].region.blocks;
  return blocks.at(blocks.size() - static_cast<size_t>(-index));
}

bool NaiveBooks::IsWhole(const NaiveSequence& sequence) const {
  return std::ranges::none_of(PiecesOf(sequence, sequence.num_settled),
                              [&](const NaivePiece& piece) {
                                return BlockOf(sequence, piece) == kNullBlock;
                              });
}

void NaiveBooks::BreakChain(NaiveSequence* sequence) {
  sequence->chain = 0;
  // Nobody else's, unless a region stands for it again.
  sequence->context = "private " + std::to_string(next_name++);
}

}  // namespace blockmgr
