#include "blockmgr/compaction.h"

#include <algorithm>
#include <cstddef>

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
  size_t region_begin = 0;
  for (int32_t i = 0; i < num_heads; ++i) {
    if (now.region != nullptr) {
      const std::span<const PageId> pages = now.region->pages(i);
      const int32_t kept = now.region->kept()[i];
      const std::span<const int32_t> positions =
          region_positions.subspan(region_begin, kept);
      BM_CHECK(std::ranges::is_sorted(positions));
      for (int32_t j = 0; j < kept; ++j) {
        if (positions[j] < first || positions[j] >= limit) continue;
        index.positions.push_back(positions[j]);
        index.slots.push_back(layout.slot(pages[j / page_size], j % page_size));
      }
      region_begin += kept;
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

Compaction CompactionInto(const RaggedRegion& next, const EntryIndex& entries,
                          const KeepSets& keep) {
  for (size_t i = 0; i < next.kept().size(); ++i) {
    BM_CHECK(keep.offsets[i + 1] - keep.offsets[i] == next.kept()[i]);
  }
  return {.offsets = entries.offsets,
          .slots = entries.slots,
          .positions = entries.positions,
          .keep = &keep,
          .page_offsets = next.page_offsets(),
          .pages = next.page_list(),
          .held_pages = next.held_pages()};
}

CompactionPlan PlanCompaction(const ModelLayout& layout,
                              const EntryIndex& entries, const KeepSets& keep,
                              const RaggedRegion& next) {
  CompactionPlan plan;
  plan.positions =
      PlaceSurvivors(layout, CompactionInto(next, entries, keep), &plan.moves);
  return plan;
}

}  // namespace blockmgr
