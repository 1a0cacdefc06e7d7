#include "blockmgr/host_tier.h"

#include <algorithm>
#include <utility>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {
namespace {

BlockId InPool(HostBlockId block) { return BlockId{Index(block) + 1}; }

}  // namespace

HostTier::HostTier(int32_t num_blocks) : num_blocks_(num_blocks) {
  BM_CHECK(num_blocks >= 0);
  if (num_blocks > 0) pool_.emplace(num_blocks + 1);
}

SwapId HostTier::Add(SwappedSequence sequence, int32_t num_blocks) {
  BM_CHECK(num_blocks > 0);
  if (num_blocks > num_free()) return kNoSwap;
  std::vector<BlockId> taken(num_blocks);
  BM_CHECK(pool_->Allocate(taken));
  sequence.blocks.clear();
  for (const BlockId block : taken) {
    sequence.blocks.push_back(HostBlockId{Index(block) - 1});
  }
  const SwapId swap{next_swap_++};
  sequences_.emplace(swap, std::move(sequence));
  return swap;
}

const SwappedSequence& HostTier::at(SwapId swap) const {
  const auto found = sequences_.find(swap);
  BM_CHECK(found != sequences_.end());
  return found->second;
}

void HostTier::Drop(SwapId swap) {
  for (const HostBlockId block : at(swap).blocks) pool_->Release(InPool(block));
  sequences_.erase(swap);
}

void HostTier::DropAfterNextStep(SwapId swap) {
  BM_CHECK(Contains(swap));
  leaving_.push_back(swap);
}

void HostTier::DropLeaving() {
  for (const SwapId swap : leaving_) Drop(swap);
  leaving_.clear();
}

std::vector<SwapId> HostTier::FindHolders(
    std::span<const HostBlockId> blocks) const {
  const absl::flat_hash_set<HostBlockId> wanted(blocks.begin(), blocks.end());
  std::vector<SwapId> holders;
  for (const auto& [swap, sequence] : sequences_) {
    if (std::ranges::any_of(sequence.blocks, [&wanted](HostBlockId block) {
          return wanted.contains(block);
        })) {
      holders.push_back(swap);
    }
  }
  std::ranges::sort(holders);
  return holders;
}

void HostTier::LoseEngine() {
  BM_CHECK(leaving_.empty());
  // The swaps are sorted by id, so that later allocations do not depend on a
  // hash.
  std::vector<SwapId> swaps;
  swaps.reserve(sequences_.size());
  for (const auto& [swap, sequence] : sequences_) swaps.push_back(swap);
  std::ranges::sort(swaps);
  for (const SwapId swap : swaps) Drop(swap);
  if (pool_.has_value()) pool_->ForgetSteps();
}

int64_t HostTier::metadata_bytes(
    absl::flat_hash_set<const RegionContent*>* contents,
    absl::flat_hash_set<const RegionRecord*>* records) const {
  int64_t bytes = pool_.has_value() ? pool_->metadata_bytes() : 0;
  for (const auto& [swap, sequence] : sequences_) {
    bytes += static_cast<int64_t>(sizeof(swap) + sizeof(sequence)) +
             HeapBytes(sequence.blocks) + HeapBytes(sequence.regions) +
             RegionContent::CountBytes(sequence.content.get(), contents);
    for (const GroupRegion& of_group : sequence.regions) {
      bytes += RegionRecord::CountBytes(of_group.region.get(), records);
    }
  }
  return bytes;
}

uint64_t HostTier::StateHash() const {
  uint64_t hash = pool_.has_value() ? pool_->StateHash() : 0;
  // A sum does not depend on the order of the map.
  for (const auto& [swap, sequence] : sequences_) {
    uint64_t own = SplitMix64(Index(swap));
    const auto mix = [&own](uint64_t value) { own = SplitMix64(own ^ value); };
    mix(static_cast<uint64_t>(sequence.num_tokens));
    for (const GroupRegion& of_group : sequence.regions) {
      mix(static_cast<uint64_t>(of_group.cut()));
      mix(static_cast<uint64_t>(of_group.region_length));
    }
    for (const HostBlockId block : sequence.blocks) {
      mix(static_cast<uint64_t>(Index(block)));
    }
    hash += own;
  }
  return hash;
}

void HostTier::CheckInvariants() const {
  BM_CHECK(pool_.has_value() == (num_blocks_ > 0));
  if (!pool_.has_value()) {
    BM_CHECK(sequences_.empty());
    return;
  }
  pool_->CheckInvariants();
  absl::flat_hash_set<HostBlockId> held;
  for (const auto& [swap, sequence] : sequences_) {
    BM_CHECK(sequence.num_tokens > 0);
    int64_t num_in_regions = 0;
    for (const GroupRegion& of_group : sequence.regions) {
      BM_CHECK(sequence.num_tokens >= of_group.cut());
      num_in_regions += of_group.num_region_blocks();
    }
    BM_CHECK(std::ssize(sequence.blocks) >= num_in_regions);
    for (const HostBlockId block : sequence.blocks) {
      BM_CHECK(Index(block) >= 0 && Index(block) < num_blocks_);
      BM_CHECK(held.insert(block).second);
      BM_CHECK(pool_->num_holders(InPool(block)) == 1);
    }
  }
  BM_CHECK(std::ssize(held) == num_used());
  for (const SwapId swap : leaving_) BM_CHECK(Contains(swap));
}

}  // namespace blockmgr
