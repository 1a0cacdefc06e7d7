// BlockManager: sequences that leave the pool for the host tier, and come back.

#include <algorithm>
#include <memory>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/prefix_matcher.h"

namespace blockmgr {
namespace {

// Returns the region with blocks[i] in the place of region.blocks[i].
std::shared_ptr<const RegionRecord> OnBlocks(const RegionRecord& region,
                                             RegionId id,
                                             std::vector<BlockId> blocks) {
  auto record = std::make_shared<RegionRecord>();
  record->id = id;
  record->cut = region.cut;
  record->kept = region.kept;
  if (region.layout != nullptr) {
    record->layout = std::make_unique<const RegionLayout>(
        region.layout->OnBlocks(region.blocks, blocks));
  }
  record->blocks = std::move(blocks);
  return record;
}

}  // namespace

SwapId BlockManager::SwapOut(SequenceSlot slot,
                             std::vector<BlockTransfer>* transfers) {
  const SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.pending_cut() == 0);
  BM_CHECK(copies_.empty());
  BM_CHECK(sequence.num_settled > 0);
  if (!sequence.HasWindows(layout_)) return kNoSwap;
  SwappedSequence swapped;
  swapped.num_tokens = sequence.num_settled;
  swapped.content = sequence.content;
  std::vector<BlockId> blocks;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    swapped.regions.push_back(cache);
    swapped.evicted_in_windows |=
        layout_.kind_of(group) == GroupKind::kWindow && cache.region_length > 0;
    if (cache.region != nullptr) {
      blocks.insert(blocks.end(), cache.region->blocks.begin(),
                    cache.region->blocks.end());
    }
    const std::span<const BlockId> tail =
        cache.Blocks(cache.PagesBehind(layout_, group, sequence.num_settled));
    blocks.insert(blocks.end(), tail.begin(), tail.end());
  }
  if (blocks.empty()) return kNoSwap;
  const SwapId swap =
      host_.Add(std::move(swapped), static_cast<int32_t>(blocks.size()));
  if (swap == kNoSwap) return swap;
  const std::vector<HostBlockId>& host = host_.at(swap).blocks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    transfers->push_back({.block = blocks[i], .host = host[i]});
  }
  return swap;
}

void BlockManager::MatchSwapped(SwapId swap, int32_t num_tokens, int32_t length,
                                PrefixMatch* match) const {
  const SwappedSequence& swapped = host_.at(swap);
  const GroupRegion& first = swapped.regions.front();
  BM_CHECK(match->source == kNoSequenceSlot && match->swap == kNoSwap);
  BM_CHECK(num_tokens >= std::max({first.cut(), length, 1}));
  BM_CHECK(num_tokens <= swapped.num_tokens);
  if (match->num_tokens >= num_tokens) return;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupRegion& region = swapped.regions[group];
    if (region.PagesBehind(layout_, group, num_tokens).begin <
        region.PagesBehind(layout_, group, swapped.num_tokens).begin) {
      return;
    }
    BM_CHECK(layout_.kind_of(group) == GroupKind::kFull ||
             num_tokens >= region.region_length);
  }
  match->DropPart(layout_.page_size);
  // Cached blocks may come before the rest only if both have the same past. The
  // tail block of a region is matched with the region. The cache does not tell
  // evictions in windows alone apart, so nothing cached is used after them.
  const bool has_same_past =
      layout_.kind_of(0) == GroupKind::kWindow || swapped.evicted_in_windows
          ? false
      : first.region == nullptr
          ? match->record() == nullptr
          : match->cached != nullptr && match->cut() == first.cut() &&
                match->length() == length && !match->blocks.empty();
  if (!has_same_past) {
    const int64_t num_looks = match->cost.num_looks;
    *match = PrefixMatch();
    match->cost.num_looks = num_looks;
  }
  // All blocks of linked groups come back from the host tier, so the match
  // drops those that it has found in the cache.
  match->groups.resize(1);
  match->groups.resize(layout_.num_groups());
  match->blocks.resize(match->groups.front().end);
  match->num_tokens = num_tokens;
  match->source_length = length;
  match->swap = swap;
  match->cost = {.num_looks = match->cost.num_looks};
  PrefixMatcher(layout_, blocks_).CountUnused(match);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupRegion& region = swapped.regions[group];
    MatchedGroup& own = match->groups[group];
    if (!own.region_is_cached) {
      own.region = region.region.get();
      own.num_region_ins = own.num_region_blocks();
    }
    own.num_tail_ins = region.PagesBehind(layout_, group, num_tokens).size() -
                       (own.end - own.begin);
    if (layout_.kind_of(group) != GroupKind::kWindow) continue;
    match->cost.num_window_region_blocks += own.num_region_blocks();
  }
}

void BlockManager::SwapIn(SequenceSlot slot, const PrefixMatch& match,
                          std::vector<BlockTransfer>* transfers) {
  SequenceCache& sequence = at(slot);
  const SwappedSequence& swapped = host_.at(match.swap);
  BM_CHECK(match.CountIns() <= num_available());
  BM_CHECK(sequence.num_reserved ==
           (match.groups.front().first_page + std::ssize(match.blocks)) *
               layout_.page_size);
  const auto take = [&](int32_t first_host, int32_t count) {
    std::vector<BlockId> taken(count);
    blocks_.Take(taken);
    for (int32_t i = 0; i < count; ++i) {
      transfers->push_back(
          {.block = taken[i], .host = swapped.blocks[first_host + i]});
    }
    return taken;
  };
  // The index of the next host block.
  int32_t next = 0;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    GroupCache& cache = sequence.groups[group];
    const GroupRegion& was = swapped.regions[group];
    if (was.region != nullptr && cache.region == nullptr) {
      cache.region = OnBlocks(*was.region, RegionId{next_region_++},
                              take(next, was.num_region_blocks()));
    }
    cache.region_length = was.region_length;
    next += was.num_region_blocks();
    const PageRange pages = was.PagesBehind(layout_, group, match.num_tokens);
    cache.tail_begin = pages.begin;
    // Cached blocks come first. Fewer blocks may come back than were copied
    // out.
    const auto num_cached = static_cast<int32_t>(cache.tail.size());
    const std::vector<BlockId> taken =
        take(next + num_cached, pages.size() - num_cached);
    cache.tail.insert(cache.tail.end(), taken.begin(), taken.end());
    next += was.PagesBehind(layout_, group, swapped.num_tokens).size();
  }
  const bool region_comes_back =
      match.cached == nullptr && match.record() != nullptr;
  if (region_comes_back) {
    sequence.content = swapped.content;
    sequence.num_published = match.num_tokens / layout_.page_size;
  }
  // Nothing is published behind a region that is not in the cache, behind pages
  // that left the span of the index group, or after evictions in windows.
  if (region_comes_back || layout_.FirstPage(0, match.num_tokens) > 0 ||
      swapped.evicted_in_windows) {
    sequence.chain_serial = kNoSerial;
  }
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  host_.DropAfterNextStep(match.swap);
}

absl::StatusOr<std::vector<SwapId>> BlockManager::LoseHostBlocks(
    std::span<const HostBlockId> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Index(blocks[i]) < 0 || Index(blocks[i]) >= host_.num_blocks()) {
      return Invalid("blocks[", i, "]: expected 0 to ", host_.num_blocks() - 1,
                     ", got ", Index(blocks[i]));
    }
  }
  std::vector<SwapId> lost = host_.FindHolders(blocks);
  for (const SwapId swap : lost) host_.Drop(swap);
  return lost;
}

}  // namespace blockmgr
