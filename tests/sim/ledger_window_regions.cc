// Evictions: what they cover, and regions of layer groups with a window.

#include <algorithm>
#include <utility>

#include "tests/sim/ledger.h"

namespace blockmgr::sim {

void Ledger::TakeWindowOrder(const StepPlan& plan, const EvictionOrder& order,
                             Step* step) {
  // One of group 0 comes first, and they are of one eviction.
  const bool follows = !step->orders.empty() &&
                       order.group < layout_.num_groups() &&
                       step->runs[step->orders.back().run].slot == order.slot &&
                       step->orders.back().group < order.group;
  if (!follows) {
    report_->Fail("an eviction of slot ", Index(order.slot), " from group ",
                  order.group, " follows none of a group before");
    return;
  }
  Table& table = tables_.at(order.slot);
  const EvictionTarget& target =
      requests_.at(table.request).request.eviction.target;
  const GroupBook& book = table.groups[order.group];
  const Order& first = *table.pending[0];
  const bool is_wanted = target.evicts_in_windows() &&
                         order.target.kind == EvictionTarget::Kind::kRatio &&
                         order.target.ratio == target.window_ratio;
  if (!is_wanted || table.pending[order.group].has_value() ||
      order.region != kNoRegion || order.cut != first.cut ||
      order.cut <= book.region.cut || order.length != first.length ||
      rules_.FirstPage(order.group, order.length + 1) >=
          order.cut / layout_.page_size) {
    report_->Fail("an eviction from group ", order.group, " of [0, ", order.cut,
                  ") at ", order.length, ", wanted: ", is_wanted,
                  "; group 0: [0, ", first.cut, "), region's cut ",
                  book.region.cut);
    return;
  }
  std::optional<Order> pending = TakeDestinations(
      plan, order,
      rules_.CoveredBy(book, order.group, order.cut, order.length).Blocks());
  if (!pending.has_value()) return;
  table.pending[order.group] = *std::move(pending);
  step->orders.push_back({.run = step->orders.back().run,
                          .group = order.group,
                          .region = kNoRegion});
}

bool Ledger::ChecksumIsValid(const Table& table, int32_t group,
                             const EvictionOutcome& outcome) const {
  if (!outcome.layout_checksum.has_value()) return true;
  const Order& order = *table.pending[group];
  const BookCover covered =
      rules_.CoveredBy(table.groups[group], group, order.cut, order.length);
  const NaivePages lists = rules_
                               .Rebuild(covered, order.destinations,
                                        outcome.counts, order.cut, order.length)
                               .pages;
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t checksum = 0;
  uint64_t index = 0;
  for (const auto& [head, list] : lists) {
    uint64_t hash = index * kFactor + outcome.counts[index];
    ++index;
    for (const auto& [layer, block, of_head] : list) {
      const int32_t page =
          (layer * layout_.num_blocks + block) * layout_.num_heads + of_head;
      hash = hash * kFactor + page;
    }
    hash = (hash ^ hash >> 32) * kFactor;
    checksum += hash ^ hash >> 32;
  }
  return checksum == *outcome.layout_checksum;
}

void Ledger::AbortOrders(Table* table) {
  const auto abort = [this](std::optional<Order>* order) {
    if (!order->has_value()) return;
    for (const BlockId block : (*order)->destinations) {
      if (!(*order)->own.contains(block)) Release(block);
    }
    order->reset();
  };
  for (std::optional<Order>& order : table->pending) abort(&order);
}

void Ledger::TakeWindowRegions(const SequenceStart& start, const Region& kept,
                               Table* table) {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const BookRegion& region = kept.regions[group];
    if (!rules_.IsInWindow(region, group, start.num_cached_tokens)) continue;
    if (kept.gone.contains(group)) {
      report_->Fail("request ", Index(start.request), " starts on region ",
                    Index(start.region), " with ", start.num_cached_tokens,
                    " tokens, whose region of group ", group, " is gone");
      return;
    }
    table->groups[group].region = region;
    ++report_->counts().window_region_hits;
  }
}

void Ledger::LoseWindowRegions(absl::FunctionRef<bool(BlockId)> is_lost) {
  for (auto& [id, region] : regions_) {
    for (int32_t group = 1; group < layout_.num_groups(); ++group) {
      const std::vector<BlockId>& blocks = region.regions[group].blocks;
      if (std::ranges::any_of(blocks, is_lost)) region.gone.insert(group);
    }
  }
}

}  // namespace blockmgr::sim
