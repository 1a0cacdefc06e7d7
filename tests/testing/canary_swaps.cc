// Sequences that wait in host memory, and come back.

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

void CanaryEngine::CopyTags(const BlockTransfer& transfer, bool to_host) {
  std::vector<Tag>& host = host_memory_[Index(transfer.host)];
  host.resize(int64_t{layout_.pages_per_block()} * layout_.page_size);
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    const PageId page = layout_.page_id(h / layout_.num_heads, transfer.block,
                                        h % layout_.num_heads);
    for (int32_t i = 0; i < layout_.page_size; ++i) {
      Tag& in_pool = memory_[layout_.slot(page, i)];
      Tag& on_host = host[int64_t{h} * layout_.page_size + i];
      (to_host ? on_host : in_pool) = to_host ? in_pool : on_host;
    }
  }
}

absl::Status CanaryEngine::ApplySwapOuts(const Queued& queued,
                                         StepResult* result) {
  for (const SwapId swap : queued.plan.dropped_swaps) {
    if (swaps_.erase(swap) == 0) {
      return Wrong("swap ", Index(swap), " is dropped and was not there");
    }
  }
  for (const SwapOut& out : queued.plan.swap_outs) {
    BM_RETURN_IF_ERROR(ApplySwapOut(queued, out, result));
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::ApplySwapOut(const Queued& queued,
                                        const SwapOut& out,
                                        StepResult* result) {
  const StepPlan& plan = queued.plan;
  const CanaryTable& table = tables_[Index(out.slot)];
  if (!table.open || std::ranges::count(plan.released, out.slot) != 1 ||
      out.num_tokens < std::max(table.cut(), 1) ||
      out.num_tokens > table.length()) {
    return Wrong("slot ", Index(out.slot), " swaps out ", out.num_tokens,
                 " tokens of ", table.length(), ", cut ", table.cut());
  }
  // As with a fork: what was computed before an eviction is no use after it.
  if (!table.evictions.empty() &&
      table.evictions.back().length > out.num_tokens) {
    return Wrong("slot ", Index(out.slot), " swaps out ", out.num_tokens,
                 " tokens, and was compressed at ",
                 table.evictions.back().length);
  }
  std::vector<BlockId> blocks;
  if (table.region.has_value()) {
    blocks.assign(table.region->blocks().begin(), table.region->blocks().end());
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (SwappedCut(table, group, out.num_tokens) > 0) {
      const std::span<const BlockId> region =
          table.window_regions.at(group - 1)->layout.blocks();
      blocks.insert(blocks.end(), region.begin(), region.end());
    }
    const std::vector<BlockId> pages = PagesOf(table, group, out.num_tokens);
    if (std::ranges::count(pages, kNullBlock) > 0) {
      return Wrong("slot ", Index(out.slot), " swaps out pages of group ",
                   group, " that it has never had");
    }
    blocks.insert(blocks.end(), pages.begin(), pages.end());
  }
  const auto transfers = std::span(plan.transfers_out)
                             .subspan(out.transfer_begin, out.num_transfers);
  if (!std::ranges::equal(transfers, blocks, {}, &BlockTransfer::block)) {
    return Wrong("slot ", Index(out.slot), " swaps out ", transfers.size(),
                 " blocks, not the ", blocks.size(), " of its ", out.num_tokens,
                 " tokens");
  }
  CanarySwap swap{.table = table, .blocks = {}};
  swap.table.content.resize(out.num_tokens);
  for (const BlockTransfer& transfer : transfers) {
    BM_RETURN_IF_ERROR(CheckFreshHost(queued, transfer.host));
    touched_host_[plan.id].insert(transfer.host);
    swap.blocks.push_back(transfer.host);
    CopyTags(transfer, true);
    lost_host_.erase(transfer.host);
    if (!lost_.contains(transfer.block)) continue;
    lost_host_.insert(transfer.host);
    result->lost_host_blocks.push_back(transfer.host);
  }
  if (!swaps_.emplace(out.swap, std::move(swap)).second) {
    return Wrong("swap ", Index(out.swap), " is made twice");
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::CheckFreshHost(const Queued& queued,
                                          HostBlockId block) const {
  if (Index(block) < 0 || Index(block) >= std::ssize(host_memory_)) {
    return Wrong("host block ", Index(block), " is none");
  }
  for (const StepId step : queued.in_flight) {
    const auto touched = touched_host_.find(step);
    if (touched != touched_host_.end() && touched->second.contains(block)) {
      return Wrong("host block ", Index(block), " is handed out by step ",
                   Index(queued.plan.id), " while step ", Index(step),
                   ", in flight, touches it");
    }
  }
  for (const auto& [id, swap] : swaps_) {
    if (std::ranges::count(swap.blocks, block) > 0) {
      return Wrong("host block ", Index(block), " is handed out and held by ",
                   Index(id));
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::CheckReturn(const SequenceStart& start,
                                       const CanaryTable& table) const {
  const auto found = swaps_.find(start.swap);
  if (found == swaps_.end() || start.source != kNoSequenceSlot) {
    return Wrong("slot ", Index(start.slot), " starts on swap ",
                 Index(start.swap), ", which is not there");
  }
  const CanaryTable& was = found->second.table;
  const int32_t length = start.num_cached_tokens;
  const int32_t compressed =
      was.evictions.empty() ? 0 : was.evictions.back().length;
  if (length < std::max(compressed, 1) || length > was.length() ||
      was.chain[length - 1] != table.chain[length - 1]) {
    return Wrong("slot ", Index(start.slot), " starts with ", length,
                 " other tokens than the ", was.length(), " of swap ",
                 Index(start.swap), ", compressed at ", compressed);
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    // A region has what is below its cut, however little comes back.
    if (layout_.FirstPage(group, length) >=
            layout_.FirstPage(group, was.length()) ||
        SwappedCut(was, group, was.length()) > 0) {
      continue;
    }
    return Wrong("slot ", Index(start.slot), " starts with ", length,
                 " tokens; group ", group, " has what follows ", was.length());
  }
  if (start.region != kNoRegion &&
      (table.evictions != was.evictions || table.history != was.history)) {
    return Wrong("slot ", Index(start.slot), " starts on region ",
                 Index(start.region), " instead of the one of swap ",
                 Index(start.swap));
  }
  return absl::OkStatus();
}

std::vector<CanaryEngine::HostPlace> CanaryEngine::PlacesInHost(
    const CanaryTable& was, bool has_region, int32_t length,
    int64_t num_cached) const {
  std::vector<HostPlace> places;
  int64_t begin = 0;
  const auto add_region = [&](const RaggedRegion& region, int32_t group) {
    for (int64_t i = 0; i < std::ssize(region.blocks()); ++i) {
      places.push_back({.place = begin++, .region_group = group});
    }
  };
  if (was.region.has_value()) add_region(*was.region, 0);
  if (has_region) places.clear();
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (SwappedCut(was, group, was.length()) > 0) {
      add_region(was.window_regions.at(group - 1)->layout, group);
    }
    const int64_t num_pages = std::ssize(PagesOf(was, group, length));
    for (int64_t i = group == 0 ? num_cached : 0; i < num_pages; ++i) {
      places.push_back({.place = begin + i});
    }
    begin += std::ssize(PagesOf(was, group, was.length()));
  }
  return places;
}

absl::Status CanaryEngine::StartFromHost(const Queued& queued,
                                         const SequenceStart& start,
                                         StepResult* result,
                                         CanaryTable* table) {
  BM_RETURN_IF_ERROR(CheckReturn(start, *table));
  const StepPlan& plan = queued.plan;
  const auto found = swaps_.find(start.swap);
  const CanarySwap swap = std::move(found->second);
  swaps_.erase(found);
  const CanaryTable& was = swap.table;
  const int32_t length = start.num_cached_tokens;
  const bool has_region = start.region != kNoRegion;
  const auto transfers =
      std::span(plan.transfers_in)
          .subspan(start.transfer_begin, start.num_transfers);
  // The first of the tail may be cached.
  const int64_t num_all = std::ssize(PlacesInHost(was, has_region, length, 0));
  const int64_t num_tail = std::ssize(PagesOf(was, 0, length));
  const int64_t num_cached = num_all - std::ssize(transfers);
  if (num_cached < 0 || num_cached > num_tail) {
    return Wrong("slot ", Index(start.slot), " gets back ", transfers.size(),
                 " blocks of ", num_all, ", ", num_tail, " of them its tail's");
  }
  const std::vector<HostPlace> places =
      PlacesInHost(was, has_region, length, num_cached);
  // Those of the window groups all come from the host.
  table->num_shared_windows = 0;
  table->num_shared =
      static_cast<int32_t>(layout_.FirstPage(0, length) + num_cached);
  const std::vector<int32_t> holders = CountHolders();
  std::vector<std::vector<BlockId>> region_blocks(
      static_cast<size_t>(layout_.num_groups()));
  for (int64_t i = 0; i < std::ssize(transfers); ++i) {
    const BlockTransfer& transfer = transfers[i];
    const HostBlockId expected = swap.blocks[places[i].place];
    BM_RETURN_IF_ERROR(CheckFresh(queued, transfer.block));
    if (transfer.host != expected || holders[Index(transfer.block)] > 0) {
      return Wrong("slot ", Index(start.slot), " gets host block ",
                   Index(transfer.host), " (expected ", Index(expected),
                   ") back to block ", Index(transfer.block), " with ",
                   holders[Index(transfer.block)], " holders");
    }
    const int32_t region_group = places[i].region_group;
    if (region_group >= 0) {
      region_blocks.at(region_group).push_back(transfer.block);
    }
    touched_host_[plan.id].insert(transfer.host);
    CopyTags(transfer, false);
    lost_.erase(transfer.block);
    if (!lost_host_.contains(transfer.host)) continue;
    lost_.insert(transfer.block);
    result->lost_blocks.push_back(transfer.block);
  }
  table->content.assign(was.content.begin(), was.content.begin() + length);
  ReturnRegions(was, region_blocks, table);
  if (has_region) return absl::OkStatus();
  table->history = was.history;
  table->evictions = was.evictions;
  return absl::OkStatus();
}

void CanaryEngine::ReturnRegions(
    const CanaryTable& was, const std::vector<std::vector<BlockId>>& blocks,
    CanaryTable* table) const {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    if (SwappedCut(was, group, was.length()) == 0) continue;
    CanaryWindowRegion region = *was.window_regions.at(group - 1);
    region.layout = region.layout.OnBlocks(layout_, region.layout.blocks(),
                                           blocks.at(group));
    table->window_regions.at(group - 1) = std::move(region);
  }
  // It may start on one that others share.
  if (!was.region.has_value() || table->region.has_value()) return;
  table->region =
      was.region->OnBlocks(layout_, was.region->blocks(), blocks[0]);
  table->region_positions = was.region_positions;
}

void CanaryEngine::LoseHostBlocks(const std::vector<HostBlockId>& blocks) {
  host_losses_.insert(host_losses_.end(), blocks.begin(), blocks.end());
}

void CanaryEngine::CarryOutHostLosses(StepResult* result) {
  for (const HostBlockId block : host_losses_) {
    result->lost_host_blocks.push_back(block);
    lost_host_.insert(block);
    std::ranges::fill(host_memory_[Index(block)], Tag{});
  }
  host_losses_.clear();
}

}  // namespace blockmgr
