// Layer groups with a window: what they have of a sequence, and of a prefix.

#include <algorithm>
#include <array>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

int32_t BlockManager::NumFalling(SequenceSlot slot, Owned owned) const {
  const SequenceCache& sequence = at(slot);
  int32_t num_blocks = 0;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    int32_t length = sequence.num_reserved;
    if (group > 0) {
      const WindowCache& cache = window(slot, group);
      // What an order covers is its to give back.
      if (cache.pending != nullptr) length = cache.pending_length;
      if (cache.IsPast(layout_, group, length)) {
        num_blocks += RegionBlocksOf(cache, owned);
      }
    }
    const int32_t end = layout_.FirstPage(group, length);
    if (end == layout_.FirstPage(group, sequence.num_settled)) continue;
    const std::vector<BlockId>& tail =
        group == 0 ? sequence.tail : window_tail(slot, group);
    for (int32_t i = FirstHeld(slot, group); i < end; ++i) {
      num_blocks += owned == Owned::kAny || IsOwn(tail[i]) ? 1 : 0;
    }
  }
  return num_blocks;
}

int32_t BlockManager::NumFalling(SequenceSlot slot) const {
  return NumFalling(slot, Owned::kOwn);
}

int32_t BlockManager::NumFallingOrShared(SequenceSlot slot) const {
  return NumFalling(slot, Owned::kAny);
}

OwnInWindows BlockManager::NumOwnInWindows(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  OwnInWindows own;
  for (int32_t group = layout_.window > 0 ? 0 : 1; group < layout_.num_groups();
       ++group) {
    const std::vector<BlockId>& tail =
        group == 0 ? sequence.tail : window_tail(slot, group);
    int32_t first = std::max(FirstHeld(slot, group),
                             layout_.FirstPage(group, sequence.num_reserved));
    if (group > 0) {
      const WindowCache& cache = window(slot, group);
      const PendingEviction* pending = cache.pending.get();
      if (pending != nullptr) {
        first = std::max(first, pending->cut / layout_.page_size);
        own.num_in_regions +=
            static_cast<int32_t>(pending->destinations.size());
      } else if (!cache.IsPast(layout_, group, sequence.num_reserved)) {
        own.num_in_regions += RegionBlocksOf(cache, Owned::kOwn);
      }
    }
    own.num_blocks += static_cast<int32_t>(
        std::count_if(tail.begin() + first, tail.end(),
                      [this](BlockId block) { return IsOwn(block); }));
  }
  own.num_blocks += own.num_in_regions;
  return own;
}

bool BlockManager::CanGoBack(SequenceSlot slot, int32_t num_tokens) const {
  if (num_tokens == 0) return true;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (group > 0 && window(slot, group).region != nullptr) {
      if (num_tokens < window(slot, group).region_length) return false;
    } else if (layout_.FirstPage(group, num_tokens + 1) <
               FirstHeld(slot, group)) {
      return false;
    }
  }
  return true;
}

std::span<WindowCache> BlockManager::Windows(const SequenceCache& sequence) {
  const auto slot = static_cast<size_t>(&sequence - sequences_.data());
  const size_t num_groups = layout_.group_windows.size();
  return std::span(windows_).subspan(slot * num_groups, num_groups);
}

std::span<const WindowCache> BlockManager::Windows(
    const SequenceCache& sequence) const {
  const auto slot = static_cast<size_t>(&sequence - sequences_.data());
  const size_t num_groups = layout_.group_windows.size();
  return std::span(windows_).subspan(slot * num_groups, num_groups);
}

int32_t BlockManager::FirstHeld(SequenceSlot slot, int32_t group) const {
  const SequenceCache& sequence = at(slot);
  const int32_t page = layout_.FirstPage(group, sequence.num_settled);
  if (group > 0 && window(slot, group).region != nullptr) {
    return window(slot, group).cut() / layout_.page_size;
  }
  const std::vector<BlockId>& tail =
      group == 0 ? sequence.tail : window_tail(slot, group);
  const bool is_held = page == std::ssize(tail) || tail[page] != kNullBlock;
  return is_held ? page : page + 1;
}

bool BlockManager::HasWindows(SequenceSlot slot) const {
  const int32_t num_settled = at(slot).num_settled;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    // A region stands for the pages before its cut.
    if (group > 0 && window(slot, group).region != nullptr) continue;
    if (FirstHeld(slot, group) > layout_.FirstPage(group, num_settled)) {
      return false;
    }
  }
  return true;
}

void BlockManager::ReleaseRegionBehind(WindowCache* window, int32_t group,
                                       int32_t num_settled) {
  if (window->region == nullptr) return;
  if (!window->IsPast(layout_, group, num_settled)) return;
  ReleaseRegion(*window->region);
  window->region.reset();
}

void BlockManager::ReleaseBehindWindows(SequenceCache* sequence,
                                        int32_t num_before) {
  const auto release = [&](int32_t group, std::vector<BlockId>* tail) {
    const int32_t end = layout_.FirstPage(group, sequence->num_settled);
    for (int32_t i = layout_.FirstPage(group, num_before); i < end; ++i) {
      if ((*tail)[i] == kNullBlock) continue;
      ReleaseFrom((*tail)[i]);
      (*tail)[i] = kNullBlock;
    }
  };
  release(0, &sequence->tail);
  int32_t group = 0;
  for (WindowCache& window : Windows(*sequence)) {
    // An order covers what is in the window then.
    BM_CHECK(window.pending == nullptr ||
             sequence->num_settled <= window.pending_length);
    release(++group, &window.tail);
    if (window.region != nullptr) {
      ReleaseRegionBehind(&window, group, sequence->num_settled);
    }
  }
}

int32_t BlockManager::PagesInWindows(const PrefixMatch& match,
                                     int32_t num_least) const {
  int32_t num_pages = match.num_tokens / layout_.page_size;
  // Of each group, pages [found, num_pages) are there.
  std::array<int32_t, 1 + ModelLayout::kMaxWindowGroups> found{};
  found.fill(num_pages);
  for (int32_t group = 1; group < layout_.num_groups();) {
    const int32_t first =
        layout_.FirstPage(group, num_pages * layout_.page_size);
    int32_t behind = first;
    if (match.cached != nullptr) {
      const WindowRegion& window = match.cached->window(group);
      behind = std::max(behind, window.cut() / layout_.page_size);
      // Every shorter prefix needs it as well.
      if (behind > first && !cache_.HasWindowRegion(window)) return -1;
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

bool BlockManager::FitWindows(PrefixMatch* match) const {
  const int32_t page_size = layout_.page_size;
  const int32_t num_pages = PagesInWindows(*match, match->length() / page_size);
  if (num_pages < 0) return false;
  match->num_tokens = num_pages * page_size;
  match->blocks.resize(num_pages - match->cut() / page_size);
  match->num_window_blocks = 0;
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    int32_t first = layout_.FirstPage(group, match->num_tokens);
    if (match->cached != nullptr) {
      const WindowRegion& window = match->cached->window(group);
      if (!window.IsPast(layout_, group, match->num_tokens)) {
        first = window.cut() / page_size;
        match->num_window_blocks += window.num_blocks();
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

BlockId BlockManager::WindowBlock(const PrefixMatch& match, int32_t page,
                                  int32_t group) const {
  const int32_t num_before = match.cut() / layout_.page_size;
  const int32_t num_linked = match.length() / layout_.page_size;
  if (page >= num_before) {
    const BlockId block =
        cache_.WindowBlock(Index(match.blocks[page - num_before]), group - 1);
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
  return cache_.WindowBlockOf(cached, index + page - first(group));
}

void BlockManager::OpenWindows(const BlockChain& chain,
                               const PrefixMatch& match,
                               SequenceCache* sequence) {
  const int32_t page_size = layout_.page_size;
  const int32_t num_pages = match.num_tokens / page_size;
  auto block = match.window_blocks.begin();
  int32_t group = 0;
  for (WindowCache& window : Windows(*sequence)) {
    ++group;
    if (match.cached != nullptr) {
      const WindowRegion& cached = match.cached->window(group);
      window.region_length = cached.region_length;
      if (!cached.IsPast(layout_, group, match.num_tokens)) {
        window.region = cached.region;
      }
    }
    if (window.num_blocks() > 0) {
      const int32_t entry = cache_.FindRegion(window.region->id);
      Wake(entry);
      for (const BlockId held : window.region->blocks) pool_.AddRef(held);
      ApplyRetention(entry, chain.RetentionOfRegion(match.cut()));
    }
    std::vector<BlockId>& tail = window.tail;
    tail.assign(window.PagesBehind(layout_, group, match.num_tokens).begin,
                kNullBlock);
    for (auto i = static_cast<int32_t>(tail.size()); i < num_pages; ++i) {
      BM_CHECK(cache_.Contains(*block));
      ApplyRetention(Index(*block),
                     chain.RetentionOf(i * page_size, (i + 1) * page_size));
      Wake(Index(*block));
      pool_.AddRef(*block);
      tail.push_back(*block++);
    }
  }
}

void BlockManager::PublishWindows(const SequenceCache& sequence, int32_t page,
                                  int32_t entry, const Retention* wish) {
  int32_t group = -1;
  for (const WindowCache& window : Windows(sequence)) {
    ++group;
    const BlockId block = window.tail[page];
    if (block == kNullBlock || cache_.Contains(block)) continue;
    if (window.pending != nullptr && window.pending->Overwrites(block)) {
      continue;
    }
    const BlockId cached = cache_.WindowBlock(entry, group);
    if (cached == kNullBlock) {
      cache_.InsertWindow(entry, group, block);
      pool_.AddRef(block);
    }
    ApplyRetention(Index(cached == kNullBlock ? block : cached), wish);
  }
}

RegionWindows BlockManager::LinkWindows(const SequenceCache& sequence,
                                        int32_t length, const Retention* wish) {
  RegionWindows windows;
  int32_t group = 0;
  for (const WindowCache& window : Windows(sequence)) {
    // Without what it remembers of one that is past.
    windows.regions.emplace_back();
    if (window.region != nullptr) windows.regions.back() = window;
    if (!cache_.HasWindowRegion(window)) {
      const int32_t entry = cache_.InsertWindowRegion(window.region);
      for (const BlockId block : window.region->blocks) pool_.AddRef(block);
      ApplyRetention(entry, wish);
    }
    const PageRange pages = window.PagesBehind(layout_, ++group, length);
    for (int32_t i = pages.begin; i < pages.end; ++i) {
      const BlockId block = window.tail[i];
      BM_CHECK(block != kNullBlock);
      if (!cache_.Contains(block)) {
        cache_.InsertWindow(PrefixCache::kNone, group - 1, block);
        pool_.AddRef(block);
        ApplyRetention(Index(block), wish);
      }
      windows.blocks.push_back(block);
    }
  }
  return windows;
}

int32_t BlockManager::RegionBlocksOf(const WindowCache& window,
                                     Owned owned) const {
  const RegionRecord* region = window.region.get();
  if (region == nullptr) return 0;
  if (owned == Owned::kOwn && !IsOwnRegion(*region)) return 0;
  return static_cast<int32_t>(region->blocks.size());
}

}  // namespace blockmgr
