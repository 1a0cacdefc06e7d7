#include "blockmgr/cached_pool.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>

#include "blockmgr/base/check.h"

namespace blockmgr {

CachedPool::CachedPool(const ModelLayout& layout)
    : pool_(layout.num_blocks),
      cache_(layout.num_blocks, layout.page_size, layout.num_groups()),
      cooling_(layout.num_blocks) {}

void CachedPool::Acknowledge(StepId step) {
  pool_.Acknowledge(step);
  for (int32_t entry = cooling_.Front(); entry != CoolingEntries::kNone;
       entry = cooling_.Front()) {
    if (!pool_.IsPastFence(SomeBlock(entry))) break;
    cooling_.Remove(entry, cache_.num_blocks(entry));
    cache_.AddReclaimable(entry);
  }
}

void CachedPool::Take(std::span<BlockId> blocks) {
  while (pool_.num_free() < std::ssize(blocks)) ReclaimNext();
  BM_CHECK(pool_.Allocate(blocks));
}

void CachedPool::Release(BlockId block) {
  pool_.Release(block);
  if (pool_.num_holders(block) == 1 && cache_.Contains(block)) {
    BecomeUnused(Index(block), block);
  }
}

void CachedPool::Release(const RegionRecord& region) {
  const int32_t entry = cache_.FindRegion(region.id);
  for (size_t i = region.blocks.size(); i-- > 0;) {
    pool_.Release(region.blocks[i]);
  }
  if (entry != PrefixCache::kNone &&
      pool_.num_holders(region.blocks.front()) == 1) {
    BecomeUnused(entry, region.blocks.front());
  }
}

void CachedPool::Hold(BlockId block, const Retention* wish) {
  BM_CHECK(cache_.Contains(block));
  cache_.SetSuperseded(Index(block), false);
  ApplyRetention(Index(block), wish);
  Wake(Index(block));
  pool_.AddRef(block);
}

void CachedPool::HoldRegion(int32_t entry, const Retention* wish) {
  cache_.SetSuperseded(entry, false);
  Wake(entry);
  for (const BlockId block : cache_.region(entry)->record().blocks) {
    pool_.AddRef(block);
  }
  ApplyRetention(entry, wish);
}

bool CachedPool::IsOwn(BlockId block) const {
  if (block == kNullBlock) return false;
  const int32_t holders = pool_.num_holders(block);
  return holders == 1 || (holders == 2 && cache_.Contains(block));
}

int32_t CachedPool::CountOwn(std::span<const BlockId> blocks) const {
  return static_cast<int32_t>(std::ranges::count_if(
      blocks, [this](BlockId block) { return IsOwn(block); }));
}

bool CachedPool::IsOwn(const RegionRecord& region) const {
  if (region.blocks.empty()) return true;
  const bool cached = cache_.FindRegion(region.id) != PrefixCache::kNone;
  return pool_.num_holders(region.blocks.front()) == (cached ? 2 : 1);
}

void CachedPool::Supersede(int32_t num_found, std::span<const BlockId> blocks) {
  const auto first = static_cast<size_t>(std::max(0, num_found));
  // The loop goes from the end on, in the order in which the blocks were
  // released.
  for (size_t i = blocks.size(); i-- > first;) {
    if (cache_.Contains(blocks[i]) && pool_.num_holders(blocks[i]) == 1) {
      cache_.SetSuperseded(Index(blocks[i]), true);
    }
  }
}

void CachedPool::Supersede(RegionId region) {
  const int32_t entry =
      region == kNoRegion ? PrefixCache::kNone : cache_.FindRegion(region);
  if (entry == PrefixCache::kNone) return;
  const std::vector<BlockId>& blocks = cache_.region(entry)->record().blocks;
  if (pool_.num_holders(blocks.front()) == 1) cache_.SetSuperseded(entry, true);
}

void CachedPool::Drop(int32_t entry) {
  const bool is_reclaimable = cache_.IsReclaimable(entry);
  if (cooling_.Contains(entry)) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
  }
  if (is_reclaimable) cache_.RemoveReclaimable(entry);
  DropFromCache(entry);
}

void CachedPool::DropFromCache(int32_t entry) {
  for (const int32_t orphan : cache_.Unlink(entry)) Drop(orphan);
  const CachedRegion* cached = cache_.region(entry);
  if (cached == nullptr) {
    cache_.Remove(entry);
    pool_.ReleaseUntouched(BlockId{entry});
    return;
  }
  const std::shared_ptr<const RegionRecord> record =
      cached->groups.front().region;
  // The engine knows regions of linked groups by the name of the region that
  // links them.
  if (!cached->is_linked) dropped_regions_.push_back(record->id);
  cache_.Remove(entry);
  for (const BlockId block : record->blocks) pool_.ReleaseUntouched(block);
}

CacheReset CachedPool::Reset() {
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

void CachedPool::TakeDroppedRegions(std::vector<RegionId>* regions) {
  regions->insert(regions->end(), dropped_regions_.begin(),
                  dropped_regions_.end());
  dropped_regions_.clear();
}

void CachedPool::CheckInvariants(std::span<const int32_t> holders) const {
  pool_.CheckInvariants();
  cache_.CheckInvariants();
  const auto num_blocks = static_cast<int32_t>(holders.size());
  std::vector<int32_t> in_regions(holders.size(), 0);
  int32_t num_cooling = 0;
  for (int32_t i = num_blocks; i < cache_.entry_limit(); ++i) {
    const CachedRegion* cached = cache_.region(i);
    if (cached == nullptr) continue;
    bool used = false;
    for (const BlockId block : cached->record().blocks) {
      BM_CHECK(++in_regions[Index(block)] == 1);
      BM_CHECK(!cache_.Contains(block));
      used |= holders[Index(block)] > 0;
    }
    BM_CHECK(!cache_.IsReclaimable(i) || !used);
    if (!used && !cache_.IsReclaimable(i)) num_cooling += cache_.num_blocks(i);
  }
  for (int32_t i = 1; i < num_blocks; ++i) {
    const BlockId block{i};
    const bool only_cached = cache_.Contains(block) && holders[i] == 0;
    BM_CHECK(!cache_.IsReclaimable(i) || only_cached);
    num_cooling += only_cached && !cache_.IsReclaimable(i) ? 1 : 0;
    BM_CHECK(pool_.num_holders(block) ==
             holders[i] + in_regions[i] + (cache_.Contains(block) ? 1 : 0));
  }
  BM_CHECK(num_cooling == cooling_.num_blocks());
}

BlockId CachedPool::SomeBlock(int32_t entry) const {
  const CachedRegion* cached = cache_.region(entry);
  return cached == nullptr ? BlockId{entry} : cached->record().blocks.front();
}

void CachedPool::BecomeUnused(int32_t entry, BlockId block) {
  if (pool_.IsPastFence(block)) {
    cache_.AddReclaimable(entry);
    return;
  }
  cooling_.Add(entry, cache_.num_blocks(entry));
}

void CachedPool::Wake(int32_t entry) {
  if (cache_.IsReclaimable(entry)) {
    cache_.RemoveReclaimable(entry);
  } else if (pool_.num_holders(SomeBlock(entry)) == 1) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
  }
}

void CachedPool::ReclaimNext() {
  const int32_t entry = cache_.next_to_reclaim();
  const int32_t before = cache_.num_reclaimable();
  cache_.RemoveReclaimable(entry);
  DropFromCache(entry);
  // Linked blocks may have been dropped with the entry.
  num_reclaimed_ += static_cast<uint64_t>(before - cache_.num_reclaimable());
}

}  // namespace blockmgr
