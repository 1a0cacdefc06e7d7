// BlockManager: evictions, of any layer group.

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

CoveredBlocks BlockManager::CountCovered(SequenceSlot slot, int32_t group,
                                         int32_t cut, int32_t length) const {
  const SequenceCache& sequence = at(slot);
  const GroupCache& cache = sequence.groups[group];
  const PageRange pages = cache.CoveredPages(layout_, group, cut, length);
  CoveredBlocks covered{.num_blocks = pages.size()};
  if (!cache.IsPast(layout_, group, length + 1)) {
    covered.num_blocks += cache.num_region_blocks();
    covered.num_own += RegionBlocksOf(cache, Owned::kOwn);
  }
  for (int32_t i = pages.begin; i < pages.end; ++i) {
    // By then the sequence has filled the last block, so the block is its own
    // or was replaced by a copy.
    const bool will_leave = i + 1 == cache.tail_end() &&
                            sequence.shares_last_block &&
                            cut > sequence.num_reserved;
    const bool is_own =
        i >= cache.tail_end() || will_leave || blocks_.IsOwn(cache.block(i));
    covered.num_own += is_own ? 1 : 0;
  }
  return covered;
}

bool BlockManager::ReserveEviction(SequenceSlot slot,
                                   const EvictionDemand& demand,
                                   std::vector<BlockId>* destinations) {
  SequenceCache& sequence = at(slot);
  GroupCache& cache = sequence.groups[demand.group];
  BM_CHECK(demand.cut % layout_.page_size == 0);
  BM_CHECK(demand.cut <= sequence.num_reserved);
  BM_CHECK(demand.cut > cache.cut());
  BM_CHECK(cache.pending == nullptr);
  const HeldBlocks covered =
      cache.Covered(layout_, demand.group, demand.cut, sequence.num_reserved);
  BM_CHECK(!covered.tail.empty());
  PendingEviction pending;
  if (!TakeDestinations(covered, demand, &pending)) return false;
  pending.length = sequence.num_reserved;
  destinations->insert(destinations->end(), pending.destinations.begin(),
                       pending.destinations.end());
  cache.pending = std::make_shared<const PendingEviction>(std::move(pending));
  return true;
}

absl::Status BlockManager::ValidateCounts(
    SequenceSlot slot, int32_t group, std::span<const int32_t> counts,
    std::optional<uint64_t> checksum) const {
  const PendingEviction& pending = PendingOf(slot, group);
  const HeldBlocks covered = CoveredBy(slot, group);
  BM_RETURN_IF_ERROR(CheckCounts(layout_, pending, covered, counts));
  if (!checksum.has_value()) return absl::OkStatus();
  return CheckLayout(layout_, pending, covered, counts, *checksum);
}

EvictionReceipt BlockManager::CommitEviction(
    SequenceSlot slot, int32_t group, std::span<const int32_t> counts,
    const RegionPublication* publication) {
  BM_CHECK(ValidateCounts(slot, group, counts).ok());
  BM_CHECK(publication == nullptr || group == 0);
  SequenceCache& sequence = at(slot);
  GroupCache& cache = sequence.groups[group];
  const HeldBlocks covered = CoveredBy(slot, group);
  const std::shared_ptr<const PendingEviction> pending =
      std::move(cache.pending);
  BM_CHECK(layout_.kind_of(group) == GroupKind::kFull
               ? pending->cut <= sequence.num_settled
               : pending->length == sequence.num_settled);
  const std::vector<BlockId> before(covered.tail.begin(), covered.tail.end());
  std::shared_ptr<const RegionRecord> region =
      MakeRegion(layout_, *pending, covered, counts);
  EvictionReceipt receipt = Replace(covered, *pending, *region);
  const int32_t cut_before = cache.cut();
  const RegionId region_before =
      covered.region == nullptr ? kNoRegion : covered.region->id;
  // All other memory below the cut is outside of the span.
  for (int32_t i = cache.tail_begin; i < covered.cut / layout_.page_size; ++i) {
    if (cache.block(i) != kNullBlock) blocks_.Release(cache.block(i));
  }
  if (cache.region != nullptr && covered.region == nullptr) {
    blocks_.Release(*cache.region);
  }
  cache.tail.erase(
      cache.tail.begin(),
      cache.tail.begin() + pending->cut / layout_.page_size - cache.tail_begin);
  cache.tail_begin = pending->cut / layout_.page_size;
  cache.region = std::move(region);
  cache.region_length = pending->length;
  receipt.published = publication != nullptr && prefix_caching_ &&
                      PublishRegion(slot, *publication, &receipt.cached);
  if (!receipt.published) sequence.chain_serial = kNoSerial;
  if (receipt.cached) {
    blocks_.Supersede(
        CeilDiv(sequence.num_found - cut_before, layout_.page_size), before);
    if (sequence.num_found <= cut_before) blocks_.Supersede(region_before);
  }
  return receipt;
}

void BlockManager::AbortEviction(SequenceSlot slot, int32_t group) {
  const PendingEviction& pending = PendingOf(slot, group);
  for (size_t i = pending.destinations.size();
       i-- > static_cast<size_t>(pending.num_own);) {
    blocks_.Release(pending.destinations[i]);
  }
  at(slot).groups[group].pending.reset();
}

RaggedRegion BlockManager::DeriveRegion(SequenceSlot slot,
                                        int32_t group) const {
  const RegionRecord* region = at(slot).groups[group].region.get();
  BM_CHECK(region != nullptr);
  return {layout_, LayoutOf(layout_, *region)};
}

std::vector<BlockId> BlockManager::OwnOf(const HeldBlocks& covered) const {
  std::vector<BlockId> blocks;
  if (covered.region != nullptr && blocks_.IsOwn(*covered.region)) {
    blocks = covered.region->blocks;
  }
  std::ranges::copy_if(covered.tail, std::back_inserter(blocks),
                       [this](BlockId block) { return blocks_.IsOwn(block); });
  return blocks;
}

bool BlockManager::TakeDestinations(const HeldBlocks& covered,
                                    const EvictionDemand& demand,
                                    PendingEviction* pending) {
  const int64_t num_destinations =
      CeilDiv<int64_t>(demand.page_total, layout_.shard_pages_per_block());
  const int64_t num_own = num_destinations - demand.num_fresh;
  BM_CHECK(demand.num_fresh >= 0 && num_own >= 0);
  const std::span<const int64_t> shard_page_totals = demand.shard_page_totals;
  BM_CHECK(shard_page_totals.empty() ||
           (std::ssize(shard_page_totals) == layout_.num_shards &&
            std::ranges::max(shard_page_totals) <= demand.page_total));
  if (demand.num_fresh > num_available()) return false;
  std::vector<BlockId> candidates;  // unused if all is copied
  if (num_own > 0) candidates = OwnOf(covered);
  if (std::ssize(candidates) < num_own) return false;

  pending->region = RegionId{next_region_++};
  pending->cut = demand.cut;
  pending->page_totals.assign(layout_.num_shards, demand.page_total);
  std::ranges::copy(shard_page_totals, pending->page_totals.begin());
  pending->num_own = static_cast<int32_t>(num_own);
  pending->destinations.reserve(num_destinations);
  if (num_own > 0) {
    TakeOwn(covered.region, candidates, num_own, &pending->destinations);
  }
  pending->destinations.resize(num_destinations);
  blocks_.Take(std::span(pending->destinations).subspan(num_own));
  return true;
}

void BlockManager::TakeOwn(const RegionRecord* region,
                           std::span<const BlockId> candidates, int64_t num_own,
                           std::vector<BlockId>* taken) {
  // Takes uncached blocks first, because taking a cached block drops its entry,
  // and the blocks of a cached region last. The chosen blocks stay in table
  // order, because the page lists follow from it.
  enum Rank : uint8_t { kUncached, kCached, kRegion };
  absl::flat_hash_map<BlockId, int32_t> region_entries;
  if (region != nullptr) {
    const int32_t entry = blocks_.cache().FindRegion(region->id);
    if (entry != PrefixCache::kNone) {
      for (const BlockId block : region->blocks) {
        region_entries[block] = entry;
      }
      const CachedRegion& cached = *blocks_.cache().region(entry);
      if (!cached.in_window &&
          blocks_.cache().serial(Index(cached.tail)) == cached.tail_serial) {
        region_entries[cached.tail] = Index(cached.tail);
      }
    }
  }
  std::vector<Rank> ranks;
  std::array<int64_t, 3> wanted{};
  for (const BlockId block : candidates) {
    ranks.push_back(region_entries.contains(block)    ? kRegion
                    : blocks_.cache().Contains(block) ? kCached
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
    // The first block that is taken of a region drops the region's entry.
    const int32_t entry = ranks[i] == kCached ? Index(candidates[i])
                                              : region_entries[candidates[i]];
    if (blocks_.cache().serial(entry) != kNoSerial)
      blocks_.DropFromCache(entry);
  }
}

const PendingEviction& BlockManager::PendingOf(SequenceSlot slot,
                                               int32_t group) const {
  const GroupCache& cache = at(slot).groups[group];
  BM_CHECK(cache.pending != nullptr);
  return *cache.pending;
}

int32_t BlockManager::PendingCut(const SequenceCache& sequence) const {
  int32_t cut = 0;
  for (const GroupCache& cache : sequence.groups) {
    if (cache.pending != nullptr) cut = std::max(cut, cache.pending->cut);
  }
  return cut;
}

HeldBlocks BlockManager::CoveredBy(SequenceSlot slot, int32_t group) const {
  const PendingEviction& pending = PendingOf(slot, group);
  return at(slot).groups[group].Covered(layout_, group, pending.cut,
                                        pending.length);
}

EvictionReceipt BlockManager::Replace(const HeldBlocks& covered,
                                      const PendingEviction& pending,
                                      const RegionRecord& region) {
  EvictionReceipt receipt;
  const auto sum = [](std::span<const int32_t> kept) {
    return std::accumulate(kept.begin(), kept.end(), int64_t{0});
  };
  receipt.evicted_entries = std::ssize(covered.tail) * layout_.page_size *
                                int64_t{layout_.pages_per_block()} -
                            sum(region.kept);
  if (covered.region != nullptr) {
    receipt.evicted_entries += sum(covered.region->kept);
  }
  receipt.freed_blocks =
      covered.num_blocks() - static_cast<int32_t>(region.blocks.size());
  // The region takes over the holds on its blocks. All other blocks of the
  // order are released, the end of the tail first. In the common case all
  // entries are copied and all destinations used, and no set is needed.
  const bool all_stay = region.blocks.size() == pending.destinations.size();
  absl::flat_hash_set<BlockId> stays;
  if (!all_stay || pending.num_own > 0) {
    stays.reserve(region.blocks.size());
    stays.insert(region.blocks.begin(), region.blocks.end());
  }
  for (size_t i = pending.num_own; !all_stay && i < pending.destinations.size();
       ++i) {
    if (!stays.contains(pending.destinations[i])) {
      blocks_.Release(pending.destinations[i]);
    }
  }
  const auto release = [&](std::span<const BlockId> blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {
      if (pending.num_own > 0 && stays.contains(blocks[i])) continue;
      blocks_.Release(blocks[i]);
    }
  };
  release(covered.tail);
  if (covered.region == nullptr) return receipt;
  if (blocks_.cache().FindRegion(covered.region->id) != PrefixCache::kNone) {
    // The region was not written to. Otherwise it would have left the cache.
    blocks_.Release(*covered.region);
  } else {
    release(covered.region->blocks);
  }
  return receipt;
}

void BlockManager::AbortEvictions(SequenceSlot slot) {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (at(slot).groups[group].pending != nullptr) AbortEviction(slot, group);
  }
}

}  // namespace blockmgr
