// The eviction transactions of BlockManager, and its audit.

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

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

}  // namespace

std::vector<BlockId> BlockManager::BlocksBelow(const SequenceCache& sequence,
                                               int32_t cut) const {
  std::vector<BlockId> blocks;
  if (sequence.region != nullptr) blocks = sequence.region->blocks;
  const int32_t num_tail =
      std::min<int32_t>((cut - sequence.cut()) / layout_.page_size,
                        static_cast<int32_t>(sequence.tail.size()));
  blocks.insert(blocks.end(), sequence.tail.begin(),
                sequence.tail.begin() + num_tail);
  return blocks;
}

std::vector<BlockId> BlockManager::OwnBlocksBelow(const SequenceCache& sequence,
                                                  int32_t cut) const {
  std::vector<BlockId> blocks = BlocksBelow(sequence, cut);
  size_t num_region = 0;
  if (sequence.region != nullptr) {
    num_region = sequence.region->blocks.size();
    if (!IsOwnRegion(*sequence.region)) {
      blocks.erase(blocks.begin(),
                   blocks.begin() + static_cast<std::ptrdiff_t>(num_region));
      num_region = 0;
    }
  }
  const auto tail = blocks.begin() + static_cast<std::ptrdiff_t>(num_region);
  blocks.erase(std::remove_if(tail, blocks.end(),
                              [this](BlockId block) { return !IsOwn(block); }),
               blocks.end());
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

void BlockManager::TakeOwn(const SequenceCache& sequence,
                           std::span<const BlockId> candidates, int64_t num_own,
                           std::vector<BlockId>* taken) {
  // Blocks that are not in the prefix cache first, a cached region's last:
  // taking a cached one costs its entry. Table order among the chosen keeps the
  // layout derivable.
  enum Rank : uint8_t { kUncached, kCached, kRegion };
  absl::flat_hash_map<BlockId, int32_t> region_entries;
  if (sequence.region != nullptr) {
    const int32_t entry = cache_.FindRegion(sequence.region->id);
    if (entry != PrefixCache::kNone) {
      for (const BlockId block : sequence.region->blocks) {
        region_entries[block] = entry;
      }
      const CachedRegion& cached = *cache_.region(entry);
      if (cache_.serial(Index(cached.tail)) == cached.tail_serial) {
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

bool BlockManager::ReserveEviction(SequenceSlot slot, int32_t cut,
                                   int64_t page_total, int32_t num_fresh,
                                   std::vector<BlockId>* destinations,
                                   std::span<const int64_t> shard_page_totals) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(!sequence.pending.has_value());
  BM_CHECK(cut % layout_.page_size == 0);
  BM_CHECK(cut > sequence.cut());
  BM_CHECK(cut <= sequence.num_reserved);
  const int64_t num_destinations =
      CeilDiv<int64_t>(page_total, layout_.shard_pages_per_block());
  const int64_t num_own = num_destinations - num_fresh;
  BM_CHECK(num_fresh >= 0 && num_own >= 0);
  BM_CHECK(shard_page_totals.empty() ||
           (std::ssize(shard_page_totals) == layout_.num_shards &&
            std::ranges::max(shard_page_totals) <= page_total));
  if (num_fresh > num_available()) return false;
  std::vector<BlockId> candidates;  // none are asked for when all is copied
  if (num_own > 0) candidates = OwnBlocksBelow(sequence, cut);
  if (std::ssize(candidates) < num_own) return false;

  PendingEviction pending;
  pending.region = RegionId{next_region_++};
  pending.cut = cut;
  pending.page_totals.assign(layout_.num_shards, page_total);
  std::ranges::copy(shard_page_totals, pending.page_totals.begin());
  pending.num_own = static_cast<int32_t>(num_own);
  pending.destinations.reserve(num_destinations);
  if (num_own > 0) {
    TakeOwn(sequence, candidates, num_own, &pending.destinations);
  }
  pending.destinations.resize(num_destinations);
  Take(std::span(pending.destinations).subspan(num_own));
  destinations->insert(destinations->end(), pending.destinations.begin(),
                       pending.destinations.end());
  sequence.pending = std::move(pending);
  return true;
}

absl::Status BlockManager::ValidateCounts(
    SequenceSlot slot, std::span<const int32_t> counts) const {
  const SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.pending.has_value());
  if (std::ssize(counts) != layout_.pages_per_block()) {
    return absl::InvalidArgumentError(
        absl::StrCat("counts: expected ", layout_.pages_per_block(),
                     " (layers * heads), got ", counts.size()));
  }
  const int32_t in_tail = sequence.pending->cut - sequence.cut();
  for (size_t i = 0; i < counts.size(); ++i) {
    const int32_t held =
        in_tail + (sequence.region == nullptr ? 0 : sequence.region->kept[i]);
    if (counts[i] < 0 || counts[i] > held) {
      return absl::InvalidArgumentError(
          absl::StrCat("counts[layer ", i / layout_.num_heads, ", head ",
                       i % layout_.num_heads, "]: expected 0 to ", held,
                       ", got ", counts[i]));
    }
  }
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    const int64_t page_total = sequence.pending->page_totals[shard];
    const int64_t num_pages = ShardPages(layout_, shard, counts);
    if (num_pages > page_total) {
      return absl::InvalidArgumentError(
          absl::StrCat("counts: expected at most ", page_total, " pages",
                       layout_.num_shards == 1 ? "" : " in shard ",
                       layout_.num_shards == 1 ? "" : absl::StrCat(shard),
                       ", got ", num_pages));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<const RegionRecord> BlockManager::BuildRegion(
    const SequenceCache& sequence, const PendingEviction& pending,
    std::span<const int32_t> counts) {
  auto region = std::make_shared<RegionRecord>();
  region->id = pending.region;
  region->cut = pending.cut;
  region->kept.assign(counts.begin(), counts.end());
  region->blocks = pending.destinations;
  int64_t num_pages = 0;  // in the shard with most
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    num_pages = std::max(num_pages, ShardPages(layout_, shard, counts));
  }
  const bool keeps_old_pages =
      sequence.region != nullptr && pending.num_own > 0;
  const bool may_leave_surplus =
      num_pages <= (std::ssize(pending.destinations) - 1) *
                       int64_t{layout_.shard_pages_per_block()};
  if (keeps_old_pages || may_leave_surplus) {
    std::optional<RegionLayout> now;
    if (sequence.region != nullptr) now = DeriveLayout(*sequence.region);
    region->layout = std::make_unique<const RegionLayout>(RegionLayout::LayOut(
        layout_, now.has_value() ? &*now : nullptr,
        std::span(sequence.tail)
            .first((pending.cut - sequence.cut()) / layout_.page_size),
        pending.destinations, counts, pending.cut));
    region->blocks.assign(region->layout->blocks().begin(),
                          region->layout->blocks().end());
  }
  return region;
}

void BlockManager::ReleaseReplaced(const SequenceCache& sequence,
                                   const PendingEviction& pending,
                                   const RegionRecord& region) {
  // The region takes over the holds on its blocks; everything else that the
  // order involved is released, the tail's end first.
  const std::vector<BlockId> before = BlocksBelow(sequence, pending.cut);
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
  const auto replaced = [&](BlockId block) {
    return pending.num_own == 0 || !stays.contains(block);
  };
  const std::shared_ptr<const RegionRecord> old = sequence.region;
  const size_t num_old = old == nullptr ? 0 : old->blocks.size();
  for (size_t i = before.size(); i-- > num_old;) {
    if (replaced(before[i])) ReleaseFrom(before[i]);
  }
  if (old != nullptr) {
    if (cache_.FindRegion(old->id) != PrefixCache::kNone) {
      // Not written to, or it would have left the cache.
      ReleaseRegion(*old);
    } else {
      for (size_t i = num_old; i-- > 0;) {
        if (replaced(before[i])) ReleaseFrom(before[i]);
      }
    }
  }
}

void BlockManager::Supersede(int32_t num_found,
                             std::span<const BlockId> blocks) {
  const auto first = static_cast<size_t>(
      std::max(0, CeilDiv(num_found, layout_.page_size)));
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

EvictionReceipt BlockManager::CommitEviction(
    SequenceSlot slot, std::span<const int32_t> counts,
    const RegionPublication* publication) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(ValidateCounts(slot, counts).ok());
  const PendingEviction pending = *std::move(sequence.pending);
  sequence.pending.reset();
  BM_CHECK(pending.cut <= sequence.num_settled);
  const std::vector<BlockId> before = BlocksBelow(sequence, pending.cut);

  std::shared_ptr<const RegionRecord> region =
      BuildRegion(sequence, pending, counts);

  EvictionReceipt receipt;
  const int64_t tail_entries =
      int64_t{pending.cut - sequence.cut()} * layout_.pages_per_block();
  receipt.evicted_entries =
      tail_entries - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (sequence.region != nullptr) {
    receipt.evicted_entries += std::accumulate(
        sequence.region->kept.begin(), sequence.region->kept.end(), int64_t{0});
  }
  receipt.freed_blocks = static_cast<int32_t>(before.size()) -
                         static_cast<int32_t>(region->blocks.size());

  const int32_t cut_before = sequence.cut();
  const RegionId region_before =
      sequence.region == nullptr ? kNoRegion : sequence.region->id;
  const int32_t num_tail = (pending.cut - cut_before) / layout_.page_size;
  ReleaseReplaced(sequence, pending, *region);
  sequence.tail.erase(sequence.tail.begin(), sequence.tail.begin() + num_tail);
  sequence.region = std::move(region);
  receipt.published = publication != nullptr && prefix_caching_ &&
                      PublishRegion(slot, *publication, &receipt.cached);
  if (!receipt.published) sequence.chain_serial = kNoSerial;
  if (receipt.cached) {
    Supersede(sequence.num_found - cut_before,
              std::span(before).last(static_cast<size_t>(num_tail)));
    if (sequence.num_found <= cut_before) Supersede(region_before);
  }
  return receipt;
}

void BlockManager::AbortEviction(SequenceSlot slot) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.pending.has_value());
  const PendingEviction& pending = *sequence.pending;
  for (size_t i = pending.destinations.size();
       i-- > static_cast<size_t>(pending.num_own);) {
    ReleaseFrom(pending.destinations[i]);
  }
  sequence.pending.reset();
}

RaggedRegion BlockManager::DeriveRegion(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.region != nullptr);
  return {layout_, DeriveLayout(*sequence.region)};
}

RegionLayout BlockManager::DeriveLayout(const RegionRecord& region) const {
  if (region.layout != nullptr) return *region.layout;
  return RegionLayout::LayOut(layout_, nullptr, {}, region.blocks, region.kept,
                              region.cut);
}

uint64_t BlockManager::StateHash() const {
  uint64_t hash =
      pool_.StateHash() + 5 * cache_.StateHash() + 7 * host_.StateHash();
  const auto mix = [&hash](uint64_t value) { hash = SplitMix64(hash ^ value); };
  for (const SequenceCache& sequence : sequences_) {
    mix(sequence.open ? 1 : 0);
    if (!sequence.open) continue;
    mix(static_cast<uint64_t>(sequence.num_reserved));
    mix(static_cast<uint64_t>(sequence.num_settled));
    mix(static_cast<uint64_t>(sequence.num_published));
    mix(sequence.chain_serial);
    mix(sequence.chain_key.low);
    // A flag that nobody is there to heed is no part of the state.
    const bool shares = sequence.shares_last_block &&
                        pool_.num_holders(sequence.tail.back()) > 1;
    mix(shares ? 1 : 0);
    for (const BlockId block : sequence.tail) mix(Index(block));
    for (const std::vector<BlockId>& tail : WindowTails(sequence)) {
      for (const BlockId block : tail) mix(Index(block));
    }
    if (sequence.region != nullptr) {
      mix(sequence.region->cut);
      for (const BlockId block : sequence.region->blocks) mix(Index(block));
      for (const int32_t kept : sequence.region->kept) mix(kept);
    }
    if (sequence.pending.has_value()) {
      mix(sequence.pending->cut);
      for (const BlockId block : sequence.pending->destinations) {
        mix(Index(block));
      }
    }
  }
  for (const CopyOnWrite& copy : copies_) {
    mix(Index(copy.slot));
    mix(Index(copy.blocks.source));
    mix(Index(copy.blocks.destination));
  }
  for (const BlockCopy& copy : window_copies_) {
    mix(Index(copy.source));
    mix(Index(copy.destination));
  }
  for (const SequenceSlot slot : free_slots_) mix(Index(slot));
  return hash;
}

void BlockManager::CheckInvariants() const {
  pool_.CheckInvariants();
  cache_.CheckInvariants();
  host_.CheckInvariants();
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  int32_t num_open = 0;
  absl::flat_hash_set<BlockId> seen;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceCache& sequence = sequences_[i];
    if (!sequence.open) continue;
    ++num_open;
    BM_CHECK(sequence.num_settled <= sequence.num_reserved);
    BM_CHECK(sequence.BlocksFor(0, layout_.page_size) == 0);
    seen.clear();
    const auto hold = [&](BlockId block) {
      BM_CHECK(block != kNullBlock);
      BM_CHECK(seen.insert(block).second);
      ++holders[Index(block)];
    };
    for (const BlockId block : sequence.tail) {
      if (layout_.window == 0 || block != kNullBlock) hold(block);
    }
    CheckWindowTails(sequence, hold);
    if (sequence.shares_last_block) {
      BM_CHECK(sequence.num_settled == sequence.num_reserved);
      BM_CHECK(!sequence.tail.empty());
      BM_CHECK(sequence.num_reserved % layout_.page_size != 0);
    }
    if (sequence.region != nullptr) {
      for (const BlockId block : sequence.region->blocks) hold(block);
      const RaggedRegion region =
          DeriveRegion(SequenceSlot{static_cast<int32_t>(i)});
      absl::flat_hash_set<PageId> pages;
      for (const PageId page : region.page_list()) {
        BM_CHECK(pages.insert(page).second);
        BM_CHECK(std::ranges::count(sequence.region->blocks,
                                    layout_.page_block(page)) == 1);
      }
      CheckShards(layout_, region);
    }
    if (sequence.pending.has_value()) {
      const PendingEviction& pending = *sequence.pending;
      BM_CHECK(pending.cut <= sequence.num_reserved);
      for (size_t j = 0; j < pending.destinations.size(); ++j) {
        const BlockId block = pending.destinations[j];
        if (std::ssize(pending.destinations) > 0 &&
            static_cast<int32_t>(j) < pending.num_own) {
          BM_CHECK(seen.contains(block));
          BM_CHECK(!cache_.Contains(block));
          BM_CHECK(pool_.num_holders(block) == 1);
        } else {
          hold(block);
        }
      }
    }
  }
  BM_CHECK(num_open + std::ssize(free_slots_) == std::ssize(sequences_));
  CheckCopies(&holders);
  CheckCacheHolds(holders);
}

void BlockManager::CheckCacheHolds(std::span<const int32_t> holders) const {
  std::vector<int32_t> in_regions(layout_.num_blocks, 0);
  int32_t num_cooling = 0;
  for (int32_t i = layout_.num_blocks; i < cache_.entry_limit(); ++i) {
    const CachedRegion* cached = cache_.region(i);
    if (cached == nullptr) continue;
    bool used = false;
    for (const BlockId block : cached->record->blocks) {
      BM_CHECK(++in_regions[Index(block)] == 1);
      BM_CHECK(!cache_.Contains(block));
      used |= holders[Index(block)] > 0;
    }
    BM_CHECK(!cache_.IsReclaimable(i) || !used);
    if (!used && !cache_.IsReclaimable(i)) num_cooling += cache_.num_blocks(i);
  }
  for (int32_t i = 1; i < layout_.num_blocks; ++i) {
    const BlockId block{i};
    const bool only_cached = cache_.Contains(block) && holders[i] == 0;
    BM_CHECK(!cache_.IsReclaimable(i) || only_cached);
    num_cooling += only_cached && !cache_.IsReclaimable(i) ? 1 : 0;
    BM_CHECK(pool_.num_holders(block) ==
             holders[i] + in_regions[i] + (cache_.Contains(block) ? 1 : 0));
  }
  BM_CHECK(num_cooling == num_cooling_);
}

}  // namespace blockmgr
