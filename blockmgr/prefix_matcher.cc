#include "blockmgr/prefix_matcher.h"

#include <algorithm>
#include <array>
#include <utility>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// The most compressed prefixes that a search tries, the longest first. The
// search tries the next prefix only if pages in the windows of the last one are
// no longer cached.
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
  FitSpans(&match);
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
  BlockId block = kNullBlock;
  const int32_t num_tokens =
      blocks_.cache().MatchPart(match->last_entry(), chain, tokens,
                                match->num_tokens, max_tokens, &block);
  if (num_tokens == 0) return;
  match->num_tokens += num_tokens;
  match->blocks.push_back(block);
  ++match->groups.front().end;
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
  for (int32_t group = 0; group < std::ssize(match->groups); ++group) {
    const bool moves = layout_.kind_of(group) == GroupKind::kWindow;
    for (const BlockId block : match->blocks_of(group)) {
      const int32_t num_used = count(Index(block));
      if (moves) match->cost.num_moving += num_used;
    }
    const MatchedGroup& own = match->groups[group];
    if (!own.region_is_cached || own.num_region_blocks() == 0) continue;
    const int32_t entry = blocks_.cache().RegionOf(*match->cached, group);
    BM_CHECK(entry != PrefixCache::kNone);
    const int32_t num_used = count(entry);
    if (!moves) continue;
    match->cost.num_moving += num_used;
    match->cost.num_window_region_blocks += own.num_region_blocks() - num_used;
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
    match.groups.front().region = &match.cached->record();
    const int32_t limit = std::min(query.max_tokens_over(match.length()),
                                   static_cast<int32_t>(tokens.size()));
    blocks_.cache().MatchOver(match.region, chain, tokens, limit,
                              &match.blocks);
    match.num_tokens = match.cut() + static_cast<int32_t>(match.blocks.size()) *
                                         layout_.page_size;
    *num_looks += std::ssize(match.blocks);
    if (FitSpans(&match)) return match;
    query.max_length = match.length() - 1;
    memory->Give(std::move(match));
  }
  return memory->Take();
}

int32_t PrefixMatcher::CountPagesInSpans(const PrefixMatch& match,
                                         int32_t num_least) const {
  int32_t num_pages = match.num_tokens / layout_.page_size;
  // In each group, pages [found, num_pages) are in the cache. The index group
  // has all pages of the match.
  std::array<int32_t, 1 + ModelLayout::kMaxWindowGroups> found{};
  found.fill(num_pages);
  for (int32_t group = 1; group < layout_.num_groups();) {
    const int32_t first =
        layout_.FirstPage(group, num_pages * layout_.page_size);
    int32_t behind = first;
    if (match.cached != nullptr) {
      const GroupRegion& region = match.cached->groups[group];
      behind = std::max(behind, region.cut() / layout_.page_size);
      // Every shorter prefix needs this region as well.
      if (behind > first &&
          !blocks_.cache().HasRegionOf(*match.cached, group)) {
        return -1;
      }
    }
    int32_t& next = found[group];
    next = std::min(next, num_pages);
    while (next > behind && LinkedBlock(match, next - 1, group) != kNullBlock) {
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

bool PrefixMatcher::FitSpans(PrefixMatch* match) const {
  const int32_t page_size = layout_.page_size;
  const int32_t num_pages =
      CountPagesInSpans(*match, match->length() / page_size);
  if (num_pages < 0) return false;
  const int32_t num_before = match->cut() / page_size;
  match->num_tokens = num_pages * page_size;
  match->blocks.resize(num_pages - num_before);
  match->groups.resize(layout_.num_groups());
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    MatchedGroup& own = match->groups[group];
    const GroupRegion none;
    const GroupRegion& region =
        match->cached == nullptr ? none : match->cached->groups[group];
    own.region_is_cached = !region.IsPast(layout_, group, match->num_tokens);
    own.region = own.region_is_cached ? region.region.get() : nullptr;
    own.first_page =
        region.PagesBehind(layout_, group, match->num_tokens).begin;
    if (group == 0) {
      own.begin = own.first_page - num_before;  // its blocks are here already
    } else {
      own.begin = static_cast<int32_t>(match->blocks.size());
      for (int32_t i = own.first_page; i < num_pages; ++i) {
        match->blocks.push_back(LinkedBlock(*match, i, group));
      }
    }
    own.end = static_cast<int32_t>(match->blocks.size());
  }
  return true;
}

BlockId PrefixMatcher::LinkedBlock(const PrefixMatch& match, int32_t page,
                                   int32_t group) const {
  const int32_t num_before = match.cut() / layout_.page_size;
  if (page >= num_before) {
    const BlockId block = blocks_.cache().LinkedBlock(
        Index(match.blocks[page - num_before]), group);
    const bool is_linked = page < match.length() / layout_.page_size;
    if (block != kNullBlock || !is_linked) return block;
  }
  return blocks_.cache().LinkedBlock(*match.cached, group, page);
}

}  // namespace blockmgr
