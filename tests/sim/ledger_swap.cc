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
  // Behind the region.
  std::vector<BlockId> pages;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::vector<BlockId>& own = BlocksOf(table, group);
    const int32_t first = FirstPage(group, table.num_settled);
    const int32_t num_pages = NumPages(group, table.num_settled, table.cut);
    pages.insert(pages.end(), own.begin() + first,
                 own.begin() + first + num_pages);
  }
  const auto num_pages = static_cast<int32_t>(pages.size());
  const int64_t num_blocks = std::ssize(table.region_blocks) + num_pages;
  if (out.num_tokens != table.num_settled || out.num_tokens < 1 ||
      out.num_transfers != num_blocks) {
    report_->Fail("slot ", Index(out.slot), " swaps out ", out.num_tokens,
                  " tokens in ", out.num_transfers, " blocks, expected ",
                  table.num_settled, " in ", num_blocks);
    return;
  }
  Swap swap{.table = table,
            .issued = requests_.at(table.request).issued,
            .blocks = {},
            .region_blocks = {},
            .is_due = false};
  for (int32_t i = 0; i < out.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_out[out.transfer_begin + i];
    const int32_t place = i - (out.num_transfers - num_pages);
    const bool is_right =
        place < 0 ? table.region_blocks.contains(block) : pages[place] == block;
    const bool is_host =
        Index(host) >= 0 && Index(host) < options_.num_host_blocks;
    if (!is_right || block == kNullBlock || !is_host ||
        host_fences_[Index(host)] > acknowledged_ || IsHeldInHost(host) ||
        std::ranges::count(swap.blocks, host) > 0) {
      report_->Fail("slot ", Index(out.slot), " swaps out block ", Index(block),
                    " to host block ", Index(host));
      return;
    }
    if (place < 0) swap.region_blocks.push_back(block);
    swap.blocks.push_back(host);
  }
  swaps_.emplace(out.swap, std::move(swap));
  ++report_->counts().swap_outs;
}

bool Ledger::CanReturn(const Table& was, int32_t num_tokens) const {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (FirstPage(group, num_tokens) != FirstPage(group, was.num_settled)) {
      return false;
    }
  }
  return true;
}

std::vector<HostBlockId> Ledger::HostsOf(const Swap& swap,
                                         int32_t num_tokens) const {
  const int32_t cut = swap.table.cut;
  const int32_t num_swapped = swap.table.num_settled;
  std::vector<HostBlockId> hosts;
  auto next = swap.blocks.begin() + std::ssize(swap.region_blocks);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    hosts.insert(hosts.end(), next, next + NumPages(group, num_tokens, cut));
    next += NumPages(group, num_swapped, cut);
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
  const int64_t num_ins = is_shared ? 0 : std::ssize(swap.region_blocks);
  const int32_t num_tail = NumPages(0, num_tokens, was.cut);
  const std::vector<HostBlockId> hosts = HostsOf(swap, num_tokens);
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
  std::map<int32_t, int32_t> renamed;
  for (int32_t i = 0; i < start.num_transfers; ++i) {
    const auto [block, host] = plan.transfers_in[start.transfer_begin + i];
    const HostBlockId expected =
        i < num_ins ? swap.blocks[i] : hosts[num_shared + i - num_ins];
    if (host != expected) {
      report_->Fail("request ", Index(start.request), " gets host block ",
                    Index(host), " back, expected ", Index(expected));
      return;
    }
    if (i >= num_ins) continue;  // its run names the block
    renamed[Index(swap.region_blocks[i])] = Index(block);
    returning_.emplace_back(start.slot, block);
  }
  if (!is_shared) {
    table->cut = was.cut;
    table->kept = was.kept;
    table->region_pages = was.region_pages;
    for (auto& [head, pages] : table->region_pages) {
      for (NaivePage& page : pages) page[1] = renamed.at(page[1]);
    }
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

void Ledger::TakeReturning() {
  for (const auto& [slot, block] : std::exchange(returning_, {})) {
    CheckFresh(block);
    tables_.at(slot).region_blocks.insert(block);
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
