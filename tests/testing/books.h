// What the independent books keep of a sequence's blocks: those of NaiveModel,
// the twin of BlockManager, and those of the simulator's ledger.
//
// The rules are written with sets and counting, and without the product's code.
// They choose nothing: books are told which blocks the product took, and say
// what follows. Blocks that a sequence gives up are returned, in order. Whether
// other sequences hold these blocks is the caller's business.
#ifndef TESTS_TESTING_BOOKS_H_
#define TESTS_TESTING_BOOKS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/group_cache.h"
#include "tests/blockmgr/naive_layout.h"

namespace blockmgr {

// What an eviction has made of the positions below a cut, in one layer group.
struct BookRegion {
  int32_t cut = 0;              // 0: there is none
  int32_t length = 0;           // tokens computed when it was made
  std::vector<BlockId> blocks;  // with pages of the region
  std::vector<int32_t> kept;    // by (layer, head); empty: there is none
  NaivePages pages;
};

// What an eviction covers in one group: the region, if the next token attends
// to a part of it, and pages of the table.
struct BookCover {
  BookRegion region;
  std::vector<BlockId> pages;

  std::vector<BlockId> Blocks() const;
};

// An eviction on its way, in one layer group.
struct BookOrder {
  int32_t cut = 0;
  int32_t length = 0;                // tokens computed when it is carried out
  std::vector<int64_t> page_totals;  // by shard
  std::vector<BlockId> destinations;
  std::vector<BlockId> own;  // destinations that the group has already

  std::vector<BlockId> Fresh() const;
};

// The blocks that one layer group of a sequence has.
struct GroupBook {
  // By page, from position 0 on. Null: left behind by the window, or below the
  // cut.
  std::vector<BlockId> pages;
  BookRegion region;
  std::optional<BookOrder> pending = std::nullopt;

  // Returns the blocks of the region and of the pages.
  std::vector<BlockId> Held() const;
  // Returns those, and the fresh blocks of the order.
  std::vector<BlockId> Blocks() const;
};

struct BookReceipt {
  int64_t evicted_entries = 0;
  int32_t freed_blocks = 0;
};

// The rules that books go by.
class BookRules {
 public:
  explicit BookRules(const ModelLayout& layout) : layout_(layout) {}

  // Returns how many tokens the last one attends to; 0: all.
  int32_t WindowOf(int32_t group) const {
    return group == 0 ? layout_.window : layout_.group_windows.at(group - 1);
  }
  // Returns whether no token from position length - 1 on attends to the page.
  bool IsOut(int32_t group, int32_t page, int32_t length) const;
  // Returns the first page that is not out.
  int32_t FirstPage(int32_t group, int32_t length) const;
  // Returns whether the last page below the region's cut is not out. A group
  // without a region has none in its window.
  bool IsInWindow(const BookRegion& region, int32_t group,
                  int32_t length) const;
  // Returns the pages of the first `length` tokens that a group has behind its
  // region.
  PageRange PagesBehind(const GroupBook& book, int32_t group,
                        int32_t length) const;
  // Returns what an eviction of [0, cut) covers when `length` tokens are
  // computed.
  BookCover CoveredBy(const GroupBook& book, int32_t group, int32_t cut,
                      int32_t length) const;
  std::vector<int64_t> PagesByShard(std::span<const int32_t> counts) const;
  // Returns the entries that each head has of what the order covers.
  std::vector<int32_t> EntriesCovered(const GroupBook& book,
                                      int32_t group) const;
  // Returns the region that the order makes, if the heads keep so many entries.
  BookRegion RegionOf(const GroupBook& book, int32_t group,
                      const std::vector<int32_t>& counts) const;
  // Carries out the order. Appends the blocks that the group gives up.
  BookReceipt Commit(int32_t group, const std::vector<int32_t>& counts,
                     GroupBook* book, std::vector<BlockId>* gone) const;
  // Returns whether the group has all pages that tokens from position `length`
  // on attend to, and the page of that position.
  bool CanGoOn(const GroupBook& book, int32_t group, int32_t length) const;
  // Gives up the pages wholly behind the first `length` tokens. Returns their
  // blocks, the last first.
  std::vector<BlockId> CutBack(int32_t length, GroupBook* book) const;
  // Gives up the pages and the region that are out of the window of `length`
  // tokens, and returns them.
  BookCover LeaveWindow(int32_t group, int32_t length, GroupBook* book) const;
  // Returns the region when each of its blocks has moved to that of `to`.
  static BookRegion OnBlocks(BookRegion region, std::span<const BlockId> to);

 private:
  const ModelLayout layout_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_BOOKS_H_
