#include "blockmgr/ragged_region.h"

#include <algorithm>
#include <numeric>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Which destination pages of one shard are taken while a region is laid out.
// Pages are numbered head_index * num_destinations + destination index, with
// the shard's own head_index, so ascending number is ascending (layer, head,
// destination index).
class Vacancies {
 public:
  Vacancies(const ModelLayout& layout, int32_t num_destinations)
      : pages_per_layer_(int64_t{layout.shard_heads()} * num_destinations),
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

using DestinationIndex = absl::flat_hash_map<BlockId, int32_t>;

// The destinations by number.
DestinationIndex Number(std::span<const BlockId> destinations) {
  DestinationIndex index;
  index.reserve(destinations.size());
  for (size_t i = 0; i < destinations.size(); ++i) {
    const bool is_new =
        index.emplace(destinations[i], static_cast<int32_t>(i)).second;
    BM_CHECK(is_new);
  }
  return index;
}

// The destinations in which every head of a shard holds its own page: blocks of
// the tail, in table order, then fresh ones. A block none of whose pages is in
// use in this shard counts as fresh.
std::vector<int32_t> OwnDestinations(const ModelLayout& layout, int32_t shard,
                                     const CacheView& now,
                                     const DestinationIndex& index) {
  std::vector<int32_t> own;
  std::vector<bool> in_use(index.size(), false);
  if (now.region != nullptr) {
    for (int32_t i = 0; i < layout.shard_pages_per_block(); ++i) {
      for (const PageId page :
           now.region->pages(layout.shard_head_index(shard, i))) {
        const auto found = index.find(layout.page_block(page));
        if (found != index.end()) in_use[found->second] = true;
      }
    }
  }
  for (const BlockId block : now.tail_blocks) {
    const auto found = index.find(block);
    if (found == index.end()) continue;
    own.push_back(found->second);
    in_use[found->second] = true;
  }
  for (size_t i = 0; i < in_use.size(); ++i) {
    if (!in_use[i]) own.push_back(static_cast<int32_t>(i));
  }
  return own;
}

// The page lists of a region, all shards', to be filled.
struct PageLists {
  std::span<const int32_t> offsets;
  std::span<PageId> pages;
  std::span<int32_t> num_held;
};

// Fills the lists of one shard's heads.
class ShardLayOut {
 public:
  ShardLayOut(const ModelLayout& layout, int32_t shard,
              std::span<const BlockId> destinations,
              const DestinationIndex& index, const PageLists& lists)
      : layout_(layout),
        shard_(shard),
        destinations_(destinations),
        index_(index),
        lists_(lists),
        vacancies_(layout, static_cast<int32_t>(destinations.size())) {}

  // Marks the destinations that it takes pages of.
  void Fill(const CacheView& now, std::vector<bool>* used) {
    KeepHeld(now, used);
    const int32_t heads = layout_.shard_heads();
    for (int32_t i = 0; i < layout_.shard_pages_per_block(); ++i) {
      const int32_t head_index = layout_.shard_head_index(shard_, i);
      const int32_t need = Need(head_index);
      for (int32_t rank = lists_.num_held[head_index]; rank < need; ++rank) {
        Add(head_index, rank, vacancies_.TakeNext(i / heads), used);
      }
    }
  }

 private:
  void KeepHeld(const CacheView& now, std::vector<bool>* used) {
    const std::vector<int32_t> own =
        OwnDestinations(layout_, shard_, now, index_);
    const auto num_destinations = std::ssize(destinations_);
    for (int32_t i = 0; i < layout_.shard_pages_per_block(); ++i) {
      const int32_t head_index = layout_.shard_head_index(shard_, i);
      const int32_t need = Need(head_index);
      int32_t rank = 0;
      const auto keep = [&](int64_t page) {
        vacancies_.Take(page);
        Add(head_index, rank++, page, used);
      };
      if (now.region != nullptr) {
        for (const PageId page : now.region->pages(head_index)) {
          if (rank == need) break;
          const auto found = index_.find(layout_.page_block(page));
          if (found != index_.end()) keep(PageNumber(page, found->second));
        }
      }
      for (size_t j = 0; j < own.size() && rank < need; ++j) {
        keep(i * num_destinations + own[j]);
      }
      lists_.num_held[head_index] = rank;
    }
  }

  int32_t Need(int32_t head_index) const {
    return lists_.offsets[head_index + 1] - lists_.offsets[head_index];
  }
  int64_t PageNumber(PageId page, int32_t destination) const {
    const int32_t heads = layout_.shard_heads();
    const int32_t own_head = layout_.page_head(page) - shard_ * heads;
    BM_CHECK(own_head >= 0 && own_head < heads);  // no page of another shard
    return (int64_t{layout_.page_layer(page)} * heads + own_head) *
               std::ssize(destinations_) +
           destination;
  }
  void Add(int32_t head_index, int32_t rank, int64_t page,
           std::vector<bool>* used) {
    const auto page_head =
        static_cast<int32_t>(page / std::ssize(destinations_));
    const auto destination =
        static_cast<int32_t>(page % std::ssize(destinations_));
    const int32_t heads = layout_.shard_heads();
    (*used)[destination] = true;
    lists_.pages[lists_.offsets[head_index] + rank] =
        layout_.page_id(page_head / heads, destinations_[destination],
                        shard_ * heads + page_head % heads);
  }

  const ModelLayout& layout_;
  const int32_t shard_;
  const std::span<const BlockId> destinations_;
  const DestinationIndex& index_;
  const PageLists lists_;
  Vacancies vacancies_;
};

}  // namespace

int64_t ShardPages(const ModelLayout& layout, int32_t shard,
                   std::span<const int32_t> kept) {
  const int32_t heads = layout.shard_heads();
  int64_t num_pages = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (const int32_t count :
         kept.subspan(layout.head_index(layer, shard * heads), heads)) {
      num_pages += CeilDiv(count, layout.page_size);
    }
  }
  return num_pages;
}

RaggedRegion RaggedRegion::LayOut(const ModelLayout& layout,
                                  const CacheView& now,
                                  std::span<const BlockId> destinations,
                                  std::span<const int32_t> kept, int32_t cut) {
  const int32_t num_heads = layout.pages_per_block();
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

  const DestinationIndex index = Number(destinations);
  const PageLists lists{.offsets = region.page_offsets_,
                        .pages = region.pages_,
                        .num_held = region.held_pages_};
  std::vector<bool> used(destinations.size(), false);
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    ShardLayOut(layout, shard, destinations, index, lists).Fill(now, &used);
  }
  for (size_t i = 0; i < destinations.size(); ++i) {
    if (used[i]) region.blocks_.push_back(destinations[i]);
  }
  return region;
}

RaggedRegion RaggedRegion::OnBlocks(const ModelLayout& layout,
                                    std::span<const BlockId> from,
                                    std::span<const BlockId> to) const {
  BM_CHECK(from.size() == to.size());
  absl::flat_hash_map<BlockId, BlockId> renamed;
  for (size_t i = 0; i < from.size(); ++i) renamed.emplace(from[i], to[i]);
  RaggedRegion region = *this;
  for (BlockId& block : region.blocks_) block = renamed.at(block);
  for (PageId& page : region.pages_) {
    page = layout.page_id(layout.page_layer(page),
                          renamed.at(layout.page_block(page)),
                          layout.page_head(page));
  }
  return region;
}

}  // namespace blockmgr
