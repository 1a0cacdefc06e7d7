// The page lists of a first region, by the rule and by a mistake in it: what an
// engine of somebody else's might derive.
//
// Written without the product, for regions on blocks in which every head holds
// its own page (fresh ones, or the tail's), in a model of one shard.
#ifndef TESTS_TESTING_FRESH_LAYOUT_H_
#define TESTS_TESTING_FRESH_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"

namespace blockmgr {

// The outer loop of step 2 of the rule in docs/engine.md.
enum class OuterLoop {
  kHeads,   // right: a head borrows all that it needs before the next
  kStages,  // wrong: every head borrows in its layer before any does elsewhere
};

using PageLists = std::vector<std::vector<PageId>>;

inline PageLists FreshLayout(const ModelLayout& layout,
                             std::span<const BlockId> destinations,
                             std::span<const int32_t> counts,
                             OuterLoop outer_loop) {
  PageLists lists(counts.size());
  std::set<PageId> taken;
  const auto need = [&](size_t head) {
    return static_cast<size_t>((counts[head] + layout.page_size - 1) /
                               layout.page_size);
  };
  // Takes pages that head indices [first, end) would have by themselves.
  const auto take = [&](size_t head, size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      for (const BlockId block : destinations) {
        if (lists[head].size() == need(head)) return;
        const auto index = static_cast<int32_t>(i);
        const PageId page = layout.page_id(index / layout.num_heads, block,
                                           index % layout.num_heads);
        if (taken.insert(page).second) lists[head].push_back(page);
      }
    }
  };
  const auto take_in_layer = [&](size_t head) {
    const auto num_heads = static_cast<size_t>(layout.num_heads);
    const size_t first = head / num_heads * num_heads;
    take(head, first, first + num_heads);
  };
  for (size_t head = 0; head < lists.size(); ++head) take(head, head, head + 1);
  for (size_t head = 0; head < lists.size(); ++head) {
    take_in_layer(head);
    if (outer_loop == OuterLoop::kHeads) take(head, 0, lists.size());
  }
  for (size_t head = 0; head < lists.size(); ++head) {
    take(head, 0, lists.size());
  }
  return lists;
}

// The checksum, as docs/engine.md defines it.
inline uint64_t ChecksumOf(const PageLists& lists,
                           std::span<const int32_t> counts) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t checksum = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    uint64_t hash = i * kFactor + static_cast<uint64_t>(counts[i]);
    for (const PageId page : lists[i]) {
      hash = hash * kFactor + static_cast<uint64_t>(Index(page));
    }
    hash = (hash ^ (hash >> 32)) * kFactor;
    checksum += hash ^ (hash >> 32);
  }
  return checksum;
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_FRESH_LAYOUT_H_
