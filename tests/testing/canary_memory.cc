#include "tests/testing/canary_memory.h"

#include <algorithm>
#include <utility>

#include "tests/testing/canary_error.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

// Returns the slot of one row of a head's page of a block.
SlotIndex SlotOf(const ModelLayout& layout, BlockId block, int32_t head_index,
                 int32_t row) {
  return layout.slot(layout.page_id(head_index / layout.num_heads, block,
                                    head_index % layout.num_heads),
                     row);
}

// Returns the slots of all heads of a block, in order.
std::vector<SlotIndex> SlotsOf(const ModelLayout& layout, BlockId block) {
  std::vector<SlotIndex> slots;
  for (int32_t h = 0; h < layout.pages_per_block(); ++h) {
    for (int32_t row = 0; row < layout.page_size; ++row) {
      slots.push_back(SlotOf(layout, block, h, row));
    }
  }
  return slots;
}

}  // namespace

CanaryMemory::CanaryMemory(const ModelLayout& layout, int32_t num_host_blocks)
    : layout_(layout),
      tags_(layout.num_pages() * layout.page_size),
      host_tags_(num_host_blocks) {}

void CanaryMemory::Write(BlockId block, int32_t row, CanaryTag tag) {
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    tag.head_index = h;
    tags_[SlotOf(layout_, block, h, row)] = tag;
  }
}

void CanaryMemory::Move(CompactionMoves moves, uint64_t seed) {
  SeededRandom random(seed);
  if (!moves.in_place) {
    random.Shuffle(&moves.moves);
    for (const SlotMove& move : moves.moves) {
      tags_[move.destination] = tags_[move.source];
    }
    return;
  }
  int64_t begin = 0;
  for (const int64_t end : moves.group_ends) {
    if (end != moves.group_ends.back() && random.Between(0, 1) == 0) continue;
    const std::vector<SlotMove> group(moves.moves.begin() + begin,
                                      moves.moves.begin() + end);
    std::vector<CanaryTag> staged;
    staged.reserve(group.size());
    for (const SlotMove& move : group) staged.push_back(tags_[move.source]);
    for (size_t i = 0; i < group.size(); ++i) {
      tags_[group[i].destination] = staged[i];
    }
    begin = end;
  }
}

absl::Status CanaryMemory::CopyOut(const StepPlan& plan,
                                   std::span<const StepId> in_flight,
                                   StepResult* result) {
  for (const BlockTransfer& transfer : plan.transfers_out) {
    for (const StepId step : in_flight) {
      if (!touched_host_[step].contains(transfer.host)) continue;
      return CanaryError("host block ", Index(transfer.host),
                         " is handed out by step ", Index(plan.id),
                         " while step ", Index(step),
                         ", in flight, touches it");
    }
    touched_host_[plan.id].insert(transfer.host);
    CopyTags(transfer, true);
    lost_host_.erase(transfer.host);
    if (!lost_.contains(transfer.block)) continue;
    lost_host_.insert(transfer.host);
    result->lost_host_blocks.push_back(transfer.host);
  }
  return absl::OkStatus();
}

void CanaryMemory::CopyIn(const StepPlan& plan, StepResult* result) {
  const auto pass_on_loss = [&](bool is_lost, BlockId block) {
    if (!is_lost) return;
    lost_.insert(block);
    result->lost_blocks.push_back(block);
  };
  for (const BlockTransfer& transfer : plan.transfers_in) {
    touched_host_[plan.id].insert(transfer.host);
    CopyTags(transfer, false);
    pass_on_loss(lost_host_.contains(transfer.host), transfer.block);
  }
  for (const CopyOnWrite& copy : plan.copies) {
    const auto [source, destination] = copy.blocks;
    const std::vector<SlotIndex> from = SlotsOf(layout_, source);
    const std::vector<SlotIndex> to = SlotsOf(layout_, destination);
    for (size_t i = 0; i < from.size(); ++i) {
      const auto row = static_cast<int32_t>(i) % layout_.page_size;
      if (row < copy.num_tokens) tags_[to[i]] = tags_[from[i]];
    }
    touched_[plan.id].insert(source);
    pass_on_loss(lost_.contains(source), destination);
  }
}

void CanaryMemory::CopyTags(const BlockTransfer& transfer, bool to_host) {
  std::vector<CanaryTag>& host = host_tags_[Index(transfer.host)];
  const std::vector<SlotIndex> slots = SlotsOf(layout_, transfer.block);
  host.resize(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    (to_host ? host[i] : tags_[slots[i]]) = to_host ? tags_[slots[i]] : host[i];
  }
}

absl::Status CanaryMemory::CheckFresh(BlockId block, StepId step,
                                      std::span<const StepId> in_flight) const {
  for (const StepId other : in_flight) {
    if (touched_.at(other).contains(block)) {
      return CanaryError("block ", Index(block), " is handed out by step ",
                         Index(step), " while step ", Index(other),
                         ", in flight, touches it");
    }
  }
  return absl::OkStatus();
}

void CanaryMemory::ForgetStepsBefore(StepId step) {
  // No more than a few steps are ever in flight.
  const auto is_old = [step](const auto& touched) {
    return Index(touched.first) + 16 < Index(step);
  };
  absl::erase_if(touched_, is_old);
  absl::erase_if(touched_host_, is_old);
}

void CanaryMemory::LoseBlocks(const std::vector<BlockId>& blocks) {
  losses_.insert(losses_.end(), blocks.begin(), blocks.end());
}

void CanaryMemory::LoseHostBlocks(const std::vector<HostBlockId>& blocks) {
  host_losses_.insert(host_losses_.end(), blocks.begin(), blocks.end());
}

void CanaryMemory::CarryOutLosses(StepResult* result) {
  for (const BlockId block : std::exchange(losses_, {})) {
    result->lost_blocks.push_back(block);
    lost_.insert(block);
    for (const SlotIndex slot : SlotsOf(layout_, block)) tags_[slot] = {};
  }
  for (const HostBlockId block : std::exchange(host_losses_, {})) {
    result->lost_host_blocks.push_back(block);
    lost_host_.insert(block);
    std::ranges::fill(host_tags_[Index(block)], CanaryTag{});
  }
}

void CanaryMemory::SetLost(BlockId block, bool is_lost) {
  if (is_lost) {
    lost_.insert(block);
  } else {
    lost_.erase(block);
  }
}

}  // namespace blockmgr
