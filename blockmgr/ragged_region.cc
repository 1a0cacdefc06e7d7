#include "blockmgr/ragged_region.h"

#include <algorithm>
#include <numeric>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

constexpr int32_t kNowhere = -1;

// Which destination pages of one shard are taken while a region is laid out: a
// row for every (layer, head) of the shard, a column for every destination.
class Vacancies {
 public:
  struct Cursor {
    int32_t row = 0;
    int32_t column = 0;
  };

  Vacancies(const ModelLayout& layout, size_t num_columns)
      : rows_per_layer_(layout.shard_heads()),
        num_rows_(layout.shard_pages_per_block()),
        num_columns_(static_cast<int32_t>(num_columns)),
        taken_(num_rows_ * num_columns, 0),
        layer_cursors_(layout.num_layers) {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      layer_cursors_[layer].row = layer * rows_per_layer_;
    }
  }

  // Numbers the pages row by row. There are fewer than page ids.
  int32_t number(int32_t row, int32_t column) const {
    return row * num_columns_ + column;
  }
  void Take(int32_t number) {
    BM_CHECK(taken_[number] == 0);
    taken_[number] = 1;
  }
  // The next vacant page, taken; of `layer` if it has any.
  Cursor TakeNext(int32_t layer) {
    Cursor* cursor = &layer_cursors_[layer];
    if (!Advance(cursor, (layer + 1) * rows_per_layer_)) {
      cursor = &any_cursor_;
      BM_CHECK(Advance(cursor, num_rows_));  // REQUIRES: the pages fit
    }
    taken_[number(cursor->row, cursor->column)] = 1;
    return *cursor;
  }

  // Marks the columns with a page that is taken.
  void AddUsed(std::vector<uint8_t>* used) const {
    for (int32_t i = 0; i < num_rows_; ++i) {
      const uint8_t* taken = taken_.data() + number(i, 0);
      for (int32_t j = 0; j < num_columns_; ++j) (*used)[j] |= taken[j];
    }
  }

 private:
  // Moves on to a vacant page, at the cursor or after it.
  bool Advance(Cursor* cursor, int32_t end_row) const {
    for (; cursor->row < end_row; *cursor = {cursor->row + 1, 0}) {
      const uint8_t* begin = taken_.data() + number(cursor->row, 0);
      const uint8_t* end = begin + num_columns_;
      const uint8_t* vacant = begin + cursor->column;
      if (vacant != end && *vacant != 0) vacant = std::find(vacant, end, 0);
      if (vacant == end) continue;
      cursor->column = static_cast<int32_t>(vacant - begin);
      return true;
    }
    return false;
  }

  const int32_t rows_per_layer_;
  const int32_t num_rows_;
  const int32_t num_columns_;
  std::vector<uint8_t> taken_;
  std::vector<Cursor> layer_cursors_;
  Cursor any_cursor_;
};

using BlockIndex = absl::flat_hash_map<BlockId, int32_t>;

// The blocks by number.
BlockIndex Number(std::span<const BlockId> blocks) {
  BlockIndex index;
  index.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool is_new =
        index.emplace(blocks[i], static_cast<int32_t>(i)).second;
    BM_CHECK(is_new);
  }
  return index;
}

// Where each of the blocks is among the numbered ones, or kNowhere.
std::vector<int32_t> Find(std::span<const BlockId> blocks,
                          const BlockIndex& index) {
  std::vector<int32_t> numbers;
  numbers.reserve(blocks.size());
  for (const BlockId block : blocks) {
    const auto found = index.find(block);
    numbers.push_back(found == index.end() ? kNowhere : found->second);
  }
  return numbers;
}

// What a block adds to the ids of its pages.
std::vector<int32_t> PageOffsets(const ModelLayout& layout,
                                 std::span<const BlockId> blocks) {
  std::vector<int32_t> offsets;
  offsets.reserve(blocks.size());
  for (const BlockId block : blocks) {
    offsets.push_back(Index(block) * layout.num_heads);
  }
  return offsets;
}

// What a shard finds in the destinations, the same for all shards.
struct Destinations {
  Destinations(const ModelLayout& layout, const CacheView& now,
               std::span<const BlockId> blocks)
      : offsets(PageOffsets(layout, blocks)) {
    const BlockIndex index = Number(blocks);
    tail_columns = Find(now.tail_blocks, index);
    std::erase(tail_columns, kNowhere);
    if (now.region == nullptr) return;
    region_columns = Find(now.region->blocks(), index);
    keeps_region = std::ranges::any_of(
        region_columns, [](int32_t column) { return column != kNowhere; });
    if (!keeps_region) return;
    region_offsets = PageOffsets(layout, now.region->blocks());
    region_numbers = Number(now.region->blocks());
  }

  std::vector<int32_t> offsets;       // of page ids, per column
  std::vector<int32_t> tail_columns;  // in table order
  bool keeps_region = false;          // any block of it is a destination
  // Per block of the region: its column, and what it adds to page ids.
  std::vector<int32_t> region_columns;
  std::vector<int32_t> region_offsets;
  BlockIndex region_numbers;
};

// Tells where a region's pages are, one after the other.
class PageReader {
 public:
  struct Place {
    int32_t row = 0;
    int32_t block = kNowhere;  // which of the region's
  };

  PageReader(const ModelLayout& layout, int32_t shard,
             const Destinations& destinations,
             std::span<const int32_t> row_pages)
      : layout_(layout),
        first_head_(shard * layout.shard_heads()),
        destinations_(destinations),
        row_pages_(row_pages) {}

  Place Read(PageId page) {
    // Mostly a list goes from block to block within a row.
    const int32_t next = at_.block + 1;
    if (next < std::ssize(destinations_.region_offsets) &&
        Index(page) ==
            row_pages_[at_.row] + destinations_.region_offsets[next]) {
      ++at_.block;
      return at_;
    }
    const int32_t heads = layout_.shard_heads();
    const int32_t head = layout_.page_head(page) - first_head_;
    BM_CHECK(head >= 0 && head < heads);  // no page of another shard
    at_.row = layout_.page_layer(page) * heads + head;
    at_.block = destinations_.region_numbers.at(layout_.page_block(page));
    return at_;
  }

 private:
  const ModelLayout& layout_;
  const int32_t first_head_;
  const Destinations& destinations_;
  const std::span<const int32_t> row_pages_;
  Place at_;
};

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
              const Destinations& destinations, const PageLists& lists)
      : layout_(layout),
        shard_(shard),
        num_rows_(layout.shard_pages_per_block()),
        destinations_(destinations),
        lists_(lists),
        vacancies_(layout, destinations.offsets.size()),
        in_use_(destinations.offsets.size(), 0) {
    row_pages_.reserve(num_rows_);
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int32_t head_index = layout.shard_head_index(shard, row);
      row_pages_.push_back(
          Index(layout.page_id(head_index / layout.num_heads, BlockId{0},
                               head_index % layout.num_heads)));
    }
  }

  // Marks the destinations that it takes pages of.
  void Fill(const CacheView& now, std::vector<uint8_t>* used) {
    if (destinations_.keeps_region) ReadRegion(*now.region);
    KeepHeld(now);
    const int32_t heads = layout_.shard_heads();
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int32_t head_index = layout_.shard_head_index(shard_, row);
      const std::span<PageId> list = List(head_index);
      for (auto i = static_cast<size_t>(lists_.num_held[head_index]);
           i < list.size(); ++i) {
        const Vacancies::Cursor next = vacancies_.TakeNext(row / heads);
        list[i] =
            PageId{row_pages_[next.row] + destinations_.offsets[next.column]};
      }
    }
    vacancies_.AddUsed(used);
  }

 private:
  std::span<PageId> List(int32_t head_index) const {
    return lists_.pages.subspan(
        lists_.offsets[head_index],
        lists_.offsets[head_index + 1] - lists_.offsets[head_index]);
  }

  // Reads the lists of all heads of the shard, one after the other.
  void ReadRegion(const RaggedRegion& region) {
    PageReader reader(layout_, shard_, destinations_, row_pages_);
    held_.reserve(region.page_list().size() / layout_.num_shards);
    for (int32_t row = 0; row < num_rows_; ++row) {
      for (const PageId page :
           region.pages(layout_.shard_head_index(shard_, row))) {
        const PageReader::Place place = reader.Read(page);
        const int32_t column = destinations_.region_columns[place.block];
        held_.push_back(column == kNowhere
                            ? kNowhere
                            : vacancies_.number(place.row, column));
        if (column != kNowhere) in_use_[column] = 1;
      }
    }
  }

  // The columns in which every head holds its own page: blocks of the tail, in
  // table order, then fresh ones. A block none of whose pages is in use in this
  // shard counts as fresh.
  std::vector<int32_t> OwnColumns() {
    std::vector<int32_t> own = destinations_.tail_columns;
    for (const int32_t column : own) in_use_[column] = 1;
    for (size_t i = 0; i < in_use_.size(); ++i) {
      if (in_use_[i] == 0) own.push_back(static_cast<int32_t>(i));
    }
    return own;
  }

  void KeepHeld(const CacheView& now) {
    const std::vector<int32_t> own = OwnColumns();
    auto next_held = held_.begin();
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int32_t head_index = layout_.shard_head_index(shard_, row);
      const std::span<PageId> list = List(head_index);
      size_t num_kept = 0;
      if (destinations_.keeps_region) {
        for (const PageId page : now.region->pages(head_index)) {
          const int32_t number = *next_held++;
          if (number == kNowhere || num_kept == list.size()) continue;
          vacancies_.Take(number);
          list[num_kept++] = page;
        }
      }
      const size_t num_own = std::min(own.size(), list.size() - num_kept);
      for (size_t i = 0; i < num_own; ++i) {
        vacancies_.Take(vacancies_.number(row, own[i]));
        list[num_kept + i] =
            PageId{row_pages_[row] + destinations_.offsets[own[i]]};
      }
      lists_.num_held[head_index] = static_cast<int32_t>(num_kept + num_own);
    }
  }

  const ModelLayout& layout_;
  const int32_t shard_;
  const int32_t num_rows_;
  const Destinations& destinations_;
  const PageLists lists_;
  Vacancies vacancies_;
  std::vector<int32_t> row_pages_;  // the page of a row in block 0
  std::vector<uint8_t> in_use_;     // per column
  // The region's pages, list after list, by their number among the vacancies;
  // kNowhere: in no destination.
  std::vector<int32_t> held_;
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

  const Destinations found(layout, now, destinations);
  const PageLists lists{.offsets = region.page_offsets_,
                        .pages = region.pages_,
                        .num_held = region.held_pages_};
  std::vector<uint8_t> used(destinations.size(), 0);
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    ShardLayOut(layout, shard, found, lists).Fill(now, &used);
  }
  for (size_t i = 0; i < destinations.size(); ++i) {
    if (used[i] != 0) region.blocks_.push_back(destinations[i]);
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
