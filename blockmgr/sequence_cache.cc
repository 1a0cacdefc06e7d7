#include "blockmgr/sequence_cache.h"

#include <algorithm>

namespace blockmgr {

int32_t SequenceCache::pending_cut() const {
  int32_t cut = 0;
  for (const GroupCache& cache : groups) {
    if (cache.pending != nullptr) cut = std::max(cut, cache.pending->cut);
  }
  return cut;
}

int32_t SequenceCache::FirstHeld(const ModelLayout& layout,
                                 int32_t group) const {
  const GroupCache& cache = groups[group];
  if (cache.region != nullptr) return cache.tail_begin;
  const int32_t page =
      std::max(cache.tail_begin, layout.FirstPage(group, num_settled));
  const bool is_held =
      page == cache.tail_end() || cache.block(page) != kNullBlock;
  return is_held ? page : page + 1;
}

bool SequenceCache::HasWindows(const ModelLayout& layout) const {
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    // A region stands for the pages before its cut.
    if (groups[group].region != nullptr) continue;
    if (FirstHeld(layout, group) > layout.FirstPage(group, num_settled)) {
      return false;
    }
  }
  return true;
}

}  // namespace blockmgr
