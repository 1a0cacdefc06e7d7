// The audit of BlockManager, for tests.

#include <algorithm>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {
namespace {

// Audits that no page serves a head of another shard.
void CheckShards(const ModelLayout& layout, const RaggedRegion& region) {
  for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
    const int32_t shard = layout.shard_of(i % layout.num_heads);
    for (const PageId page : region.pages(i)) {
      BM_CHECK(layout.shard_of(layout.page_head(page)) == shard);
    }
  }
}

// Audits the page lists of a region on these blocks.
void CheckRegion(const ModelLayout& layout, const RaggedRegion& region,
                 std::span<const BlockId> blocks) {
  absl::flat_hash_set<PageId> pages;
  for (const PageId page : region.page_list()) {
    BM_CHECK(pages.insert(page).second);
    BM_CHECK(std::ranges::count(blocks, layout.page_block(page)) == 1);
  }
  CheckShards(layout, region);
}

}  // namespace

uint64_t BlockManager::StateHash() const {
  uint64_t hash = blocks_.pool().StateHash() + 5 * blocks_.cache().StateHash() +
                  7 * host_.StateHash();
  const auto mix = [&hash](uint64_t value) { hash = SplitMix64(hash ^ value); };
  for (const SequenceCache& sequence : sequences_) {
    mix(sequence.open ? 1 : 0);
    if (!sequence.open) continue;
    mix(static_cast<uint64_t>(sequence.num_reserved));
    mix(static_cast<uint64_t>(sequence.num_settled));
    mix(static_cast<uint64_t>(sequence.num_published));
    mix(sequence.chain_serial);
    mix(sequence.chain_key.low);
    // If the sequence is the only holder, the flag changes nothing and is not
    // part of the state.
    const bool shares =
        sequence.shares_last_block &&
        blocks_.pool().num_holders(sequence.first().tail.back()) > 1;
    mix(shares ? 1 : 0);
    for (const GroupCache& cache : sequence.groups) {
      mix(cache.tail_begin);
      for (const BlockId block : cache.tail) mix(Index(block));
      if (cache.region != nullptr) {
        mix(cache.region->cut);
        for (const BlockId block : cache.region->blocks) mix(Index(block));
        for (const int32_t kept : cache.region->kept) mix(kept);
      }
      if (cache.pending == nullptr) continue;
      mix(cache.pending->cut);
      for (const BlockId block : cache.pending->destinations) mix(Index(block));
    }
  }
  for (const CopyOnWrite& copy : copies_.all()) {
    mix(Index(copy.slot));
    mix(Index(copy.blocks.source));
    mix(Index(copy.blocks.destination));
  }
  for (const SequenceSlot slot : free_slots_) mix(Index(slot));
  return hash;
}

void BlockManager::CheckInvariants() const {
  host_.CheckInvariants();
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  int32_t num_open = 0;
  absl::flat_hash_set<BlockId> seen;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceCache& sequence = sequences_[i];
    if (!sequence.open) continue;
    ++num_open;
    BM_CHECK(sequence.num_settled <= sequence.num_reserved);
    seen.clear();
    const auto hold = [&](BlockId block) {
      BM_CHECK(block != kNullBlock);
      BM_CHECK(seen.insert(block).second);
      ++holders[Index(block)];
    };
    if (sequence.shares_last_block) {
      BM_CHECK(sequence.num_settled == sequence.num_reserved);
      BM_CHECK(!sequence.first().tail.empty());
      BM_CHECK(sequence.num_reserved % layout_.page_size != 0);
    }
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      CheckGroup(sequence, group, hold);
    }
    // This loop comes after the loop above, because own destinations are blocks
    // of some group's table.
    for (const GroupCache& cache : sequence.groups) {
      if (cache.pending == nullptr) continue;
      const PendingEviction& pending = *cache.pending;
      BM_CHECK(pending.cut <= sequence.num_reserved);
      for (size_t j = 0; j < pending.destinations.size(); ++j) {
        const BlockId block = pending.destinations[j];
        if (static_cast<int32_t>(j) < pending.num_own) {
          BM_CHECK(seen.contains(block));
          BM_CHECK(!blocks_.cache().Contains(block));
          BM_CHECK(blocks_.pool().num_holders(block) == 1);
        } else {
          hold(block);
        }
      }
    }
  }
  BM_CHECK(num_open + std::ssize(free_slots_) == std::ssize(sequences_));
  CheckCopies(&holders);
  blocks_.CheckInvariants(holders);
}

void BlockManager::CheckGroup(const SequenceCache& sequence, int32_t group,
                              absl::FunctionRef<void(BlockId)> hold) const {
  const GroupCache& cache = sequence.groups[group];
  BM_CHECK(cache.tail_end() ==
           CeilDiv(sequence.num_reserved, layout_.page_size));
  // A sequence that was cut back by a token may lack one page.
  const int32_t first = std::max(layout_.FirstPage(group, sequence.num_settled),
                                 cache.cut() / layout_.page_size);
  const int32_t needed = layout_.FirstPage(group, sequence.num_settled + 1);
  BM_CHECK(cache.tail_begin <= std::max(first, needed));
  for (int32_t i = cache.tail_begin; i < cache.tail_end(); ++i) {
    const bool is_held = cache.block(i) != kNullBlock;
    BM_CHECK(i < first ? !is_held : is_held || i < needed);
    if (is_held) hold(cache.block(i));
  }
  if (cache.region == nullptr) return;
  for (const BlockId block : cache.region->blocks) hold(block);
  CheckRegion(layout_, {layout_, LayoutOf(layout_, *cache.region)},
              cache.region->blocks);
  BM_CHECK(cache.tail_begin == cache.cut() / layout_.page_size);
  BM_CHECK(!cache.IsPast(layout_, group, sequence.num_settled));
  if (group == 0) return;
  BM_CHECK(cache.cut() <= cache.region_length);
  BM_CHECK(cache.region_length <= sequence.num_settled);
  // Blocks computed over a window's region are published only behind a region
  // of the index group.
  BM_CHECK(sequence.chain_serial == kNoSerial ||
           sequence.first().region != nullptr);
}

void BlockManager::CheckCopies(std::vector<int32_t>* holders) const {
  BM_CHECK(copies_.size() % layout_.num_groups() == 0);
  for (size_t i = 0; i < copies_.size(); ++i) {
    const CopyOnWrite& copy = copies_.all()[i];
    const SequenceCache& sequence = at(copy.slot);
    BM_CHECK(!sequence.shares_last_block);
    BM_CHECK(sequence.num_reserved > sequence.num_settled);
    BM_CHECK(sequence.num_settled % layout_.page_size == copy.num_tokens);
    BM_CHECK(copy.group == static_cast<int32_t>(i) % layout_.num_groups());
    BM_CHECK(copy.slot == copies_.all()[i - copy.group].slot);
    BM_CHECK(sequence.groups[copy.group].block(sequence.num_settled /
                                               layout_.page_size) ==
             copy.blocks.destination);
    BM_CHECK(std::ranges::count(copies_.all(), copy.slot, &CopyOnWrite::slot) ==
             layout_.num_groups());
    ++(*holders)[Index(copy.blocks.source)];
  }
  copies_.CheckInvariants();

  // A partly filled block has at most one writer. Every other holder must look
  // before it writes, and has no more rows than the writer.
  absl::flat_hash_map<BlockId, const SequenceCache*> writers;
  for (const SequenceCache& sequence : sequences_) {
    if (!sequence.open || sequence.first().tail.empty()) continue;
    const bool partly_filled = sequence.num_reserved % layout_.page_size != 0;
    if (!partly_filled || sequence.shares_last_block) continue;
    BM_CHECK(writers.emplace(sequence.first().tail.back(), &sequence).second);
  }
  for (const SequenceCache& sequence : sequences_) {
    if (!sequence.open) continue;
    for (const BlockId block : sequence.first().tail) {
      const auto writer = writers.find(block);
      if (writer == writers.end() || writer->second == &sequence) continue;
      BM_CHECK(sequence.shares_last_block);
      BM_CHECK(block == sequence.first().tail.back());
      BM_CHECK(sequence.num_reserved <= writer->second->num_reserved);
    }
  }
}

}  // namespace blockmgr
