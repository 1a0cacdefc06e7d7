// BlockManager: evictions, of any layer group.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/eviction_blocks.h"

namespace blockmgr {

CoveredBlocks BlockManager::CountCovered(SequenceSlot slot, int32_t group,
                                         int32_t cut, int32_t length) const {
  const SequenceCache& sequence = at(slot);
  const GroupCache& cache = sequence.groups[group];
  const PageRange pages = cache.CoveredPages(layout_, group, cut, length);
  CoveredBlocks covered{.num_blocks = pages.size()};
  if (!cache.IsPast(layout_, group, length + 1)) {
    covered.num_blocks += cache.num_region_blocks();
    covered.num_own += CountOwnRegionBlocks(cache);
  }
  const std::span<const BlockId> held = cache.Blocks(
      {.begin = std::min(pages.begin, cache.tail_end()), .end = pages.end});
  // The blocks of the other pages will be the sequence's own.
  covered.num_own += pages.size() - static_cast<int32_t>(held.size());
  covered.num_own += blocks_.CountOwn(held);
  // By then the sequence has filled the last block, so the block is its own or
  // was replaced by a copy.
  if (pages.end >= cache.tail_end() && !held.empty() &&
      sequence.shares_last_block && cut > sequence.num_reserved) {
    covered.num_own += blocks_.IsOwn(held.back()) ? 0 : 1;
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
  if (!TakeDestinations(layout_, covered, demand, RegionId{next_region_},
                        &blocks_, &pending)) {
    return false;
  }
  ++next_region_;
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
  EvictionReceipt receipt =
      ReplaceBlocks(layout_, covered, *pending, *region, &blocks_);
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
  receipt.published =
      publication != nullptr && prefix_caching_ &&
      publisher().PublishRegion(*publication, &at(slot), &receipt.cached);
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

const PendingEviction& BlockManager::PendingOf(SequenceSlot slot,
                                               int32_t group) const {
  const GroupCache& cache = at(slot).groups[group];
  BM_CHECK(cache.pending != nullptr);
  return *cache.pending;
}

HeldBlocks BlockManager::CoveredBy(SequenceSlot slot, int32_t group) const {
  const PendingEviction& pending = PendingOf(slot, group);
  return at(slot).groups[group].Covered(layout_, group, pending.cut,
                                        pending.length);
}

void BlockManager::AbortEvictions(SequenceSlot slot) {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (at(slot).groups[group].pending != nullptr) AbortEviction(slot, group);
  }
}

}  // namespace blockmgr
