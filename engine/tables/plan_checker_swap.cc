// PlanChecker: sequences that leave for the host tier and come back.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "engine/tables/plan_checker.h"
#include "engine/tables/slice.h"
#include "engine/tables/swap_transfers.h"

namespace blockmgr {

absl::Status PlanChecker::CheckDroppedSwaps() {
  for (const SwapId swap : plan_.dropped_swaps) {
    if (state_.swapped.contains(swap) && notes_.ended.insert(swap).second) {
      continue;
    }
    return InvalidSwap("plan.dropped_swaps", swap,
                       "expected one that was swapped out, once");
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckSwapOut(const SwapOut& out) {
  const auto fail = [&out](const auto&... parts) {
    return InvalidSwap("plan.swap_outs", out.swap, parts...);
  };
  BM_RETURN_IF_ERROR(state_.CheckSlot("plan.swap_outs.slot", out.slot));
  if (!state_.IsInUse(out.slot) ||
      std::ranges::count(plan_.released, out.slot) == 0 ||
      std::ranges::count(plan_.swap_outs, out.slot, &SwapOut::slot) > 1) {
    return fail("expected a slot in use that is released, once, got ",
                Index(out.slot));
  }
  if (out.swap == kNoSwap || state_.swapped.contains(out.swap) ||
      std::ranges::count(plan_.swap_outs, out.swap, &SwapOut::swap) > 1) {
    return fail("expected a name that is not in use");
  }
  const SequenceTable& table = state_.row(out.slot);
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
      Slice(plan_.transfers_out, out.transfer_begin, out.num_transfers);
  int64_t num_pages = 0;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    num_pages +=
        state_.CountPages(group, out.num_tokens,
                          table.groups[static_cast<size_t>(group)].region.cut);
  }
  if (!transfers.has_value() || std::ssize(*transfers) < num_pages) {
    return fail("expected at least ", num_pages, " out of ",
                plan_.transfers_out.size(), " transfers, got [",
                out.transfer_begin, ", +", out.num_transfers, ")");
  }
  BM_RETURN_IF_ERROR(SplitSwapOut(state_, out, *transfers).status());
  return CheckHostBlocks(out.swap, *transfers);
}

absl::Status PlanChecker::CheckHostBlocks(
    SwapId swap, std::span<const BlockTransfer> transfers) {
  const auto num_host_blocks = std::ssize(state_.host_holders);
  for (const BlockTransfer& transfer : transfers) {
    const int32_t host = Index(transfer.host);
    if (host < 0 || host >= num_host_blocks) {
      return InvalidSwap("plan.swap_outs", swap, "expected host blocks below ",
                         num_host_blocks, ", got ", host);
    }
    const SwapId holder = state_.host_holders[static_cast<size_t>(host)];
    const bool is_held =
        state_.swapped.contains(holder) && !notes_.ended.contains(holder);
    if (is_held || !notes_.taken.insert(transfer.host).second) {
      return InvalidSwap("plan.swap_outs", swap,
                         "expected free host blocks, each once, got ", host);
    }
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckSwapIn(const SequenceStart& start) {
  const auto fail = [&start](const auto&... parts) {
    return InvalidSwap("plan.starts", start.swap, parts...);
  };
  const auto found = state_.swapped.find(start.swap);
  if (found == state_.swapped.end() || start.source != kNoSequenceSlot ||
      !notes_.ended.insert(start.swap).second) {
    return fail("expected one that was swapped out, once, and no source");
  }
  const TablesState::Swapped& swapped = found->second;
  const int32_t num_cached = start.num_cached_tokens;
  const auto num_swapped = static_cast<int32_t>(std::ssize(swapped.tokens));
  int32_t least = 1;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    least = std::max(
        least,
        state_.LeastTokens(swapped.regions[static_cast<size_t>(group)], group));
  }
  if (num_cached < least || num_cached > num_swapped) {
    return fail("expected num_cached_tokens in [", least, ", ", num_swapped,
                "], got ", num_cached);
  }
  if (!std::equal(swapped.tokens.begin(), swapped.tokens.begin() + num_cached,
                  plan_.start_tokens.begin() + start.token_begin)) {
    return fail("expected the first ", num_cached, " tokens to be its own");
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t cut = swapped.regions[static_cast<size_t>(group)].cut;
    const TableRegion* const named = state_.NamedRegion(start, group);
    if (named != nullptr && named->cut != cut) {
      return fail("expected a region of cut ", cut, ", got region ",
                  Index(start.region), " of cut ", named->cut);
    }
    const int32_t begin = cut / layout_.page_size;
    const int32_t first =
        std::max(layout_.FirstPage(group, num_swapped), begin);
    if (std::max(layout_.FirstPage(group, num_cached), begin) == first) {
      continue;
    }
    return fail("expected num_cached_tokens whose first page in group ", group,
                " is ", first, ", as swapped out, got ", num_cached);
  }
  return CheckTransfersIn(start);
}

absl::Status PlanChecker::CheckTransfersIn(const SequenceStart& start) const {
  const auto fail = [&start](const auto&... parts) {
    return InvalidSwap("plan.starts", start.swap, parts...);
  };
  const TablesState::Swapped& swapped = state_.swapped.at(start.swap);
  const auto transfers =
      Slice(plan_.transfers_in, start.transfer_begin, start.num_transfers);
  const std::vector<GroupTransfers> split = SplitSwapIn(state_, start);
  // Pages of group 0 that are not copied back, the first ones, are in cached
  // blocks.
  const int64_t num_ins = split.front().num_pages;
  const int64_t most = state_.CountPages(0, start.num_cached_tokens,
                                         swapped.regions.front().cut);
  if (!transfers.has_value() || num_ins < 0 || num_ins > most) {
    const int64_t least = start.num_transfers - num_ins;
    return fail("expected ", least, " to ", least + most, " out of ",
                plan_.transfers_in.size(), " transfers, got [",
                start.transfer_begin, ", +", start.num_transfers, ")");
  }
  const auto num_swapped = static_cast<int32_t>(std::ssize(swapped.tokens));
  auto transfer = transfers->begin();
  // The index of the next block in swapped.blocks.
  int64_t place = 0;
  const auto check = [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i, ++transfer) {
      const HostBlockId host = swapped.blocks[static_cast<size_t>(i)];
      if (state_.IsBlock(transfer->block) && transfer->host == host) continue;
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
        state_.CountPages(group, start.num_cached_tokens, region.cut);
    BM_RETURN_IF_ERROR(check(place + num_needed - num_pages, num_pages));
    place += state_.CountPages(group, num_swapped, region.cut);
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckPagesIn(const SequenceStart& start) {
  // An earlier check has made sure that the run has blocks for all its tokens.
  const TablesState::Swapped& swapped = state_.swapped.at(start.swap);
  const std::vector<GroupTransfers> split = SplitSwapIn(state_, start);
  auto transfer = plan_.transfers_in.begin() + start.transfer_begin;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const auto [num_region, num_pages] = split[static_cast<size_t>(group)];
    transfer += num_region;
    const int32_t cut = swapped.regions[static_cast<size_t>(group)].cut;
    const int64_t end =
        CeilDiv(start.num_cached_tokens - cut, layout_.page_size);
    for (const BlockId expected :
         plan_.NewBlocks(layout_, notes_.Of(start.slot).run, group)
             .subspan(static_cast<size_t>(end - num_pages),
                      static_cast<size_t>(num_pages))) {
      const BlockId got = (transfer++)->block;
      if (got == expected) continue;
      return InvalidSwap("plan.starts", start.swap, "expected a copy to block ",
                         Index(expected), " of its run, group ", group,
                         ", got ", Index(got));
    }
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
