#include "blockmgr/sequence_publisher.h"

#include <memory>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

void SequencePublisher::ContinueAfter(int32_t entry,
                                      SequenceCache* sequence) const {
  sequence->chain_serial = blocks_.cache().serial(entry);
  sequence->chain_key = blocks_.cache().key(entry);
}

void SequencePublisher::CutChain(SequenceCache* sequence) const {
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
    if (blocks_.cache().Contains(last)) entry = Index(last);
  } else if (num_full == first.tail_begin + 1) {
    entry = blocks_.cache().FindRegion(first.region->id);
  }
  if (entry == PrefixCache::kNone) {
    sequence->chain_serial = kNoSerial;
  } else {
    ContinueAfter(entry, sequence);
  }
}

void SequencePublisher::Publish(SequenceCache* sequence,
                                std::span<const int32_t> tokens,
                                const BlockChain& chain) {
  const int32_t page_size = layout_.page_size;
  const int32_t num_full = sequence->num_settled / page_size;
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
    const int32_t entry = blocks_.cache().Insert(
        block, key, chain, sequence->chain_serial, tokens, begin, &inserted);
    ContinueAfter(entry, sequence);
    if (inserted) blocks_.pool().AddRef(block);
    blocks_.ApplyRetention(entry, wish);
    PublishLinkedBlocks(*sequence, i, entry, wish);
    sequence->num_published = i + 1;
  }
}

bool SequencePublisher::PublishRegion(const RegionPublication& publication,
                                      SequenceCache* sequence,
                                      bool* is_cached) {
  const RegionName& name = publication.name;
  const std::shared_ptr<const RegionRecord>& region = sequence->first().region;
  BM_CHECK(name.length == sequence->cut() + layout_.page_size);
  if (region->blocks.empty() || sequence->num_settled != name.length ||
      sequence->pending_cut() > 0) {
    return false;
  }
  int32_t entry = blocks_.cache().FindRegion(
      name, *publication.chain, sequence->root_serial, publication.tokens);
  if (entry == PrefixCache::kNone) {
    if (!sequence->HasWindows(layout_)) return false;
    *is_cached = true;
    const BlockId tail = PublishTail(*sequence, publication);
    const Retention* wish =
        publication.chain->RetentionOfRegion(sequence->cut());
    entry = blocks_.cache().InsertRegion(
        region, name, *publication.chain, sequence->root_serial,
        publication.tokens, tail, std::move(sequence->content),
        PublishLinkedMemory(*sequence, name.length, wish));
    for (const BlockId block : region->blocks) blocks_.pool().AddRef(block);
    blocks_.ApplyRetention(entry, wish);
  }
  sequence->content = blocks_.cache().region(entry)->content;
  ContinueAfter(entry, sequence);
  sequence->num_published = name.length / layout_.page_size;
  return true;
}

BlockId SequencePublisher::PublishTail(const SequenceCache& sequence,
                                       const RegionPublication& publication) {
  // Publishes the sequence's own block, even if the cache has an equal block,
  // which may be reclaimed soon.
  const BlockId tail = sequence.first().tail.front();
  const int32_t length = publication.name.length;
  if (!blocks_.cache().Contains(tail)) {
    const int32_t begin = length - layout_.page_size;
    blocks_.cache().InsertTail(
        tail, publication.chain->keys()[begin / layout_.page_size],
        *publication.chain, publication.tokens, begin);
    blocks_.pool().AddRef(tail);
  }
  const Retention* wish =
      publication.chain->RetentionOfTail(sequence.cut(), length);
  blocks_.ApplyRetention(Index(tail), wish);
  PublishLinkedBlocks(sequence, sequence.first().tail_begin, Index(tail), wish);
  return tail;
}

void SequencePublisher::PublishLinkedBlocks(const SequenceCache& sequence,
                                            int32_t page, int32_t entry,
                                            const Retention* wish) {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    const BlockId block = cache.block(page);
    if (block == kNullBlock || blocks_.cache().Contains(block)) continue;
    if (cache.pending != nullptr && cache.pending->Overwrites(block)) continue;
    const BlockId cached = blocks_.cache().LinkedBlock(entry, group);
    if (cached == kNullBlock) {
      PublishLinkedBlock(entry, group, block, wish);
    } else {
      blocks_.ApplyRetention(Index(cached), wish);
    }
  }
}

void SequencePublisher::PublishLinkedBlock(int32_t entry, int32_t group,
                                           BlockId block,
                                           const Retention* wish) {
  blocks_.cache().InsertLinked(entry, group, block);
  blocks_.pool().AddRef(block);
  blocks_.ApplyRetention(Index(block), wish);
}

LinkedMemory SequencePublisher::PublishLinkedMemory(
    const SequenceCache& sequence, int32_t length, const Retention* wish) {
  LinkedMemory linked;
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    // If the region is gone, its length is left out, too.
    CachedGroup& own = linked.groups.emplace_back();
    if (cache.region != nullptr) own = {cache};
    if (cache.num_region_blocks() > 0 &&
        blocks_.cache().FindRegion(cache.region->id) == PrefixCache::kNone) {
      const int32_t entry = blocks_.cache().InsertLinkedRegion(cache.region);
      for (const BlockId block : cache.region->blocks) {
        blocks_.pool().AddRef(block);
      }
      blocks_.ApplyRetention(entry, wish);
    }
    const PageRange pages = cache.PagesBehind(layout_, group, length);
    for (int32_t i = pages.begin; i < pages.end; ++i) {
      const BlockId block = cache.block(i);
      BM_CHECK(block != kNullBlock);
      if (!blocks_.cache().Contains(block)) {
        PublishLinkedBlock(PrefixCache::kNone, group, block, wish);
      }
      linked.blocks.push_back(block);
    }
    own.linked_end = static_cast<int32_t>(linked.blocks.size());
  }
  return linked;
}

}  // namespace blockmgr
