// BlockManager and the prefix cache: matching, publishing, reclaiming.

#include <algorithm>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {
namespace {

// How many compressed prefixes are tried, the longest first, if windows are
// gone.
constexpr int32_t kMaxRegionsWithoutWindows = 4;

}  // namespace

PrefixMatch BlockManager::Match(const BlockChain& chain,
                                std::span<const int32_t> tokens,
                                int32_t max_tokens, const RegionQuery* query,
                                MatchMemory* memory) const {
  MatchMemory own;
  if (memory == nullptr) memory = &own;
  PrefixMatch match = memory->Take();
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
    PrefixMatch over = MatchOver(chain, tokens, *query, memory, &num_looks);
    const bool is_longer = over.num_tokens >= match.num_tokens;
    if (over.cached != nullptr && is_longer) std::swap(match, over);
    memory->Give(std::move(over));
  }
  match.cost.num_looks = num_looks;
  CountUnused(&match);
  return match;
}

void BlockManager::MatchPart(const BlockChain& chain,
                             std::span<const int32_t> tokens,
                             int32_t max_tokens, PrefixMatch* match) const {
  BM_CHECK(match->source == kNoSequenceSlot && !match->has_part);
  if (!prefix_caching_ || layout_.has_windows()) return;
  int32_t before = PrefixCache::kNone;
  if (match->cached != nullptr && match->blocks.size() == 1) {
    // The tail block of a region is not part of the region's chain.
    before = match->region;
  } else if (!match->blocks.empty()) {
    before = Index(match->blocks.back());
  }
  BlockId block = kNullBlock;
  const int32_t num_tokens = cache_.MatchPart(
      before, chain, tokens, match->num_tokens, max_tokens, &block);
  if (num_tokens == 0) return;
  match->num_tokens += num_tokens;
  match->blocks.push_back(block);
  match->has_part = true;
  match->cost.part_is_reclaimable = cache_.IsReclaimable(Index(block));
  ++match->cost.num_looks;
}

bool BlockManager::WillPublish(SequenceSlot slot, int32_t num_tokens) const {
  const SequenceCache& sequence = at(slot);
  return NumPublishable(sequence, num_tokens) > sequence.num_published;
}

CacheReset BlockManager::ResetPrefixCache() {
  const int32_t before = cache_.num_blocks_held();
  while (cache_.num_reclaimable() > 0) ReclaimNext();
  for (int32_t entry = cooling_.Front(); entry != CoolingEntries::kNone;
       entry = cooling_.Front()) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
    DropFromCache(entry);
  }
  BM_CHECK(cooling_.num_blocks() == 0);
  return {.num_dropped = before - cache_.num_blocks_held(),
          .num_in_use = cache_.num_blocks_held()};
}

void BlockManager::TakeDroppedRegions(std::vector<RegionId>* regions) {
  regions->insert(regions->end(), dropped_regions_.begin(),
                  dropped_regions_.end());
  dropped_regions_.clear();
}

void BlockManager::CountUnused(PrefixMatch* match) const {
  const auto count = [&](int32_t entry) {
    const int32_t num_blocks = cache_.num_blocks(entry);
    if (cache_.IsReclaimable(entry)) {
      match->cost.num_reclaimable += num_blocks;
    } else if (cooling_.Contains(entry)) {
      match->cost.num_cooling += num_blocks;
    } else {
      return num_blocks;
    }
    return 0;
  };
  for (const BlockId block : match->blocks) {
    if (block == kNullBlock) continue;
    const int32_t num_used = count(Index(block));
    if (layout_.kind_of(0) == GroupKind::kWindow)
      match->cost.num_moving += num_used;
  }
  for (const BlockId block : match->window_blocks) {
    match->cost.num_moving += count(Index(block));
  }
  if (match->cached == nullptr) return;
  count(match->region);
  if (match->swap != kNoSwap) return;  // windows come from the host
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const GroupRegion& window = match->cached->window(group);
    if (window.num_region_blocks() == 0) continue;
    if (window.IsPast(layout_, group, match->num_tokens)) continue;
    const int32_t num_used = count(cache_.FindRegion(window.region->id));
    match->cost.num_moving += num_used;
    match->cost.num_window_region_blocks +=
        window.num_region_blocks() - num_used;
  }
}

PrefixMatch BlockManager::MatchOver(const BlockChain& chain,
                                    std::span<const int32_t> tokens,
                                    RegionQuery query, MatchMemory* memory,
                                    int64_t* num_looks) const {
  for (int32_t i = 0; i < kMaxRegionsWithoutWindows; ++i) {
    PrefixMatch match = memory->Take();
    match.region = cache_.MatchRegion(chain, tokens, query, num_looks);
    if (match.region == PrefixCache::kNone) return match;
    match.cached = cache_.region(match.region);
    const int32_t limit = std::min(query.max_tokens_over(match.length()),
                                   static_cast<int32_t>(tokens.size()));
    cache_.MatchOver(match.region, chain, tokens, limit, &match.blocks);
    match.num_tokens = match.cut() + static_cast<int32_t>(match.blocks.size()) *
                                         layout_.page_size;
    *num_looks += std::ssize(match.blocks);
    if (!layout_.has_windows() || FitWindows(&match)) return match;
    query.max_length = match.length() - 1;
    memory->Give(std::move(match));
  }
  return memory->Take();
}

void BlockManager::ContinueAfter(int32_t entry, SequenceCache* sequence) const {
  sequence->chain_entry = entry;
  sequence->chain_serial = cache_.serial(entry);
  sequence->chain_key = cache_.key(entry);
}

void BlockManager::CutChain(SequenceCache* sequence) const {
  const int32_t num_full = sequence->num_settled / layout_.page_size;
  const GroupCache& first = sequence->first();
  if (num_full == 0 && first.region == nullptr) {
    sequence->num_published = 0;
    sequence->chain_serial = sequence->root_serial;
    sequence->chain_key = BlockKey{};
    return;
  }
  if (num_full >= sequence->num_published) return;
  sequence->num_published = num_full;
  if (sequence->chain_serial == kNoSerial) return;
  // The first page behind a region was computed before the region. The page
  // after it follows the region's entry.
  int32_t entry = PrefixCache::kNone;
  if (first.region == nullptr || num_full > first.tail_begin + 1) {
    const BlockId last = first.block(num_full - 1);
    if (cache_.Contains(last)) entry = Index(last);
  } else if (num_full == first.tail_begin + 1) {
    entry = cache_.FindRegion(first.region->id);
  }
  if (entry == PrefixCache::kNone) {
    sequence->chain_serial = kNoSerial;
  } else {
    ContinueAfter(entry, sequence);
  }
}

int32_t BlockManager::NumPublishable(const SequenceCache& sequence,
                                     int32_t num_tokens) const {
  if (!prefix_caching_ || sequence.chain_serial == kNoSerial) return 0;
  return (sequence.num_settled + num_tokens) / layout_.page_size;
}

void BlockManager::Publish(SequenceCache* sequence,
                           std::span<const int32_t> tokens,
                           const BlockChain& chain) {
  const int32_t page_size = layout_.page_size;
  const int32_t num_full = NumPublishable(*sequence, 0);
  const GroupCache& first = sequence->first();
  for (int32_t i = sequence->num_published; i < num_full; ++i) {
    const BlockId block = first.block(i);
    if (first.pending != nullptr && first.pending->Overwrites(block)) {
      sequence->chain_serial = kNoSerial;
      return;
    }
    const int32_t begin = i * page_size;
    const Retention* wish = chain.RetentionOf(begin, begin + page_size);
    const BlockKey key =
        first.region == nullptr
            ? chain.keys()[i]
            : chain.KeyAfter(sequence->chain_key, tokens, begin, page_size);
    bool inserted = false;
    const int32_t entry = cache_.Insert(
        block, key, chain, sequence->chain_serial, tokens, begin, &inserted);
    ContinueAfter(entry, sequence);
    if (inserted) pool_.AddRef(block);
    ApplyRetention(entry, wish);
    PublishLinkedBlocks(*sequence, i, entry, wish);
    sequence->num_published = i + 1;
  }
}

bool BlockManager::PublishRegion(SequenceSlot slot,
                                 const RegionPublication& publication,
                                 bool* is_cached) {
  const RegionName& name = publication.name;
  SequenceCache* sequence = &at(slot);
  const std::shared_ptr<const RegionRecord>& region = sequence->first().region;
  BM_CHECK(name.length == sequence->cut() + layout_.page_size);
  if (region->blocks.empty() || sequence->num_settled != name.length ||
      PendingCut(*sequence) > 0) {
    return false;
  }
  int32_t entry = cache_.FindRegion(name, *publication.chain,
                                    sequence->root_serial, publication.tokens);
  if (entry == PrefixCache::kNone) {
    if (!HasWindows(*sequence)) return false;
    *is_cached = true;
    const BlockId tail = PublishTail(*sequence, publication);
    const Retention* wish =
        publication.chain->RetentionOfRegion(sequence->cut());
    entry = cache_.InsertRegion(region, name, *publication.chain,
                                sequence->root_serial, publication.tokens, tail,
                                std::move(sequence->content),
                                LinkGroups(*sequence, name.length, wish));
    for (const BlockId block : region->blocks) pool_.AddRef(block);
    ApplyRetention(entry, wish);
  }
  sequence->content = cache_.region(entry)->content;
  ContinueAfter(entry, sequence);
  sequence->num_published = name.length / layout_.page_size;
  return true;
}

BlockId BlockManager::PublishTail(const SequenceCache& sequence,
                                  const RegionPublication& publication) {
  // Publishes the sequence's own block, even if the cache has an equal block,
  // which may be reclaimed soon.
  const BlockId tail = sequence.first().tail.front();
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
  PublishLinkedBlocks(sequence, sequence.first().tail_begin, Index(tail), wish);
  return tail;
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

void BlockManager::Supersede(int32_t num_found,
                             std::span<const BlockId> blocks) {
  const auto first =
      static_cast<size_t>(std::max(0, CeilDiv(num_found, layout_.page_size)));
  // From the end on, in the order in which the blocks were released.
  for (size_t i = blocks.size(); i-- > first;) {
    if (cache_.Contains(blocks[i]) && pool_.num_holders(blocks[i]) == 1) {
      cache_.SetSuperseded(Index(blocks[i]), true);
    }
  }
}

void BlockManager::Supersede(RegionId region) {
  const int32_t entry =
      region == kNoRegion ? PrefixCache::kNone : cache_.FindRegion(region);
  if (entry == PrefixCache::kNone) return;
  const std::vector<BlockId>& blocks = cache_.region(entry)->record->blocks;
  if (pool_.num_holders(blocks.front()) == 1) cache_.SetSuperseded(entry, true);
}

void BlockManager::ReclaimNext() {
  const int32_t entry = cache_.next_to_reclaim();
  const int32_t before = cache_.num_reclaimable();
  cache_.RemoveReclaimable(entry);
  DropFromCache(entry);
  // Window blocks may have been dropped with the entry.
  reclaimed_blocks_ += static_cast<uint64_t>(before - cache_.num_reclaimable());
}

void BlockManager::DropAnyEntry(int32_t entry) {
  const bool is_reclaimable = cache_.IsReclaimable(entry);
  if (cooling_.Contains(entry)) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
  }
  if (is_reclaimable) cache_.RemoveReclaimable(entry);
  DropFromCache(entry);
}

void BlockManager::DropFromCache(int32_t entry) {
  for (const int32_t orphan : cache_.Unlink(entry)) DropAnyEntry(orphan);
  const CachedRegion* cached = cache_.region(entry);
  if (cached == nullptr) {
    cache_.Remove(entry);
    pool_.ReleaseUntouched(BlockId{entry});
    return;
  }
  const std::shared_ptr<const RegionRecord> record = cached->record;
  // The engine knows regions of window groups by the name of group 0's region.
  if (!cached->in_window) dropped_regions_.push_back(record->id);
  cache_.Remove(entry);
  for (const BlockId block : record->blocks) pool_.ReleaseUntouched(block);
}

}  // namespace blockmgr
