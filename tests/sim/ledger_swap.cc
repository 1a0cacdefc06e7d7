// What may leave for host memory, and come back.

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "tests/sim/ledger.h"

namespace blockmgr::sim {

void Ledger::TakeDroppedSwaps(const StepPlan& plan) {
  for (const SwapId swap : plan.dropped_swaps) {
    const auto found = swaps_.find(swap);
    // Either it is of no use any more, or its request starts without it.
    const bool starts =
        found != swaps_.end() &&
        std::ranges::count(plan.starts, found->second.table.request,
                           &SequenceStart::request) > 0;
    if (found == swaps_.end() || (!found->second.is_due && !starts)) {
      report_->Fail("swap ", Index(swap), " is dropped and was not due");
      return;
    }
    DropSwap(swap, dispatched_);
  }
  for (const auto& [id, swap] : swaps_) {
    if (swap.is_due) {
      report_->Fail("swap ", Index(id), " of request ",
                    Index(swap.table.request), " is not dropped");
    }
  }
}

void Ledger::DropSwap(SwapId swap, uint64_t fence) {
  for (const HostBlockId block : swaps_.at(swap).blocks) {
    host_fences_[Index(block)] = fence;
  }
  swaps_.erase(swap);
}

bool Ledger::IsHeldInHost(HostBlockId block) const {
  return std::ranges::any_of(swaps_, [block](const auto& swap) {
    return std::ranges::count(swap.second.blocks, block) > 0;
  });
}

void Ledger::TakeSwapOut(const StepPlan& plan, const SwapOut& out) {
  const auto found = tables_.find(out.slot);
  if (found == tables_.end() || found->second.pending.has_value() ||
      found->second.restart_due ||
      std::ranges::count(plan.released, out.slot) != 1 ||
      swaps_.contains(out.swap)) {
    report_->Fail("slot ", Index(out.slot), " cannot be swapped out as ",
                  Index(out.swap));
    return;
  }
  const Table& table = found->second;
  // Of a page its block; null: one of a region, given by its group.
  std::vector<std::pair<int32_t, BlockId>> pieces;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    pieces.insert(pieces.end(), RegionOf(table, group).size(),
                  {group, kNullBlock});
    const std::vector<BlockId>& own = BlocksOf(table, group);
    const PageRange pages = PagesBehind(table, group, table.num_settled);
    for (int32_t i = pages.begin; i < pages.end; ++i) {
      if (own[i] == kNullBlock) {
        report_->Fail("slot ", Index(out.slot), " has lost page ", i,
                      " of group ", group, " and is swapped out");
        return;
      }
      pieces.emplace_back(group, own[i]);
    }
  }
  if (out.num_tokens != table.num_settled || out.num_tokens < 1 ||
      out.num_transfers != std::ssize(pieces)) {
    report_->Fail("slot ", Index(out.slot), " swaps out ", out.num_tokens,
                  " tokens in ", out.num_transfers, " blocks, expected ",
                  table.num_settled, " in ", pieces.size());
    return;
  }
  Swap swap{.table = table,
            .issued = requests_.at(table.request).issued,
            .blocks = {},
            .region_blocks = {},
            .is_due = false};
  swap.region_blocks.resize(layout_.num_groups());
  for (int32_t i = 0; i < out.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_out[out.transfer_begin + i];
    const auto& [group, page] = pieces[i];
    std::vector<BlockId>& of_region = swap.region_blocks.at(group);
    const bool is_right = page == kNullBlock
                              ? RegionOf(table, group).contains(block) &&
                                    std::ranges::count(of_region, block) == 0
                              : page == block;
    const bool is_host =
        Index(host) >= 0 && Index(host) < options_.num_host_blocks;
    if (!is_right || !is_host || host_fences_[Index(host)] > acknowledged_ ||
        IsHeldInHost(host) || std::ranges::count(swap.blocks, host) > 0) {
      report_->Fail("slot ", Index(out.slot), " swaps out block ", Index(block),
                    " to host block ", Index(host));
      return;
    }
    if (page == kNullBlock) of_region.push_back(block);
    swap.blocks.push_back(host);
  }
  swaps_.emplace(out.swap, std::move(swap));
  ++report_->counts().swap_outs;
}

const std::set<BlockId>& Ledger::RegionOf(const Table& table, int32_t group) {
  return group == 0 ? table.region_blocks
                    : table.window_regions.at(group - 1).blocks;
}

bool Ledger::CanReturn(const Table& was, int32_t num_tokens) const {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (PagesBehind(was, group, num_tokens).begin !=
        PagesBehind(was, group, was.num_settled).begin) {
      return false;
    }
  }
  return true;
}

std::vector<Ledger::HostPlace> Ledger::HostsOf(const Swap& swap,
                                               int32_t num_tokens) const {
  std::vector<HostPlace> hosts;
  auto next = swap.blocks.begin() + std::ssize(swap.region_blocks[0]);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int64_t num_region =
        group == 0 ? 0 : std::ssize(swap.region_blocks[group]);
    for (int64_t i = 0; i < num_region; ++i) {
      hosts.push_back({.host = *next++, .region_group = group});
    }
    const int32_t num_pages = PagesBehind(swap.table, group, num_tokens).size();
    for (int32_t i = 0; i < num_pages; ++i) hosts.push_back({.host = next[i]});
    next += PagesBehind(swap.table, group, swap.table.num_settled).size();
  }
  return hosts;
}

void Ledger::TakeSwapIn(const StepPlan& plan, const SequenceStart& start,
                        Served* served, Table* table) {
  const auto found = swaps_.find(start.swap);
  if (found == swaps_.end() || found->second.is_due ||
      found->second.table.request != start.request) {
    report_->Fail("request ", Index(start.request), " starts on swap ",
                  Index(start.swap), ", which is not its own");
    return;
  }
  const Swap swap = found->second;
  const Table& was = swap.table;
  const int32_t num_tokens = start.num_cached_tokens;
  if (num_tokens > was.num_settled || !CanReturn(was, num_tokens) ||
      num_tokens < std::max({1, was.cut, was.last_length})) {
    report_->Fail("request ", Index(start.request), " starts with ", num_tokens,
                  " tokens of the ", was.num_settled,
                  " swapped out, compressed at ", was.last_length);
    return;
  }
  const bool is_shared = start.region != kNoRegion;
  if (is_shared && (served->issued != swap.issued || table->cut != was.cut ||
                    table->last_length != was.last_length)) {
    report_->Fail("request ", Index(start.request), " starts on region ",
                  Index(start.region), ", which is not as its own");
    return;
  }
  const int64_t num_ins = is_shared ? 0 : std::ssize(swap.region_blocks[0]);
  const int32_t num_tail = PagesBehind(was, 0, num_tokens).size();
  std::vector<HostPlace> hosts = HostsOf(swap, num_tokens);
  const int64_t num_shared = num_ins + std::ssize(hosts) - start.num_transfers;
  if (num_shared < 0 || num_shared > num_tail) {
    report_->Fail("request ", Index(start.request), " gets back ",
                  start.num_transfers, " of ", num_ins, " + ", hosts.size());
    return;
  }
  table->num_shared =
      static_cast<int32_t>(FirstPage(0, num_tokens) + num_shared);
  // Those of the window groups all come from the host.
  table->num_shared_windows = 0;
  hosts.erase(hosts.begin(), hosts.begin() + num_shared);
  for (int64_t i = 0; i < num_ins; ++i) {
    hosts.insert(hosts.begin() + i, {.host = swap.blocks[i]});
  }
  if (!ReturnRegions(plan, start, swap, hosts, num_ins, table)) return;
  if (!is_shared) {
    table->cut = was.cut;
    table->kept = was.kept;
    table->last_length = was.last_length;
    table->context = was.context;
    table->tail_context = was.tail_context;
    table->contexts = was.contexts;
    served->issued = swap.issued;
  }
  // Read by this very step.
  DropSwap(start.swap, Index(plan.id));
  ++report_->counts().swap_ins;
}

bool Ledger::ReturnRegions(const StepPlan& plan, const SequenceStart& start,
                           const Swap& swap,
                           const std::vector<HostPlace>& hosts, int64_t num_ins,
                           Table* table) {
  std::map<int32_t, int32_t> renamed;
  std::vector<size_t> num_back(layout_.num_groups());
  for (int32_t i = 0; i < start.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_in[start.transfer_begin + i];
    if (host != hosts[i].host) {
      report_->Fail("request ", Index(start.request), " gets host block ",
                    Index(host), " back, expected ", Index(hosts[i].host));
      return false;
    }
    const int32_t group = hosts[i].region_group;
    if (i >= num_ins && group == 0) continue;  // its run names the block
    const BlockId was_block = swap.region_blocks[group][num_back[group]++];
    renamed[Index(was_block)] = Index(block);
    returning_.push_back({start.slot, group, block});
  }
  const auto on_blocks = [&renamed](NaivePages pages) {
    for (auto& [head, list] : pages) {
      for (NaivePage& page : list) page[1] = renamed.at(page[1]);
    }
    return pages;
  };
  if (start.region == kNoRegion) {
    table->region_pages = on_blocks(swap.table.region_pages);
  }
  for (size_t i = 0; i < table->window_regions.size(); ++i) {
    const WindowRegion& region = swap.table.window_regions[i];
    table->window_regions[i] = {.cut = region.cut,
                                .kept = region.kept,
                                .pages = on_blocks(region.pages),
                                .blocks = {},
                                .pending = {}};
    report_->counts().window_region_ins += region.cut > 0 ? 1 : 0;
  }
  return true;
}

void Ledger::TakeReturning() {
  for (const Returning& returning : std::exchange(returning_, {})) {
    CheckFresh(returning.block);
    Table& table = tables_.at(returning.slot);
    std::set<BlockId>& region =
        returning.group == 0
            ? table.region_blocks
            : table.window_regions.at(returning.group - 1).blocks;
    region.insert(returning.block);
  }
}

void Ledger::MarkDueSwaps(RequestId request) {
  for (auto& [id, swap] : swaps_) {
    if (swap.table.request == request) swap.is_due = true;
  }
}

void Ledger::SettleHostLoss(const std::vector<HostBlockId>& lost) {
  for (auto& [id, swap] : swaps_) {
    for (const HostBlockId block : lost) {
      swap.is_due |= std::ranges::count(swap.blocks, block) > 0;
    }
  }
}

void Ledger::CompareHost(const SchedulerStats& stats) {
  int32_t num_swapped = 0;
  int32_t num_used = 0;
  for (const auto& [id, swap] : swaps_) {
    if (swap.is_due) continue;
    ++num_swapped;
    num_used += static_cast<int32_t>(swap.blocks.size());
  }
  if (stats.num_swapped != num_swapped || stats.used_host_blocks != num_used ||
      stats.host_blocks != options_.num_host_blocks) {
    report_->Fail("host tier: ", stats.num_swapped, " requests in ",
                  stats.used_host_blocks, " of ", stats.host_blocks,
                  " blocks; expected ", num_swapped, " in ", num_used, " of ",
                  options_.num_host_blocks);
  }
}

}  // namespace blockmgr::sim
