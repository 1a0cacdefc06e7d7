// Sequences that wait in host memory, and come back.

#include <algorithm>
#include <iterator>
#include <optional>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/tables/tables.h"

namespace blockmgr {
namespace {

template <typename... Parts>
absl::Status Wrong(const char* field, SwapId swap, const Parts&... parts) {
  return Invalid(field, " of swap ", Index(swap), ": ", parts...);
}

// Returns a part of `all`, or nullopt if the range is not within `all`.
std::optional<std::span<const BlockTransfer>> Slice(
    const std::vector<BlockTransfer>& all, int64_t begin, int64_t count) {
  if (begin < 0 || count < 0 || begin > std::ssize(all) ||
      count > std::ssize(all) - begin) {
    return std::nullopt;
  }
  return std::span(all).subspan(static_cast<size_t>(begin),
                                static_cast<size_t>(count));
}

}  // namespace

absl::Status EngineTables::CheckDroppedSwaps(const StepPlan& plan) {
  ++num_swap_checks_;
  for (const SwapId swap : plan.dropped_swaps) {
    const auto found = swapped_.find(swap);
    if (found == swapped_.end() || found->second.leaves == num_swap_checks_) {
      return Wrong("plan.dropped_swaps", swap,
                   "expected one that was swapped out, once");
    }
    found->second.leaves = num_swap_checks_;
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckSwapOut(const StepPlan& plan,
                                        const SwapOut& out) {
  const auto fail = [&out](const auto&... parts) {
    return Wrong("plan.swap_outs", out.swap, parts...);
  };
  BM_RETURN_IF_ERROR(CheckSlot("plan.swap_outs.slot", out.slot));
  if (!InUse(out.slot) || std::ranges::count(plan.released, out.slot) == 0 ||
      std::ranges::count(plan.swap_outs, out.slot, &SwapOut::slot) > 1) {
    return fail("expected a slot in use that is released, once, got ",
                Index(out.slot));
  }
  if (out.swap == kNoSwap || swapped_.contains(out.swap) ||
      std::ranges::count(plan.swap_outs, out.swap, &SwapOut::swap) > 1) {
    return fail("expected a name that is not in use");
  }
  const SequenceTable& table = row(out.slot);
  int32_t least = 1;
  for (const GroupTable& group : table.groups) {
    least = std::max(least, group.region.cut);
  }
  if (out.num_tokens < least || out.num_tokens > table.num_computed) {
    return fail("expected ", least, " to ", table.num_computed,
                " tokens (of slot ", Index(out.slot), "), got ",
                out.num_tokens);
  }
  const auto transfers =
      Slice(plan.transfers_out, out.transfer_begin, out.num_transfers);
  int64_t num_pages = 0;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    num_pages += std::ssize(PagesOut(out, group));
  }
  if (!transfers.has_value() || std::ssize(*transfers) < num_pages) {
    return fail("expected at least ", num_pages, " out of ",
                plan.transfers_out.size(), " transfers, got [",
                out.transfer_begin, ", +", out.num_transfers, ")");
  }
  BM_RETURN_IF_ERROR(SplitSwapOut(out, *transfers).status());
  for (const BlockTransfer& transfer : *transfers) {
    const int32_t host = Index(transfer.host);
    if (host < 0 || host >= num_host_blocks()) {
      return fail("expected host blocks below ", num_host_blocks(), ", got ",
                  host);
    }
    HostBlock& state = host_blocks_[static_cast<size_t>(host)];
    const auto holder = swapped_.find(state.holder);
    const bool is_held =
        holder != swapped_.end() && holder->second.leaves != num_swap_checks_;
    if (is_held || state.taken == num_swap_checks_) {
      return fail("expected free host blocks, each once, got ", host);
    }
    state.taken = num_swap_checks_;
  }
  return absl::OkStatus();
}

std::span<const BlockId> EngineTables::RegionOut(const SwapOut& out,
                                                 int32_t group) const {
  const TableRegion& region = group_of(out.slot, group).region;
  if (!IsAttended(region, group, out.num_tokens)) return {};
  return region.blocks;
}

std::span<const BlockId> EngineTables::PagesOut(const SwapOut& out,
                                                int32_t group) const {
  const GroupTable& table = group_of(out.slot, group);
  const auto num_pages =
      static_cast<size_t>(NumPages(group, out.num_tokens, table.region.cut));
  const auto end = static_cast<size_t>(
      CeilDiv(out.num_tokens - table.region.cut, layout_.page_size));
  return std::span(table.blocks).subspan(end - num_pages, num_pages);
}

absl::StatusOr<std::vector<EngineTables::GroupTransfers>>
EngineTables::SplitSwapOut(const SwapOut& out,
                           std::span<const BlockTransfer> transfers) const {
  const auto fail = [&out](const auto&... parts) {
    return Wrong("plan.swap_outs", out.swap, parts...);
  };
  // Blocks that a region did not need may be in a block table by now.
  absl::flat_hash_set<BlockId> in_tables;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::span<const BlockId> pages = PagesOut(out, group);
    in_tables.insert(pages.begin(), pages.end());
  }
  std::vector<GroupTransfers> split;
  auto transfer = transfers.begin();
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::span<const BlockId> region = RegionOut(out, group);
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
    const std::span<const BlockId> pages = PagesOut(out, group);
    split.push_back(
        {.num_region = transfer - begin, .num_pages = std::ssize(pages)});
    for (const BlockId expected : pages) {
      const BlockId got =
          transfer == transfers.end() ? kNullBlock : transfer->block;
      if (got != expected || expected == kNullBlock) {
        return fail("expected block ", Index(expected), " of group ", group,
                    ", got ", Index(got));
      }
      ++transfer;
    }
  }
  if (transfer == transfers.end()) return split;
  return fail("expected the blocks of its region and tables, got ",
              Index(transfer->block), " behind them");
}

absl::Status EngineTables::CheckSwapIn(const StepPlan& plan,
                                       const SequenceStart& start) {
  const auto fail = [&start](const auto&... parts) {
    return Wrong("plan.starts", start.swap, parts...);
  };
  const auto found = swapped_.find(start.swap);
  if (found == swapped_.end() || found->second.leaves == num_swap_checks_ ||
      start.source != kNoSequenceSlot) {
    return fail("expected one that was swapped out, once, and no source");
  }
  Swapped& swapped = found->second;
  swapped.leaves = num_swap_checks_;
  const int32_t num_cached = start.num_cached_tokens;
  const auto num_swapped = static_cast<int32_t>(std::ssize(swapped.tokens));
  int32_t least = 1;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    least = std::max(
        least, LeastTokens(swapped.regions[static_cast<size_t>(group)], group));
  }
  if (num_cached < least || num_cached > num_swapped) {
    return fail("expected num_cached_tokens in [", least, ", ", num_swapped,
                "], got ", num_cached);
  }
  if (!std::equal(swapped.tokens.begin(), swapped.tokens.begin() + num_cached,
                  plan.start_tokens.begin() + start.token_begin)) {
    return fail("expected the first ", num_cached, " tokens to be its own");
  }
  const int32_t cut = swapped.regions.front().cut;
  const int32_t cut_now =
      start.region == kNoRegion ? cut : regions_.at(start.region).front().cut;
  if (cut_now != cut) {
    return fail("expected a region of cut ", cut, ", got region ",
                Index(start.region), " of cut ", cut_now);
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t begin =
        swapped.regions[static_cast<size_t>(group)].cut / layout_.page_size;
    const int32_t first =
        std::max(layout_.FirstPage(group, num_swapped), begin);
    if (std::max(layout_.FirstPage(group, num_cached), begin) == first) {
      continue;
    }
    return fail("expected num_cached_tokens whose first page in group ", group,
                " is ", first, ", as swapped out, got ", num_cached);
  }
  return CheckTransfersIn(plan, start, swapped);
}

std::vector<EngineTables::GroupTransfers> EngineTables::SplitSwapIn(
    const SequenceStart& start, const Swapped& swapped) const {
  std::vector<GroupTransfers> split;
  int64_t num_left = start.num_transfers;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const TableRegion& region = swapped.regions[static_cast<size_t>(group)];
    GroupTransfers& own = split.emplace_back();
    const bool is_shared = group == 0 && start.region != kNoRegion;
    if (!is_shared) own.num_region = std::ssize(region.blocks);
    if (group > 0) {
      own.num_pages = NumPages(group, start.num_cached_tokens, region.cut);
    }
    num_left -= own.num_region + own.num_pages;
  }
  split.front().num_pages = num_left;
  return split;
}

absl::Status EngineTables::CheckTransfersIn(const StepPlan& plan,
                                            const SequenceStart& start,
                                            const Swapped& swapped) const {
  const auto fail = [&start](const auto&... parts) {
    return Wrong("plan.starts", start.swap, parts...);
  };
  const auto transfers =
      Slice(plan.transfers_in, start.transfer_begin, start.num_transfers);
  const std::vector<GroupTransfers> split = SplitSwapIn(start, swapped);
  // Pages of group 0 that are not copied back, the first ones, are in cached
  // blocks.
  const int64_t num_ins = split.front().num_pages;
  const int64_t most =
      NumPages(0, start.num_cached_tokens, swapped.regions.front().cut);
  if (!transfers.has_value() || num_ins < 0 || num_ins > most) {
    const int64_t least = start.num_transfers - num_ins;
    return fail("expected ", least, " to ", least + most, " out of ",
                plan.transfers_in.size(), " transfers, got [",
                start.transfer_begin, ", +", start.num_transfers, ")");
  }
  const auto num_swapped = static_cast<int32_t>(std::ssize(swapped.tokens));
  auto transfer = transfers->begin();
  int64_t place = 0;  // in swapped.blocks
  const auto check = [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i, ++transfer) {
      const HostBlockId host = swapped.blocks[static_cast<size_t>(i)];
      if (IsBlock(transfer->block) && transfer->host == host) continue;
      return fail("expected a copy of host block ", Index(host),
                  " to a block in [1, ", layout_.num_blocks, "), got of ",
                  Index(transfer->host), " to ", Index(transfer->block));
    }
    return absl::OkStatus();
  };
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const auto [num_region, num_pages] = split[static_cast<size_t>(group)];
    const TableRegion& region = swapped.regions[static_cast<size_t>(group)];
    BM_RETURN_IF_ERROR(check(place, num_region));
    place += std::ssize(region.blocks);
    const int64_t num_needed =
        NumPages(group, start.num_cached_tokens, region.cut);
    BM_RETURN_IF_ERROR(check(place + num_needed - num_pages, num_pages));
    place += NumPages(group, num_swapped, region.cut);
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckPagesIn(const StepPlan& plan,
                                        const SequenceStart& start) {
  // An earlier check has made sure that the run has blocks for all its tokens.
  const Swapped& swapped = swapped_.at(start.swap);
  const std::vector<GroupTransfers> split = SplitSwapIn(start, swapped);
  auto transfer = plan.transfers_in.begin() + start.transfer_begin;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const auto [num_region, num_pages] = split[static_cast<size_t>(group)];
    transfer += num_region;
    const int32_t cut = swapped.regions[static_cast<size_t>(group)].cut;
    const int64_t end =
        CeilDiv(start.num_cached_tokens - cut, layout_.page_size);
    for (const BlockId expected :
         plan.NewBlocks(layout_, PendingOf(start.slot).run, group)
             .subspan(static_cast<size_t>(end - num_pages),
                      static_cast<size_t>(num_pages))) {
      const BlockId got = (transfer++)->block;
      if (got == expected) continue;
      return Wrong("plan.starts", start.swap, "expected a copy to block ",
                   Index(expected), " of its run, group ", group, ", got ",
                   Index(got));
    }
  }
  return absl::OkStatus();
}

void EngineTables::Leave(const StepPlan& plan, const SwapOut& out) {
  const SequenceTable& table = row(out.slot);
  Swapped& swapped = swapped_[out.swap];
  swapped.tokens.assign(table.tokens.begin(),
                        table.tokens.begin() + out.num_tokens);
  const auto transfers = std::span(plan.transfers_out)
                             .subspan(static_cast<size_t>(out.transfer_begin),
                                      static_cast<size_t>(out.num_transfers));
  const auto split = SplitSwapOut(out, transfers);
  BM_CHECK(split.ok());  // CheckSwapOut has passed
  swapped.regions = RegionsAt(table, out.num_tokens);
  for (size_t group = 0; group < split->size(); ++group) {
    swapped.regions[group].blocks.assign(
        static_cast<size_t>((*split)[group].num_region), kNullBlock);
  }
  for (const BlockTransfer& transfer : transfers) {
    swapped.blocks.push_back(transfer.host);
    host_blocks_[static_cast<size_t>(Index(transfer.host))].holder = out.swap;
  }
}

void EngineTables::ComeBack(const StepPlan& plan, const SequenceStart& start,
                            SequenceTable* table) {
  const Swapped& swapped = swapped_.at(start.swap);
  const std::vector<GroupTransfers> split = SplitSwapIn(start, swapped);
  auto transfer = plan.transfers_in.begin() + start.transfer_begin;
  for (size_t group = 0; group < split.size(); ++group) {
    TableRegion& region = table->groups[group].region;
    if (group == 0 && start.region != kNoRegion) {
      region = regions_.at(start.region).front();
    } else {
      region = swapped.regions[group];
      for (BlockId& block : region.blocks) block = (transfer++)->block;
      region.layout = OnBlocks(region.layout, region.blocks);
    }
    transfer += split[group].num_pages;
  }
  swapped_.erase(start.swap);
}

}  // namespace blockmgr
