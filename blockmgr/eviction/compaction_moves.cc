#include "blockmgr/eviction/compaction_moves.h"

#include <cstddef>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

void CheckShapes(const ModelLayout& layout, const Compaction& compaction) {
  const int32_t num_heads = layout.pages_per_block();
  const KeepSets& keep = *compaction.keep;
  BM_CHECK(std::ssize(compaction.offsets) == num_heads + 1);
  BM_CHECK(std::ssize(compaction.page_offsets) == num_heads + 1);
  BM_CHECK(std::ssize(compaction.held_pages) == num_heads);
  BM_CHECK(std::ssize(keep.offsets) == num_heads + 1);
  BM_CHECK(std::ssize(compaction.slots) == compaction.offsets.back());
  BM_CHECK(std::ssize(compaction.positions) == compaction.offsets.back());
  BM_CHECK(std::ssize(compaction.pages) == compaction.page_offsets.back());
  BM_CHECK(std::ssize(keep.ranks) == keep.offsets.back());
}

bool Borrows(const Compaction& compaction, int32_t head) {
  return compaction.held_pages[head] <
         compaction.page_offsets[head + 1] - compaction.page_offsets[head];
}

// Appends the moves of one head as one group.
void AppendGroup(const ModelLayout& layout, const Compaction& compaction,
                 const absl::flat_hash_set<PageId>& pages, int32_t head,
                 CompactionMoves* moves) {
  const int32_t page_size = layout.page_size;
  const std::span<const PageId> list =
      compaction.pages.subspan(compaction.page_offsets[head]);
  const std::span<const int32_t> ranks =
      std::span(compaction.keep->ranks)
          .subspan(compaction.keep->offsets[head],
                   compaction.keep->offsets[head + 1] -
                       compaction.keep->offsets[head]);
  const size_t num_before = moves->moves.size();
  int64_t last_page = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const SlotIndex source =
        compaction.slots[compaction.offsets[head] + ranks[i]];
    const auto place = static_cast<int32_t>(i);
    const SlotIndex destination =
        layout.slot(list[place / page_size], place % page_size);
    if (source == destination) continue;
    moves->moves.push_back({source, destination});
    const int64_t page = source / page_size;
    if (page == last_page || moves->in_place) continue;
    last_page = page;
    moves->in_place = pages.contains(PageId{static_cast<int32_t>(page)});
  }
  if (moves->moves.size() > num_before) {
    moves->group_ends.push_back(std::ssize(moves->moves));
  }
}

}  // namespace

std::vector<int32_t> PlaceSurvivors(const ModelLayout& layout,
                                    const Compaction& compaction,
                                    CompactionMoves* moves) {
  CheckShapes(layout, compaction);
  const KeepSets& keep = *compaction.keep;
  const int32_t num_heads = layout.pages_per_block();
  std::vector<int32_t> positions;
  positions.reserve(keep.ranks.size());
  for (int32_t head = 0; head < num_heads; ++head) {
    const int64_t num_pages =
        compaction.page_offsets[head + 1] - compaction.page_offsets[head];
    const int64_t kept = keep.offsets[head + 1] - keep.offsets[head];
    BM_CHECK(kept <= num_pages * layout.page_size);
    BM_CHECK(compaction.held_pages[head] <= num_pages);
    for (int64_t k = keep.offsets[head]; k < keep.offsets[head + 1]; ++k) {
      positions.push_back(
          compaction.positions[compaction.offsets[head] + keep.ranks[k]]);
    }
  }
  if (moves == nullptr) return positions;
  *moves = {};
  moves->moves.reserve(keep.ranks.size());
  const absl::flat_hash_set<PageId> pages(compaction.pages.begin(),
                                          compaction.pages.end());
  for (const bool borrows : {false, true}) {
    for (int32_t head = 0; head < num_heads; ++head) {
      if (Borrows(compaction, head) == borrows) {
        AppendGroup(layout, compaction, pages, head, moves);
      }
    }
  }
  return positions;
}

}  // namespace blockmgr
