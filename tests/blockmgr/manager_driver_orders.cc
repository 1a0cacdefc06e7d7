// Evictions by ManagerDriver: orders, and what becomes of them.

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/manager_driver.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

bool ManagerDriver::PlaceOrder(SequenceSlot slot, int32_t group,
                               BookOrder order, int64_t page_total,
                               std::span<const int64_t> told) {
  const auto num_own = static_cast<int32_t>(
      model_.OwnBlocks(slot, group, order.cut, order.length).size());
  const auto num_destinations =
      static_cast<int32_t>(CeilDiv<int64_t>(page_total, PagesPerShard()));
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

bool ManagerDriver::HasOrderAtLength(SequenceSlot slot) const {
  return std::ranges::any_of(step_.orders, [&](const Ordered& order) {
    return order.slot == slot && HasWindow(order.group) &&
           !IsStale(slot, order.incarnation);
  });
}

void ManagerDriver::CheckCovered(SequenceSlot slot, int32_t group) {
  const NaiveSequence& sequence = model_.at(slot);
  const GroupBook& own = sequence.groups[group];
  const int32_t page_size = config_.layout.page_size;
  int32_t length = sequence.num_reserved;
  int32_t cut = 0;
  if (group == 0) {
    const int32_t first = own.region.cut / page_size;
    cut = page_size * Int(first, static_cast<int32_t>(own.pages.size()));
    length = cut;
  } else {
    cut = page_size * Int(0, length / page_size);
    if (cut <= own.region.cut) return;
  }
  if (config_.layout.window > 0) return;  // nothing is evicted from it
  const CoveredBlocks covered = manager_.CountCovered(slot, group, cut, length);
  EXPECT_EQ(covered.num_blocks,
            model_.CoveredBy(slot, group, cut, length).Blocks().size());
  EXPECT_EQ(covered.num_own, model_.CountOwnBlocks(slot, group, cut, length));
}

void ManagerDriver::CheckCoveredInWindows(SequenceSlot slot) {
  for (int32_t group = 1; group < config_.layout.num_groups(); ++group) {
    CheckCovered(slot, group);
  }
}

bool ManagerDriver::OrderEviction() {
  if (model_.sequences().empty()) return false;
  if (config_.evicts_in_windows && Chance(0.7)) {
    const SequenceSlot slot = AnySlot();
    return OrderEviction(slot, Int(1, config_.layout.num_groups() - 1));
  }
  return OrderEviction(SlotToCompress(), 0);
}

bool ManagerDriver::OrderEviction(SequenceSlot slot, int32_t group) {
  const NaiveSequence& sequence = model_.at(slot);
  const NaiveGroup& own = sequence.groups[group];
  if (own.pending.has_value()) return false;
  BookOrder order;
  order.cut = RandomCut(sequence, group);
  if (order.cut <= own.region.cut) return false;
  if (HasWindow(group)) order.length = sequence.num_reserved;
  if (model_.CoveredBy(slot, group, order.cut, order.length).pages.empty()) {
    return false;
  }
  const int64_t page_total = RandomPageTotal(slot, group, order);
  order.page_totals.assign(config_.layout.num_shards, page_total);
  std::vector<int64_t> told;
  if (!HasWindow(group) && Chance(0.5)) {
    // One of them has the most.
    for (int64_t& total : order.page_totals) {
      total = Int(0, static_cast<int32_t>(page_total));
    }
    order.page_totals[Int(0, config_.layout.num_shards - 1)] = page_total;
    told = order.page_totals;
  }
  return PlaceOrder(slot, group, std::move(order), page_total, told);
}

int32_t ManagerDriver::RandomCut(const NaiveSequence& sequence, int32_t group) {
  const int32_t page_size = config_.layout.page_size;
  // Pages that fall out of the window need not be evicted.
  if (config_.layout.window > 0) return 0;
  if (HasWindow(group)) {
    const int32_t cut = page_size * Int(0, sequence.num_reserved / page_size);
    if (!Chance(0.7)) return cut;
    return (sequence.num_reserved - 1) / page_size * page_size;
  }
  const int32_t begin = sequence.groups[group].region.cut;
  const int32_t num_full = (sequence.num_reserved - begin) / page_size;
  if (num_full == 0) return begin;
  const int32_t num_cut = Int(1, num_full);
  const bool leaves_one =
      Chance(config_.layout.has_windows() ? 0.8 : 0.5) && num_full > 1;
  return begin + page_size * (leaves_one ? num_full - 1 : num_cut);
}

int64_t ManagerDriver::RandomPageTotal(SequenceSlot slot, int32_t group,
                                       const BookOrder& order) {
  const NaiveSequence& sequence = model_.at(slot);
  if (!HasWindow(group)) {
    const int32_t num_full =
        (sequence.num_reserved - sequence.groups[group].region.cut) /
        config_.layout.page_size;
    return Int(1, PagesPerShard() * Int(1, 1 + num_full));
  }
  const BookCover covered =
      model_.CoveredBy(slot, group, order.cut, order.length);
  const int64_t page_total = Int(
      1, PagesPerShard() * (1 + static_cast<int32_t>(covered.pages.size())));
  const auto num_own =
      std::ssize(model_.OwnBlocks(slot, group, order.cut, order.length));
  // For as many pages as the group has, so that its region leaves the cache.
  if (num_own > 0 && Chance(0.3)) return PagesPerShard() * num_own;
  return page_total;
}

bool ManagerDriver::OrderInAllGroups() {
  if (model_.sequences().empty()) return false;
  const SequenceSlot slot = SlotToCompress();
  for (int32_t group = 1; group < config_.layout.num_groups(); ++group) {
    // A region that a window keeps is published again with group 0's next.
    const bool has_region =
        !model_.at(slot).groups[group].region.blocks.empty();
    if (Chance(has_region ? 0.3 : 0.8)) OrderEviction(slot, group);
    model_.cache().Line();
  }
  return OrderEviction(slot, 0);
}

int32_t ManagerDriver::ShardOf(int32_t head_index) const {
  const ModelLayout& layout = config_.layout;
  return NaiveShardOf({layout.num_layers, layout.num_heads, layout.num_shards},
                      head_index % layout.num_heads);
}

std::vector<int32_t> ManagerDriver::RandomCounts(SequenceSlot slot,
                                                 int32_t group) {
  const BookOrder& order = *model_.at(slot).groups[group].pending;
  const std::vector<int32_t> held = model_.EntriesCovered(slot, group);
  const int32_t num_heads = config_.layout.pages_per_block();
  const int32_t page_size = config_.layout.page_size;
  std::vector<int64_t> pages_left = order.page_totals;
  std::vector<int32_t> counts(num_heads, 0);
  std::vector<int32_t> heads(num_heads);
  for (int32_t i = 0; i < num_heads; ++i) heads[i] = i;
  std::ranges::shuffle(heads, random_);
  const bool greedy = Chance(0.5);
  for (const int32_t i : heads) {
    int64_t& left = pages_left[ShardOf(i)];
    const auto most =
        static_cast<int32_t>(std::min<int64_t>(held[i], left * page_size));
    counts[i] = greedy && Chance(0.7) ? most : Int(0, most);
    left -= CeilDiv(counts[i], page_size);
  }
  return counts;
}

void ManagerDriver::CheckIllegalCounts(SequenceSlot slot, int32_t group,
                                       std::vector<int32_t> counts) {
  const bool any_head = !HasWindow(group);
  const int32_t i =
      any_head ? Int(0, static_cast<int32_t>(counts.size()) - 1) : 0;
  const int32_t held = model_.EntriesCovered(slot, group)[i];
  // One shard keeps more pages than it may.
  const int32_t shard = ShardOf(i);
  const int64_t total =
      model_.at(slot).groups[group].pending->page_totals[shard];
  const bool exceeds =
      any_head && Chance(0.5) && ExceedTotal(slot, group, shard, &counts);
  if (!exceeds) counts[i] = Chance(0.5) ? held + 1 : -1;
  const uint64_t hash = manager_.StateHash();
  const absl::Status refused = manager_.ValidateCounts(slot, group, counts);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument));
  if (exceeds && config_.layout.num_shards > 1) {
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr(absl::StrCat(
                    "at most ", total, " pages in shard ", shard, ", got")));
    ++tally_->refused_shards;
  }
  EXPECT_EQ(manager_.StateHash(), hash);
}

bool ManagerDriver::ExceedTotal(SequenceSlot slot, int32_t group, int32_t shard,
                                std::vector<int32_t>* counts) const {
  const std::vector<int32_t> held = model_.EntriesCovered(slot, group);
  int64_t num_pages = 0;
  for (int32_t i = 0; i < std::ssize(*counts); ++i) {
    if (ShardOf(i) != shard) continue;
    (*counts)[i] = held[i];
    num_pages += CeilDiv((*counts)[i], config_.layout.page_size);
  }
  return num_pages > model_.at(slot).groups[group].pending->page_totals[shard];
}

void ManagerDriver::Refuse(const Ordered& order) {
  manager_.AbortEviction(order.slot, order.group);
  model_.AbortEviction(order.slot, order.group);
  ++tally_->refused_evictions;
}

void ManagerDriver::Conclude(const Ordered& order) {
  const auto [slot, incarnation, group] = order;
  const bool has_window = HasWindow(group);
  if (has_window && Chance(0.1)) return Refuse(order);
  const std::vector<int32_t> counts = RandomCounts(slot, group);
  EXPECT_OK(manager_.ValidateCounts(slot, group, counts));
  if (has_window || Chance(0.4)) CheckIllegalCounts(slot, group, counts);
  if (!has_window && Chance(0.2)) return Refuse(order);
  CommitEviction(order, counts);
  if (has_window) CheckCoveredInWindows(slot);
}

void ManagerDriver::CommitEviction(const Ordered& order,
                                   const std::vector<int32_t>& counts) {
  const auto [slot, incarnation, group] = order;
  NaiveSequence& sequence = model_.at(slot);
  const BookOrder pending = *sequence.groups[group].pending;
  const bool again = !sequence.groups[group].region.kept.empty();
  RegionPublication publication;
  bool publishes = false;
  // The regions of all groups, with the first one's name.
  if (group == 0) {
    sequence.names.Extend(sequence.tokens, config_.layout.page_size);
    const bool has_windows = config_.layout.has_windows();
    publication.name = {.plan = Chance(has_windows ? 0.9 : 0.8) ? "p" : "q",
                        .history = RandomHistory(),
                        .length = pending.cut + config_.layout.page_size};
    publication.chain = &sequence.names;
    publication.tokens = sequence.tokens;
    publishes = Chance(has_windows ? 0.8 : 0.6);
  }
  const GroupCache& product = manager_.sequence(slot).groups[group];
  const RegionId region = product.pending->region;
  const EvictionReceipt receipt = manager_.CommitEviction(
      slot, group, counts, publishes ? &publication : nullptr);
  EXPECT_EQ(product.region->id, region);
  if (receipt.cached) {
    EXPECT_TRUE(findable_.insert(region).second);
  }
  const EvictionReceipt expected = model_.CommitEviction(
      slot, group, counts, publishes ? &publication.name : nullptr);
  EXPECT_EQ(receipt.published, expected.published);
  EXPECT_EQ(receipt.cached, expected.cached);
  EXPECT_EQ(receipt.evicted_entries, expected.evicted_entries);
  EXPECT_EQ(receipt.freed_blocks, expected.freed_blocks);
  model_.CheckRegions(manager_, slot);
  if (receipt.published) {
    ++tally_->published_regions;
    tally_->equal_regions += receipt.cached ? 0 : 1;
    const auto end = sequence.tokens.begin() + publication.name.length;
    compressed_.emplace_back(sequence.scope,
                             std::vector(sequence.tokens.begin(), end));
  }
  if (HasWindow(group)) return;
  const bool has_own = !pending.own.empty();
  const bool has_fresh = pending.destinations.size() > pending.own.size();
  tally_->repeated_evictions += again ? 1 : 0;
  (has_own && has_fresh ? tally_->mixed_evictions
   : has_own            ? tally_->in_place_evictions
                        : tally_->copying_evictions) += 1;
}

}  // namespace blockmgr
