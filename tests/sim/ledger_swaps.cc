#include "tests/sim/ledger_swaps.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace blockmgr::sim {
namespace {

bool IsHeldInHost(HostBlockId block, const LedgerBooks& books) {
  return std::ranges::any_of(books.swaps, [block](const auto& swap) {
    return std::ranges::count(swap.second.blocks, block) > 0;
  });
}

// Returns whether a swap-out may write the host block.
bool IsFreeInHost(HostBlockId block, const LedgerBooks& books) {
  return Index(block) >= 0 &&
         Index(block) < books.options.engine.num_host_blocks &&
         books.host_fences[Index(block)] <= books.acknowledged &&
         !IsHeldInHost(block, books);
}

// Returns the blocks of a table that a swap-out copies. Returns nothing if the
// table has lost one.
std::optional<std::vector<BlockId>> PiecesOf(SequenceSlot slot,
                                             const LedgerBooks& books) {
  const LedgerTable& table = books.tables.at(slot);
  std::vector<BlockId> pieces;
  for (int32_t group = 0; group < books.layout.num_groups(); ++group) {
    const GroupBook& book = table.groups[group];
    pieces.insert(pieces.end(), book.region.blocks.begin(),
                  book.region.blocks.end());
    const PageRange pages =
        books.rules.PagesBehind(book, group, table.num_settled);
    for (int32_t page = pages.begin; page < pages.end; ++page) {
      if (book.pages[page] == kNullBlock) {
        books.Fail("slot ", Index(slot), " has lost page ", page, " of group ",
                   group, " and is swapped out");
        return std::nullopt;
      }
      pieces.push_back(book.pages[page]);
    }
  }
  return pieces;
}

// Drops a swap. The copies of the step `fence` are the last to touch its host
// blocks.
void Drop(SwapId swap, uint64_t fence, LedgerBooks* books) {
  for (const HostBlockId block : books->swaps.at(swap).blocks) {
    books->host_fences[Index(block)] = fence;
  }
  books->swaps.erase(swap);
}

// HostPlace is a host block of a swap.
struct HostPlace {
  HostBlockId host{0};
  int32_t group = 0;
  bool in_region = false;
};

// Returns the host blocks of the first num_tokens tokens, group by group: those
// of the region, then those of the pages.
std::vector<HostPlace> HostsOf(const LedgerSwap& swap, int32_t num_tokens,
                               const LedgerBooks& books) {
  std::vector<HostPlace> hosts;
  const LedgerTable& was = swap.table;
  auto next = swap.blocks.begin();
  for (int32_t group = 0; group < books.layout.num_groups(); ++group) {
    const GroupBook& book = was.groups[group];
    for (size_t i = 0; i < book.region.blocks.size(); ++i) {
      hosts.push_back({.host = *next++, .group = group, .in_region = true});
    }
    const int32_t num_pages =
        books.rules.PagesBehind(book, group, num_tokens).size();
    for (int32_t i = 0; i < num_pages; ++i) {
      hosts.push_back({.host = next[i], .group = group, .in_region = false});
    }
    next += books.rules.PagesBehind(book, group, was.num_settled).size();
  }
  return hosts;
}

// Returns whether the host tier has all pages of the first num_tokens tokens.
bool CanReturn(const LedgerTable& was, int32_t num_tokens,
               const LedgerBooks& books) {
  for (int32_t group = 0; group < books.layout.num_groups(); ++group) {
    const GroupBook& book = was.groups[group];
    if (books.rules.PagesBehind(book, group, num_tokens).begin !=
        books.rules.PagesBehind(book, group, was.num_settled).begin) {
      return false;
    }
  }
  return true;
}

// Brings the regions of the start's swap back to the blocks that the plan
// copies these places to. Returns false if the plan copies other places.
bool ReturnRegions(const StepPlan& plan, const SequenceStart& start,
                   const std::vector<HostPlace>& hosts, LedgerTable* table,
                   LedgerBooks* books) {
  const LedgerTable& was = books->swaps.at(start.swap).table;
  std::vector<std::vector<BlockId>> back(books->layout.num_groups());
  for (int32_t i = 0; i < start.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_in[start.transfer_begin + i];
    if (host != hosts[i].host) {
      books->Fail("request ", Index(start.request), " gets host block ",
                  Index(host), " back, expected ", Index(hosts[i].host));
      return false;
    }
    // The run of the request names the blocks of pages.
    if (!hosts[i].in_region) continue;
    back[hosts[i].group].push_back(block);
    books->returning.push_back({start.slot, hosts[i].group, block});
  }
  for (int32_t group = 0; group < books->layout.num_groups(); ++group) {
    if (group == 0 && start.region != kNoRegion) continue;
    BookRegion& region = table->groups[group].region;
    region = BookRules::OnBlocks(was.groups[group].region, back[group]);
    region.blocks.clear();  // TakeReturning adds them when they are free
    books->counts().window_region_ins += group > 0 && region.cut > 0 ? 1 : 0;
  }
  return true;
}

}  // namespace

void TakeDroppedSwaps(const StepPlan& plan, LedgerBooks* books) {
  for (const SwapId swap : plan.dropped_swaps) {
    const auto found = books->swaps.find(swap);
    // A swap is dropped when it is due, or when its request starts without it.
    const bool starts =
        found != books->swaps.end() &&
        std::ranges::count(plan.starts, found->second.table.request,
                           &SequenceStart::request) > 0;
    if (found == books->swaps.end() || (!found->second.is_due && !starts)) {
      books->Fail("swap ", Index(swap), " is dropped and was not due");
      return;
    }
    Drop(swap, books->dispatched, books);
  }
  for (const auto& [id, swap] : books->swaps) {
    if (swap.is_due) {
      books->Fail("swap ", Index(id), " of request ", Index(swap.table.request),
                  " is not dropped");
    }
  }
}

void TakeSwapOut(const StepPlan& plan, const SwapOut& out, LedgerBooks* books) {
  const auto found = books->tables.find(out.slot);
  if (found == books->tables.end() || found->second.has_order() ||
      found->second.restart_due ||
      std::ranges::count(plan.released, out.slot) != 1 ||
      books->swaps.contains(out.swap)) {
    books->Fail("slot ", Index(out.slot), " cannot be swapped out as ",
                Index(out.swap));
    return;
  }
  const LedgerTable& table = found->second;
  const std::optional<std::vector<BlockId>> pieces = PiecesOf(out.slot, *books);
  if (!pieces.has_value()) return;
  if (out.num_tokens != table.num_settled || out.num_tokens < 1 ||
      out.num_transfers != std::ssize(*pieces)) {
    books->Fail("slot ", Index(out.slot), " swaps out ", out.num_tokens,
                " tokens in ", out.num_transfers, " blocks, expected ",
                table.num_settled, " in ", pieces->size());
    return;
  }
  LedgerSwap swap{.table = table,
                  .issued = books->requests.at(table.request).issued,
                  .blocks = {},
                  .is_due = false};
  for (int32_t i = 0; i < out.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_out[out.transfer_begin + i];
    if (block != (*pieces)[i] || !IsFreeInHost(host, *books) ||
        std::ranges::count(swap.blocks, host) > 0) {
      books->Fail("slot ", Index(out.slot), " swaps out block ", Index(block),
                  " to host block ", Index(host));
      return;
    }
    swap.blocks.push_back(host);
  }
  books->swaps.emplace(out.swap, std::move(swap));
  ++books->counts().swap_outs;
}

void TakeSwapIn(const StepPlan& plan, const SequenceStart& start,
                LedgerRequest* served, LedgerTable* table, LedgerBooks* books) {
  const auto found = books->swaps.find(start.swap);
  if (found == books->swaps.end() || found->second.is_due ||
      found->second.table.request != start.request) {
    books->Fail("request ", Index(start.request), " starts on swap ",
                Index(start.swap), ", which is not its own");
    return;
  }
  const LedgerSwap& swap = found->second;
  const LedgerTable& was = swap.table;
  const int32_t num_tokens = start.num_cached_tokens;
  if (num_tokens > was.num_settled || !CanReturn(was, num_tokens, *books) ||
      num_tokens < std::max({1, was.cut(), was.last_length()})) {
    books->Fail("request ", Index(start.request), " starts with ", num_tokens,
                " tokens of the ", was.num_settled,
                " swapped out, compressed at ", was.last_length());
    return;
  }
  const bool is_shared = start.region != kNoRegion;
  if (is_shared &&
      (served->issued != swap.issued || table->cut() != was.cut() ||
       table->last_length() != was.last_length())) {
    books->Fail("request ", Index(start.request), " starts on region ",
                Index(start.region), ", which is not as its own");
    return;
  }
  const PageRange tail = books->rules.PagesBehind(was.groups[0], 0, num_tokens);
  std::vector<HostPlace> hosts = HostsOf(swap, num_tokens, *books);
  std::erase_if(hosts, [is_shared](const HostPlace& place) {
    return is_shared && place.in_region && place.group == 0;
  });
  const int64_t num_shared = std::ssize(hosts) - start.num_transfers;
  if (num_shared < 0 || num_shared > tail.size()) {
    books->Fail("request ", Index(start.request), " gets back ",
                start.num_transfers, " of ", hosts.size());
    return;
  }
  // All pages of the window groups come from the host.
  for (LedgerGroup& group : table->groups) group.num_shared = 0;
  table->groups[0].num_shared = tail.begin + static_cast<int32_t>(num_shared);
  // The cache has the first pages behind the region of group 0.
  const auto first = std::ranges::find(hosts, false, &HostPlace::in_region);
  hosts.erase(first, first + num_shared);
  if (!ReturnRegions(plan, start, hosts, table, books)) return;
  if (!is_shared) {
    table->contexts = was.contexts;
    served->issued = swap.issued;
  }
  // This step reads the host blocks.
  Drop(start.swap, Index(plan.id), books);
  ++books->counts().swap_ins;
}

void TakeReturning(LedgerBooks* books) {
  for (const LedgerReturn& back : std::exchange(books->returning, {})) {
    books->TakeFresh(back.block);
    GroupBook& book = books->tables.at(back.slot).groups[back.group];
    book.region.blocks.push_back(back.block);
  }
}

}  // namespace blockmgr::sim
