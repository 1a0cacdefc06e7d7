// Evictions: what they cover, and regions of layer groups with a window.

#include <algorithm>
#include <numeric>
#include <utility>

#include "blockmgr/base/bits.h"
#include "tests/sim/ledger.h"

namespace blockmgr::sim {

std::set<BlockId> Ledger::Covered::Blocks() const {
  std::set<BlockId> blocks = region_blocks;
  blocks.insert(tail.begin(), tail.end());
  return blocks;
}

bool Ledger::IsInWindow(const WindowRegion& region, int32_t group,
                        int32_t length) const {
  return region.cut > 0 &&
         !IsOut(group, region.cut / layout_.page_size - 1, length);
}

const std::optional<Ledger::Order>& Ledger::PendingOf(const Table& table,
                                                      int32_t group) {
  return group == 0 ? table.pending
                    : table.window_regions.at(group - 1).pending;
}

Ledger::Covered Ledger::CoveredBy(const Table& table, int32_t group,
                                  int32_t cut, int32_t length) const {
  const int32_t page_size = layout_.page_size;
  Covered covered;
  const std::vector<BlockId>& own = BlocksOf(table, group);
  if (group == 0) {
    covered.region_pages = table.region_pages;
    covered.region_blocks = table.region_blocks;
    covered.kept = table.kept;
    covered.tail.assign(own.begin(),
                        own.begin() + (cut - table.cut) / page_size);
    return covered;
  }
  const WindowRegion& region = table.window_regions.at(group - 1);
  // The token after them attends to no more.
  int32_t first = FirstPage(group, length + 1);
  if (IsInWindow(region, group, length + 1)) {
    covered.region_pages = region.pages;
    covered.region_blocks = region.blocks;
    covered.kept = region.kept;
    first = region.cut / page_size;
  }
  covered.tail.assign(own.begin() + first, own.begin() + cut / page_size);
  return covered;
}

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
  WindowRegion& region = table.window_regions.at(order.group - 1);
  const bool is_wanted = target.evicts_in_windows() &&
                         order.target.kind == EvictionTarget::Kind::kRatio &&
                         order.target.ratio == target.window_ratio;
  if (!is_wanted || region.pending.has_value() || order.region != kNoRegion ||
      order.cut != table.pending->cut || order.cut <= region.cut ||
      order.length != table.pending->length ||
      FirstPage(order.group, order.length + 1) >=
          order.cut / layout_.page_size) {
    report_->Fail("an eviction from group ", order.group, " of [0, ", order.cut,
                  ") at ", order.length, ", wanted: ", is_wanted,
                  "; group 0: [0, ", table.pending->cut, "), region's cut ",
                  region.cut);
    return;
  }
  const Covered covered =
      CoveredBy(table, order.group, order.cut, order.length);
  std::optional<Order> pending =
      TakeDestinations(plan, order, covered.Blocks());
  if (!pending.has_value()) return;
  region.pending = *std::move(pending);
  step->orders.push_back({.run = step->orders.back().run,
                          .group = order.group,
                          .region = kNoRegion});
}

std::set<BlockId> Ledger::BlocksOf(const NaivePages& pages) {
  std::set<BlockId> blocks;
  for (const auto& [head, list] : pages) {
    for (const NaivePage& page : list) blocks.insert(BlockId{page[1]});
  }
  return blocks;
}

NaivePages Ledger::LayOut(const Order& order, const Covered& covered,
                          const std::vector<int32_t>& counts) const {
  // The pages that every head uses now, in order.
  NaivePages now;
  std::map<NaiveHead, int32_t> pages_per_head;
  for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
    const NaiveHead head = {i / layout_.num_heads, i % layout_.num_heads};
    pages_per_head[head] = CeilDiv(counts[i], layout_.page_size);
    std::vector<NaivePage>& list = now[head];
    const auto found = covered.region_pages.find(head);
    if (found != covered.region_pages.end()) list = found->second;
    for (const BlockId block : covered.tail) {
      list.push_back({head.first, Index(block), head.second});
    }
  }
  std::vector<int32_t> destinations;
  for (const BlockId block : order.destinations) {
    destinations.push_back(Index(block));
  }
  return NaiveLayout(
      {layout_.num_layers, layout_.num_heads, layout_.num_shards}, destinations,
      now, pages_per_head);
}

bool Ledger::ChecksumIsValid(const Table& table, int32_t group,
                             const EvictionOutcome& outcome) const {
  if (!outcome.layout_checksum.has_value()) return true;
  const Order& order = *PendingOf(table, group);
  const NaivePages lists = LayOut(
      order, CoveredBy(table, group, order.cut, order.length), outcome.counts);
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

Ledger::Receipt Ledger::ReceiptOf(
    const Covered& covered, const std::vector<int32_t>& counts,
    const std::set<BlockId>& region_blocks) const {
  const auto sum = [](const std::vector<int32_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  const int64_t in_tail =
      std::ssize(covered.tail) * layout_.page_size * layout_.pages_per_block();
  return {.evicted_entries = in_tail + sum(covered.kept) - sum(counts),
          .freed_blocks = static_cast<int32_t>(covered.Blocks().size()) -
                          static_cast<int32_t>(region_blocks.size())};
}

void Ledger::ReleaseGone(const std::set<BlockId>& before, const Order& order,
                         const Table& table) {
  const std::set<BlockId> after = table.Blocks();
  for (const BlockId block : order.destinations) {
    if (!after.contains(block)) Release(block);
  }
  for (const BlockId block : before) {
    if (!after.contains(block)) Release(block);
  }
}

Ledger::Receipt Ledger::BuildWindowRegion(int32_t group,
                                          const std::vector<int32_t>& counts,
                                          Table* table) {
  const std::set<BlockId> before = table->Blocks();
  WindowRegion& region = table->window_regions.at(group - 1);
  const Order order = *std::move(region.pending);
  region.pending.reset();
  const Covered covered = CoveredBy(*table, group, order.cut, order.length);
  region.pages = LayOut(order, covered, counts);
  region.blocks = BlocksOf(region.pages);
  region.kept = counts;
  region.cut = order.cut;
  std::vector<BlockId>& own = BlocksOf(table, group);
  std::fill_n(own.begin(), order.cut / layout_.page_size, kNullBlock);
  ReleaseGone(before, order, *table);
  ++report_->counts().window_evictions;
  return ReceiptOf(covered, counts, region.blocks);
}

void Ledger::AbortOrders(Table* table) {
  const auto abort = [this](std::optional<Order>* order) {
    if (!order->has_value()) return;
    for (const BlockId block : (*order)->destinations) {
      if (!(*order)->own.contains(block)) Release(block);
    }
    order->reset();
  };
  abort(&table->pending);
  for (WindowRegion& region : table->window_regions) abort(&region.pending);
}

void Ledger::ReleaseRegionsBehind(Table* table) {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    WindowRegion& region = table->window_regions.at(group - 1);
    if (region.cut == 0 || IsInWindow(region, group, table->num_settled)) {
      continue;
    }
    for (const BlockId block : region.blocks) Release(block);
    ++report_->counts().left_regions;
    region = {.cut = 0,
              .kept = {},
              .pages = {},
              .blocks = {},
              .pending = std::move(region.pending)};
  }
}

void Ledger::TakeWindowRegions(const SequenceStart& start, const Region& kept,
                               Table* table) {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const WindowRegion& region = kept.windows.at(group - 1);
    if (!IsInWindow(region, group, start.num_cached_tokens)) continue;
    if (region.is_gone) {
      report_->Fail("request ", Index(start.request), " starts on region ",
                    Index(start.region), " with ", start.num_cached_tokens,
                    " tokens, whose region of group ", group, " is gone");
      return;
    }
    table->window_regions.at(group - 1) = region;
    ++report_->counts().window_region_hits;
  }
}

void Ledger::LoseWindowRegions(absl::FunctionRef<bool(BlockId)> is_lost) {
  for (auto& [id, region] : regions_) {
    for (WindowRegion& window : region.windows) {
      window.is_gone |= std::ranges::any_of(window.blocks, is_lost);
    }
  }
}

void Ledger::CompareWindowRegion(const BlockManager& manager, SequenceSlot slot,
                                 int32_t group, const Table& table) {
  const WindowRegion& own = table.window_regions.at(group - 1);
  const RegionRecord* const theirs = manager.window(slot, group).region.get();
  std::set<BlockId> blocks;
  if (theirs != nullptr) {
    blocks.insert(theirs->blocks.begin(), theirs->blocks.end());
  }
  const int32_t cut = theirs == nullptr ? 0 : theirs->cut;
  if (cut == own.cut && blocks == own.blocks) return;
  report_->Fail("slot ", Index(slot), ", group ", group,
                ": the manager has a region of ", blocks.size(),
                " blocks, cut ", cut, "; expected ", own.blocks.size(), ", ",
                own.cut);
}

}  // namespace blockmgr::sim
