#include "blockmgr/ragged_region.h"

#include <algorithm>
#include <numeric>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Which destination pages are taken while a region is laid out. Pages are
// numbered head_index * num_destinations + destination index, so ascending
// number is ascending (layer, head, destination index).
class Vacancies {
 public:
  Vacancies(const ModelLayout& layout, int32_t num_destinations)
      : pages_per_layer_(int64_t{layout.num_heads} * num_destinations),
        taken_(pages_per_layer_ * layout.num_layers, false),
        layer_cursors_(layout.num_layers) {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      layer_cursors_[layer] = layer * pages_per_layer_;
    }
  }

  void Take(int64_t page) {
    BM_CHECK(!taken_[page]);
    taken_[page] = true;
  }
  // The next vacant page, taken; of `layer` if it has any.
  int64_t TakeNext(int32_t layer) {
    int64_t& own = layer_cursors_[layer];
    const int64_t end = (layer + 1) * pages_per_layer_;
    while (own < end && taken_[own]) ++own;
    int64_t& cursor = own < end ? own : any_cursor_;
    while (cursor < std::ssize(taken_) && taken_[cursor]) ++cursor;
    BM_CHECK(cursor < std::ssize(taken_));  // REQUIRES: the pages fit
    taken_[cursor] = true;
    return cursor;
  }

 private:
  const int64_t pages_per_layer_;
  std::vector<bool> taken_;
  std::vector<int64_t> layer_cursors_;
  int64_t any_cursor_ = 0;
};

// The destination blocks by number.
struct Destinations {
  absl::flat_hash_map<BlockId, int32_t> index;
  // Those in which every head holds its own page: blocks of the tail, in table
  // order, then fresh ones. A block none of whose pages is in use counts as
  // fresh.
  std::vector<int32_t> own;
};

Destinations Classify(const ModelLayout& layout, const CacheView& now,
                      std::span<const BlockId> destinations) {
  Destinations result;
  result.index.reserve(destinations.size());
  for (size_t i = 0; i < destinations.size(); ++i) {
    const bool is_new =
        result.index.emplace(destinations[i], static_cast<int32_t>(i)).second;
    BM_CHECK(is_new);
  }
  std::vector<bool> in_use(destinations.size(), false);
  if (now.region != nullptr) {
    for (const PageId page : now.region->page_list()) {
      const auto found = result.index.find(layout.page_block(page));
      if (found != result.index.end()) in_use[found->second] = true;
    }
  }
  for (const BlockId block : now.tail_blocks) {
    const auto found = result.index.find(block);
    if (found == result.index.end()) continue;
    result.own.push_back(found->second);
    in_use[found->second] = true;
  }
  for (size_t i = 0; i < destinations.size(); ++i) {
    if (!in_use[i]) result.own.push_back(static_cast<int32_t>(i));
  }
  return result;
}

}  // namespace

RaggedRegion RaggedRegion::LayOut(const ModelLayout& layout,
                                  const CacheView& now,
                                  std::span<const BlockId> destinations,
                                  std::span<const int32_t> kept, int32_t cut) {
  const int32_t num_heads = layout.pages_per_block();
  const auto num_destinations = static_cast<int32_t>(destinations.size());
  BM_CHECK(std::ssize(kept) == num_heads);
  RaggedRegion region;
  region.cut_ = cut;
  region.kept_.assign(kept.begin(), kept.end());
  region.num_entries_ = std::accumulate(kept.begin(), kept.end(), int64_t{0});
  region.page_offsets_.resize(num_heads + 1, 0);
  for (int32_t i = 0; i < num_heads; ++i) {
    BM_CHECK(kept[i] >= 0);
    region.page_offsets_[i + 1] =
        region.page_offsets_[i] + CeilDiv(kept[i], layout.page_size);
  }
  region.pages_.resize(region.page_offsets_.back());
  region.held_pages_.resize(num_heads);

  const Destinations places = Classify(layout, now, destinations);
  Vacancies vacancies(layout, num_destinations);
  std::vector<bool> used(num_destinations, false);
  const auto number = [&](PageId page) {
    return int64_t{layout.head_index(layout.page_layer(page),
                                     layout.page_head(page))} *
               num_destinations +
           places.index.at(layout.page_block(page));
  };
  const auto add = [&](int32_t head_index, int32_t rank, int64_t page) {
    const auto page_head = static_cast<int32_t>(page / num_destinations);
    const auto destination = static_cast<int32_t>(page % num_destinations);
    used[destination] = true;
    region.pages_[region.page_offsets_[head_index] + rank] =
        layout.page_id(page_head / layout.num_heads, destinations[destination],
                       page_head % layout.num_heads);
  };
  for (int32_t i = 0; i < num_heads; ++i) {
    const int32_t need = region.page_offsets_[i + 1] - region.page_offsets_[i];
    int32_t rank = 0;
    const auto keep = [&](int64_t page) {
      vacancies.Take(page);
      add(i, rank++, page);
    };
    if (now.region != nullptr) {
      for (const PageId page : now.region->pages(i)) {
        if (rank == need) break;
        if (places.index.contains(layout.page_block(page))) {
          keep(number(page));
        }
      }
    }
    for (size_t j = 0; j < places.own.size() && rank < need; ++j) {
      keep(int64_t{i} * num_destinations + places.own[j]);
    }
    region.held_pages_[i] = rank;
  }
  for (int32_t i = 0; i < num_heads; ++i) {
    const int32_t need = region.page_offsets_[i + 1] - region.page_offsets_[i];
    for (int32_t rank = region.held_pages_[i]; rank < need; ++rank) {
      add(i, rank, vacancies.TakeNext(i / layout.num_heads));
    }
  }
  for (int32_t i = 0; i < num_destinations; ++i) {
    if (used[i]) region.blocks_.push_back(destinations[i]);
  }
  return region;
}

RaggedRegion RaggedRegion::OnBlocks(const ModelLayout& layout,
                                    std::span<const BlockId> blocks) const {
  BM_CHECK(blocks.size() == blocks_.size());
  absl::flat_hash_map<BlockId, BlockId> renamed;
  for (size_t i = 0; i < blocks.size(); ++i) {
    renamed.emplace(blocks_[i], blocks[i]);
  }
  RaggedRegion region = *this;
  region.blocks_.assign(blocks.begin(), blocks.end());
  for (PageId& page : region.pages_) {
    page = layout.page_id(layout.page_layer(page),
                          renamed.at(layout.page_block(page)),
                          layout.page_head(page));
  }
  return region;
}

}  // namespace blockmgr
