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

std::vector<BlockId> BookOrder::Fresh() const {
  std::vector<BlockId> fresh = destinations;
  std::erase_if(fresh, [this](BlockId block) {
    return std::ranges::count(own, block) > 0;
  });
  return fresh;
}

std::vector<BlockId> GroupBook::Held() const {
  std::vector<BlockId> blocks = region.blocks;
  blocks.insert(blocks.end(), pages.begin(), pages.end());
  std::erase(blocks, kNullBlock);
  return blocks;
}

std::vector<BlockId> GroupBook::Blocks() const {
  std::vector<BlockId> blocks = Held();
  if (!pending.has_value()) return blocks;
  const std::vector<BlockId> fresh = pending->Fresh();
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  return blocks;
}

bool BookRules::IsOut(int32_t group, int32_t page, int32_t length) const {
  const int32_t window = WindowOf(group);
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

std::vector<int32_t> BookRules::EntriesCovered(const GroupBook& book,
                                               int32_t group) const {
  const BookOrder& order = *book.pending;
  const BookCover covered = CoveredBy(book, group, order.cut, order.length);
  std::vector<int32_t> entries = covered.region.kept;
  entries.resize(layout_.pages_per_block());
  for (int32_t& count : entries) {
    count += static_cast<int32_t>(covered.pages.size()) * layout_.page_size;
  }
  return entries;
}

BookRegion BookRules::RegionOf(const GroupBook& book, int32_t group,
                               const std::vector<int32_t>& counts) const {
  const BookOrder& order = *book.pending;
  const BookCover covered = CoveredBy(book, group, order.cut, order.length);
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
  for (const BlockId block : order.destinations) {
    numbers.push_back(Index(block));
  }
  BookRegion next{.cut = order.cut,
                  .length = order.length,
                  .blocks = {},
                  .kept = counts,
                  .pages = NaiveLayout({layout_.num_layers, layout_.num_heads,
                                        layout_.num_shards},
                                       numbers, now, pages_per_head)};
  std::set<int32_t> used;
  for (const auto& [head, list] : next.pages) {
    for (const NaivePage& page : list) used.insert(page[1]);
  }
  for (const BlockId block : order.destinations) {
    if (used.contains(Index(block))) next.blocks.push_back(block);
  }
  return next;
}

BookReceipt BookRules::Commit(int32_t group, const std::vector<int32_t>& counts,
                              GroupBook* book,
                              std::vector<BlockId>* gone) const {
  const auto sum = [](const std::vector<int32_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  const int64_t num_covered = sum(EntriesCovered(*book, group));
  BookRegion next = RegionOf(*book, group, counts);
  const BookOrder order = *std::exchange(book->pending, std::nullopt);
  const BookCover covered = CoveredBy(*book, group, order.cut, order.length);
  const BookReceipt receipt = {
      .evicted_entries = num_covered - sum(counts),
      .freed_blocks =
          static_cast<int32_t>(covered.Blocks().size() - next.blocks.size())};
  const auto give_up = [&](BlockId block) {
    if (std::ranges::count(next.blocks, block) == 0) gone->push_back(block);
  };
  // What is covered, and what is not used of the fresh blocks: the last first.
  std::vector<BlockId> involved = covered.Blocks();
  const std::vector<BlockId> fresh = order.Fresh();
  involved.insert(involved.end(), fresh.begin(), fresh.end());
  std::ranges::for_each(involved.rbegin(), involved.rend(), give_up);
  // What is below the cut and nobody attends to any more.
  const auto is_past = [&](BlockId block) {
    return block != kNullBlock && std::ranges::count(involved, block) == 0;
  };
  for (int32_t i = 0; i < order.cut / layout_.page_size; ++i) {
    const BlockId block = std::exchange(book->pages[i], kNullBlock);
    if (is_past(block)) give_up(block);
  }
  for (const BlockId block : book->region.blocks) {
    if (is_past(block)) give_up(block);
  }
  book->region = std::move(next);
  return receipt;
}

bool BookRules::CanGoOn(const GroupBook& book, int32_t group,
                        int32_t length) const {
  // A region stands for the pages below its cut.
  int32_t page = book.region.cut / layout_.page_size;
  const int64_t end =
      std::min<int64_t>(length / layout_.page_size + 1, std::ssize(book.pages));
  for (; page < end; ++page) {
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
