#include "engine/tables/swap_transfers.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

// Returns the blocks of the region that leaves.
std::span<const BlockId> RegionOut(const TablesState& state, const SwapOut& out,
                                   int32_t group) {
  const TableRegion& region = state.group_of(out.slot, group).region;
  if (!state.IsAttended(region, group, out.num_tokens)) return {};
  return region.blocks;
}

// Returns the blocks of the pages behind the region that leave.
std::span<const BlockId> PagesOut(const TablesState& state, const SwapOut& out,
                                  int32_t group) {
  const GroupTable& table = state.group_of(out.slot, group);
  const auto num_pages = static_cast<size_t>(
      state.CountPages(group, out.num_tokens, table.region.cut));
  const auto end = static_cast<size_t>(
      CeilDiv(out.num_tokens - table.region.cut, state.layout.page_size));
  return std::span(table.blocks).subspan(end - num_pages, num_pages);
}

}  // namespace

absl::StatusOr<std::vector<GroupTransfers>> SplitSwapOut(
    const TablesState& state, const SwapOut& out,
    std::span<const BlockTransfer> transfers) {
  const auto fail = [&out](const auto&... parts) {
    return InvalidSwap("plan.swap_outs", out.swap, parts...);
  };
  // Blocks that a region did not need may be in a block table by now.
  absl::flat_hash_set<BlockId> in_tables;
  for (int32_t group = 0; group < state.layout.num_groups(); ++group) {
    const std::span<const BlockId> pages = PagesOut(state, out, group);
    in_tables.insert(pages.begin(), pages.end());
  }
  std::vector<GroupTransfers> split;
  auto transfer = transfers.begin();
  for (int32_t group = 0; group < state.layout.num_groups(); ++group) {
    const std::span<const BlockId> region = RegionOut(state, out, group);
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
    const std::span<const BlockId> pages = PagesOut(state, out, group);
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

std::vector<GroupTransfers> SplitSwapIn(const TablesState& state,
                                        const SequenceStart& start) {
  const TablesState::Swapped& swapped = state.swapped.at(start.swap);
  std::vector<GroupTransfers> split;
  int64_t num_left = start.num_transfers;
  for (int32_t group = 0; group < state.layout.num_groups(); ++group) {
    const TableRegion& region = swapped.regions[static_cast<size_t>(group)];
    GroupTransfers& own = split.emplace_back();
    if (state.NamedRegion(start, group) == nullptr) {
      own.num_region = std::ssize(region.blocks);
    }
    own.num_pages =
        state.CountPages(group, start.num_cached_tokens, region.cut);
    num_left -= own.num_region + own.num_pages;
  }
  split.front().num_pages += num_left;
  return split;
}

}  // namespace blockmgr
