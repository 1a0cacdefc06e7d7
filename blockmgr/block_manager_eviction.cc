// The eviction transactions of BlockManager.

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <optional>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {
bool BlockManager::IsOwn(BlockId block) const {
  if (block == kNullBlock) return false;
  const int32_t holders = pool_.num_holders(block);
  return holders == 1 || (holders == 2 && cache_.Contains(block));
}

bool BlockManager::IsOwnRegion(const RegionRecord& region) const {
  if (region.blocks.empty()) return true;
  const bool cached = cache_.FindRegion(region.id) != PrefixCache::kNone;
  return pool_.num_holders(region.blocks.front()) == (cached ? 2 : 1);
}

int32_t BlockManager::NumReleasable(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  int32_t count = 0;
  const auto count_own = [&](std::span<const BlockId> tail) {
    for (const BlockId block : tail) count += IsOwn(block) ? 1 : 0;
  };
  const auto count_fresh = [&](const PendingEviction& pending) {
    count +=
        static_cast<int32_t>(pending.destinations.size()) - pending.num_own;
  };
  count_own(std::span(sequence.tail).subspan(FirstHeld(slot, 0)));
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const WindowCache& cache = window(slot, group);
    count_own(std::span(cache.tail).subspan(FirstHeld(slot, group)));
    count += RegionBlocksOf(cache, Owned::kOwn);
    if (cache.pending != nullptr) count_fresh(*cache.pending);
  }
  if (sequence.region != nullptr && IsOwnRegion(*sequence.region)) {
    count += static_cast<int32_t>(sequence.region->blocks.size());
  }
  if (sequence.pending.has_value()) count_fresh(*sequence.pending);
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].slot != slot) continue;
    count += IsOwn(copies_[i].blocks.source) ? 1 : 0;
    for (const BlockCopy& copy : WindowCopies(i)) {
      count += IsOwn(copy.source) ? 1 : 0;
    }
  }
  return count;
}

std::vector<BlockId> BlockManager::OwnOf(const HeldBlocks& covered) const {
  std::vector<BlockId> blocks;
  if (covered.region != nullptr && IsOwnRegion(*covered.region)) {
    blocks = covered.region->blocks;
  }
  std::ranges::copy_if(covered.tail, std::back_inserter(blocks),
                       [this](BlockId block) { return IsOwn(block); });
  return blocks;
}

int32_t BlockManager::NumOwnBlocks(SequenceSlot slot, int32_t cut) const {
  const SequenceCache& sequence = at(slot);
  const int32_t num_tail = (cut - sequence.cut()) / layout_.page_size;
  const auto num_taken =
      std::min(num_tail, static_cast<int32_t>(sequence.tail.size()));
  auto num_own = static_cast<int32_t>(
      std::count_if(sequence.tail.begin(), sequence.tail.begin() + num_taken,
                    [this](BlockId block) { return IsOwn(block); }));
  if (sequence.region != nullptr && IsOwnRegion(*sequence.region)) {
    num_own += static_cast<int32_t>(sequence.region->blocks.size());
  }
  // The last block will be full by then, hence its own or replaced.
  const bool will_leave = sequence.shares_last_block &&
                          cut > sequence.num_reserved &&
                          !IsOwn(sequence.tail.back());
  return num_own + (num_tail - num_taken) + (will_leave ? 1 : 0);
}

void BlockManager::TakeOwn(const RegionRecord* region,
                           std::span<const BlockId> candidates, int64_t num_own,
                           std::vector<BlockId>* taken) {
  // Blocks that are not in the prefix cache first, a cached region's last:
  // taking a cached one costs its entry. Table order among the chosen keeps the
  // layout derivable.
  enum Rank : uint8_t { kUncached, kCached, kRegion };
  absl::flat_hash_map<BlockId, int32_t> region_entries;
  if (region != nullptr) {
    const int32_t entry = cache_.FindRegion(region->id);
    if (entry != PrefixCache::kNone) {
      for (const BlockId block : region->blocks) {
        region_entries[block] = entry;
      }
      const CachedRegion& cached = *cache_.region(entry);
      if (!cached.in_window &&
          cache_.serial(Index(cached.tail)) == cached.tail_serial) {
        region_entries[cached.tail] = Index(cached.tail);
      }
    }
  }
  std::vector<Rank> ranks;
  std::array<int64_t, 3> wanted{};
  for (const BlockId block : candidates) {
    ranks.push_back(region_entries.contains(block) ? kRegion
                    : cache_.Contains(block)       ? kCached
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
    // A region is dropped with the first of its blocks that is taken.
    const int32_t entry = ranks[i] == kCached ? Index(candidates[i])
                                              : region_entries[candidates[i]];
    if (cache_.serial(entry) != kNoSerial) DropFromCache(entry);
  }
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
  std::vector<BlockId> candidates;  // none are asked for when all is copied
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
  Take(std::span(pending->destinations).subspan(num_own));
  return true;
}

bool BlockManager::ReserveEviction(SequenceSlot slot,
                                   const EvictionDemand& demand,
                                   std::vector<BlockId>* destinations) {
  SequenceCache& sequence = at(slot);
  const int32_t cut = demand.cut;
  BM_CHECK(cut % layout_.page_size == 0);
  BM_CHECK(cut <= sequence.num_reserved);
  PendingEviction pending;
  if (demand.group == 0) {
    BM_CHECK(!sequence.pending.has_value());
    BM_CHECK(cut > sequence.cut());
    if (!TakeDestinations(sequence.Covered(cut, layout_.page_size), demand,
                          &pending)) {
      return false;
    }
  } else {
    WindowCache& window = windows_[WindowIndex(slot, demand.group)];
    BM_CHECK(window.pending == nullptr);
    BM_CHECK(cut > window.cut());
    const HeldBlocks covered =
        window.Covered(layout_, demand.group, cut, sequence.num_reserved);
    BM_CHECK(!covered.tail.empty());
    if (!TakeDestinations(covered, demand, &pending)) {
      return false;
    }
  }
  destinations->insert(destinations->end(), pending.destinations.begin(),
                       pending.destinations.end());
  if (demand.group == 0) {
    sequence.pending = std::move(pending);
  } else {
    WindowCache& window = windows_[WindowIndex(slot, demand.group)];
    window.pending = std::make_unique<PendingEviction>(std::move(pending));
    window.pending_length = sequence.num_reserved;
  }
  return true;
}

const PendingEviction& BlockManager::PendingOf(SequenceSlot slot,
                                               int32_t group) const {
  if (group > 0) {
    const WindowCache& cache = window(slot, group);
    BM_CHECK(at(slot).open && cache.pending != nullptr);
    return *cache.pending;
  }
  const SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.pending.has_value());
  return *sequence.pending;
}

absl::Status BlockManager::ValidateCounts(
    SequenceSlot slot, std::span<const int32_t> counts, int32_t group,
    std::optional<uint64_t> checksum) const {
  const PendingEviction& pending = PendingOf(slot, group);
  const HeldBlocks covered = CoveredBy(slot, group);
  BM_RETURN_IF_ERROR(CheckCounts(layout_, pending, covered, counts));
  if (!checksum.has_value()) return absl::OkStatus();
  return CheckLayout(layout_, pending, covered, counts, *checksum);
}

HeldBlocks BlockManager::CoveredBy(SequenceSlot slot, int32_t group) const {
  const int32_t cut = PendingOf(slot, group).cut;
  if (group == 0) return at(slot).Covered(cut, layout_.page_size);
  const WindowCache& cache = window(slot, group);
  return cache.Covered(layout_, group, cut, cache.pending_length);
}

void BlockManager::Supersede(int32_t num_found,
                             std::span<const BlockId> blocks) {
  const auto first =
      static_cast<size_t>(std::max(0, CeilDiv(num_found, layout_.page_size)));
  // The end first, as they were released.
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
  // The region takes over the holds on its blocks; everything else that the
  // order involved is released, the tail's end first.
  // Nothing to look up in the common case: all is copied, and all is used.
  const bool all_stay = region.blocks.size() == pending.destinations.size();
  absl::flat_hash_set<BlockId> stays;
  if (!all_stay || pending.num_own > 0) {
    stays.reserve(region.blocks.size());
    stays.insert(region.blocks.begin(), region.blocks.end());
  }
  for (size_t i = pending.num_own; !all_stay && i < pending.destinations.size();
       ++i) {
    if (!stays.contains(pending.destinations[i])) {
      ReleaseFrom(pending.destinations[i]);
    }
  }
  const auto release = [&](std::span<const BlockId> blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {
      if (pending.num_own > 0 && stays.contains(blocks[i])) continue;
      ReleaseFrom(blocks[i]);
    }
  };
  release(covered.tail);
  if (covered.region == nullptr) return receipt;
  if (cache_.FindRegion(covered.region->id) != PrefixCache::kNone) {
    // Not written to, or it would have left the cache.
    ReleaseRegion(*covered.region);
  } else {
    release(covered.region->blocks);
  }
  return receipt;
}

EvictionReceipt BlockManager::CommitEviction(
    SequenceSlot slot, std::span<const int32_t> counts,
    const RegionPublication* publication) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(ValidateCounts(slot, counts).ok());
  const PendingEviction pending = *std::move(sequence.pending);
  sequence.pending.reset();
  BM_CHECK(pending.cut <= sequence.num_settled);
  const HeldBlocks covered = sequence.Covered(pending.cut, layout_.page_size);
  const std::vector<BlockId> before(covered.tail.begin(), covered.tail.end());
  std::shared_ptr<const RegionRecord> region =
      MakeRegion(layout_, pending, covered, counts);
  EvictionReceipt receipt = Replace(covered, pending, *region);
  const int32_t cut_before = sequence.cut();
  const RegionId region_before =
      covered.region == nullptr ? kNoRegion : covered.region->id;
  sequence.tail.erase(sequence.tail.begin(),
                      sequence.tail.begin() + std::ssize(before));
  sequence.region = std::move(region);
  receipt.published = publication != nullptr && prefix_caching_ &&
                      PublishRegion(slot, *publication, &receipt.cached);
  if (!receipt.published) sequence.chain_serial = kNoSerial;
  if (receipt.cached) {
    Supersede(sequence.num_found - cut_before, before);
    if (sequence.num_found <= cut_before) Supersede(region_before);
  }
  return receipt;
}

void BlockManager::AbortEviction(SequenceSlot slot, int32_t group) {
  const PendingEviction& pending = PendingOf(slot, group);
  for (size_t i = pending.destinations.size();
       i-- > static_cast<size_t>(pending.num_own);) {
    ReleaseFrom(pending.destinations[i]);
  }
  if (group == 0) {
    at(slot).pending.reset();
  } else {
    windows_[WindowIndex(slot, group)].pending.reset();
  }
}

RaggedRegion BlockManager::DeriveRegion(SequenceSlot slot,
                                        int32_t group) const {
  const RegionRecord* region =
      group == 0 ? at(slot).region.get() : window(slot, group).region.get();
  BM_CHECK(region != nullptr);
  return {layout_, LayoutOf(layout_, *region)};
}

}  // namespace blockmgr
