#include "blockmgr/prefix_matcher.h"

#include <algorithm>
#include <array>
#include <utility>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// A search tries at most so many compressed prefixes, the longest first. It
// goes on to the next one only if pages in windows of the last one are gone.
constexpr int32_t kMaxRegionsWithoutWindows = 4;

}  // namespace

PrefixMatch PrefixMatcher::Match(const BlockChain& chain,
                                 std::span<const int32_t> tokens,
                                 int32_t max_tokens, const RegionQuery* query,
                                 MatchMemory* memory) const {
  PrefixMatch match = memory->Take();
  const int32_t page_size = layout_.page_size;
  const auto num_pages =
      static_cast<size_t>(std::max(max_tokens, 0) / page_size);
  blocks_.cache().Match(chain, std::min(chain.keys().size(), num_pages), tokens,
                        &match.blocks);
  match.num_tokens = static_cast<int32_t>(match.blocks.size()) * page_size;
  int64_t num_looks = std::ssize(match.blocks);
  if (layout_.has_windows()) FitWindows(&match);
  if (query != nullptr) {
    PrefixMatch over = MatchOver(chain, tokens, *query, memory, &num_looks);
    const bool is_longer = over.num_tokens >= match.num_tokens;
    if (over.cached != nullptr && is_longer) std::swap(match, over);
    memory->Give(std::move(over));
  }
  match.cost.num_looks = num_looks;
  CountUnused(&match);
  return match;
}

void PrefixMatcher::MatchPart(const BlockChain& chain,
                              std::span<const int32_t> tokens,
                              int32_t max_tokens, PrefixMatch* match) const {
  BM_CHECK(match->source == kNoSequenceSlot && !match->has_part);
  if (layout_.has_windows()) return;
  int32_t before = PrefixCache::kNone;
  if (match->cached != nullptr && match->blocks.size() == 1) {
    // The tail block of a region is not part of the region's chain.
    before = match->region;
  } else if (!match->blocks.empty()) {
    before = Index(match->blocks.back());
  }
  BlockId block = kNullBlock;
  const int32_t num_tokens = blocks_.cache().MatchPart(
      before, chain, tokens, match->num_tokens, max_tokens, &block);
  if (num_tokens == 0) return;
  match->num_tokens += num_tokens;
  match->blocks.push_back(block);
  match->has_part = true;
  match->cost.part_is_reclaimable = blocks_.cache().IsReclaimable(Index(block));
  ++match->cost.num_looks;
}

void PrefixMatcher::CountUnused(PrefixMatch* match) const {
  const auto count = [&](int32_t entry) {
    const int32_t num_blocks = blocks_.cache().num_blocks(entry);
    if (blocks_.cache().IsReclaimable(entry)) {
      match->cost.num_reclaimable += num_blocks;
    } else if (blocks_.IsCooling(entry)) {
      match->cost.num_cooling += num_blocks;
    } else {
      return num_blocks;
    }
    return 0;
  };
  for (const BlockId block : match->blocks) {
    if (block == kNullBlock) continue;
    const int32_t num_used = count(Index(block));
    if (layout_.kind_of(0) == GroupKind::kWindow) {
      match->cost.num_moving += num_used;
    }
  }
  for (const BlockId block : match->window_blocks) {
    match->cost.num_moving += count(Index(block));
  }
  if (match->cached == nullptr) return;
  count(match->region);
  if (match->swap != kNoSwap) return;  // windows come from the host
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const GroupRegion& window = match->cached->window(group);
    if (window.num_region_blocks() == 0) continue;
    if (window.IsPast(layout_, group, match->num_tokens)) continue;
    const int32_t entry =
        blocks_.cache().WindowRegionOf(*match->cached, group - 1);
    BM_CHECK(entry != PrefixCache::kNone);
    const int32_t num_used = count(entry);
    match->cost.num_moving += num_used;
    match->cost.num_window_region_blocks +=
        window.num_region_blocks() - num_used;
  }
}

PrefixMatch PrefixMatcher::MatchOver(const BlockChain& chain,
                                     std::span<const int32_t> tokens,
                                     RegionQuery query, MatchMemory* memory,
                                     int64_t* num_looks) const {
  for (int32_t i = 0; i < kMaxRegionsWithoutWindows; ++i) {
    PrefixMatch match = memory->Take();
    match.region = blocks_.cache().MatchRegion(chain, tokens, query, num_looks);
    if (match.region == PrefixCache::kNone) return match;
    match.cached = blocks_.cache().region(match.region);
    const int32_t limit = std::min(query.max_tokens_over(match.length()),
                                   static_cast<int32_t>(tokens.size()));
    blocks_.cache().MatchOver(match.region, chain, tokens, limit,
                              &match.blocks);
    match.num_tokens = match.cut() + static_cast<int32_t>(match.blocks.size()) *
                                         layout_.page_size;
    *num_looks += std::ssize(match.blocks);
    if (!layout_.has_windows() || FitWindows(&match)) return match;
    query.max_length = match.length() - 1;
    memory->Give(std::move(match));
  }
  return memory->Take();
}

int32_t PrefixMatcher::PagesInWindows(const PrefixMatch& match,
                                      int32_t num_least) const {
  int32_t num_pages = match.num_tokens / layout_.page_size;
  // In each group, pages [found, num_pages) are in the cache.
  std::array<int32_t, 1 + ModelLayout::kMaxWindowGroups> found{};
  found.fill(num_pages);
  for (int32_t group = 1; group < layout_.num_groups();) {
    const int32_t first =
        layout_.FirstPage(group, num_pages * layout_.page_size);
    int32_t behind = first;
    if (match.cached != nullptr) {
      const GroupRegion& window = match.cached->window(group);
      behind = std::max(behind, window.cut() / layout_.page_size);
      // Every shorter prefix needs this region as well.
      if (behind > first &&
          !blocks_.cache().HasWindowRegionOf(*match.cached, group - 1)) {
        return -1;
      }
    }
    int32_t& next = found[group];
    next = std::min(next, num_pages);
    while (next > behind && WindowBlock(match, next - 1, group) != kNullBlock) {
      --next;
    }
    if (next <= behind) {
      ++group;
      continue;
    }
    // Every longer prefix needs this page as well.
    num_pages = --next;
    if (num_pages < num_least) return -1;
    group = 1;
  }
  return num_pages;
}

bool PrefixMatcher::FitWindows(PrefixMatch* match) const {
  const int32_t page_size = layout_.page_size;
  const int32_t num_pages = PagesInWindows(*match, match->length() / page_size);
  if (num_pages < 0) return false;
  match->num_tokens = num_pages * page_size;
  match->blocks.resize(num_pages - match->cut() / page_size);
  match->num_window_blocks = 0;
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    int32_t first = layout_.FirstPage(group, match->num_tokens);
    if (match->cached != nullptr) {
      const GroupRegion& window = match->cached->window(group);
      if (!window.IsPast(layout_, group, match->num_tokens)) {
        first = window.cut() / page_size;
        match->num_window_blocks += window.num_region_blocks();
      }
    }
    for (int32_t i = first; i < num_pages; ++i) {
      match->window_blocks.push_back(WindowBlock(*match, i, group));
    }
  }
  match->num_window_blocks += static_cast<int32_t>(match->window_blocks.size());
  match->num_out = layout_.FirstPage(0, match->num_tokens);
  std::fill_n(match->blocks.begin(), match->num_out, kNullBlock);
  return true;
}

BlockId PrefixMatcher::WindowBlock(const PrefixMatch& match, int32_t page,
                                   int32_t group) const {
  const int32_t num_before = match.cut() / layout_.page_size;
  const int32_t num_linked = match.length() / layout_.page_size;
  if (page >= num_before) {
    const BlockId block = blocks_.cache().WindowBlock(
        Index(match.blocks[page - num_before]), group - 1);
    if (block != kNullBlock || page >= num_linked) return block;
  }
  BM_CHECK(match.cached != nullptr);
  const CachedRegion& cached = *match.cached;
  const auto first = [&](int32_t of_group) {
    return cached.window(of_group)
        .PagesBehind(layout_, of_group, cached.length)
        .begin;
  };
  size_t index = 0;
  for (int32_t i = 1; i < group; ++i) index += num_linked - first(i);
  return blocks_.cache().WindowBlockOf(cached, index + page - first(group));
}

}  // namespace blockmgr
