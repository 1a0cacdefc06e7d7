// What NaiveModel finds of a prompt, and the sequences that go on from there.

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

uint64_t NaiveModel::MatchRegion(int32_t scope,
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
    if (region.tokens != Prefix(tokens, length / layout_.page_size)) continue;
    if (!query.any_history &&
        !std::string(query.history).starts_with(region.name.history)) {
      continue;
    }
    const auto tail = cached_.find(region.tail);
    if (tail == cached_.end() || tail->second.id != region.tail_id) continue;
    // The longest, and of those the newest.
    if (best == 0 || length >= regions_.at(best).name.length) best = id;
  }
  return best;
}

NaiveMatch NaiveModel::Match(int32_t scope, const std::vector<int32_t>& tokens,
                             int32_t max_tokens,
                             const RegionQuery* query) const {
  const int32_t page_size = layout_.page_size;
  // Blocks after the first num_pages ones, which end with entry `parent`.
  const auto extend = [&](int32_t num_pages, uint64_t parent,
                          const std::string& context, int32_t limit,
                          NaiveMatch* match) {
    limit = std::min(limit, static_cast<int32_t>(tokens.size()));
    int32_t i = num_pages + 1;
    for (; i * page_size <= limit; ++i) {
      const auto found = by_content_.find({scope, parent, Prefix(tokens, i)});
      if (found == by_content_.end()) break;
      parent = cached_.at(found->second).id;
      match->blocks.push_back(found->second);
      EXPECT_TRUE(written_.at(found->second) ==
                  (Written{Prefix(tokens, i), context}))
          << "a false hit";
    }
    match->num_tokens = (i - 1) * page_size;
  };
  NaiveMatch match;
  extend(0, 1, "", max_tokens, &match);
  FitWindows(tokens, &match);
  // Of regions without their windows up to four, the longer first.
  int32_t max_length = std::numeric_limits<int32_t>::max();
  for (int32_t tries = 0; query != nullptr && tries < 4; ++tries) {
    const uint64_t id = MatchRegion(scope, tokens, *query, max_length);
    if (id == 0) break;
    const Region& region = regions_.at(id);
    NaiveMatch over;
    over.region = static_cast<int32_t>(id);
    over.blocks = {region.tail};
    EXPECT_EQ(written_.at(region.tail).prefix, region.tokens);
    extend(region.name.length / page_size, id, ContextOf(region.name),
           query->max_tokens_over(region.name.length), &over);
    if (FitWindows(tokens, &over)) {
      if (over.num_tokens >= match.num_tokens) match = over;
      break;
    }
    match.has_refused_region = true;
    max_length = region.name.length - 1;
  }
  CountReclaimable(&match);
  return match;
}

void NaiveModel::CountReclaimable(NaiveMatch* match) const {
  const std::vector<int32_t> holders = Holders();
  // What nobody uses, and what is used.
  const auto count = [&](const std::vector<BlockId>& blocks) {
    int32_t num_used = 0;
    for (const BlockId block : blocks) {
      if (block == kNullBlock) continue;
      const bool is_used = holders[Index(block)] > 0;
      const bool is_fenced = released_[Index(block)] > acknowledged_;
      num_used += is_used ? 1 : 0;
      match->cost.num_cooling += !is_used && is_fenced ? 1 : 0;
      match->cost.num_reclaimable += !is_used && !is_fenced ? 1 : 0;
    }
    return num_used;
  };
  match->cost.num_moving = count(match->window_blocks);
  const int32_t in_tail = count(match->blocks);
  if (layout_.window > 0) match->cost.num_moving += in_tail;
  if (match->region == PrefixCache::kNone) return;
  const auto id = static_cast<uint64_t>(match->region);
  count(regions_.at(id).book.blocks);
  if (match->swap != kNoSwap) return;
  for (int32_t group = 1; group < num_groups(); ++group) {
    const Window* window = CachedWindowRegion(id, group, match->num_tokens);
    if (window != nullptr) {
      match->cost.num_moving += count(window->region.blocks);
    }
  }
}

void NaiveModel::MatchPart(int32_t scope, const std::vector<int32_t>& tokens,
                           int32_t max_tokens, PrefixMatch* match) const {
  if (layout_.window > 0 || num_groups() > 1) return;
  const bool over = match->region != PrefixCache::kNone;
  uint64_t parent = over ? static_cast<uint64_t>(match->region) : 1;
  if (match->blocks.size() > (over ? 1 : 0)) {
    parent = cached_.at(match->blocks.back()).id;
  }
  const int32_t begin = match->num_tokens;
  const int32_t end = std::min({max_tokens, begin + layout_.page_size - 1,
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
    if (match->has_part) match->blocks.pop_back();
    match->has_part = true;
    match->blocks.push_back(block);
    match->cost.part_is_reclaimable =
        Holders()[Index(block)] == 0 &&
        released_.at(Index(block)) <= acknowledged_;
  }
  match->num_tokens = best;
}

void NaiveModel::Open(SequenceSlot slot, NaiveSequence sequence,
                      const NaiveMatch& match) {
  const int32_t page_size = layout_.page_size;
  sequence.groups.resize(static_cast<size_t>(num_groups()));
  if (match.region != PrefixCache::kNone) {
    const auto id = static_cast<uint64_t>(match.region);
    const Region& region = regions_.at(id);
    sequence.groups[0].region = region.book;
    sequence.context = ContextOf(region.name);
    sequence.lineage = region.lineage;
    sequence.chain = id;
    Use({kNullBlock, id});
    ApplyWishes(sequence, {kNullBlock, id}, 0, 0, sequence.cut());
  }
  std::vector<BlockId>& pages = sequence.groups[0].pages;
  pages.assign(sequence.cut() / page_size, kNullBlock);
  pages.insert(pages.end(), match.blocks.begin(), match.blocks.end());
  const bool over = match.region != PrefixCache::kNone;
  auto next = match.window_blocks.begin();
  for (int32_t group = 1; group < num_groups(); ++group) {
    if (match.swap != kNoSwap) break;  // these come back
    OpenWindowRegion(match, group, &sequence);
    GroupBook& book = sequence.groups[group];
    book.pages.assign(match.num_tokens / page_size, kNullBlock);
    for (int32_t i = 0; i < match.num_tokens / page_size; ++i) {
      if (!IsInWindow(group, i, match.num_tokens)) continue;
      if (i * page_size < book.region.cut) continue;
      const BlockId block = *next++;
      Use({block, 0});
      ApplyWishes(sequence, {block, 0}, i * page_size, (i + 1) * page_size);
      book.pages[i] = block;
    }
  }
  for (size_t i = 0; i < match.blocks.size(); ++i) {
    const BlockId block = match.blocks[i];
    if (block == kNullBlock) continue;
    const int32_t begin = sequence.cut() + static_cast<int32_t>(i) * page_size;
    Use({block, 0});
    if (begin + page_size > match.num_tokens) continue;  // a part of it
    ApplyWishes(sequence, {block, 0}, begin, begin + page_size,
                over && i == 0 ? begin : 0);
    if (!over || i > 0) sequence.chain = cached_.at(block).id;
  }
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  sequence.num_found = match.num_tokens - match.num_tokens % page_size;
  sequence.num_offered = match.num_tokens / page_size;
  FindRows(&sequence);
  EXPECT_TRUE(sequences_.emplace(slot, std::move(sequence)).second);
}

void NaiveModel::FindRows(NaiveSequence* sequence) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<uint64_t>& values = sequence->groups[group].values;
    values.resize(sequence->num_settled);
    for (int32_t i = 0; i < sequence->num_settled; ++i) {
      const BlockId block = BlockAt(*sequence, group, i / layout_.page_size);
      if (block == kNullBlock) continue;
      values[i] = rows_.at({block, i % layout_.page_size});
    }
  }
}

}  // namespace blockmgr
