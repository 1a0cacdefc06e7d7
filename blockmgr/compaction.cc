#include "blockmgr/compaction.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/check.h"

namespace blockmgr {

EntryIndex IndexEntries(const ModelLayout& layout, const CacheView& now,
                        std::span<const int32_t> region_positions,
                        int32_t limit, int32_t first) {
  const int32_t num_heads = layout.pages_per_block();
  const int32_t page_size = layout.page_size;
  const int32_t cut =
      now.region == nullptr ? now.tail_begin : now.region->cut();
  const int32_t num_tail = std::max(0, limit - cut);
  BM_CHECK(num_tail <= std::ssize(now.tail_blocks) * page_size);
  EntryIndex index;
  index.offsets.reserve(num_heads + 1);
  index.offsets.push_back(0);
  std::vector<std::pair<int32_t, SlotIndex>> region_entries;
  size_t region_begin = 0;
  for (int32_t i = 0; i < num_heads; ++i) {
    if (now.region != nullptr) {
      const std::span<const PageId> pages = now.region->pages(i);
      const int32_t kept = now.region->kept()[i];
      region_entries.clear();
      for (int32_t j = 0; j < kept; ++j) {
        const int32_t position = region_positions[region_begin + j];
        if (position < first || position >= limit) continue;
        region_entries.emplace_back(
            position, layout.slot(pages[j / page_size], j % page_size));
      }
      region_begin += kept;
      std::ranges::sort(region_entries);
      for (const auto& [position, slot] : region_entries) {
        index.positions.push_back(position);
        index.slots.push_back(slot);
      }
    }
    for (int32_t j = std::max(0, first - cut); j < num_tail; ++j) {
      const PageId page =
          layout.page_id(i / layout.num_heads, now.tail_blocks[j / page_size],
                         i % layout.num_heads);
      index.positions.push_back(cut + j);
      index.slots.push_back(layout.slot(page, j % page_size));
    }
    index.offsets.push_back(std::ssize(index.slots));
  }
  return index;
}

CompactionPlan PlanCompaction(const ModelLayout& layout,
                              const EntryIndex& entries, const KeepSets& keep,
                              const RaggedRegion& next) {
  const int32_t num_heads = layout.pages_per_block();
  const int32_t page_size = layout.page_size;
  CompactionPlan plan;
  plan.positions.resize(next.num_entries());
  absl::flat_hash_map<PageId, int32_t> rank_of_page;
  std::vector<int64_t> strays;  // into entries
  std::vector<bool> filled;
  int64_t begin = 0;  // of the head in plan.positions
  for (int32_t i = 0; i < num_heads; ++i) {
    const int32_t kept = next.kept()[i];
    BM_CHECK(keep.offsets[i + 1] - keep.offsets[i] == kept);
    const std::span<const PageId> pages = next.pages(i);
    rank_of_page.clear();
    for (size_t j = 0; j < pages.size(); ++j) {
      rank_of_page.emplace(pages[j], static_cast<int32_t>(j));
    }
    strays.clear();
    filled.assign(kept, false);
    for (int64_t k = keep.offsets[i]; k < keep.offsets[i + 1]; ++k) {
      const int64_t entry = entries.offsets[i] + keep.ranks[k];
      const SlotIndex slot = entries.slots[entry];
      const auto found =
          rank_of_page.find(PageId{static_cast<int32_t>(slot / page_size)});
      const int64_t place =
          found == rank_of_page.end()
              ? kept
              : int64_t{found->second} * page_size + slot % page_size;
      if (place < kept) {
        filled[place] = true;
        plan.positions[begin + place] = entries.positions[entry];
      } else {
        strays.push_back(entry);
      }
    }
    size_t stray = 0;
    const int32_t held_slots = next.num_held_pages(i) * page_size;
    for (int32_t place = 0; place < kept; ++place) {
      if (filled[place]) continue;
      const int64_t entry = strays[stray++];
      plan.positions[begin + place] = entries.positions[entry];
      auto& phase = place < held_slots ? plan.moves.phase1 : plan.moves.phase2;
      phase.push_back(
          {entries.slots[entry],
           layout.slot(pages[place / page_size], place % page_size)});
    }
    BM_CHECK(stray == strays.size());
    begin += kept;
  }
  return plan;
}

}  // namespace blockmgr
