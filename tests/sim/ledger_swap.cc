// What may leave for host memory, and come back.

#include <algorithm>
#include <utility>

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
  if (found == tables_.end() || found->second.has_order() ||
      found->second.restart_due ||
      std::ranges::count(plan.released, out.slot) != 1 ||
      swaps_.contains(out.swap)) {
    report_->Fail("slot ", Index(out.slot), " cannot be swapped out as ",
                  Index(out.swap));
    return;
  }
  const Table& table = found->second;
  std::vector<BlockId> pieces;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupBook& book = table.groups[group];
    pieces.insert(pieces.end(), book.region.blocks.begin(),
                  book.region.blocks.end());
    const PageRange pages = rules_.PagesBehind(book, group, table.num_settled);
    for (int32_t page = pages.begin; page < pages.end; ++page) {
      if (book.pages[page] == kNullBlock) {
        report_->Fail("slot ", Index(out.slot), " has lost page ", page,
                      " of group ", group, " and is swapped out");
        return;
      }
      pieces.push_back(book.pages[page]);
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
            .is_due = false};
  for (int32_t i = 0; i < out.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_out[out.transfer_begin + i];
    const bool is_host =
        Index(host) >= 0 && Index(host) < options_.engine.num_host_blocks;
    if (block != pieces[i] || !is_host ||
        host_fences_[Index(host)] > acknowledged_ || IsHeldInHost(host) ||
        std::ranges::count(swap.blocks, host) > 0) {
      report_->Fail("slot ", Index(out.slot), " swaps out block ", Index(block),
                    " to host block ", Index(host));
      return;
    }
    swap.blocks.push_back(host);
  }
  swaps_.emplace(out.swap, std::move(swap));
  ++report_->counts().swap_outs;
}

bool Ledger::CanReturn(const Table& was, int32_t num_tokens) const {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupBook& book = was.groups[group];
    if (rules_.PagesBehind(book, group, num_tokens).begin !=
        rules_.PagesBehind(book, group, was.num_settled).begin) {
      return false;
    }
  }
  return true;
}

std::vector<Ledger::HostPlace> Ledger::HostsOf(const Swap& swap,
                                               int32_t num_tokens) const {
  std::vector<HostPlace> hosts;
  const Table& was = swap.table;
  auto next = swap.blocks.begin();
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupBook& book = was.groups[group];
    for (size_t i = 0; i < book.region.blocks.size(); ++i) {
      hosts.push_back({.host = *next++, .group = group, .in_region = true});
    }
    const int32_t num_pages =
        rules_.PagesBehind(book, group, num_tokens).size();
    for (int32_t i = 0; i < num_pages; ++i) {
      hosts.push_back({.host = next[i], .group = group, .in_region = false});
    }
    next += rules_.PagesBehind(book, group, was.num_settled).size();
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
      num_tokens < std::max({1, was.cut(), was.last_length()})) {
    report_->Fail("request ", Index(start.request), " starts with ", num_tokens,
                  " tokens of the ", was.num_settled,
                  " swapped out, compressed at ", was.last_length());
    return;
  }
  const bool is_shared = start.region != kNoRegion;
  if (is_shared &&
      (served->issued != swap.issued || table->cut() != was.cut() ||
       table->last_length() != was.last_length())) {
    report_->Fail("request ", Index(start.request), " starts on region ",
                  Index(start.region), ", which is not as its own");
    return;
  }
  const PageRange tail = rules_.PagesBehind(was.groups[0], 0, num_tokens);
  std::vector<HostPlace> hosts = HostsOf(swap, num_tokens);
  std::erase_if(hosts, [is_shared](const HostPlace& place) {
    return is_shared && place.in_region && place.group == 0;
  });
  const int64_t num_shared = std::ssize(hosts) - start.num_transfers;
  if (num_shared < 0 || num_shared > tail.size()) {
    report_->Fail("request ", Index(start.request), " gets back ",
                  start.num_transfers, " of ", hosts.size());
    return;
  }
  // Those of the window groups all come from the host.
  for (Group& group : table->groups) group.num_shared = 0;
  table->groups[0].num_shared = tail.begin + static_cast<int32_t>(num_shared);
  // The cache has the first pages behind the region of group 0.
  const auto first = std::ranges::find(hosts, false, &HostPlace::in_region);
  hosts.erase(first, first + num_shared);
  if (!ReturnRegions(plan, start, swap, hosts, table)) return;
  if (!is_shared) {
    table->contexts = was.contexts;
    served->issued = swap.issued;
  }
  // Read by this very step.
  DropSwap(start.swap, Index(plan.id));
  ++report_->counts().swap_ins;
}

bool Ledger::ReturnRegions(const StepPlan& plan, const SequenceStart& start,
                           const Swap& swap,
                           const std::vector<HostPlace>& hosts, Table* table) {
  std::vector<std::vector<BlockId>> back(layout_.num_groups());
  for (int32_t i = 0; i < start.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_in[start.transfer_begin + i];
    if (host != hosts[i].host) {
      report_->Fail("request ", Index(start.request), " gets host block ",
                    Index(host), " back, expected ", Index(hosts[i].host));
      return false;
    }
    if (!hosts[i].in_region) continue;  // its run names the block
    back[hosts[i].group].push_back(block);
    returning_.push_back({start.slot, hosts[i].group, block});
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (group == 0 && start.region != kNoRegion) continue;
    BookRegion& region = table->groups[group].region;
    region = BookRules::OnBlocks(swap.table.groups[group].region, back[group]);
    region.blocks.clear();  // until it is known that they are free
    report_->counts().window_region_ins += group > 0 && region.cut > 0 ? 1 : 0;
  }
  return true;
}

void Ledger::TakeReturning() {
  for (const Returning& returning : std::exchange(returning_, {})) {
    CheckFresh(returning.block);
    GroupBook& book = tables_.at(returning.slot).groups[returning.group];
    book.region.blocks.push_back(returning.block);
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
      stats.host_blocks != options_.engine.num_host_blocks) {
    report_->Fail("host tier: ", stats.num_swapped, " requests in ",
                  stats.used_host_blocks, " of ", stats.host_blocks,
                  " blocks; expected ", num_swapped, " in ", num_used, " of ",
                  options_.engine.num_host_blocks);
  }
}

}  // namespace blockmgr::sim
