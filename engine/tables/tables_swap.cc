// Sequences that wait in host memory, and come back.

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "engine/tables/tables.h"

namespace blockmgr {
namespace {

template <typename... Parts>
absl::Status Wrong(const char* field, SwapId swap, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " of swap ", Index(swap), ": ", parts...));
}

// None if it is not within `all`.
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
  const int32_t least = std::max(table.cut, 1);
  if (out.num_tokens < least || out.num_tokens > table.num_computed) {
    return fail("expected ", least, " to ", table.num_computed,
                " tokens (of slot ", Index(out.slot), "), got ",
                out.num_tokens);
  }
  const auto transfers =
      Slice(plan.transfers_out, out.transfer_begin, out.num_transfers);
  const int64_t num_pages =
      NumPages(0, out.num_tokens, table.cut) +
      NumWindowPages(table.window_regions, out.num_tokens);
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
  int32_t least = std::max(swapped.cut, 1);
  for (const TableRegion& region : swapped.window_regions) {
    least = std::max(least, region.length);
  }
  if (num_cached < least || num_cached > num_swapped) {
    return fail("expected num_cached_tokens in [", least, ", ", num_swapped,
                "], got ", num_cached);
  }
  if (!std::equal(swapped.tokens.begin(), swapped.tokens.begin() + num_cached,
                  plan.start_tokens.begin() + start.token_begin)) {
    return fail("expected the first ", num_cached, " tokens to be its own");
  }
  const int32_t cut_now = start.region == kNoRegion
                              ? swapped.cut
                              : regions_.at(start.region).region.cut;
  if (cut_now != swapped.cut) {
    return fail("expected a region of cut ", swapped.cut, ", got region ",
                Index(start.region), " of cut ", cut_now);
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t cut =
        group == 0 ? 0 : SwappedCut(swapped.window_regions, group, num_swapped);
    const int32_t first = std::max(layout_.FirstPage(group, num_swapped),
                                   cut / layout_.page_size);
    if (std::max(layout_.FirstPage(group, num_cached),
                 cut / layout_.page_size) == first) {
      continue;
    }
    return fail("expected num_cached_tokens whose first page in group ", group,
                " is ", first, ", as swapped out, got ", num_cached);
  }
  return CheckTransfersIn(plan, start, swapped);
}

absl::Status EngineTables::CheckTransfersIn(const StepPlan& plan,
                                            const SequenceStart& start,
                                            const Swapped& swapped) const {
  const auto fail = [&start](const auto&... parts) {
    return Wrong("plan.starts", start.swap, parts...);
  };
  const int32_t num_cached = start.num_cached_tokens;
  const size_t num_region =
      start.region == kNoRegion ? swapped.num_region_blocks : 0;
  const auto num_tail =
      static_cast<size_t>(NumPages(0, num_cached, swapped.cut));
  const size_t least =
      num_region + static_cast<size_t>(NumWindowIns(swapped, num_cached));
  const auto transfers =
      Slice(plan.transfers_in, start.transfer_begin, start.num_transfers);
  if (!transfers.has_value() || transfers->size() < least ||
      transfers->size() > least + num_tail) {
    return fail("expected ", least, " to ", least + num_tail, " out of ",
                plan.transfers_in.size(), " transfers, got [",
                start.transfer_begin, ", +", start.num_transfers, ")");
  }
  // What is not copied back, the first of the tail, is in cached blocks.
  const size_t num_shared = least + num_tail - transfers->size();
  const std::vector<size_t> places = PlacesInHost(swapped, num_cached);
  for (size_t i = 0; i < transfers->size(); ++i) {
    const size_t place =
        i < num_region ? i : places[num_shared + i - num_region];
    const BlockTransfer& transfer = (*transfers)[i];
    if (!IsBlock(transfer.block) || transfer.host != swapped.blocks[place]) {
      return fail("expected a copy of host block ",
                  Index(swapped.blocks[place]), " to a block in [1, ",
                  layout_.num_blocks, "), got of ", Index(transfer.host),
                  " to ", Index(transfer.block));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckSwappedTail(const StepPlan& plan,
                                            const SequenceStart& start) {
  // That the run has blocks for all its tokens has been checked.
  const Swapped& swapped = swapped_.at(start.swap);
  const int64_t num_region =
      start.region == kNoRegion ? std::ssize(RegionOf(plan, start)) : 0;
  const int64_t num_ins = start.num_transfers - num_region -
                          NumWindowIns(swapped, start.num_cached_tokens);
  const int64_t end =
      plan.block_offsets[PendingOf(start.slot).run] +
      CeilDiv(start.num_cached_tokens - swapped.cut, layout_.page_size);
  for (int64_t i = 0; i < num_ins; ++i) {
    const BlockId expected =
        plan.blocks[static_cast<size_t>(end - num_ins + i)];
    const BlockId got =
        plan.transfers_in[static_cast<size_t>(start.transfer_begin +
                                              num_region + i)]
            .block;
    if (got == expected) continue;
    return Wrong("plan.starts", start.swap, "expected a copy to block ",
                 Index(expected), " of its run, got ", Index(got));
  }
  return CheckWindowsIn(plan, start, num_region + num_ins);
}

std::vector<BlockId> EngineTables::RegionOf(const StepPlan& plan,
                                            const SequenceStart& start) const {
  std::vector<BlockId> blocks;
  const size_t num_blocks = swapped_.at(start.swap).num_region_blocks;
  for (size_t i = 0; i < num_blocks; ++i) {
    blocks.push_back(
        plan.transfers_in[static_cast<size_t>(start.transfer_begin) + i].block);
  }
  return blocks;
}

void EngineTables::Leave(const StepPlan& plan, const SwapOut& out) {
  const SequenceTable& table = row(out.slot);
  Swapped& swapped = swapped_[out.swap];
  swapped.tokens.assign(table.tokens.begin(),
                        table.tokens.begin() + out.num_tokens);
  swapped.cut = table.cut;
  swapped.kept = table.kept;
  swapped.region_layout = table.region_layout;
  const auto transfers = std::span(plan.transfers_out)
                             .subspan(static_cast<size_t>(out.transfer_begin),
                                      static_cast<size_t>(out.num_transfers));
  const auto num_blocks = SplitSwapOut(out, transfers);
  BM_CHECK(num_blocks.ok());  // CheckSwapOut has passed
  swapped.num_region_blocks = num_blocks->front();
  auto transfer = transfers.begin() +
                  static_cast<int64_t>(swapped.num_region_blocks) +
                  std::ssize(PagesOut(out, 0));
  swapped.window_regions = table.window_regions;
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const auto index = static_cast<size_t>(group - 1);
    TableRegion& region = swapped.window_regions[index];
    if (RegionOut(out, group).empty()) region = TableRegion();
    region.blocks.clear();
    for (size_t i = 0; i < (*num_blocks)[index + 1]; ++i) {
      region.blocks.push_back((transfer++)->block);
    }
    transfer += std::ssize(PagesOut(out, group));
  }
  for (int32_t i = 0; i < out.num_transfers; ++i) {
    const HostBlockId host =
        plan.transfers_out[static_cast<size_t>(out.transfer_begin + i)].host;
    swapped.blocks.push_back(host);
    host_blocks_[static_cast<size_t>(Index(host))].holder = out.swap;
  }
}

void EngineTables::ComeBack(const StepPlan& plan, const SequenceStart& start,
                            SequenceTable* table) {
  const Swapped& swapped = swapped_.at(start.swap);
  if (start.region == kNoRegion && !swapped.kept.empty()) {
    table->region_blocks = RegionOf(plan, start);
    table->region_layout =
        OnBlocks(swapped.region_layout, RegionOf(plan, start));
    table->cut = swapped.cut;
    SetKept(swapped.kept, table);
  }
  table->window_regions = swapped.window_regions;
  auto transfer = plan.transfers_in.begin() + start.transfer_begin +
                  start.num_transfers -
                  NumWindowIns(swapped, start.num_cached_tokens);
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    TableRegion& region = table->window_regions[static_cast<size_t>(group - 1)];
    for (BlockId& block : region.blocks) block = (transfer++)->block;
    region.layout = OnBlocks(region.layout, region.blocks);
    transfer += NumPages(group, start.num_cached_tokens, region.cut);
  }
  swapped_.erase(start.swap);
}

}  // namespace blockmgr
