#include "tests/sim/ledger_orders.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/budget_table.h"

namespace blockmgr::sim {
namespace {

// Checks the budgets of an order of group 0, if the request has a table of
// budgets. Commands have budgets of their own, which replays repeat.
void CheckBudgets(const LedgerRequest& served, const EvictionOrder& order,
                  const LedgerBooks& books) {
  const RequestEviction& eviction = served.request.eviction;
  if (eviction.table == nullptr || books.was_commanded) return;
  EvictionRange range = {.cut = order.cut, .length = order.length};
  EvictionTarget target = eviction.target;
  if (eviction.mode == EvictionMode::kEveryChunk) {
    target = {.kind = EvictionTarget::Kind::kTokens,
              .ratio = {},
              .tokens = eviction.target.TokensPerHead(served.num_own)};
    if (!eviction.share_prefix) {
      const int32_t page_size = books.layout.page_size;
      range = {.cut = (served.num_own - 1) / page_size * page_size,
               .length = served.num_own};
    }
  }
  const std::vector<int32_t> expected =
      TableBudgets(eviction.policy, target,
                   {.num_layers = books.layout.num_layers,
                    .num_heads = books.layout.num_heads,
                    .page_size = books.layout.page_size},
                   range, *eviction.table);
  if (order.budgets == nullptr || *order.budgets != expected) {
    books.Fail("an eviction at ", order.length, " of '", served.request.id,
               "' has budgets that are not its table's");
  }
  ++books.counts().table_evictions;
}

// Checks whether the order makes a region that others may share.
void CheckRegionOrder(const LedgerRequest& served, const EvictionOrder& order,
                      const LedgerBooks& books) {
  // A request's own evictions are of its prompt. Those of a fork are of its
  // parent's.
  const bool is_own = order.length <= served.num_own;
  // A fork may be behind a refusal because its parent is.
  const bool is_behind =
      order.length > served.refused_at ||
      (books.was_refused && !served.request.fork_of.empty() &&
       order.region == kNoRegion);
  // Regions of other groups have no name of their own.
  const bool shares = order.group == 0 && is_own && !is_behind &&
                      books.options.enable_prefix_caching &&
                      served.request.eviction.share_prefix;
  if (shares != (order.region != kNoRegion) ||
      books.regions.contains(order.region)) {
    books.Fail("request ", served.request.id, ", fork of '",
               served.request.fork_of, "': an eviction at ", order.length,
               " makes region ", Index(order.region), ", shared: ", shares,
               ", own tokens ", served.num_own, ", refused at ",
               served.refused_at);
  }
  if (shares && order.cut + books.layout.page_size != order.length) {
    books.Fail("a shared eviction of [0, ", order.cut, ") at ", order.length);
  }
}

// Checks that an order of another group is a part of the eviction from group 0.
void CheckWindowOrder(const LedgerRequest& served, const EvictionOrder& order,
                      const LedgerBooks& books) {
  const EvictionTarget& target = served.request.eviction.target;
  const BookOrder& first = *books.tables.at(order.slot).groups[0].pending;
  const bool is_wanted = target.evicts_in_windows() &&
                         order.target.kind == EvictionTarget::Kind::kRatio &&
                         order.target.ratio == target.window_keep_ratio;
  if (!is_wanted || order.cut != first.cut || order.length != first.length ||
      books.rules.FirstPage(order.group, order.length + 1) >=
          order.cut / books.layout.page_size) {
    books.Fail("an eviction from group ", order.group, " of [0, ", order.cut,
               ") at ", order.length, ", wanted: ", is_wanted,
               "; group 0: [0, ", first.cut, ")");
  }
}

// Checks whether the request of the run may be evicted like this. An eviction
// is from group 0 first, and then perhaps from others.
void CheckOrder(const EvictionOrder& order, const LedgerStep::Run& run,
                const LedgerStep& step, const LedgerBooks& books) {
  if (run.num_drafts > 0) books.Fail("an eviction in a run with drafts");
  if (books.layout.window > 0) books.Fail("an eviction from a window");
  const bool is_next = !step.orders.empty() &&
                       step.runs[step.orders.back().run].slot == order.slot;
  if (is_next ? order.group <= step.orders.back().group : order.group != 0) {
    books.Fail("an eviction of slot ", Index(order.slot), " from group ",
               order.group, " follows none of a group before");
    return;
  }
  const LedgerRequest& served = books.requests.at(run.request);
  if (served.refused.contains(order.length)) {
    books.Fail("an eviction at ", order.length, " of request ",
               Index(run.request), " is ordered again and was refused");
    return;
  }
  CheckRegionOrder(served, order, books);
  if (order.group == 0) {
    CheckBudgets(served, order, books);
  } else {
    CheckWindowOrder(served, order, books);
  }
}

// Takes the destinations of the order, which are fresh blocks or blocks of
// `below`: those of the positions that it evicts from. Returns nothing if the
// page totals do not fit.
std::optional<BookOrder> TakeDestinations(const StepPlan& plan,
                                          const EvictionOrder& order,
                                          const std::vector<BlockId>& below,
                                          LedgerBooks* books) {
  BookOrder taken{.cut = order.cut,
                  .length = order.length,
                  .page_totals = order.shard_page_totals,
                  .destinations = {},
                  .own = {}};
  const int32_t num_shards = books->layout.num_shards;
  if (taken.page_totals.empty()) {
    taken.page_totals.assign(num_shards, order.page_total);
  }
  if (std::ssize(taken.page_totals) != num_shards ||
      std::ranges::max(taken.page_totals) != order.page_total) {
    books->Fail("an eviction with ", taken.page_totals.size(),
                " page totals, the most of them not ", order.page_total);
    return std::nullopt;
  }
  // Every shard has the same blocks, and its own pages of them.
  const int32_t shard_pages = books->layout.pages_per_block() / num_shards;
  if (order.num_destinations !=
          CeilDiv<int64_t>(order.page_total, shard_pages) ||
      order.num_destinations >= std::ssize(below)) {
    books->Fail("an eviction from ", below.size(), " to ",
                order.num_destinations, " blocks for ", order.page_total,
                " pages, group ", order.group);
  }
  for (int32_t i = 0; i < order.num_destinations; ++i) {
    const BlockId block = plan.destinations[order.destination_begin + i];
    if (std::ranges::count(taken.destinations, block) > 0) {
      books->Fail("block ", Index(block), " is a destination twice");
    }
    taken.destinations.push_back(block);
    if (std::ranges::count(below, block) == 0) {
      books->TakeFresh(block);
      continue;
    }
    taken.own.push_back(block);
    books->blocks[Index(block)].content.clear();
    books->OverwriteRegions(block);
    if (books->CountHolders(block) != 1) {
      books->Fail("shared block ", Index(block), " is a destination");
    }
  }
  return taken;
}

}  // namespace

void TakeOrder(const StepPlan& plan, const EvictionOrder& order,
               LedgerBooks* books, LedgerStep* step) {
  const auto run =
      std::ranges::find(step->runs, order.slot, &LedgerStep::Run::slot);
  if (run == step->runs.end() || order.group >= books->layout.num_groups()) {
    books->Fail("an eviction of slot ", Index(order.slot), " from group ",
                order.group, ", which does not run");
    return;
  }
  CheckOrder(order, *run, *step, *books);
  if (!books->ok()) return;
  LedgerTable& table = books->tables.at(order.slot);
  GroupBook& book = table.groups[order.group];
  if (book.pending.has_value() || order.length != table.num_reserved ||
      order.cut % books->layout.page_size != 0 ||
      order.cut <= book.region.cut || order.cut >= order.length) {
    books->Fail("an eviction of [0, ", order.cut, ") at ", order.length, " of ",
                table.num_reserved, " tokens, group ", order.group, ", cut ",
                book.region.cut);
    return;
  }
  const BookCover below =
      books->rules.CoveredBy(book, order.group, order.cut, order.length);
  book.pending = TakeDestinations(plan, order, below.Blocks(), books);
  if (!book.pending.has_value()) return;
  step->orders.push_back({.run = static_cast<size_t>(run - step->runs.begin()),
                          .group = order.group,
                          .region = order.region});
  if (order.group > 0) return;
  books->requests.at(table.request)
      .issued.push_back({.length = order.length, .cut = order.cut});
}

}  // namespace blockmgr::sim
