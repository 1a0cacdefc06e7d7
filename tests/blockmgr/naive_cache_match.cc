// Matches of NaiveCache, and sequences that start with them.

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_cache.h"

namespace blockmgr {

uint64_t NaiveCache::MatchRegion(int32_t scope,
                                 const std::vector<int32_t>& tokens,
                                 const RegionQuery& query,
                                 int32_t max_length) const {
  uint64_t best = 0;
  for (const auto& [id, region] : regions_) {
    const int32_t length = region.name.length;
    if (region.group > 0) continue;
    if (region.scope != scope || region.name.plan != query.plan) continue;
    if (length > std::min<int64_t>(std::ssize(tokens), max_length)) continue;
    if (length > query.max_tokens_over(length)) continue;
    const int32_t num_pages = length / books_.layout.page_size;
    if (region.tokens != books_.Prefix(tokens, num_pages)) continue;
    if (!query.any_history &&
        !std::string(query.history).starts_with(region.name.history)) {
      continue;
    }
    if (!IsAlive(TailOf(region))) continue;
    // The longest, and of those the newest.
    if (best == 0 || length >= regions_.at(best).name.length) best = id;
  }
  return best;
}

NaiveMatch NaiveCache::Match(int32_t scope, const std::vector<int32_t>& tokens,
                             int32_t max_tokens,
                             const RegionQuery* query) const {
  const int32_t page_size = books_.layout.page_size;
  // By content, pages after the ones that end with entry `parent`.
  const auto extend = [&](uint64_t parent, const std::string& context,
                          int32_t limit, NaiveMatch* match) {
    limit = std::min(limit, static_cast<int32_t>(tokens.size()));
    std::vector<BlockId>& pages = match->pages[0];
    auto i = static_cast<int32_t>(pages.size()) + 1;
    for (; i * page_size <= limit; ++i) {
      const auto found =
          by_content_.find({scope, parent, books_.Prefix(tokens, i)});
      if (found == by_content_.end()) break;
      parent = cached_.at(found->second).id;
      pages.push_back(found->second);
      EXPECT_TRUE(books_.arena.written.at(found->second) ==
                  (NaiveArena::Written{books_.Prefix(tokens, i), context}))
          << "a false hit";
    }
    match->num_tokens = (i - 1) * page_size;
  };
  NaiveMatch match(books_.num_groups());
  extend(1, "", max_tokens, &match);
  Fit(tokens, &match);
  // Up to four regions that lack something are passed, the longer first.
  int32_t max_length = std::numeric_limits<int32_t>::max();
  for (int32_t tries = 0; query != nullptr && tries < 4; ++tries) {
    const uint64_t id = MatchRegion(scope, tokens, *query, max_length);
    if (id == 0) break;
    const Region& region = regions_.at(id);
    NaiveMatch over(books_.num_groups());
    over.region = id;
    over.pages[0].assign(region.starts[0].region.cut / page_size, kNullBlock);
    over.pages[0].push_back(TailOf(region).first);
    EXPECT_EQ(std::ssize(over.pages[0]) * page_size, region.name.length);
    EXPECT_EQ(books_.arena.written.at(TailOf(region).first).prefix,
              region.tokens);
    extend(id, ContextOf(id), query->max_tokens_over(region.name.length),
           &over);
    if (Fit(tokens, &over)) {
      if (over.num_tokens >= match.num_tokens) match = over;
      break;
    }
    match.has_refused_region = true;
    max_length = region.name.length - 1;
  }
  CountUnused(&match);
  return match;
}

const NaiveCache::Start* NaiveCache::StartOf(uint64_t region, int32_t group,
                                             int32_t num_tokens) const {
  if (region == 0) return nullptr;
  const Start& start = regions_.at(region).starts[group];
  const bool is_there =
      books_.rules.IsInWindow(start.region, group, num_tokens);
  return is_there ? &start : nullptr;
}

BlockId NaiveCache::PageOf(const NaiveMatch& match, int32_t group,
                           int32_t page) const {
  const BlockId content = match.pages[0].at(page);
  if (group == 0) return content;
  if (content != kNullBlock) {
    const uint64_t of = cached_.at(content).id;
    for (const auto& [block, entry] : cached_) {
      if (entry.group == group && entry.of == of) return block;
    }
  }
  if (match.region == 0) return kNullBlock;
  const auto& pages = regions_.at(match.region).starts[group].pages;
  const auto linked = pages.find(page);
  if (linked == pages.end()) return kNullBlock;
  return IsAlive(linked->second) ? linked->second.first : kNullBlock;
}

bool NaiveCache::Fits(const NaiveMatch& match, int32_t num_pages) const {
  const int32_t page_size = books_.layout.page_size;
  const int32_t num_tokens = num_pages * page_size;
  for (int32_t group = 0; group < books_.num_groups(); ++group) {
    const Start* const start = StartOf(match.region, group, num_tokens);
    if (start != nullptr && start->id != 0 && !regions_.contains(start->id)) {
      ++books_.tally->missing_window_regions;
      return false;
    }
    int32_t i = start == nullptr ? 0 : start->region.cut / page_size;
    for (; i < num_pages; ++i) {
      if (!books_.rules.IsOut(group, i, num_tokens) &&
          PageOf(match, group, i) == kNullBlock) {
        return false;
      }
    }
  }
  return true;
}

bool NaiveCache::Fit(const std::vector<int32_t>& tokens,
                     NaiveMatch* match) const {
  const int32_t page_size = books_.layout.page_size;
  const int32_t least =
      match->region == 0 ? 0
                         : regions_.at(match->region).name.length / page_size;
  int32_t num_pages = match->num_tokens / page_size;
  while (num_pages >= least && !Fits(*match, num_pages)) {
    --num_pages;
    match->is_shortened = true;
  }
  if (num_pages < least) return false;
  match->num_tokens = num_pages * page_size;
  std::vector<std::vector<BlockId>> pages(books_.num_groups());
  for (int32_t group = 0; group < books_.num_groups(); ++group) {
    const Start* start = StartOf(match->region, group, match->num_tokens);
    if (start != nullptr) match->regions[group] = start->region;
    pages[group].assign(num_pages, kNullBlock);
    for (int32_t i = match->regions[group].cut / page_size; i < num_pages;
         ++i) {
      if (books_.rules.IsOut(group, i, match->num_tokens)) continue;
      const BlockId block = PageOf(*match, group, i);
      pages[group][i] = block;
      const NaiveArena::Written& written = books_.arena.written.at(block);
      EXPECT_EQ(written.group, group);
      EXPECT_EQ(written.prefix, books_.Prefix(tokens, i + 1)) << "a false hit";
      if (i >= least) {
        EXPECT_EQ(written.context, ContextOf(match->region));
      }
      books_.tally->regions_with_windows += i < least - 1 ? 1 : 0;
    }
  }
  match->pages = std::move(pages);
  return true;
}

void NaiveCache::CountUnused(NaiveMatch* match) const {
  const std::vector<int32_t> holders = books_.Holders();
  match->num_reclaimable = match->num_cooling = match->num_moving = 0;
  for (int32_t group = 0; group < books_.num_groups(); ++group) {
    std::vector<BlockId> blocks = match->regions[group].blocks;
    blocks.insert(blocks.end(), match->pages[group].begin(),
                  match->pages[group].end());
    std::erase(blocks, kNullBlock);
    for (const BlockId block : blocks) {
      const bool is_used = holders[Index(block)] > 0;
      const bool is_past = books_.fences.IsPast(block);
      match->num_reclaimable += !is_used && is_past ? 1 : 0;
      match->num_cooling += !is_used && !is_past ? 1 : 0;
      // When the window moves on, it takes a block of its own in its place.
      const bool moves = is_used && books_.rules.WindowOf(group) > 0;
      match->num_moving += moves ? 1 : 0;
    }
  }
}

void NaiveCache::MatchPart(int32_t scope, const std::vector<int32_t>& tokens,
                           int32_t max_tokens, NaiveMatch* match) const {
  if (books_.layout.has_windows()) return;
  std::vector<BlockId>& pages = match->pages[0];
  const bool is_at_start =
      match->region == 0
          ? pages.empty()
          : match->num_tokens == regions_.at(match->region).name.length;
  // A region's own page is not what the next one follows.
  const uint64_t parent = !is_at_start         ? cached_.at(pages.back()).id
                          : match->region == 0 ? 1
                                               : match->region;
  const int32_t begin = match->num_tokens;
  const int32_t end = std::min({max_tokens, begin + books_.layout.page_size - 1,
                                static_cast<int32_t>(tokens.size())});
  // The youngest with the same first token first.
  std::map<uint64_t, BlockId, std::greater<>> candidates;
  for (const auto& [block, entry] : cached_) {
    if (begin < end && entry.scope == scope && entry.parent == parent &&
        entry.prefix[begin] == tokens[begin]) {
      candidates.emplace(entry.id, block);
    }
  }
  int32_t num_looks = 0;
  int32_t best = begin;
  for (const auto& [id, block] : candidates) {
    if (++num_looks > PrefixCache::kMaxPartLooks) break;
    int32_t same = begin;
    while (same < end && cached_.at(block).prefix[same] == tokens[same]) ++same;
    if (same <= best) continue;
    best = same;
    if (match->has_part) pages.pop_back();
    match->has_part = true;
    pages.push_back(block);
    match->part_is_reclaimable =
        books_.Holders()[Index(block)] == 0 && books_.fences.IsPast(block);
  }
  match->num_tokens = best;
}

void NaiveCache::Open(const NaiveMatch& match, NaiveSequence* sequence) {
  if (match.region != 0) {
    const Region& region = regions_.at(match.region);
    sequence->context = ContextOf(match.region);
    sequence->lineage = region.lineage;
    sequence->chain = match.region;
  }
  // This order decides between wishes that end at once.
  OpenRegion(match, 0, sequence);
  for (int32_t group = 1; group < books_.num_groups(); ++group) {
    OpenRegion(match, group, sequence);
    OpenPages(match, group, sequence);
  }
  OpenPages(match, 0, sequence);
}

void NaiveCache::OpenRegion(const NaiveMatch& match, int32_t group,
                            NaiveSequence* sequence) {
  NaiveGroup& own = sequence->groups[group];
  own.region = match.regions[group];
  if (match.region == 0) return;
  const Start& start = regions_.at(match.region).starts[group];
  own.was_evicted = !start.region.kept.empty();
  if (own.was_evicted && books_.rules.WindowOf(group) > 0) {
    (own.region.kept.empty() ? books_.tally->passed_window_regions
                             : books_.tally->found_window_regions) += 1;
  }
  if (own.region.blocks.empty()) return;
  Use({kNullBlock, start.id});
  ApplyWishes(*sequence, {kNullBlock, start.id}, 0, 0, sequence->cut());
}

void NaiveCache::OpenPages(const NaiveMatch& match, int32_t group,
                           NaiveSequence* sequence) {
  const int32_t page_size = books_.layout.page_size;
  std::vector<BlockId>& pages = sequence->groups[group].pages;
  pages = match.pages[group];
  for (int32_t i = 0; i < std::ssize(pages); ++i) {
    if (pages[i] == kNullBlock) continue;
    Use({pages[i], 0});
    const int32_t begin = i * page_size;
    const int32_t end = begin + page_size;
    if (end > match.num_tokens) continue;  // a part of it
    // The page of a region goes by what is wished for the region, too.
    const bool is_tail =
        group == 0 && match.region != 0 && begin == sequence->cut();
    ApplyWishes(*sequence, {pages[i], 0}, begin, end, is_tail ? begin : 0);
    if (group == 0 && !is_tail) sequence->chain = cached_.at(pages[i]).id;
  }
}

}  // namespace blockmgr
