// What a fault has left, and what a twin does in its place.

#include <algorithm>
#include <span>

#include "tests/sim/scripted.h"

namespace blockmgr::sim {
namespace {

bool IsBeginning(std::span<const BlockId> blocks,
                 const std::vector<BlockId>& tail) {
  return std::equal(blocks.begin(), blocks.end(), tail.begin());
}

}  // namespace

std::map<RequestId, Scripted::Held> Scripted::HeldNow() const {
  std::map<RequestId, Held> held;
  for (const auto& [slot, request] : running_) {
    const SequenceCache& sequence = scheduler_.manager().sequence(slot);
    if (sequence.open) held[request] = {slot, sequence};
  }
  return held;
}

void Scripted::LoseCopies() {
  const StepPlan& plan = engine_.next();
  std::vector<HostBlockId> blocks;
  for (const auto& transfers : {plan.transfers_out, plan.transfers_in}) {
    for (const BlockTransfer& transfer : transfers) {
      blocks.push_back(transfer.host);
    }
  }
  engine_.LoseHostBlocks(blocks);
}

void Scripted::LoseReturns() {
  std::vector<BlockId> blocks;
  for (const BlockTransfer& transfer : engine_.next().transfers_in) {
    blocks.push_back(transfer.block);
  }
  engine_.LoseBlocks(blocks);
}

void Scripted::CheckRefused(StepId step) {
  for (const EvictionEffect& effect : effects_.evictions) {
    if (effect.status.ok()) continue;
    const auto was = before_.at(step).find(effect.request);
    if (was == before_.at(step).end()) {
      // Admitted by the step itself, there was nothing before.
      ++aftermath_.num_as_before;
      continue;
    }
    const auto& [slot, sequence] = was->second;
    const SequenceCache& now = scheduler_.manager().sequence(slot);
    if (!now.open) continue;  // the request has failed
    ++aftermath_.num_as_before;
    // The step may have copied its last block.
    const int32_t page_size = scenario_.layout.page_size;
    const int32_t num_full = (sequence.num_settled - now.cut()) / page_size;
    if (now.first().region != sequence.first().region ||
        now.first().pending != nullptr ||
        now.first().tail_end() != CeilDiv(now.num_reserved, page_size) ||
        std::ssize(now.first().tail) < num_full ||
        !IsBeginning(std::span(sequence.first().tail).first(num_full),
                     now.first().tail)) {
      report_.Fail("request ", Index(effect.request),
                   ": a refused order has changed its table");
    }
  }
}

void Scripted::NoteAftermath(StepId step) {
  aftermath_ = {.step = step,
                .state = scheduler_.FutureHash(),
                .requests = scheduler_.RequestsHash(),
                .memory = scheduler_.manager().StateHash(),
                .stats = scheduler_.stats(),
                .commands = {},
                .failed = {},
                .swap_outs = swap_outs_[step],
                .num_finished = static_cast<int32_t>(effects_.finished.size()),
                .num_plans = std::ssize(plans_)};
  for (const EvictionEffect& effect : effects_.evictions) {
    if (effect.status.ok()) continue;
    ++aftermath_.num_refused;
    if (effect.command != 0) aftermath_.commands.insert(effect.command);
  }
  for (const FinishEffect& effect : effects_.finished) {
    if (effect.reason == FinishReason::kFailed) {
      aftermath_.failed.insert(effect.request);
    }
  }
}

void Scripted::Cancel(const std::set<RequestId>& requests) {
  for (const RequestId request : requests) {
    (void)scheduler_.Cancel(request, &effects_);
  }
  TakeEffects();
}

}  // namespace blockmgr::sim
