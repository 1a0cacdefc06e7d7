#include "blockmgr/eviction_blocks.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Returns the covered blocks that no other sequence holds, in table order.
std::vector<BlockId> OwnOf(const CachedPool& blocks,
                           const HeldBlocks& covered) {
  std::vector<BlockId> own;
  if (covered.region != nullptr && blocks.IsOwn(*covered.region)) {
    own = covered.region->blocks;
  }
  std::ranges::copy_if(
      covered.tail, std::back_inserter(own),
      [&blocks](BlockId block) { return blocks.IsOwn(block); });
  return own;
}

// Appends num_own of the candidates to `taken`, in their order, and drops their
// entries in the cache. `region` is the covered region, or null.
void TakeOwn(const RegionRecord* region, std::span<const BlockId> candidates,
             int64_t num_own, CachedPool* blocks, std::vector<BlockId>* taken) {
  // Blocks outside of the prefix cache are taken first, because a cached block
  // costs its entry. Blocks of a cached region are taken last. The chosen
  // blocks keep the table's order, so that engines can derive the layout.
  enum Rank : uint8_t { kUncached, kCached, kRegion };
  absl::flat_hash_map<BlockId, int32_t> region_entries;
  if (region != nullptr) {
    const int32_t entry = blocks->cache().FindRegion(region->id);
    if (entry != PrefixCache::kNone) {
      for (const BlockId block : region->blocks) {
        region_entries[block] = entry;
      }
      const CachedRegion& cached = *blocks->cache().region(entry);
      if (!cached.is_linked &&
          blocks->cache().serial(Index(cached.tail)) == cached.tail_serial) {
        region_entries[cached.tail] = Index(cached.tail);
      }
    }
  }
  std::vector<Rank> ranks;
  std::array<int64_t, 3> wanted{};
  for (const BlockId block : candidates) {
    ranks.push_back(region_entries.contains(block)    ? kRegion
                    : blocks->cache().Contains(block) ? kCached
                                                      : kUncached);
    ++wanted[ranks.back()];
  }
  for (int64_t& count : wanted) {
    count = std::min(count, num_own);
    num_own -= count;
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (wanted[ranks[i]] == 0) continue;
    --wanted[ranks[i]];
    taken->push_back(candidates[i]);
    if (ranks[i] == kUncached) continue;
    // The region is dropped with the first of its blocks that is taken.
    const int32_t entry = ranks[i] == kCached ? Index(candidates[i])
                                              : region_entries[candidates[i]];
    if (blocks->cache().serial(entry) != kNoSerial) {
      blocks->DropFromCache(entry);
    }
  }
}

}  // namespace

bool TakeDestinations(const ModelLayout& layout, const HeldBlocks& covered,
                      const EvictionDemand& demand, RegionId region,
                      CachedPool* blocks, PendingEviction* pending) {
  const int64_t num_destinations =
      CeilDiv<int64_t>(demand.page_total, layout.shard_pages_per_block());
  const int64_t num_own = num_destinations - demand.num_fresh;
  BM_CHECK(demand.num_fresh >= 0 && num_own >= 0);
  const std::span<const int64_t> shard_page_totals = demand.shard_page_totals;
  BM_CHECK(shard_page_totals.empty() ||
           (std::ssize(shard_page_totals) == layout.num_shards &&
            std::ranges::max(shard_page_totals) <= demand.page_total));
  if (demand.num_fresh > blocks->num_available()) return false;
  // The list stays empty if all destinations are fresh.
  std::vector<BlockId> candidates;
  if (num_own > 0) candidates = OwnOf(*blocks, covered);
  if (std::ssize(candidates) < num_own) return false;

  pending->region = region;
  pending->cut = demand.cut;
  pending->page_totals.assign(layout.num_shards, demand.page_total);
  std::ranges::copy(shard_page_totals, pending->page_totals.begin());
  pending->num_own = static_cast<int32_t>(num_own);
  pending->destinations.reserve(num_destinations);
  if (num_own > 0) {
    TakeOwn(covered.region, candidates, num_own, blocks,
            &pending->destinations);
  }
  pending->destinations.resize(num_destinations);
  blocks->Take(std::span(pending->destinations).subspan(num_own));
  return true;
}

EvictionReceipt ReplaceBlocks(const ModelLayout& layout,
                              const HeldBlocks& covered,
                              const PendingEviction& pending,
                              const RegionRecord& region, CachedPool* pool) {
  EvictionReceipt receipt;
  const auto sum = [](std::span<const int32_t> kept) {
    return std::accumulate(kept.begin(), kept.end(), int64_t{0});
  };
  receipt.evicted_entries = std::ssize(covered.tail) * layout.page_size *
                                int64_t{layout.pages_per_block()} -
                            sum(region.kept);
  if (covered.region != nullptr) {
    receipt.evicted_entries += sum(covered.region->kept);
  }
  receipt.freed_blocks =
      covered.num_blocks() - static_cast<int32_t>(region.blocks.size());
  // The new region takes over the holds on its blocks. All other blocks of the
  // order are released, the end of the tail first. In the common case all
  // destinations are fresh and in use, so no block must be looked up.
  const bool all_stay = region.blocks.size() == pending.destinations.size();
  absl::flat_hash_set<BlockId> stays;
  if (!all_stay || pending.num_own > 0) {
    stays.reserve(region.blocks.size());
    stays.insert(region.blocks.begin(), region.blocks.end());
  }
  for (size_t i = pending.num_own; !all_stay && i < pending.destinations.size();
       ++i) {
    if (!stays.contains(pending.destinations[i])) {
      pool->Release(pending.destinations[i]);
    }
  }
  const auto release = [&](std::span<const BlockId> blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {
      if (pending.num_own > 0 && stays.contains(blocks[i])) continue;
      pool->Release(blocks[i]);
    }
  };
  release(covered.tail);
  if (covered.region == nullptr) return receipt;
  if (pool->cache().FindRegion(covered.region->id) != PrefixCache::kNone) {
    // No destination is a block of the region, because the region would then
    // have left the cache.
    pool->Release(*covered.region);
  } else {
    release(covered.region->blocks);
  }
  return receipt;
}

}  // namespace blockmgr
