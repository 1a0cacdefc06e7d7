#include "blockmgr/block_manager.h"

#include <algorithm>
#include <utility>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/heap_bytes.h"
#include "blockmgr/prefix_matcher.h"

namespace blockmgr {

BlockManager::BlockManager(const ModelLayout& layout, int32_t max_sequences,
                           bool enable_prefix_caching, int32_t num_host_blocks)
    : layout_(layout),
      prefix_caching_(enable_prefix_caching),
      blocks_(layout),
      host_(num_host_blocks),
      sequences_(max_sequences) {
  BM_CHECK(layout.Validate().ok());
  BM_CHECK(max_sequences > 0);
  for (SequenceCache& sequence : sequences_) {
    sequence.groups.resize(layout.num_groups());
  }
  free_slots_.reserve(max_sequences);
  for (int32_t i = max_sequences - 1; i >= 0; --i) {
    free_slots_.push_back(SequenceSlot{i});
  }
}

int32_t BlockManager::CountBlocks(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  int32_t num_blocks = 0;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    num_blocks += cache.tail_end() - sequence.FirstHeld(layout_, group) +
                  cache.num_region_blocks();
  }
  return num_blocks;
}

BlockManagerStats BlockManager::stats() const {
  BlockManagerStats stats = {.num_blocks = layout_.num_blocks};
  stats.free_blocks = blocks_.pool().num_free();
  stats.cached_blocks = blocks_.num_cached();
  stats.fenced_blocks = blocks_.pool().num_fenced();
  stats.used_blocks = blocks_.pool().num_held() - stats.cached_blocks;
  stats.reclaimed_blocks = blocks_.num_reclaimed();
  stats.dropped_entries = blocks_.cache().num_removed();
  return stats;
}

int64_t BlockManager::metadata_bytes() const {
  absl::flat_hash_set<const RegionContent*> contents;
  absl::flat_hash_set<const RegionRecord*> records;
  int64_t bytes = blocks_.pool().metadata_bytes() +
                  blocks_.cache().metadata_bytes(&contents, &records) +
                  host_.metadata_bytes(&contents, &records) +
                  HeapBytes(sequences_) + HeapBytes(free_slots_) +
                  blocks_.metadata_bytes();
  for (const SequenceCache& sequence : sequences_) {
    bytes += RegionContent::CountBytes(sequence.content.get(), &contents);
    bytes += HeapBytes(sequence.groups);
    for (const GroupCache& cache : sequence.groups) {
      bytes += HeapBytes(cache.tail);
      bytes += RegionRecord::CountBytes(cache.region.get(), &records);
      if (cache.pending == nullptr) continue;
      bytes += static_cast<int64_t>(sizeof(PendingEviction)) +
               HeapBytes(cache.pending->destinations) +
               HeapBytes(cache.pending->page_totals);
    }
  }
  return bytes;
}

PrefixMatch BlockManager::Match(const BlockChain& chain,
                                std::span<const int32_t> tokens,
                                int32_t max_tokens, const RegionQuery* query,
                                MatchMemory* memory) const {
  MatchMemory own;
  if (memory == nullptr) memory = &own;
  if (!prefix_caching_) return memory->Take();
  return PrefixMatcher(layout_, blocks_)
      .Match(chain, tokens, max_tokens, query, memory);
}

void BlockManager::MatchPart(const BlockChain& chain,
                             std::span<const int32_t> tokens,
                             int32_t max_tokens, PrefixMatch* match) const {
  BM_CHECK(match->source == kNoSequenceSlot && !match->has_part);
  if (!prefix_caching_) return;
  PrefixMatcher(layout_, blocks_).MatchPart(chain, tokens, max_tokens, match);
}

SequenceSlot BlockManager::Open(const BlockChain& chain,
                                const PrefixMatch& match,
                                int32_t num_expected) {
  BM_CHECK(!free_slots_.empty());
  ReserveTables(free_slots_.back(), num_expected);
  if (match.source != kNoSequenceSlot) {
    const SequenceSlot fork = Duplicate(match.source);
    CutBack(fork, match.num_tokens);
    return fork;
  }
  const SequenceSlot slot = free_slots_.back();
  free_slots_.pop_back();
  SequenceCache& sequence = sequences_[Index(slot)];
  BM_CHECK(!sequence.open);
  sequence.open = true;
  if (!prefix_caching_) return slot;
  sequence.root_serial = blocks_.cache().AcquireRoot(chain.root());
  sequence.chain_serial = sequence.root_serial;
  if (match.cached != nullptr) {
    BM_CHECK(blocks_.cache().region(match.region) == match.cached);
    sequence.content = match.cached->content;
  }
  // Wishes with equal times expire in the order in which they are passed on.
  // The region comes first, and the blocks that lead to other blocks come last.
  OpenRegion(chain, match, 0, &sequence.first());
  for (int32_t group = 1; group < std::ssize(match.groups); ++group) {
    OpenRegion(chain, match, group, &sequence.groups[group]);
    OpenTail(chain, match, group, &sequence.groups[group]);
  }
  OpenTail(chain, match, 0, &sequence.first());
  if (match.last_entry() != PrefixCache::kNone) {
    publisher().ContinueAfter(match.last_entry(), &sequence);
  }
  sequence.num_reserved = sequence.first().tail_end() * layout_.page_size;
  sequence.num_settled = sequence.num_reserved;
  sequence.num_found = sequence.num_reserved;
  sequence.num_published = sequence.num_reserved / layout_.page_size;
  if (match.has_part) {
    CutBack(slot, match.num_tokens);
    // The part will be copied into a block of the sequence, so it was not
    // found.
    sequence.num_found -= match.num_tokens % layout_.page_size;
  }
  return slot;
}

void BlockManager::OpenRegion(const BlockChain& chain, const PrefixMatch& match,
                              int32_t group, GroupCache* cache) {
  if (match.cached == nullptr) return;
  const CachedGroup& cached = match.cached->groups[group];
  cache->region_length = cached.region_length;
  if (match.groups[group].region_is_cached) cache->region = cached.region;
  if (cache->num_region_blocks() == 0) return;
  const int32_t entry = blocks_.cache().RegionOf(*match.cached, group);
  BM_CHECK(entry != PrefixCache::kNone);
  blocks_.HoldRegion(entry, chain.RetentionOfRegion(match.cut()));
}

void BlockManager::OpenTail(const BlockChain& chain, const PrefixMatch& match,
                            int32_t group, GroupCache* cache) {
  cache->tail_begin = match.groups[group].first_page;
  for (const BlockId block : match.blocks_of(group)) {
    const int32_t begin = cache->tail_end() * layout_.page_size;
    const int32_t end = begin + layout_.page_size;
    const Retention* wish = nullptr;
    if (end <= match.num_tokens) {
      const bool is_tail =
          match.cached != nullptr && match.cached->tail == block;
      wish = is_tail ? chain.RetentionOfTail(begin, end)
                     : chain.RetentionOf(begin, end);
    }
    blocks_.Hold(block, wish);
    cache->tail.push_back(block);
  }
}

int32_t BlockManager::CountBlocksNeeded(SequenceSlot slot,
                                        int32_t num_tokens) const {
  const SequenceCache& sequence = at(slot);
  return layout_.num_groups() *
         (sequence.CountBlocksFor(num_tokens, layout_.page_size) +
          (num_tokens > 0 && NeedsCopy(sequence) ? 1 : 0));
}

bool BlockManager::Reserve(std::span<const TokenDemand> demands,
                           std::vector<int64_t>* offsets,
                           std::vector<BlockId>* blocks,
                           std::vector<CopyOnWrite>* copies) {
  const int32_t num_groups = layout_.num_groups();
  int64_t needed = 0;
  const size_t first_copy = copies_.size();
  for (const TokenDemand& demand : demands) {
    const SequenceCache& sequence = at(demand.slot);
    needed += int64_t{num_groups} *
              sequence.CountBlocksFor(demand.num_tokens, layout_.page_size);
    if (sequence.shares_last_block && demand.num_tokens > 0) {
      PlanCopy(demand.slot);
    }
  }
  const auto num_copies = static_cast<int64_t>(copies_.size() - first_copy);
  if (needed + num_copies > num_available()) {
    copies_.Shrink(first_copy);
    return false;
  }
  BM_CHECK(num_copies == 0 || copies != nullptr);
  if (num_copies > 0) CarryOut(first_copy, copies);
  const size_t begin = blocks->size();
  blocks->resize(begin + needed);
  blocks_.Take(std::span(*blocks).subspan(begin));
  size_t next = begin;
  for (const TokenDemand& demand : demands) {
    SequenceCache& sequence = at(demand.slot);
    const int32_t count =
        sequence.CountBlocksFor(demand.num_tokens, layout_.page_size);
    for (GroupCache& cache : sequence.groups) {
      const auto added = std::span<const BlockId>(*blocks).subspan(next, count);
      cache.tail.insert(cache.tail.end(), added.begin(), added.end());
      next += count;
    }
    if (demand.num_tokens > 0) {
      if (sequence.num_reserved == sequence.num_settled) {
        sequence.shared_when_settled = sequence.shares_last_block;
      }
      sequence.shares_last_block = false;
    }
    sequence.num_reserved += demand.num_tokens;
    offsets->push_back(static_cast<int64_t>(next));
  }
  return true;
}

void BlockManager::Commit(SequenceSlot slot, int32_t num_tokens,
                          std::span<const int32_t> tokens,
                          const BlockChain& chain) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.num_settled + num_tokens <= sequence.num_reserved);
  const int32_t num_before = sequence.num_settled;
  sequence.num_settled += num_tokens;
  if (num_tokens > 0) sequence.shared_when_settled = false;
  if (FillsBlock(sequence, 0)) publisher().Publish(&sequence, tokens, chain);
  if (layout_.has_windows()) ReleaseOutOfSpan(&sequence, num_before);
}

void BlockManager::Abort(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(num_tokens >= 0);
  BM_CHECK(sequence.num_reserved - num_tokens >= sequence.num_settled);
  sequence.num_reserved -= num_tokens;
  BM_CHECK(sequence.pending_cut() <= sequence.num_reserved);
  Shrink(&sequence, sequence.num_reserved,
         [this](BlockId block) { blocks_.pool().ReleaseUntouched(block); });
  if (num_tokens > 0) ReturnToSettled(slot);
}

void BlockManager::Rollback(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(num_tokens >= 0);
  const int32_t end = sequence.num_reserved - num_tokens;
  BM_CHECK(end >= sequence.num_settled);
  BM_CHECK(sequence.pending_cut() <= end);
  sequence.num_reserved = end;
  Shrink(&sequence, end, [this](BlockId block) { blocks_.Release(block); });
  if (num_tokens > 0) ReturnToSettled(slot);
}

void BlockManager::CutBack(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.pending_cut() == 0);
  BM_CHECK(num_tokens <= sequence.num_settled);
  BM_CHECK(CanGoBack(slot, num_tokens));
  if (!copies_.empty()) UndoCopy(slot);
  Shrink(&sequence, num_tokens,
         [this](BlockId block) { blocks_.Release(block); });
  if (num_tokens == 0) {
    if (sequence.first().region != nullptr) sequence.content.reset();
    ReleaseRegions(&sequence);
  }
  sequence.num_found = std::min(sequence.num_found, num_tokens);
  sequence.num_reserved = num_tokens;
  sequence.num_settled = num_tokens;
  sequence.shares_last_block = num_tokens % layout_.page_size != 0;
  if (prefix_caching_) publisher().CutChain(&sequence);
}

void BlockManager::Close(SequenceSlot slot) {
  SequenceCache& sequence = at(slot);
  AbortEvictions(slot);
  if (!copies_.empty()) UndoCopy(slot);
  Shrink(&sequence, 0, [this](BlockId block) { blocks_.Release(block); });
  ReleaseRegions(&sequence);
  if (prefix_caching_) blocks_.cache().ReleaseRoot(sequence.root_serial);
  // Keeps the memory of the tables for the next sequence in this slot.
  auto groups = std::move(sequence.groups);
  sequence = SequenceCache{};
  sequence.groups = std::move(groups);
  free_slots_.push_back(slot);
}

int32_t BlockManager::CountReleasable(SequenceSlot slot) const {
  int32_t count = 0;
  const SequenceCache& sequence = at(slot);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    const int32_t begin = sequence.FirstHeld(layout_, group);
    for (int32_t page = begin; page < cache.tail_end(); ++page) {
      count += blocks_.IsOwn(cache.block(page)) ? 1 : 0;
    }
    count += CountOwnRegionBlocks(cache);
    if (cache.pending == nullptr) continue;
    count += static_cast<int32_t>(cache.pending->destinations.size()) -
             cache.pending->num_own;
  }
  for (const CopyOnWrite& copy : copies_.Of(slot)) {
    count += blocks_.IsOwn(copy.blocks.source) ? 1 : 0;
  }
  return count;
}

void BlockManager::ReserveTables(SequenceSlot slot, int32_t num_tokens) {
  const auto num_pages =
      static_cast<size_t>(CeilDiv(num_tokens, layout_.page_size));
  for (GroupCache& cache : sequences_[Index(slot)].groups) {
    cache.tail.reserve(num_pages);
  }
}

void BlockManager::Shrink(SequenceCache* sequence, int32_t num_tokens,
                          absl::FunctionRef<void(BlockId)> release) {
  const int32_t num_pages = CeilDiv(num_tokens, layout_.page_size);
  for (GroupCache& cache : sequence->groups) {
    const int32_t end = std::max(cache.tail_begin, num_pages);
    while (cache.tail_end() > end) {
      if (cache.tail.back() != kNullBlock) release(cache.tail.back());
      cache.tail.pop_back();
    }
  }
}

void BlockManager::ReleaseRegions(SequenceCache* sequence) {
  for (GroupCache& cache : sequence->groups) {
    BM_CHECK(cache.tail.empty());
    cache.tail_begin = 0;
    cache.region_length = 0;
    if (cache.region == nullptr) continue;
    blocks_.Release(*cache.region);
    cache.region.reset();
  }
}

}  // namespace blockmgr
