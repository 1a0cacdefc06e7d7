// The host tier of a TinyEngine.

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/engine/tiny_engine.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

void TinyEngine::SwapOutSequences(const StepPlan& plan, StepResult* result) {
  for (const SwapId swap : plan.dropped_swaps) swapped_.erase(swap);
  for (const SwapOut& out : plan.swap_outs) {
    swapped_[out.swap] = sequence(out.slot).region;
  }
  if (plan.transfers_out.empty()) return;
  backend_->CopyToHost(plan.transfers_out, host_);
  for (const BlockTransfer& transfer : plan.transfers_out) {
    if (!lost_.contains(transfer.block)) {
      lost_host_.erase(transfer.host);
      continue;
    }
    lost_host_.insert(transfer.host);
    result->lost_host_blocks.push_back(transfer.host);
  }
}

std::shared_ptr<const TinyEngine::Region> TinyEngine::SwapIn(
    const StepPlan& plan, const SequenceStart& start, StepResult* result) {
  const auto found = swapped_.find(start.swap);
  BM_CHECK(found != swapped_.end());  // as the tables have seen
  std::shared_ptr<const Region> region = std::move(found->second);
  swapped_.erase(found);
  if (start.region != kNoRegion) {
    region = regions_.at(start.region);
  } else if (region != nullptr) {
    const SequenceTable& table = tables_.row(start.slot);
    region = std::make_shared<const Region>(
        Region{region->layout.OnBlocks(layout_, table.region_blocks),
               region->positions});
  }
  const auto transfers = std::span(plan.transfers_in)
                             .subspan(static_cast<size_t>(start.transfer_begin),
                                      static_cast<size_t>(start.num_transfers));
  backend_->CopyFromHost(transfers, host_);
  for (const BlockTransfer& transfer : transfers) {
    lost_.erase(transfer.block);
    if (!lost_host_.contains(transfer.host)) continue;
    lost_.insert(transfer.block);
    result->lost_blocks.push_back(transfer.block);
  }
  return region;
}

void TinyEngine::LoseHostBlocks(std::span<const HostBlockId> blocks,
                                StepResult* result) {
  const auto block_bytes = static_cast<size_t>(layout_.block_bytes());
  for (const HostBlockId block : blocks) {
    lost_host_.insert(block);
    result->lost_host_blocks.push_back(block);
    // All bits set is a NaN.
    std::ranges::fill(
        std::span(host_).subspan(
            static_cast<size_t>(Index(block)) * block_bytes, block_bytes),
        std::byte{0xFF});
  }
}

}  // namespace blockmgr
