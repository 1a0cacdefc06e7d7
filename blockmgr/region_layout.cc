#include "blockmgr/region_layout.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

constexpr int32_t kNowhere = -1;

// Columns are the destinations [first, first + count).
struct Columns {
  int32_t first = 0;
  int32_t count = 0;
};

// Vacancies has the destination pages of one shard that are taken while a
// region is laid out. It has a row of bits per (layer, head) of the shard, and
// a bit per destination.
class Vacancies {
 public:
  struct Run {
    int32_t row = 0;
    Columns columns;
  };

  Vacancies(const ModelLayout& layout, size_t num_columns)
      : rows_per_layer_(layout.shard_heads()),
        num_rows_(layout.shard_pages_per_block()),
        num_columns_(static_cast<int32_t>(num_columns)),
        num_words_(CeilDiv(num_columns_, kBits)),
        taken_(size_t{1} * num_rows_ * num_words_, 0),
        layer_cursors_(layout.num_layers) {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      layer_cursors_[layer].row = layer * rows_per_layer_;
    }
  }

  void Take(int32_t row, Columns columns) {
    const int32_t end = columns.first + columns.count;
    for (int32_t column = columns.first; column < end;) {
      const int32_t bit = column % kBits;
      const int32_t count = std::min(kBits - bit, end - column);
      const uint64_t mask = (~uint64_t{0} >> (kBits - count)) << bit;
      uint64_t& word = Row(row)[column / kBits];
      BM_CHECK((word & mask) == 0);
      word |= mask;
      column += count;
    }
  }
  // Takes and returns the next vacant pages side by side, at most `limit`:
  // pages of `layer` if it has any, else of any layer.
  Run TakeNext(int32_t layer, int32_t limit) {
    Cursor* cursor = &layer_cursors_[layer];
    if (!Advance(cursor, (layer + 1) * rows_per_layer_)) {
      cursor = &any_cursor_;
      // The destinations have room for all pages.
      BM_CHECK(Advance(cursor, num_rows_));
    }
    const int32_t end = Find(cursor->row, cursor->column, 1);
    const Run run = {cursor->row,
                     {cursor->column, std::min(limit, end - cursor->column)}};
    Take(run.row, run.columns);
    return run;
  }

  // Sets the bit of every column in which a page is taken.
  void AddUsed(std::vector<uint64_t>* used) const {
    for (int32_t row = 0; row < num_rows_; ++row) {
      for (int32_t i = 0; i < num_words_; ++i) (*used)[i] |= Row(row)[i];
    }
  }

 private:
  static constexpr int32_t kBits = 64;
  struct Cursor {
    int32_t row = 0;
    int32_t column = 0;
  };

  uint64_t* Row(int32_t row) {
    return taken_.data() + size_t{1} * row * num_words_;
  }
  const uint64_t* Row(int32_t row) const {
    return taken_.data() + size_t{1} * row * num_words_;
  }
  // Returns the first column of a row, from `column` on, whose bit is `taken`.
  // Returns num_columns_ if there is none.
  int32_t Find(int32_t row, int32_t column, uint64_t taken) const {
    const uint64_t flip = taken == 1 ? 0 : ~uint64_t{0};
    uint64_t mask = ~uint64_t{0} << (column % kBits);
    for (int32_t i = column / kBits; i < num_words_; ++i) {
      const uint64_t word = (Row(row)[i] ^ flip) & mask;
      mask = ~uint64_t{0};
      if (word == 0) continue;
      return std::min(num_columns_, i * kBits + std::countr_zero(word));
    }
    return num_columns_;
  }
  // Moves to the next vacant page, from the cursor on. Returns false if there
  // is none.
  bool Advance(Cursor* cursor, int32_t end_row) const {
    for (; cursor->row < end_row; *cursor = {cursor->row + 1, 0}) {
      cursor->column = Find(cursor->row, cursor->column, 0);
      if (cursor->column < num_columns_) return true;
    }
    return false;
  }

  const int32_t rows_per_layer_;
  const int32_t num_rows_;
  const int32_t num_columns_;
  const int32_t num_words_;
  std::vector<uint64_t> taken_;
  std::vector<Cursor> layer_cursors_;
  Cursor any_cursor_;
};

using BlockIndex = absl::flat_hash_map<BlockId, int32_t>;

// Returns the index of each block.
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

// Returns the index of each block, or kNowhere.
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

// Says which destinations are blocks of the old region and of the tail.
struct Destinations {
  Destinations(const RegionLayout* now, std::span<const BlockId> tail_blocks,
               std::span<const BlockId> blocks)
      : num_columns(static_cast<int32_t>(blocks.size())) {
    const BlockIndex index = Number(blocks);
    tail_columns = Find(tail_blocks, index);
    std::erase(tail_columns, kNowhere);
    if (now == nullptr) return;
    region_columns_ = Find(now->blocks(), index);
    keeps_region = std::ranges::any_of(
        region_columns_, [](int32_t column) { return column != kNowhere; });
    segment_ends_.resize(region_columns_.size());
    for (size_t i = region_columns_.size(); i-- > 0;) {
      segment_ends_[i] = static_cast<int32_t>(i) + 1;
      if (i + 1 < region_columns_.size() && GoesOn(i)) {
        segment_ends_[i] = segment_ends_[i + 1];
      }
    }
  }

  // Calls `consume` with the columns of each part of `run` that is among the
  // destinations, in order.
  template <typename Consume>
  void ForEachKept(const PageRun& run, Consume consume) const {
    const int32_t run_end = run.first + run.count;
    for (int32_t i = run.first; i < run_end;) {
      const int32_t end = std::min(run_end, segment_ends_[i]);
      if (region_columns_[i] != kNowhere) {
        consume(Columns{region_columns_[i], end - i});
      }
      i = end;
    }
  }

  int32_t num_columns = 0;
  // The columns of tail blocks, in table order.
  std::vector<int32_t> tail_columns;
  // A block of the region is a destination.
  bool keeps_region = false;

 private:
  bool GoesOn(size_t i) const {
    const int32_t next =
        region_columns_[i] == kNowhere ? kNowhere : region_columns_[i] + 1;
    return region_columns_[i + 1] == next;
  }

  // The column of each block of the region, and the end of the block's segment.
  // The blocks of a segment are side by side in the destinations, or none of
  // them is a destination.
  std::vector<int32_t> region_columns_;
  std::vector<int32_t> segment_ends_;
};

// HeadRuns is the list of one head. The runs index destinations.
struct HeadRuns {
  absl::InlinedVector<PageRun, 4> runs;
  int32_t num_pages = 0;

  void Append(int32_t head_index, Columns columns) {
    num_pages += columns.count;
    if (!runs.empty() && runs.back().head_index == head_index &&
        runs.back().first + runs.back().count == columns.first) {
      runs.back().count += columns.count;
      return;
    }
    runs.push_back({head_index, columns.first, columns.count});
  }
};

// Fills the lists of one shard's heads.
class ShardLayOut {
 public:
  ShardLayOut(const ModelLayout& layout, int32_t shard, const RegionLayout* now,
              const Destinations& destinations)
      : layout_(layout),
        shard_(shard),
        num_rows_(layout.shard_pages_per_block()),
        now_(destinations.keeps_region ? now : nullptr),
        destinations_(destinations),
        vacancies_(layout, static_cast<size_t>(destinations.num_columns)) {}

  // Fills `lists` and `held` for the heads of the shard. Both have all heads of
  // the model. Sets the bits of the destinations that the shard uses.
  void Fill(std::span<const int32_t> num_pages, std::span<HeadRuns> lists,
            std::span<int32_t> held, std::vector<uint64_t>* used) {
    const std::vector<Columns> own = OwnColumns();
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int32_t head_index = layout_.shard_head_index(shard_, row);
      KeepHeld(row, num_pages[head_index], own, &lists[head_index]);
      held[head_index] = lists[head_index].num_pages;
    }
    const int32_t heads = layout_.shard_heads();
    for (int32_t row = 0; row < num_rows_; ++row) {
      const int32_t head_index = layout_.shard_head_index(shard_, row);
      HeadRuns& list = lists[head_index];
      while (list.num_pages < num_pages[head_index]) {
        const Vacancies::Run next = vacancies_.TakeNext(
            row / heads, num_pages[head_index] - list.num_pages);
        list.Append(layout_.shard_head_index(shard_, next.row), next.columns);
      }
    }
    vacancies_.AddUsed(used);
  }

 private:
  // Returns the columns in which every head has its own page: tail blocks in
  // table order, then fresh blocks. A block of which no page is in use in this
  // shard counts as fresh.
  std::vector<Columns> OwnColumns() const {
    // By how much the number of pages in use changes at each column.
    std::vector<int32_t> change(destinations_.num_columns + 1, 0);
    const auto use = [&](Columns columns) {
      ++change[columns.first];
      --change[columns.first + columns.count];
    };
    for (int32_t row = 0; now_ != nullptr && row < num_rows_; ++row) {
      for (const PageRun& run :
           now_->runs(layout_.shard_head_index(shard_, row))) {
        destinations_.ForEachKept(run, use);
      }
    }
    // All heads have equal runs.
    HeadRuns own;
    for (const int32_t column : destinations_.tail_columns) {
      use({column, 1});
      own.Append(0, {column, 1});
    }
    int32_t num_in_use = 0;
    for (int32_t i = 0; i < destinations_.num_columns; ++i) {
      num_in_use += change[i];
      if (num_in_use == 0) own.Append(0, {i, 1});
    }
    std::vector<Columns> columns;
    columns.reserve(own.runs.size());
    for (const PageRun& run : own.runs) {
      columns.push_back({run.first, run.count});
    }
    return columns;
  }

  void KeepHeld(int32_t row, int32_t num_pages, std::span<const Columns> own,
                HeadRuns* list) {
    const int32_t heads = layout_.shard_heads();
    const int32_t head_index = layout_.shard_head_index(shard_, row);
    const auto keep = [&](int32_t owner, Columns columns) {
      columns.count = std::min(columns.count, num_pages - list->num_pages);
      if (columns.count == 0) return;
      const int32_t head = owner % layout_.num_heads - shard_ * heads;
      // No page belongs to another shard.
      BM_CHECK(head >= 0 && head < heads);
      vacancies_.Take(owner / layout_.num_heads * heads + head, columns);
      list->Append(owner, columns);
    };
    if (now_ != nullptr) {
      for (const PageRun& run : now_->runs(head_index)) {
        destinations_.ForEachKept(
            run, [&](Columns columns) { keep(run.head_index, columns); });
      }
    }
    for (const Columns& columns : own) keep(head_index, columns);
  }

  const ModelLayout& layout_;
  const int32_t shard_;
  const int32_t num_rows_;
  // Null if no page of the old region is kept.
  const RegionLayout* const now_;
  const Destinations& destinations_;
  Vacancies vacancies_;
};

}  // namespace

int64_t CountShardPages(const ModelLayout& layout, int32_t shard,
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

RegionLayout RegionLayout::LayOut(const ModelLayout& layout,
                                  const RegionLayout* now,
                                  std::span<const BlockId> tail_blocks,
                                  std::span<const BlockId> destinations,
                                  std::span<const int32_t> kept, int32_t cut) {
  const int32_t num_heads = layout.pages_per_block();
  BM_CHECK(std::ssize(kept) == num_heads);
  RegionLayout region;
  region.cut_ = cut;
  region.kept_.assign(kept.begin(), kept.end());
  region.num_entries_ = std::accumulate(kept.begin(), kept.end(), int64_t{0});
  region.held_pages_.resize(num_heads);
  std::vector<int32_t> num_pages(num_heads);
  for (int32_t i = 0; i < num_heads; ++i) {
    BM_CHECK(kept[i] >= 0);
    num_pages[i] = CeilDiv(kept[i], layout.page_size);
  }
  const Destinations found(now, tail_blocks, destinations);
  std::vector<HeadRuns> lists(num_heads);
  std::vector<uint64_t> used(CeilDiv<size_t>(destinations.size(), 64), 0);
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    ShardLayOut(layout, shard, now, found)
        .Fill(num_pages, lists, region.held_pages_, &used);
  }
  // A run covers no destination that is left out, so it stays one run.
  std::vector<int32_t> numbers(destinations.size(), kNowhere);
  for (size_t i = 0; i < destinations.size(); ++i) {
    if ((used[i / 64] >> (i % 64) & 1) == 0) continue;
    numbers[i] = static_cast<int32_t>(region.blocks_.size());
    region.blocks_.push_back(destinations[i]);
  }
  size_t num_runs = 0;
  for (const HeadRuns& list : lists) num_runs += list.runs.size();
  region.runs_.reserve(num_runs);
  region.run_offsets_.reserve(num_heads + 1);
  region.run_offsets_.push_back(0);
  for (const HeadRuns& list : lists) {
    for (const PageRun& run : list.runs) {
      region.runs_.push_back({run.head_index, numbers[run.first], run.count});
    }
    region.run_offsets_.push_back(static_cast<int32_t>(region.runs_.size()));
  }
  return region;
}

RegionLayout RegionLayout::OnBlocks(std::span<const BlockId> from,
                                    std::span<const BlockId> to) const {
  BM_CHECK(from.size() == to.size());
  absl::flat_hash_map<BlockId, BlockId> renamed;
  for (size_t i = 0; i < from.size(); ++i) renamed.emplace(from[i], to[i]);
  RegionLayout region = *this;
  for (BlockId& block : region.blocks_) block = renamed.at(block);
  return region;
}

}  // namespace blockmgr
