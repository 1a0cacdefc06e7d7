// The block tables and regions of window groups, and pages that a window has
// left behind.

#include <algorithm>
#include <memory>
#include <utility>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/window_eviction.h"
#include "engine/tables/tables.h"

namespace blockmgr {
namespace {

template <typename... Parts>
absl::Status BadWindow(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The block table of a group; of group 0 the tail's.
const std::vector<BlockId>& TableOf(const SequenceTable& table, int32_t group) {
  return group == 0 ? table.tail_blocks
                    : table.window_blocks[static_cast<size_t>(group - 1)];
}

}  // namespace

EngineTables::CoveredTail EngineTables::CoveredInWindow(
    const EvictionOrder& order) const {
  const TableRegion& region =
      row(order.slot).window_regions[static_cast<size_t>(order.group - 1)];
  CoveredTail covered;
  covered.begin =
      layout_.FirstPage(order.group, order.length + 1) * layout_.page_size;
  covered.end = order.cut;
  if (IsInWindow(region, order.group, order.length)) {
    covered.region = &region;
    covered.begin = region.cut;
  }
  return covered;
}

int32_t EngineTables::HeldBelow(const EvictionOrder& order,
                                int32_t head_index) const {
  const auto head = static_cast<size_t>(head_index);
  if (order.group == 0) {
    const SequenceTable& table = row(order.slot);
    return (table.kept.empty() ? 0 : table.kept[head]) + order.cut - table.cut;
  }
  const CoveredTail covered = CoveredInWindow(order);
  return (covered.region == nullptr ? 0 : covered.region->kept[head]) +
         covered.end - covered.begin;
}

std::vector<size_t> EngineTables::PlacesInHost(const Swapped& swapped,
                                               int32_t num_cached) const {
  const auto num_swapped = static_cast<int32_t>(swapped.tokens.size());
  std::vector<size_t> places;
  size_t begin = swapped.num_region_blocks;
  const auto add = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) places.push_back(begin + i);
  };
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    int32_t cut = swapped.cut;
    if (group > 0) {
      cut = SwappedCut(swapped.window_regions, group, num_swapped);
      const size_t num_blocks =
          swapped.window_regions[static_cast<size_t>(group - 1)].blocks.size();
      add(num_blocks);
      begin += num_blocks;
    }
    add(static_cast<size_t>(NumPages(group, num_cached, cut)));
    begin += static_cast<size_t>(NumPages(group, num_swapped, cut));
  }
  return places;
}

int64_t EngineTables::NumWindowIns(const Swapped& swapped,
                                   int32_t num_cached) const {
  int64_t num_blocks = NumWindowPages(swapped.window_regions, num_cached);
  for (const TableRegion& region : swapped.window_regions) {
    num_blocks += std::ssize(region.blocks);
  }
  return num_blocks;
}

absl::Status EngineTables::CheckWindowArrays(const StepPlan& plan) const {
  const auto num_groups = static_cast<size_t>(layout_.num_window_groups());
  const size_t num_runs = plan.slots.size();
  const std::vector<int64_t>& offsets = plan.window_offsets;
  // As with block_offsets, a plan without sequences may leave them out.
  const bool has_none = num_groups == 0 || (num_runs == 0 && offsets.empty());
  const size_t expected = has_none ? 0 : num_runs * num_groups + 1;
  if (offsets.size() != expected) {
    return BadWindow("plan.window_offsets: expected ", expected,
                     " elements, got ", offsets.size());
  }
  if (has_none && !plan.window_blocks.empty()) {
    return BadWindow("plan.window_blocks: expected 0 elements, got ",
                     plan.window_blocks.size());
  }
  if (has_none) return absl::OkStatus();
  if (offsets.front() != 0 ||
      offsets.back() != static_cast<int64_t>(plan.window_blocks.size()) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    return BadWindow("plan.window_offsets: expected ascending offsets from 0 ",
                     "to ", plan.window_blocks.size());
  }
  for (const BlockId block : plan.window_blocks) {
    if (!IsBlock(block) && block != kNullBlock) {
      return BadWindow("plan.window_blocks: expected block ids in [0, ",
                       layout_.num_blocks, "), got ", Index(block));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckWindows(const StepPlan& plan, size_t run,
                                        int64_t num_pages) {
  const SequenceSlot slot = plan.slots[run];
  const Pending& pending = PendingOf(slot);
  const SequenceStart* const start =
      pending.start < 0 ? nullptr
                        : &plan.starts[static_cast<size_t>(pending.start)];
  const bool is_new = start != nullptr && start->source == kNoSequenceSlot;
  const int32_t num_cached = is_new ? start->num_cached_tokens : 0;
  const std::span<const TableRegion> regions =
      is_new ? RegionsFor(*start) : std::span<const TableRegion>();
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    // CheckShapes has seen that none is null.
    if (layout_.window_of(group) == 0) continue;
    const std::span<const BlockId> blocks = NewBlocks(plan, run, group);
    const char* const field = group == 0 ? "plan.blocks" : "plan.window_blocks";
    const auto fail = [&](const auto&... parts) {
      return BadWindow(field, " of slot ", Index(slot), ", group ", group, ": ",
                       parts...);
    };
    if (group > 0) {
      int64_t num_held = 0;
      if (start == nullptr) {
        num_held = std::ssize(TableOf(row(slot), group));
      } else if (!is_new) {
        num_held = CeilDiv(start->num_cached_tokens, layout_.page_size);
      }
      if (num_held + std::ssize(blocks) != num_pages) {
        return fail("expected ", num_pages - num_held, " blocks (to page ",
                    num_pages, ", as in group 0), got ", blocks.size());
      }
    }
    int64_t first = layout_.FirstPage(group, num_cached);
    if (group > 0 && !regions.empty()) {
      // A region that it takes stands for the pages below its cut.
      const int32_t cut = SwappedCut(regions, group, num_cached);
      first = std::max<int64_t>(first, cut / layout_.page_size);
    }
    for (int64_t i = 0; i < std::ssize(blocks); ++i) {
      const BlockId block = blocks[static_cast<size_t>(i)];
      if ((block == kNullBlock) == (i < first)) continue;
      return fail("expected ", i < first ? "no block" : "a block",
                  " as number ", i, ", got ", Index(block));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckSourceWindows(
    const SequenceStart& start) const {
  const SequenceTable& source = row(start.source);
  const int32_t num_tokens = start.num_cached_tokens;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (layout_.window_of(group) == 0) continue;
    const std::vector<BlockId>& blocks = TableOf(source, group);
    const int32_t end = CeilDiv(num_tokens, layout_.page_size);
    int32_t cut = 0;
    if (group > 0) {
      const TableRegion& region =
          source.window_regions[static_cast<size_t>(group - 1)];
      cut = region.cut;
      if (num_tokens < region.length && IsInWindow(region, group, num_tokens)) {
        return BadWindow("plan.starts of slot ", Index(start.slot),
                         ": expected at least the ", region.length,
                         " tokens of the region of group ", group, " in slot ",
                         Index(start.source), ", got ", num_tokens);
      }
    }
    // What the next token attends to: a source may have gone on by one.
    for (int32_t i = std::max(layout_.FirstPage(group, num_tokens + 1),
                              cut / layout_.page_size);
         i < end; ++i) {
      if (blocks[static_cast<size_t>(i)] != kNullBlock) continue;
      return BadWindow("plan.starts of slot ", Index(start.slot),
                       ": expected a source that has what ", num_tokens,
                       " tokens need, got slot ", Index(start.source),
                       " without page ", i, " of group ", group);
    }
  }
  return absl::OkStatus();
}

std::span<const BlockId> EngineTables::PagesOut(const SwapOut& out,
                                                int32_t group) const {
  const SequenceTable& table = row(out.slot);
  const int32_t cut =
      group == 0 ? table.cut
                 : SwappedCut(table.window_regions, group, out.num_tokens);
  const auto num_pages =
      static_cast<size_t>(NumPages(group, out.num_tokens, cut));
  const auto end = static_cast<size_t>(
      CeilDiv(out.num_tokens - (group == 0 ? cut : 0), layout_.page_size));
  return std::span(TableOf(table, group)).subspan(end - num_pages, num_pages);
}

std::vector<BlockId> EngineTables::RegionOut(const SwapOut& out,
                                             int32_t group) const {
  const SequenceTable& table = row(out.slot);
  if (group == 0) return table.region_blocks;
  const bool is_in_window =
      SwappedCut(table.window_regions, group, out.num_tokens) > 0;
  return is_in_window
             ? table.window_regions[static_cast<size_t>(group - 1)].blocks
             : std::vector<BlockId>();
}

absl::StatusOr<std::vector<size_t>> EngineTables::SplitSwapOut(
    const SwapOut& out, std::span<const BlockTransfer> transfers) const {
  const auto fail = [&](const auto&... parts) {
    return BadWindow("plan.swap_outs of swap ", Index(out.swap), ": ",
                     parts...);
  };
  // What a region did not need of its blocks may be in a table again.
  absl::flat_hash_set<BlockId> in_tables;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::span<const BlockId> pages = PagesOut(out, group);
    in_tables.insert(pages.begin(), pages.end());
  }
  std::vector<size_t> num_blocks;
  auto transfer = transfers.begin();
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::vector<BlockId> region = RegionOut(out, group);
    const auto begin = transfer;
    for (auto block = region.begin();
         !region.empty() && transfer != transfers.end(); ++transfer, ++block) {
      if (in_tables.contains(transfer->block)) break;
      block = std::find(block, region.end(), transfer->block);
      if (block == region.end()) {
        return fail("expected blocks of its region, in order, got ",
                    Index(transfer->block));
      }
    }
    num_blocks.push_back(static_cast<size_t>(transfer - begin));
    for (const BlockId expected : PagesOut(out, group)) {
      const BlockId got =
          transfer == transfers.end() ? kNullBlock : transfer->block;
      if (got != expected || expected == kNullBlock) {
        return fail("expected block ", Index(expected), " of its ",
                    group == 0 ? "tail" : absl::StrCat("window group ", group),
                    ", got ", Index(got));
      }
      ++transfer;
    }
  }
  if (transfer == transfers.end()) return num_blocks;
  return fail("expected the blocks of its region and tables, got ",
              Index(transfer->block), " behind them");
}

absl::Status EngineTables::CheckWindowsIn(const StepPlan& plan,
                                          const SequenceStart& start,
                                          int64_t first) {
  auto transfer = plan.transfers_in.begin() + start.transfer_begin + first;
  const size_t run = PendingOf(start.slot).run;
  const std::vector<TableRegion>& regions =
      swapped_.at(start.swap).window_regions;
  const int32_t num_cached = start.num_cached_tokens;
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const int32_t cut = SwappedCut(regions, group, num_cached);
    if (cut > 0) {
      transfer += std::ssize(regions[static_cast<size_t>(group - 1)].blocks);
    }
    const auto end =
        static_cast<size_t>(CeilDiv(num_cached, layout_.page_size));
    const auto num_pages =
        static_cast<size_t>(NumPages(group, num_cached, cut));
    for (const BlockId expected :
         NewBlocks(plan, run, group).subspan(end - num_pages, num_pages)) {
      const BlockId got = transfer->block;
      ++transfer;
      if (got == expected) continue;
      return BadWindow("plan.starts of swap ", Index(start.swap),
                       ": expected a copy to block ", Index(expected),
                       " of its run, group ", group, ", got ", Index(got));
    }
  }
  return absl::OkStatus();
}

std::span<const BlockId> EngineTables::NewBlocks(const StepPlan& plan,
                                                 size_t run,
                                                 int32_t group) const {
  const bool is_window = group > 0;
  const std::vector<int64_t>& offsets =
      is_window ? plan.window_offsets : plan.block_offsets;
  const size_t place =
      is_window ? run * static_cast<size_t>(layout_.num_window_groups()) +
                      static_cast<size_t>(group - 1)
                : run;
  return std::span(is_window ? plan.window_blocks : plan.blocks)
      .subspan(static_cast<size_t>(offsets[place]),
               static_cast<size_t>(offsets[place + 1] - offsets[place]));
}

BlockId EngineTables::LastBlock(const SequenceTable& table, int32_t group,
                                int64_t num_tail_blocks) const {
  const int32_t before = group == 0 ? 0 : table.cut / layout_.page_size;
  return TableOf(table,
                 group)[static_cast<size_t>(before + num_tail_blocks - 1)];
}

int32_t EngineTables::NumWindowPages(std::span<const TableRegion> regions,
                                     int32_t length) const {
  int32_t num_pages = 0;
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    num_pages += NumPages(group, length, SwappedCut(regions, group, length));
  }
  return num_pages;
}

void EngineTables::AddWindows(const StepPlan& plan, size_t run,
                              SequenceTable* table) const {
  NotePastRegions(table);
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const std::span<const BlockId> blocks = NewBlocks(plan, run, group);
    std::vector<BlockId>& own =
        table->window_blocks[static_cast<size_t>(group - 1)];
    own.insert(own.end(), blocks.begin(), blocks.end());
  }
}

void EngineTables::CutWindows(int32_t num_tokens, SequenceTable* table) const {
  const auto num_pages =
      static_cast<size_t>(CeilDiv(num_tokens, layout_.page_size));
  for (std::vector<BlockId>& blocks : table->window_blocks) {
    BM_DCHECK(blocks.size() >= num_pages);
    blocks.resize(num_pages);
  }
}

int32_t EngineTables::SwappedCut(std::span<const TableRegion> regions,
                                 int32_t group, int32_t length) const {
  const int32_t cut = regions[static_cast<size_t>(group - 1)].cut;
  return cut > layout_.FirstPage(group, length) * layout_.page_size ? cut : 0;
}

std::span<const TableRegion> EngineTables::RegionsFor(
    const SequenceStart& start) const {
  if (start.swap != kNoSwap) return swapped_.at(start.swap).window_regions;
  if (start.region == kNoRegion) return {};
  return regions_.at(start.region).window_regions;
}

std::vector<TableRegion> EngineTables::RegionsWith(
    std::span<const TableRegion> regions, int32_t length) const {
  std::vector<TableRegion> with(regions.begin(), regions.end());
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    TableRegion& region = with[static_cast<size_t>(group - 1)];
    if (SwappedCut(regions, group, length) == 0) region = TableRegion();
  }
  return with;
}

void EngineTables::NotePastRegions(SequenceTable* table) const {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    TableRegion& region = table->window_regions[static_cast<size_t>(group - 1)];
    region.is_past = !IsInWindow(region, group, table->num_computed);
  }
}

absl::Status EngineTables::CheckWindowOrder(const EvictionOrder& order) const {
  if (order.region != kNoRegion) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: expected none of a group with a window, got ",
                     Index(order.region)));
  }
  const EvictionPolicy& policy = order.policy;
  if (policy.has_external_scores() ||
      policy.budget.kind == BudgetKind::kExternal || policy.needs_table() ||
      policy.scorer_state() != ScorerState::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy: expected scores and budgets of what a group with a window ",
        "has, got ", FormatPolicy(policy)));
  }
  const int32_t window = layout_.window_of(order.group);
  if (WindowEviction::IsCovered(window, order.cut, order.length)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cut: expected one above ", WindowEviction::FirstOf(window, order.length),
      ", from which on the group attends, got ", order.cut));
}

void EngineTables::CommitInWindow(const StepPlan& plan,
                                  const EvictionOrder& order,
                                  std::span<const int32_t> counts) {
  SequenceTable& table = rows_[static_cast<size_t>(Index(order.slot))];
  const auto index = static_cast<size_t>(order.group - 1);
  const std::span<const BlockId> destinations = Destinations(plan, order);
  std::shared_ptr<const RegionLayout> layout = LayOut(plan, order, counts);
  table.window_regions[index] = {
      .cut = order.cut,
      .blocks = {destinations.begin(), destinations.end()},
      .kept = {counts.begin(), counts.end()},
      .layout = std::move(layout),
      .length = order.length};
  std::vector<BlockId>& blocks = table.window_blocks[index];
  std::fill_n(blocks.begin(), order.cut / layout_.page_size, kNullBlock);
  const RegionId name = KeptName(order.slot);
  if (name == kNoRegion) return;
  regions_.at(name).window_regions[index] = table.window_regions[index];
}

}  // namespace blockmgr
