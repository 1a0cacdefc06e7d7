#include "blockmgr/eviction/compaction_moves.h"

#include <cstddef>

#include <absl/container/flat_hash_map.h>

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

}  // namespace

std::vector<int32_t> PlaceSurvivors(const ModelLayout& layout,
                                    const Compaction& compaction,
                                    CompactionMoves* moves) {
  CheckShapes(layout, compaction);
  const KeepSets& keep = *compaction.keep;
  const int32_t page_size = layout.page_size;
  std::vector<int32_t> positions(keep.ranks.size());
  if (moves != nullptr) *moves = {};
  absl::flat_hash_map<PageId, int32_t> rank_of_page;
  std::vector<int64_t> strays;  // candidates
  std::vector<bool> filled;
  for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
    const int64_t begin = keep.offsets[i];  // of the head in positions
    const int64_t kept = keep.offsets[i + 1] - begin;
    const std::span<const PageId> pages = compaction.pages.subspan(
        compaction.page_offsets[i],
        compaction.page_offsets[i + 1] - compaction.page_offsets[i]);
    BM_CHECK(kept <= std::ssize(pages) * page_size);
    rank_of_page.clear();
    for (size_t j = 0; j < pages.size(); ++j) {
      rank_of_page.emplace(pages[j], static_cast<int32_t>(j));
    }
    strays.clear();
    filled.assign(kept, false);
    for (int64_t k = begin; k < begin + kept; ++k) {
      const int64_t entry = compaction.offsets[i] + keep.ranks[k];
      const SlotIndex slot = compaction.slots[entry];
      const auto found =
          rank_of_page.find(PageId{static_cast<int32_t>(slot / page_size)});
      const int64_t place =
          found == rank_of_page.end()
              ? kept
              : int64_t{found->second} * page_size + slot % page_size;
      if (place < kept) {
        filled[place] = true;
        positions[begin + place] = compaction.positions[entry];
      } else {
        strays.push_back(entry);
      }
    }
    size_t stray = 0;
    const int64_t held_slots = int64_t{compaction.held_pages[i]} * page_size;
    for (int64_t place = 0; place < kept; ++place) {
      if (filled[place]) continue;
      const int64_t entry = strays[stray++];
      positions[begin + place] = compaction.positions[entry];
      if (moves == nullptr) continue;
      auto& phase = place < held_slots ? moves->phase1 : moves->phase2;
      phase.push_back({compaction.slots[entry],
                       layout.slot(pages[place / page_size],
                                   static_cast<int32_t>(place % page_size))});
    }
    BM_CHECK(stray == strays.size());
  }
  return positions;
}

}  // namespace blockmgr
