// The host tier of a TinyEngine: each shard has memory of its own for its
// heads' part of every host block.

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "blockmgr/base/check.h"
#include "engine/reference/tiny_engine.h"
#include "engine/reference/tiny_shard.h"

namespace blockmgr {

void TinyShard::Leave(const StepPlan& plan) {
  for (const SwapId swap : plan.dropped_swaps) swapped_.erase(swap);
  for (const SwapOut& out : plan.swap_outs) {
    Swapped& swapped = swapped_[out.swap];
    swapped.regions = sequence(out.slot).regions;
    for (const BlockTransfer& transfer :
         std::span(plan.transfers_out)
             .subspan(static_cast<size_t>(out.transfer_begin),
                      static_cast<size_t>(out.num_transfers))) {
      swapped.blocks.emplace(transfer.host, transfer.block);
    }
  }
  if (!plan.transfers_out.empty()) {
    backend_->CopyToHost(plan.transfers_out, host());
  }
}

void TinyShard::SwapIn(const StepPlan& plan, const SequenceStart& start) {
  const auto found = swapped_.find(start.swap);
  BM_CHECK(found != swapped_.end());  // as the tables have seen
  const Swapped swapped = std::move(found->second);
  swapped_.erase(found);
  const auto transfers = std::span(plan.transfers_in)
                             .subspan(static_cast<size_t>(start.transfer_begin),
                                      static_cast<size_t>(start.num_transfers));
  backend_->CopyFromHost(transfers, host());
  const SequenceTable& table = tables_.row(start.slot);
  Sequence& state = sequence(start.slot);
  std::vector<BlockId> before;
  std::vector<BlockId> now;
  for (const BlockTransfer& transfer : transfers) {
    before.push_back(swapped.blocks.at(transfer.host));
    now.push_back(transfer.block);
  }
  const auto on_blocks = [&](const Region& region) {
    Region moved = region;
    moved.layout = region.layout.OnBlocks(layout_, before, now);
    return std::make_shared<const Region>(std::move(moved));
  };
  for (size_t i = 0; i < table.groups.size(); ++i) {
    if (i == 0 && start.region != kNoRegion) {
      state.regions[i] = regions_.at(start.region)[i];
    } else if (table.groups[i].region.cut > 0) {
      state.regions[i] = on_blocks(*swapped.regions[i]);
    }
  }
}

void TinyShard::LoseHost(std::span<const HostBlockId> blocks) {
  const auto block_bytes = static_cast<size_t>(layout_.block_bytes());
  for (const HostBlockId block : blocks) {
    // All bits set is a NaN.
    std::ranges::fill(
        host().subspan(static_cast<size_t>(Index(block)) * block_bytes,
                       block_bytes),
        std::byte{0xFF});
  }
}

void TinyEngine::SwapOutSequences(const StepPlan& plan, StepResult* result) {
  for (TinyShard& shard : shards_) shard.Leave(plan);
  for (const BlockTransfer& transfer : plan.transfers_out) {
    lost_host_.erase(transfer.host);
    if (!lost_.contains(transfer.block)) continue;
    lost_host_.insert(transfer.host);
    result->lost_host_blocks.push_back(transfer.host);
  }
}

void TinyEngine::NoteSwapIns(const StepPlan& plan, StepResult* result) {
  for (const BlockTransfer& transfer : plan.transfers_in) {
    lost_.erase(transfer.block);
    if (!lost_host_.contains(transfer.host)) continue;
    lost_.insert(transfer.block);
    result->lost_blocks.push_back(transfer.block);
  }
}

void TinyEngine::LoseHostBlocks(std::span<const HostBlockId> blocks,
                                StepResult* result) {
  for (const HostBlockId block : blocks) {
    lost_host_.insert(block);
    result->lost_host_blocks.push_back(block);
  }
  for (TinyShard& shard : shards_) shard.LoseHost(blocks);
}

}  // namespace blockmgr
