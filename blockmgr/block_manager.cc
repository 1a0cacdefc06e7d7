#include "blockmgr/block_manager.h"

#include <algorithm>
#include <utility>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

BlockManager::BlockManager(const ModelLayout& layout, int32_t max_sequences,
                           bool enable_prefix_caching, int32_t num_host_blocks)
    : layout_(layout),
      prefix_caching_(enable_prefix_caching),
      pool_(layout.num_blocks),
      cache_(layout.num_blocks, layout.page_size, layout.num_window_groups()),
      host_(num_host_blocks),
      sequences_(max_sequences),
      windows_(max_sequences * layout.group_windows.size()),
      cooling_(layout.num_blocks) {
  BM_CHECK(layout.Validate().ok());
  BM_CHECK(max_sequences > 0);
  free_slots_.reserve(max_sequences);
  for (int32_t i = max_sequences - 1; i >= 0; --i) {
    free_slots_.push_back(SequenceSlot{i});
  }
}

SequenceCache& BlockManager::at(SequenceSlot slot) {
  SequenceCache& sequence = sequences_[Index(slot)];
  BM_CHECK(sequence.open);
  return sequence;
}

const SequenceCache& BlockManager::at(SequenceSlot slot) const {
  const SequenceCache& sequence = sequences_[Index(slot)];
  BM_CHECK(sequence.open);
  return sequence;
}

BlockManagerStats BlockManager::stats() const {
  BlockManagerStats stats = {.num_blocks = layout_.num_blocks};
  stats.free_blocks = pool_.num_free();
  stats.cached_blocks = cache_.num_reclaimable() + cooling_.num_blocks();
  stats.fenced_blocks = pool_.num_fenced();
  stats.used_blocks = pool_.num_held() - stats.cached_blocks;
  stats.reclaimed_blocks = reclaimed_blocks_;
  stats.dropped_entries = cache_.num_removed();
  return stats;
}

int64_t BlockManager::metadata_bytes() const {
  absl::flat_hash_set<const RegionContent*> contents;
  int64_t bytes = pool_.metadata_bytes() + cache_.metadata_bytes(&contents) +
                  host_.metadata_bytes() + HeapBytes(sequences_) +
                  HeapBytes(windows_) + HeapBytes(free_slots_) +
                  cooling_.metadata_bytes();
  absl::flat_hash_set<RegionId> counted;  // forks share theirs
  const auto add_region = [&](const RegionRecord* region) {
    if (region == nullptr ||
        cache_.FindRegion(region->id) != PrefixCache::kNone) {
      return;
    }
    if (counted.insert(region->id).second) bytes += region->metadata_bytes();
  };
  const auto add_pending = [&](const PendingEviction& pending) {
    bytes += HeapBytes(pending.destinations) + HeapBytes(pending.page_totals);
  };
  for (const WindowCache& window : windows_) {
    bytes += HeapBytes(window.tail);
    add_region(window.region.get());
    if (window.pending == nullptr) continue;
    bytes += static_cast<int64_t>(sizeof(PendingEviction));
    add_pending(*window.pending);
  }
  for (const SequenceCache& sequence : sequences_) {
    bytes += HeapBytes(sequence.tail) +
             RegionContent::CountBytes(sequence.content.get(), &contents);
    if (sequence.pending) add_pending(*sequence.pending);
    add_region(sequence.region.get());
  }
  return bytes;
}

void BlockManager::Acknowledge(StepId step) {
  pool_.Acknowledge(step);
  host_.Acknowledge(step);
  for (int32_t entry = cooling_.Front(); entry != CoolingEntries::kNone;
       entry = cooling_.Front()) {
    if (!pool_.IsPastFence(SomeBlock(entry))) break;
    cooling_.Remove(entry, cache_.num_blocks(entry));
    cache_.AddReclaimable(entry);
  }
}

BlockId BlockManager::SomeBlock(int32_t entry) const {
  const CachedRegion* cached = cache_.region(entry);
  return cached == nullptr ? BlockId{entry} : cached->record->blocks.front();
}

void BlockManager::BecomeUnused(int32_t entry) {
  if (pool_.IsPastFence(SomeBlock(entry))) {
    cache_.AddReclaimable(entry);
    return;
  }
  cooling_.Add(entry, cache_.num_blocks(entry));
}

void BlockManager::Wake(int32_t entry) {
  if (cache_.IsReclaimable(entry)) {
    cache_.RemoveReclaimable(entry);
  } else if (pool_.num_holders(SomeBlock(entry)) == 1) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
  }
}

void BlockManager::CountUnused(PrefixMatch* match) const {
  const auto count = [&](int32_t entry) {
    const int32_t num_blocks = cache_.num_blocks(entry);
    if (cache_.IsReclaimable(entry)) {
      match->num_reclaimable += num_blocks;
    } else if (cooling_.Contains(entry)) {
      match->num_cooling += num_blocks;
    } else {
      return num_blocks;
    }
    return 0;
  };
  for (const BlockId block : match->blocks) {
    if (block == kNullBlock) continue;
    const int32_t num_used = count(Index(block));
    match->num_moving += layout_.window > 0 ? num_used : 0;
  }
  for (const BlockId block : match->window_blocks) {
    match->num_moving += count(Index(block));
  }
  if (match->cached == nullptr) return;
  count(match->region);
  if (match->swap != kNoSwap) return;  // what is in windows comes back
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const WindowRegion& window = match->cached->window(group);
    if (window.num_blocks() == 0) continue;
    if (window.IsPast(layout_, group, match->num_tokens)) continue;
    const int32_t num_used = count(cache_.FindRegion(window.region->id));
    match->num_moving += num_used;
    match->num_window_region_blocks += window.num_blocks() - num_used;
  }
}

PrefixMatch BlockManager::Match(const BlockChain& chain,
                                std::span<const int32_t> tokens,
                                int32_t max_tokens, const RegionQuery* query,
                                PrefixMatch used) const {
  PrefixMatch match = PrefixMatch::InMemoryOf(std::move(used));
  if (!prefix_caching_) return match;
  const int32_t page_size = layout_.page_size;
  const auto num_pages =
      static_cast<size_t>(std::max(max_tokens, 0) / page_size);
  cache_.Match(chain, std::min(chain.keys().size(), num_pages), tokens,
               &match.blocks);
  match.num_tokens = static_cast<int32_t>(match.blocks.size()) * page_size;
  int64_t num_looks = std::ssize(match.blocks);
  if (layout_.has_windows()) FitWindows(&match);
  if (query != nullptr) {
    PrefixMatch over =
        MatchOver(chain, tokens, *query, match.TakeSpare(), &num_looks);
    const bool is_longer = over.num_tokens >= match.num_tokens;
    if (over.cached != nullptr && is_longer) std::swap(match, over);
    match.GiveSpare(std::move(over));
  }
  match.num_looks = num_looks;
  CountUnused(&match);
  return match;
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
  sequence.root_serial = cache_.AcquireRoot(chain.root());
  sequence.chain_serial = sequence.root_serial;
  if (match.cached != nullptr) {
    BM_CHECK(cache_.region(match.region) == match.cached);
    Wake(match.region);
    sequence.region = match.cached->record;
    for (const BlockId block : sequence.region->blocks) pool_.AddRef(block);
    ContinueAfter(match.region, &sequence);
    sequence.content = match.cached->content;
    ApplyRetention(match.region, chain.RetentionOfRegion(sequence.cut()));
    cache_.SetSuperseded(match.region, false);
  }
  if (!windows_.empty() && match.swap == kNoSwap) {
    OpenWindows(chain, match, &sequence);
  }
  for (const BlockId block : match.blocks) {
    if (block == kNullBlock) {
      sequence.tail.push_back(block);
      continue;
    }
    BM_CHECK(cache_.Contains(block));
    const int32_t begin =
        sequence.cut() +
        static_cast<int32_t>(sequence.tail.size()) * layout_.page_size;
    const int32_t end = begin + layout_.page_size;
    // The block between a region and what was computed over it is not part of
    // the region's chain.
    const bool is_between = sequence.region != nullptr && sequence.tail.empty();
    if (end <= match.num_tokens) {
      ApplyRetention(Index(block), is_between
                                       ? chain.RetentionOfTail(begin, end)
                                       : chain.RetentionOf(begin, end));
    }
    cache_.SetSuperseded(Index(block), false);
    Wake(Index(block));
    pool_.AddRef(block);
    sequence.tail.push_back(block);
    if (!is_between) ContinueAfter(Index(block), &sequence);
  }
  sequence.num_reserved =
      sequence.cut() +
      static_cast<int32_t>(sequence.tail.size()) * layout_.page_size;
  sequence.num_settled = sequence.num_reserved;
  sequence.num_found = sequence.num_reserved;
  sequence.num_published = sequence.num_reserved / layout_.page_size;
  if (match.has_part) {
    CutBack(slot, match.num_tokens);
    // Its last block will be a copy, which nobody has found.
    sequence.num_found -= match.num_tokens % layout_.page_size;
  }
  return slot;
}

void BlockManager::ContinueAfter(int32_t entry, SequenceCache* sequence) const {
  sequence->chain_entry = entry;
  sequence->chain_serial = cache_.serial(entry);
  sequence->chain_key = cache_.key(entry);
}

void BlockManager::Take(std::span<BlockId> blocks) {
  while (pool_.num_free() < std::ssize(blocks)) ReclaimNext();
  BM_CHECK(pool_.Allocate(blocks));
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
              sequence.BlocksFor(demand.num_tokens, layout_.page_size);
    if (sequence.shares_last_block && demand.num_tokens > 0) {
      PlanCopy(demand.slot);
    }
  }
  const auto num_copies =
      num_groups * static_cast<int64_t>(copies_.size() - first_copy);
  if (needed + num_copies > num_available()) {
    ForgetPlanned(first_copy);
    return false;
  }
  BM_CHECK(num_copies == 0 || copies != nullptr);
  for (size_t i = first_copy; i < copies_.size(); ++i) {
    CarryOut(i, copies);
  }
  const size_t begin = blocks->size();
  blocks->resize(begin + needed);
  Take(std::span(*blocks).subspan(begin));
  size_t next = begin;
  for (const TokenDemand& demand : demands) {
    SequenceCache& sequence = at(demand.slot);
    const int32_t count =
        sequence.BlocksFor(demand.num_tokens, layout_.page_size);
    const auto add = [&](std::vector<BlockId>* tail) {
      const auto added = std::span<const BlockId>(*blocks).subspan(next, count);
      tail->insert(tail->end(), added.begin(), added.end());
      next += count;
    };
    add(&sequence.tail);
    if (num_groups > 1) {
      for (WindowCache& window : Windows(sequence)) add(&window.tail);
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

int32_t BlockManager::NumPublishable(const SequenceCache& sequence,
                                     int32_t num_tokens) const {
  if (!prefix_caching_ || sequence.chain_serial == kNoSerial) return 0;
  return (sequence.num_settled + num_tokens) / layout_.page_size;
}

bool BlockManager::WillPublish(SequenceSlot slot, int32_t num_tokens) const {
  const SequenceCache& sequence = at(slot);
  return NumPublishable(sequence, num_tokens) > sequence.num_published;
}

void BlockManager::Commit(SequenceSlot slot, int32_t num_tokens,
                          std::span<const int32_t> tokens,
                          const BlockChain& chain) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.num_settled + num_tokens <= sequence.num_reserved);
  const int32_t num_before = sequence.num_settled;
  sequence.num_settled += num_tokens;
  if (num_tokens > 0) sequence.shared_when_settled = false;
  if (NumPublishable(sequence, 0) > sequence.num_published) {
    Publish(&sequence, tokens, chain);
  }
  if (layout_.has_windows()) ReleaseBehindWindows(&sequence, num_before);
}

void BlockManager::Publish(SequenceCache* sequence,
                           std::span<const int32_t> tokens,
                           const BlockChain& chain) {
  const int32_t page_size = layout_.page_size;
  const int32_t num_full = NumPublishable(*sequence, 0);
  for (int32_t i = sequence->num_published; i < num_full; ++i) {
    const BlockId block = sequence->tail[i - sequence->cut() / page_size];
    if (sequence->pending.has_value()) {
      if (sequence->pending->Overwrites(block)) {
        sequence->chain_serial = kNoSerial;
        return;
      }
    }
    const int32_t begin = i * page_size;
    const Retention* wish = chain.RetentionOf(begin, begin + page_size);
    const BlockKey key =
        sequence->region == nullptr
            ? chain.keys()[i]
            : chain.KeyAfter(sequence->chain_key, tokens, begin, page_size);
    bool inserted = false;
    const int32_t entry = cache_.Insert(
        block, key, chain, sequence->chain_serial, tokens, begin, &inserted);
    ContinueAfter(entry, sequence);
    if (inserted) pool_.AddRef(block);
    ApplyRetention(entry, wish);
    PublishWindows(*sequence, i, entry, wish);
    sequence->num_published = i + 1;
  }
}

bool BlockManager::PublishRegion(SequenceSlot slot,
                                 const RegionPublication& publication,
                                 bool* is_cached) {
  const RegionName& name = publication.name;
  SequenceCache* sequence = &at(slot);
  BM_CHECK(name.length == sequence->cut() + layout_.page_size);
  if (sequence->region->blocks.empty() ||
      sequence->num_settled != name.length || PendingCut(*sequence) > 0) {
    return false;
  }
  int32_t entry = cache_.FindRegion(name, *publication.chain,
                                    sequence->root_serial, publication.tokens);
  if (entry == PrefixCache::kNone) {
    if (!HasWindows(slot)) return false;
    *is_cached = true;
    const BlockId tail = PublishTail(*sequence, publication);
    const Retention* wish =
        publication.chain->RetentionOfRegion(sequence->cut());
    entry = cache_.InsertRegion(sequence->region, name, *publication.chain,
                                sequence->root_serial, publication.tokens, tail,
                                std::move(sequence->content),
                                LinkWindows(*sequence, name.length, wish));
    for (const BlockId block : sequence->region->blocks) pool_.AddRef(block);
    ApplyRetention(entry, wish);
  }
  sequence->content = cache_.region(entry)->content;
  ContinueAfter(entry, sequence);
  sequence->num_published = name.length / layout_.page_size;
  return true;
}

BlockId BlockManager::PublishTail(const SequenceCache& sequence,
                                  const RegionPublication& publication) {
  // Its own, even if an equal one is in the cache: that may be about to go.
  const BlockId tail = sequence.tail.front();
  const int32_t length = publication.name.length;
  if (!cache_.Contains(tail)) {
    const int32_t begin = length - layout_.page_size;
    cache_.InsertTail(tail,
                      publication.chain->keys()[begin / layout_.page_size],
                      *publication.chain, publication.tokens, begin);
    pool_.AddRef(tail);
  }
  const Retention* wish =
      publication.chain->RetentionOfTail(sequence.cut(), length);
  ApplyRetention(Index(tail), wish);
  PublishWindows(sequence, sequence.cut() / layout_.page_size, Index(tail),
                 wish);
  return tail;
}

void BlockManager::ReleaseFrom(BlockId block) {
  pool_.Release(block);
  if (pool_.num_holders(block) == 1 && cache_.Contains(block)) {
    BecomeUnused(Index(block));
  }
}

void BlockManager::ReleaseRegion(const RegionRecord& region) {
  const int32_t entry = cache_.FindRegion(region.id);
  for (size_t i = region.blocks.size(); i-- > 0;) {
    pool_.Release(region.blocks[i]);
  }
  if (entry != PrefixCache::kNone &&
      pool_.num_holders(region.blocks.front()) == 1) {
    BecomeUnused(entry);
  }
}

void BlockManager::AbortEvictions(SequenceSlot slot) {
  if (at(slot).pending.has_value()) AbortEviction(slot);
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    if (window(slot, group).pending != nullptr) AbortEviction(slot, group);
  }
}

void BlockManager::ReleaseRegions(SequenceCache* sequence) {
  if (sequence->region != nullptr) {
    ReleaseRegion(*sequence->region);
    sequence->region.reset();
  }
  for (WindowCache& window : Windows(*sequence)) {
    window.region_length = 0;
    if (window.region == nullptr) continue;
    ReleaseRegion(*window.region);
    window.region.reset();
  }
}

void BlockManager::Close(SequenceSlot slot) {
  SequenceCache& sequence = at(slot);
  AbortEvictions(slot);
  if (!copies_.empty()) UndoCopy(slot);
  Shrink(&sequence, 0, [this](BlockId block) { ReleaseFrom(block); });
  ReleaseRegions(&sequence);
  if (prefix_caching_) cache_.ReleaseRoot(sequence.root_serial);
  // Keeps the table's memory for the next sequence of this slot.
  std::vector<BlockId> tail = std::move(sequence.tail);
  tail.clear();
  sequence = SequenceCache{};
  sequence.tail = std::move(tail);
  free_slots_.push_back(slot);
}

}  // namespace blockmgr
