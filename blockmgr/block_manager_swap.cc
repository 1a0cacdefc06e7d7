// Sequences that leave the pool for the host tier, and come back.

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {
namespace {

// The same region on other blocks, one for each of its own, in their order.
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

// Blocks that the window groups have of its first `length` tokens.
int32_t NumWindowBlocks(const ModelLayout& layout,
                        const SwappedSequence& swapped, int32_t length) {
  int32_t num_blocks = swapped.num_window_region_blocks();
  for (int32_t group = 1; group < layout.num_groups(); ++group) {
    num_blocks +=
        swapped.window(group).PagesBehind(layout, group, length).size();
  }
  return num_blocks;
}

}  // namespace

SwapId BlockManager::SwapOut(SequenceSlot slot,
                             std::vector<BlockTransfer>* transfers) {
  const SequenceCache& sequence = at(slot);
  BM_CHECK(PendingCut(sequence) == 0);
  BM_CHECK(copies_.empty());
  BM_CHECK(sequence.num_settled > 0);
  if (!HasWindows(slot)) return kNoSwap;
  const int32_t num_pages = CeilDiv(sequence.num_settled, layout_.page_size);
  std::vector<BlockId> blocks;
  if (sequence.region != nullptr) blocks = sequence.region->blocks;
  const auto add = [&](std::span<const BlockId> tail, int32_t begin,
                       int32_t end) {
    blocks.insert(blocks.end(), tail.begin() + begin, tail.begin() + end);
  };
  add(sequence.tail, layout_.FirstPage(0, sequence.num_settled),
      num_pages - sequence.cut() / layout_.page_size);
  std::vector<WindowRegion> windows;
  const bool is_evicted_in_windows = std::ranges::any_of(
      Windows(sequence),
      [](const WindowCache& window) { return window.region_length > 0; });
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const WindowCache& cache = window(slot, group);
    if (is_evicted_in_windows) windows.push_back(cache);
    if (cache.region != nullptr) {
      add(cache.region->blocks, 0, cache.num_blocks());
    }
    const PageRange pages =
        cache.PagesBehind(layout_, group, sequence.num_settled);
    add(cache.tail, pages.begin, pages.end);
  }
  if (blocks.empty()) return kNoSwap;
  const SwapId swap = host_.Add({.num_tokens = sequence.num_settled,
                                 .region = sequence.region,
                                 .content = sequence.content,
                                 .windows = std::move(windows),
                                 .blocks = {}},
                                static_cast<int32_t>(blocks.size()));
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
  BM_CHECK(match->source == kNoSequenceSlot && match->swap == kNoSwap);
  BM_CHECK(num_tokens >= std::max({swapped.cut(), length, 1}));
  BM_CHECK(num_tokens <= swapped.num_tokens);
  if (match->num_tokens >= num_tokens) return;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const WindowRegion region =
        group == 0 ? WindowRegion() : swapped.window(group);
    if (region.PagesBehind(layout_, group, num_tokens).begin <
        region.PagesBehind(layout_, group, swapped.num_tokens).begin) {
      return;
    }
    BM_CHECK(num_tokens >= region.region_length);
  }
  match->DropPart(layout_.page_size);
  // What is cached may be before the rest only with the same past. The block
  // between a region and what was computed over it comes with the region. What
  // was computed after an eviction in windows alone is not told apart.
  const bool has_same_past =
      layout_.window > 0 || !swapped.windows.empty() ? false
      : swapped.region == nullptr
          ? match->record() == nullptr
          : match->cached != nullptr && match->cut() == swapped.cut() &&
                match->length() == length && !match->blocks.empty();
  if (!has_same_past) {
    const int64_t num_looks = match->num_looks;
    *match = PrefixMatch();
    match->num_looks = num_looks;
  }
  match->window_blocks.clear();
  match->swap = swap;
  match->num_reclaimable = match->num_cooling = match->num_moving = 0;
  CountUnused(match);
  match->num_window_blocks = NumWindowBlocks(layout_, swapped, num_tokens);
  match->num_window_region_blocks = swapped.num_window_region_blocks();
  match->num_tokens = num_tokens;
  match->num_tail_ins = CeilDiv(num_tokens - swapped.cut(), layout_.page_size) -
                        layout_.FirstPage(0, num_tokens) -
                        static_cast<int32_t>(match->blocks.size());
  if (match->cached == nullptr) match->source_region = swapped.region.get();
  match->source_length = length;
}

void BlockManager::SwapIn(SequenceSlot slot, const PrefixMatch& match,
                          std::vector<BlockTransfer>* transfers) {
  SequenceCache& sequence = at(slot);
  const SwappedSequence& swapped = host_.at(match.swap);
  BM_CHECK(match.num_ins() <= num_available());
  BM_CHECK(sequence.num_reserved ==
           (match.cached == nullptr ? 0 : match.cut()) +
               std::ssize(match.blocks) * layout_.page_size);
  const auto take = [&](int32_t first_host, int32_t count) {
    std::vector<BlockId> taken(count);
    Take(taken);
    for (int32_t i = 0; i < count; ++i) {
      transfers->push_back(
          {.block = taken[i], .host = swapped.blocks[first_host + i]});
    }
    return taken;
  };
  const auto add = [](std::span<const BlockId> blocks,
                      std::vector<BlockId>* tail) {
    tail->insert(tail->end(), blocks.begin(), blocks.end());
  };
  if (match.cached == nullptr && swapped.region != nullptr) {
    sequence.region = OnBlocks(*swapped.region, RegionId{next_region_++},
                               take(0, match.num_region_ins()));
    sequence.content = swapped.content;
    // Nobody can find what is computed over it.
    sequence.chain_serial = kNoSerial;
    sequence.num_published = match.num_tokens / layout_.page_size;
  }
  const int32_t num_out = layout_.FirstPage(0, match.num_tokens);
  if (num_out > 0) {
    // What comes before it cannot be found.
    sequence.tail.assign(num_out, kNullBlock);
    sequence.chain_serial = kNoSerial;
  }
  int32_t next = swapped.num_region_blocks() +
                 static_cast<int32_t>(sequence.tail.size()) - num_out;
  add(take(next, match.num_tail_ins), &sequence.tail);
  // Less may come back than was copied.
  next = swapped.num_region_blocks() +
         CeilDiv(swapped.num_tokens - swapped.cut(), layout_.page_size) -
         num_out;
  int32_t group = 0;
  for (WindowCache& window : Windows(sequence)) {
    const WindowRegion was = swapped.window(++group);
    window.region_length = was.region_length;
    if (was.region != nullptr) {
      window.region = OnBlocks(*was.region, RegionId{next_region_++},
                               take(next, was.num_blocks()));
      next += was.num_blocks();
    }
    const PageRange pages = was.PagesBehind(layout_, group, match.num_tokens);
    window.tail.assign(pages.begin, kNullBlock);
    add(take(next, pages.size()), &window.tail);
    next += was.PagesBehind(layout_, group, swapped.num_tokens).size();
  }
  // What is computed after evictions in windows is found by nobody.
  if (!swapped.windows.empty()) sequence.chain_serial = kNoSerial;
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  host_.DropAfterNextStep(match.swap);
}

absl::StatusOr<std::vector<SwapId>> BlockManager::LoseHostBlocks(
    std::span<const HostBlockId> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Index(blocks[i]) < 0 || Index(blocks[i]) >= host_.num_blocks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("blocks[", i, "]: expected 0 to ",
                       host_.num_blocks() - 1, ", got ", Index(blocks[i])));
    }
  }
  std::vector<SwapId> lost = host_.FindHolders(blocks);
  for (const SwapId swap : lost) host_.Drop(swap);
  return lost;
}

}  // namespace blockmgr
