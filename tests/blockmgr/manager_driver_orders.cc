// Orders of evictions by ManagerDriver, and those from layer groups with a
// window.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/manager_driver.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

bool ManagerDriver::PlaceOrder(SequenceSlot slot, int32_t group,
                               BookOrder order, int64_t page_total,
                               std::span<const int64_t> told) {
  const auto num_own = static_cast<int32_t>(
      model_.OwnBlocks(slot, order.cut, group, order.length).size());
  const int32_t num_pages =
      config_.layout.pages_per_block() / config_.layout.num_shards;
  const auto num_destinations =
      static_cast<int32_t>(CeilDiv<int64_t>(page_total, num_pages));
  int32_t num_fresh = Int(0, num_destinations);
  if (Chance(0.3)) num_fresh = std::max(0, num_destinations - num_own);
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
    ++tally_->refused_orders;
    const bool lacks_own = num_destinations - num_fresh == num_own + 1;
    const bool lacks_fresh = num_fresh == manager_.num_available() + 1;
    tally_->orders_less_one += lacks_own || lacks_fresh ? 1 : 0;
    tally_->own_less_one += lacks_own && num_fresh == 0 ? 1 : 0;
    return false;
  }
  EXPECT_EQ(std::ssize(destinations), num_destinations);
  const auto own_end = destinations.end() - num_fresh;
  order.own.assign(destinations.begin(), own_end);
  order.destinations = order.own;
  // Own blocks leave the cache before fresh ones are taken.
  const int32_t dropped = model_.ReserveEviction(slot, group, std::move(order));
  const std::vector<BlockId> fresh(own_end, destinations.end());
  const int32_t reclaimed = model_.HandOut(fresh, before.free_blocks);
  model_.at(slot).groups[group].pending->destinations = destinations;
  tally_->dropped_entries += dropped;
  tally_->last_orders += num_fresh > 0 && manager_.num_available() == 0 ? 1 : 0;
  tally_->reclaimed_blocks += reclaimed;
  cache_was_touched_ = dropped + reclaimed > 0;
  step_.orders.push_back({slot, incarnations_.at(slot), group});
  return true;
}

bool ManagerDriver::HasWindowOrder(SequenceSlot slot) const {
  return std::ranges::any_of(step_.orders, [&](const Ordered& order) {
    return order.slot == slot && order.group > 0 &&
           !IsStale(slot, order.incarnation);
  });
}

void ManagerDriver::CheckCovered(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t page_size = config_.layout.page_size;
  for (int32_t group = 1; group < config_.layout.num_groups(); ++group) {
    const int32_t length = sequence.num_reserved;
    const int32_t cut = page_size * Int(0, length / page_size);
    if (cut <= manager_.sequence(slot).groups[group].cut()) continue;
    const CoveredBlocks covered =
        manager_.CountCovered(slot, group, cut, length);
    EXPECT_EQ(covered.num_blocks,
              model_.CoveredBy(slot, group, cut, length).Blocks().size());
    EXPECT_EQ(covered.num_own,
              model_.OwnBlocks(slot, cut, group, length).size());
  }
}

bool ManagerDriver::OrderWindowEviction(SequenceSlot slot, int32_t group) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t page_size = config_.layout.page_size;
  BookOrder order;
  order.length = sequence.num_reserved;
  if (sequence.groups[group].pending.has_value()) return false;
  order.cut = page_size * Int(0, sequence.num_reserved / page_size);
  if (Chance(0.7)) {
    order.cut = (sequence.num_reserved - 1) / page_size * page_size;
  }
  if (order.cut <= sequence.groups[group].region.cut) return false;
  const std::vector<BlockId> pages =
      model_.CoveredBy(slot, group, order.cut, order.length).pages;
  if (pages.empty()) return false;
  const int32_t num_pages =
      config_.layout.pages_per_block() / config_.layout.num_shards;
  int64_t page_total =
      Int(1, num_pages * (1 + static_cast<int32_t>(pages.size())));
  const auto num_own =
      std::ssize(model_.OwnBlocks(slot, order.cut, group, order.length));
  // For as many pages as the group has, so that its region leaves the cache.
  if (num_own > 0 && Chance(0.3)) page_total = num_pages * num_own;
  order.page_totals.assign(config_.layout.num_shards, page_total);
  return PlaceOrder(slot, group, std::move(order), page_total, {});
}

bool ManagerDriver::OrderInAllGroups() {
  if (model_.sequences().empty()) return false;
  const SequenceSlot slot = SlotToCompress();
  for (int32_t group = 1; group <= NumWindows(); ++group) {
    // A region that a window keeps is published again with group 0's next.
    const bool has_region =
        !model_.at(slot).groups[group].region.blocks.empty();
    if (Chance(has_region ? 0.3 : 0.8)) OrderWindowEviction(slot, group);
    model_.Line();
  }
  return OrderFirstEviction(slot);
}

void ManagerDriver::ConcludeInWindow(const Ordered& order) {
  const auto [slot, incarnation, group] = order;
  if (Chance(0.1)) {
    manager_.AbortEviction(slot, group);
    model_.AbortEviction(slot, group);
    ++tally_->refused_evictions;
    return;
  }
  const std::vector<int32_t> held = model_.EntriesCovered(slot, group);
  const std::vector<int32_t> counts = RandomCounts(slot, group);
  EXPECT_OK(manager_.ValidateCounts(slot, group, counts));
  std::vector<int32_t> illegal = counts;
  illegal.front() = Chance(0.5) ? held.front() + 1 : -1;
  const uint64_t hash = manager_.StateHash();
  EXPECT_THAT(manager_.ValidateCounts(slot, group, illegal),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(manager_.StateHash(), hash);
  const EvictionReceipt receipt = manager_.CommitEviction(slot, group, counts);
  const EvictionReceipt expected =
      model_.CommitEviction(slot, group, counts, nullptr);
  EXPECT_EQ(receipt.evicted_entries, expected.evicted_entries);
  EXPECT_EQ(receipt.freed_blocks, expected.freed_blocks);
  EXPECT_FALSE(receipt.published);
  model_.CheckRegions(manager_, slot);
  CheckCovered(slot);
}

}  // namespace blockmgr
