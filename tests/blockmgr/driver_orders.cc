#include "tests/blockmgr/driver_orders.h"

#include <algorithm>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

bool DriverOrders::OrderAny() {
  if (model_.sequences().empty()) return false;
  if (state_.config.evicts_in_windows && random_.Chance(0.7)) {
    const SequenceSlot slot = random_.AnySlot();
    return Order(slot, random_.Int(1, layout_.num_groups() - 1));
  }
  return Order(random_.SlotToCompress(), 0);
}

bool DriverOrders::Order(SequenceSlot slot, int32_t group) {
  const NaiveSequence& sequence = model_.at(slot);
  const NaiveGroup& own = sequence.groups[group];
  if (own.pending.has_value()) return false;
  BookOrder order;
  order.cut = random_.Cut(sequence, group);
  if (order.cut <= own.region.cut) return false;
  if (layout_.window_of(group) > 0) order.length = sequence.num_reserved;
  if (model_.CoveredBy(slot, group, order.cut, order.length).pages.empty()) {
    return false;
  }
  const int64_t page_total = random_.PageTotal(slot, group, order);
  order.page_totals.assign(layout_.num_shards, page_total);
  std::vector<int64_t> told;
  if (layout_.window_of(group) == 0 && random_.Chance(0.5)) {
    // The total of one shard is the greatest.
    for (int64_t& total : order.page_totals) {
      total = random_.Int(0, static_cast<int32_t>(page_total));
    }
    order.page_totals[random_.Int(0, layout_.num_shards - 1)] = page_total;
    told = order.page_totals;
  }
  return Place(slot, group, std::move(order), page_total, told);
}

void DriverOrders::OrderInAllGroups() {
  if (model_.sequences().empty()) return;
  const SequenceSlot slot = random_.SlotToCompress();
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    // A region that stays in a window is published again with the next region
    // of group 0.
    const bool has_region =
        !model_.at(slot).groups[group].region.blocks.empty();
    if (random_.Chance(has_region ? 0.3 : 0.8)) Order(slot, group);
    model_.cache().Line();
  }
  Order(slot, 0);
}

bool DriverOrders::Place(SequenceSlot slot, int32_t group, BookOrder order,
                         int64_t page_total, std::span<const int64_t> told) {
  const auto num_own = static_cast<int32_t>(
      model_.OwnBlocks(slot, group, order.cut, order.length).size());
  const auto num_destinations = static_cast<int32_t>(
      CeilDiv<int64_t>(page_total, state_.config.PagesPerShard()));
  int32_t num_fresh = random_.Int(0, num_destinations);
  if (random_.Chance(0.3)) num_fresh = std::max(0, num_destinations - num_own);
  const bool fits = num_fresh <= manager_.num_available() &&
                    num_destinations - num_fresh <= num_own;

  const BlockManagerStats before = manager_.stats();
  const uint64_t hash = manager_.StateHash();
  std::vector<BlockId> destinations;
  const bool done = manager_.ReserveEviction(slot,
                                             {.group = group,
                                              .cut = order.cut,
                                              .page_total = page_total,
                                              .num_fresh = num_fresh,
                                              .shard_page_totals = told},
                                             &destinations);
  EXPECT_EQ(done, fits);
  if (!done) {
    EXPECT_EQ(manager_.StateHash(), hash);
    EXPECT_TRUE(destinations.empty());
    ++tally_.refused_orders;
    const bool lacks_own = num_destinations - num_fresh == num_own + 1;
    const bool lacks_fresh = num_fresh == manager_.num_available() + 1;
    tally_.orders_less_one += lacks_own || lacks_fresh ? 1 : 0;
    tally_.own_less_one += lacks_own && num_fresh == 0 ? 1 : 0;
    return false;
  }
  EXPECT_EQ(std::ssize(destinations), num_destinations);
  const auto own_end = destinations.end() - num_fresh;
  order.own.assign(destinations.begin(), own_end);
  order.destinations = order.own;
  // Own blocks leave the cache before fresh blocks are taken.
  const int32_t dropped = model_.ReserveEviction(slot, group, std::move(order));
  const std::vector<BlockId> fresh(own_end, destinations.end());
  const int32_t reclaimed = model_.HandOut(fresh, before.free_blocks);
  model_.at(slot).groups[group].pending->destinations = destinations;
  tally_.dropped_entries += dropped;
  tally_.last_orders += num_fresh > 0 && manager_.num_available() == 0 ? 1 : 0;
  tally_.reclaimed_blocks += reclaimed;
  cache_was_touched_ = dropped + reclaimed > 0;
  state_.step.orders.push_back({slot, state_.incarnations.at(slot), group});
  return true;
}

void DriverOrders::UndoOrder() {
  const uint64_t hash = manager_.StateHash();
  if (!OrderAny()) return;
  const DriverOrder order = state_.step.orders.back();
  manager_.AbortEviction(order.slot, order.group);
  model_.AbortEviction(order.slot, order.group);
  state_.step.orders.pop_back();
  // Fresh blocks are fenced if steps are in flight, though no step has seen
  // them.
  if (cache_was_touched_ || model_.has_steps_in_flight()) return;
  EXPECT_EQ(manager_.StateHash(), hash);
  ++tally_.undone_orders;
}

void DriverOrders::Conclude(const DriverOrder& order) {
  const auto [slot, incarnation, group] = order;
  const bool has_window = layout_.window_of(group) > 0;
  if (has_window && random_.Chance(0.1)) return Refuse(order);
  const std::vector<int32_t> counts = random_.Counts(slot, group);
  EXPECT_OK(manager_.ValidateCounts(slot, group, counts));
  const bool checks_illegal = has_window || random_.Chance(0.4);
  if (checks_illegal) CheckIllegalCounts(slot, group, counts);
  if (!has_window && random_.Chance(0.2)) return Refuse(order);
  Commit(order, counts);
  if (has_window) checks_.CheckCoveredInWindows(slot);
}

void DriverOrders::Commit(const DriverOrder& order,
                          const std::vector<int32_t>& counts) {
  const auto [slot, incarnation, group] = order;
  NaiveSequence& sequence = model_.at(slot);
  const BookOrder pending = *sequence.groups[group].pending;
  const bool again = !sequence.groups[group].region.kept.empty();
  RegionPublication publication;
  bool publishes = false;
  // A commit of group 0 publishes the regions of all groups under one name.
  if (group == 0) {
    sequence.names.Extend(sequence.tokens, layout_.page_size);
    const bool has_windows = layout_.has_windows();
    publication.name = {
        .plan = random_.Chance(has_windows ? 0.9 : 0.8) ? "p" : "q",
        .history = random_.History(),
        .length = pending.cut + layout_.page_size};
    publication.chain = &sequence.names;
    publication.tokens = sequence.tokens;
    publishes = random_.Chance(has_windows ? 0.8 : 0.6);
  }
  const GroupCache& product = manager_.sequence(slot).groups[group];
  const RegionId region = product.pending->region;
  const EvictionReceipt receipt = manager_.CommitEviction(
      slot, group, counts, publishes ? &publication : nullptr);
  EXPECT_EQ(product.region->id, region);
  if (receipt.cached) {
    EXPECT_TRUE(state_.findable.insert(region).second);
  }
  const EvictionReceipt expected = model_.CommitEviction(
      slot, group, counts, publishes ? &publication.name : nullptr);
  EXPECT_EQ(receipt.published, expected.published);
  EXPECT_EQ(receipt.cached, expected.cached);
  EXPECT_EQ(receipt.evicted_entries, expected.evicted_entries);
  EXPECT_EQ(receipt.freed_blocks, expected.freed_blocks);
  model_.CheckRegions(manager_, slot);
  if (receipt.published) {
    ++tally_.published_regions;
    tally_.equal_regions += receipt.cached ? 0 : 1;
    state_.Remember(sequence, publication.name.length);
  }
  if (layout_.window_of(group) > 0) return;
  const bool has_own = !pending.own.empty();
  const bool has_fresh = pending.destinations.size() > pending.own.size();
  tally_.repeated_evictions += again ? 1 : 0;
  (has_own && has_fresh ? tally_.mixed_evictions
   : has_own            ? tally_.in_place_evictions
                        : tally_.copying_evictions) += 1;
}

void DriverOrders::Refuse(const DriverOrder& order) {
  manager_.AbortEviction(order.slot, order.group);
  model_.AbortEviction(order.slot, order.group);
  ++tally_.refused_evictions;
}

void DriverOrders::CheckIllegalCounts(SequenceSlot slot, int32_t group,
                                      std::vector<int32_t> counts) {
  const bool any_head = layout_.window_of(group) == 0;
  const int32_t i =
      any_head ? random_.Int(0, static_cast<int32_t>(counts.size()) - 1) : 0;
  const int32_t held = model_.EntriesCovered(slot, group)[i];
  // Either a shard keeps more pages than it may, or the count of one head is
  // out of range.
  const int32_t shard = state_.config.ShardOf(i);
  const bool exceeds = any_head && random_.Chance(0.5) &&
                       ExceedTotal(slot, group, shard, &counts);
  if (!exceeds) counts[i] = random_.Chance(0.5) ? held + 1 : -1;
  const uint64_t hash = manager_.StateHash();
  const absl::Status refused = manager_.ValidateCounts(slot, group, counts);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument));
  if (exceeds && layout_.num_shards > 1) {
    const int64_t total =
        model_.at(slot).groups[group].pending->page_totals[shard];
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr(absl::StrCat(
                    "at most ", total, " pages in shard ", shard, ", got")));
    ++tally_.refused_shards;
  }
  EXPECT_EQ(manager_.StateHash(), hash);
}

bool DriverOrders::ExceedTotal(SequenceSlot slot, int32_t group, int32_t shard,
                               std::vector<int32_t>* counts) const {
  const std::vector<int32_t> held = model_.EntriesCovered(slot, group);
  int64_t num_pages = 0;
  for (int32_t i = 0; i < std::ssize(*counts); ++i) {
    if (state_.config.ShardOf(i) != shard) continue;
    (*counts)[i] = held[i];
    num_pages += CeilDiv((*counts)[i], layout_.page_size);
  }
  return num_pages > model_.at(slot).groups[group].pending->page_totals[shard];
}

}  // namespace blockmgr
