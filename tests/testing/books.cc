#include "tests/testing/books.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "blockmgr/base/bits.h"

namespace blockmgr {

std::vector<BlockId> BookCover::Blocks() const {
  std::vector<BlockId> blocks = region.blocks;
  blocks.insert(blocks.end(), pages.begin(), pages.end());
  return blocks;
}

bool BookRules::IsOut(int32_t group, int32_t page, int32_t length) const {
  const int32_t window =
      group == 0 ? layout_.window : layout_.group_windows.at(group - 1);
  if (window == 0) return false;
  // The last token attends to itself and window - 1 before it.
  const int32_t first_attended = length - window;
  const int32_t page_end = (page + 1) * layout_.page_size;
  return page_end <= first_attended;
}

int32_t BookRules::FirstPage(int32_t group, int32_t length) const {
  int32_t page = 0;
  while (IsOut(group, page, length)) ++page;
  return page;
}

bool BookRules::IsInWindow(const BookRegion& region, int32_t group,
                           int32_t length) const {
  return region.cut > 0 &&
         !IsOut(group, region.cut / layout_.page_size - 1, length);
}

PageRange BookRules::PagesBehind(const GroupBook& book, int32_t group,
                                 int32_t length) const {
  const int32_t page_size = layout_.page_size;
  return {std::max(FirstPage(group, length), book.region.cut / page_size),
          CeilDiv(length, page_size)};
}

BookCover BookRules::CoveredBy(const GroupBook& book, int32_t group,
                               int32_t cut, int32_t length) const {
  BookCover covered;
  // The token after them attends to no more.
  int32_t page = FirstPage(group, length + 1);
  if (IsInWindow(book.region, group, length + 1)) {
    covered.region = book.region;
    page = book.region.cut / layout_.page_size;
  }
  const int64_t end =
      std::min<int64_t>(cut / layout_.page_size, std::ssize(book.pages));
  for (; page < end; ++page) {
    if (book.pages[page] == kNullBlock) continue;
    covered.pages.push_back(book.pages[page]);
  }
  return covered;
}

std::vector<int64_t> BookRules::PagesByShard(
    std::span<const int32_t> counts) const {
  const NaiveShape shape{layout_.num_layers, layout_.num_heads,
                         layout_.num_shards};
  std::vector<int64_t> num_pages(layout_.num_shards);
  for (int32_t i = 0; i < std::ssize(counts); ++i) {
    num_pages[NaiveShardOf(shape, i % layout_.num_heads)] +=
        CeilDiv(counts[i], layout_.page_size);
  }
  return num_pages;
}

BookRegion BookRules::Rebuild(const BookCover& covered,
                              std::span<const BlockId> destinations,
                              const std::vector<int32_t>& counts, int32_t cut,
                              int32_t length) const {
  // The pages that every head uses now, in order.
  NaivePages now = covered.region.pages;
  std::map<NaiveHead, int32_t> pages_per_head;
  for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
    const NaiveHead head = {i / layout_.num_heads, i % layout_.num_heads};
    pages_per_head[head] = CeilDiv(counts[i], layout_.page_size);
    for (const BlockId block : covered.pages) {
      now[head].push_back({head.first, Index(block), head.second});
    }
    now.try_emplace(head);
  }
  std::vector<int32_t> numbers;
  for (const BlockId block : destinations) numbers.push_back(Index(block));
  BookRegion next{.cut = cut,
                  .length = length,
                  .blocks = {},
                  .kept = counts,
                  .pages = NaiveLayout({layout_.num_layers, layout_.num_heads,
                                        layout_.num_shards},
                                       numbers, now, pages_per_head)};
  std::set<int32_t> used;
  for (const auto& [head, list] : next.pages) {
    for (const NaivePage& page : list) used.insert(page[1]);
  }
  for (const BlockId block : destinations) {
    if (used.contains(Index(block))) next.blocks.push_back(block);
  }
  return next;
}

BookReceipt BookRules::ReceiptOf(const BookCover& covered,
                                 const BookRegion& next) const {
  const auto sum = [](const std::vector<int32_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  const int64_t in_pages =
      std::ssize(covered.pages) * layout_.page_size * layout_.pages_per_block();
  return {
      .evicted_entries = in_pages + sum(covered.region.kept) - sum(next.kept),
      .freed_blocks =
          static_cast<int32_t>(covered.Blocks().size() - next.blocks.size())};
}

bool BookRules::CanGoOn(const GroupBook& book, int32_t group,
                        int32_t length) const {
  // A region stands for the pages below its cut.
  int32_t page = book.region.cut / layout_.page_size;
  for (; page < CeilDiv(length, layout_.page_size); ++page) {
    // The next token is the last of one more.
    if (book.pages[page] == kNullBlock && !IsOut(group, page, length + 1)) {
      return false;
    }
  }
  return true;
}

std::vector<BlockId> BookRules::CutBack(int32_t length, GroupBook* book) const {
  std::vector<BlockId> gone;
  while (std::ssize(book->pages) > CeilDiv(length, layout_.page_size)) {
    if (book->pages.back() != kNullBlock) gone.push_back(book->pages.back());
    book->pages.pop_back();
  }
  return gone;
}

BookCover BookRules::LeaveWindow(int32_t group, int32_t length,
                                 GroupBook* book) const {
  BookCover left;
  for (int32_t page = 0; IsOut(group, page, length); ++page) {
    const BlockId block = std::exchange(book->pages[page], kNullBlock);
    if (block != kNullBlock) left.pages.push_back(block);
  }
  if (!IsInWindow(book->region, group, length)) {
    left.region = std::exchange(book->region, BookRegion());
  }
  return left;
}

BookRegion BookRules::OnBlocks(BookRegion region, std::span<const BlockId> to) {
  std::map<int32_t, int32_t> moved;
  for (size_t i = 0; i < to.size(); ++i) {
    moved[Index(region.blocks.at(i))] = Index(to[i]);
  }
  for (auto& [head, list] : region.pages) {
    for (NaivePage& page : list) page[1] = moved.at(page[1]);
  }
  region.blocks.assign(to.begin(), to.end());
  return region;
}

}  // namespace blockmgr
