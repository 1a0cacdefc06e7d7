// Which blocks a sequence reads and holds, what it starts with, and the loss of
// blocks.

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

int32_t CanaryEngine::FirstAttended(int32_t group, int32_t length) const {
  const int32_t window = layout_.window_of(group);
  return window == 0 ? 0 : std::max(0, length + 1 - window);
}

int32_t CanaryEngine::FirstRead(SequenceSlot slot, int32_t group) const {
  return FirstAttended(group, contents_of(slot).first_query);
}

const RegionLayout* CanaryEngine::RegionFrom(SequenceSlot slot, int32_t group,
                                             int32_t first) const {
  const RegionLayout* const region =
      row(slot).groups[group].region.layout.get();
  return region != nullptr && region->cut() > first ? region : nullptr;
}

CanaryEngine::View CanaryEngine::ViewOf(SequenceSlot slot, int32_t group,
                                        int32_t first, int32_t end) const {
  View view;
  const RegionLayout* const region = RegionFrom(slot, group, first);
  view.tail_begin = first / layout_.page_size * layout_.page_size;
  if (region != nullptr) {
    view.region.emplace(layout_, *region);
    view.tail_begin = region->cut();
  }
  const GroupTable& table = row(slot).groups[group];
  view.tail =
      std::span(table.blocks)
          .subspan((view.tail_begin - table.region.cut) / layout_.page_size,
                   CeilDiv(end - view.tail_begin, layout_.page_size));
  return view;
}

std::vector<BlockId> CanaryEngine::BlocksFrom(
    SequenceSlot slot, const std::vector<int32_t>& first) const {
  std::vector<BlockId> found;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const RegionLayout* const region = RegionFrom(slot, group, first[group]);
    if (region != nullptr) {
      found.insert(found.end(), region->blocks().begin(),
                   region->blocks().end());
    }
    // A start may not have any blocks yet.
    const GroupTable& table = row(slot).groups[group];
    const int32_t begin = std::max(0, first[group] - table.region.cut);
    for (int64_t i = begin / layout_.page_size; i < std::ssize(table.blocks);
         ++i) {
      if (table.blocks[i] != kNullBlock) found.push_back(table.blocks[i]);
    }
  }
  return found;
}

std::vector<BlockId> CanaryEngine::LiveBlocks(SequenceSlot slot) const {
  std::vector<int32_t> first;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    first.push_back(FirstAttended(group, contents_of(slot).length()));
  }
  return BlocksFrom(slot, first);
}

std::vector<BlockId> CanaryEngine::ReadBlocks(SequenceSlot slot) const {
  std::vector<int32_t> first;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    first.push_back(FirstRead(slot, group));
  }
  return BlocksFrom(slot, first);
}

std::vector<int32_t> CanaryEngine::CountHolders() const {
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  for (int32_t i = 0; i < std::ssize(contents_); ++i) {
    if (!is_open(SequenceSlot{i})) continue;
    for (const BlockId block : LiveBlocks(SequenceSlot{i})) {
      ++holders[Index(block)];
    }
  }
  return holders;
}

void CanaryEngine::Touch(SequenceSlot slot, StepId step) {
  const std::vector<BlockId> blocks = ReadBlocks(slot);
  touched_[step].insert(blocks.begin(), blocks.end());
}

bool CanaryEngine::IsDamaged(SequenceSlot slot) const {
  if (contents_of(slot).is_tainted) return true;
  if (lost_.empty()) return false;
  return std::ranges::any_of(ReadBlocks(slot), [this](BlockId block) {
    return lost_.contains(block);
  });
}

absl::Status CanaryEngine::CheckFresh(const Queued& queued,
                                      BlockId block) const {
  for (const StepId step : queued.in_flight) {
    if (touched_.at(step).contains(block)) {
      return Wrong("block ", Index(block), " is handed out by step ",
                   Index(queued.plan.id), " while step ", Index(step),
                   ", in flight, touches it");
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::CheckNewBlocks(const Queued& queued) {
  const StepPlan& plan = queued.plan;
  std::vector<int32_t> holders = CountHolders();
  // What sequences may yet start on is nobody else's, but for what it has in
  // windows: who starts behind those does not need that.
  for (const auto& [id, region] : regions_) {
    for (const BlockId block : region.blocks) ++holders[Index(block)];
  }
  absl::flat_hash_set<BlockId> given;
  const auto check = [&](SequenceSlot slot, BlockId block) {
    // The block may have left the window before it is read.
    const auto num_own = std::ranges::count(LiveBlocks(slot), block);
    if (!given.insert(block).second ||
        holders[Index(block)] > std::min<int64_t>(num_own, 1)) {
      return Wrong("new block ", Index(block), " is in a table already");
    }
    lost_.erase(block);
    return CheckFresh(queued, block);
  };
  for (const SequenceSlot slot : plan.slots) {
    const int32_t page_size = layout_.page_size;
    const int32_t end = CeilDiv(row(slot).num_computed, page_size);
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const GroupTable& table = row(slot).groups[group];
      const int32_t before = table.region.cut / page_size;
      const std::vector<BlockId>& blocks = table.blocks;
      if (before + std::ssize(blocks) != end) {
        return Wrong("slot ", Index(slot), ": ", blocks.size(),
                     " blocks of group ", group, " for pages ", before, " to ",
                     end);
      }
      // The content of those before is checked when they are read.
      for (int32_t page = CeilDiv(contents_of(slot).length(), page_size);
           page < end; ++page) {
        BM_RETURN_IF_ERROR(check(slot, blocks[page - before]));
      }
    }
  }
  for (const SequenceStart& start : plan.starts) {
    for (int32_t i = 0; i < start.num_transfers; ++i) {
      BM_RETURN_IF_ERROR(
          check(start.slot, plan.transfers_in[start.transfer_begin + i].block));
    }
  }
  for (const CopyOnWrite& copy : plan.copies) {
    BM_RETURN_IF_ERROR(check(copy.slot, copy.blocks.destination));
    const int32_t length = contents_of(copy.slot).length();
    if (copy.num_tokens == length % layout_.page_size) continue;
    return Wrong("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                 " tokens of its last block, and has ", length);
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::Start(const SequenceStart& start) {
  const SequenceSlot slot = start.slot;
  Contents source;
  if (start.source != kNoSequenceSlot) source = contents_of(start.source);
  Contents& contents = contents_of(slot);
  contents = Contents();
  contents.open = true;
  contents.incarnation = next_incarnation_++;
  contents.num_cached = start.num_cached_tokens;
  contents.positions.resize(layout_.num_groups());
  ExtendChain(slot);
  if (start.region != kNoRegion) {
    const Contents& past = regions_.at(start.region).contents;
    BM_RETURN_IF_ERROR(GoOn(past, past.length(), start));
  }
  if (source.open) {
    BM_RETURN_IF_ERROR(GoOn(source, start.num_cached_tokens, start));
  }
  if (start.swap != kNoSwap) {
    const Contents past = std::move(swaps_.extract(start.swap).mapped());
    if (start.region != kNoRegion && past.history != contents.history) {
      return Wrong("slot ", Index(slot), " starts on region ",
                   Index(start.region), " instead of the one of swap ",
                   Index(start.swap));
    }
    BM_RETURN_IF_ERROR(GoOn(past, start.num_cached_tokens, start));
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (row(slot).groups[group].region.cut > 0 &&
        RegionFrom(slot, group, 0) == nullptr) {
      return Wrong("slot ", Index(slot), " starts without a part of its region",
                   " of group ", group);
    }
  }
  // The rest of a hit was computed without any eviction but those.
  for (int32_t i = contents.length(); i < contents.num_cached; ++i) {
    contents.content.push_back(Extend(contents.chain[i], contents.history));
  }
  contents.steps.assign(contents.content.size(), StepId{0});
  return absl::OkStatus();
}

absl::Status CanaryEngine::GoOn(const Contents& past, int32_t length,
                                const SequenceStart& start) {
  Contents& contents = contents_of(start.slot);
  // Evictions after these tokens depend on what comes after them.
  const int32_t least =
      past.evictions.empty() ? 1 : past.evictions.back().length;
  if (length < least || past.chain[length - 1] != contents.chain[length - 1]) {
    return Wrong("slot ", Index(start.slot), " starts with ", length,
                 " other tokens than the ", past.length(),
                 " computed, or before the eviction at ", least);
  }
  contents.content.assign(past.content.begin(), past.content.begin() + length);
  contents.history = past.history;
  contents.evictions = past.evictions;
  contents.positions = past.positions;
  return absl::OkStatus();
}

absl::Status CanaryEngine::CopyOut(const Queued& queued, StepResult* result) {
  const StepPlan& plan = queued.plan;
  for (const SwapId swap : plan.dropped_swaps) swaps_.erase(swap);
  for (const SwapOut& out : plan.swap_outs) {
    swaps_[out.swap] = contents_of(out.slot);
  }
  for (const BlockTransfer& transfer : plan.transfers_out) {
    for (const StepId step : queued.in_flight) {
      if (!touched_host_[step].contains(transfer.host)) continue;
      return Wrong("host block ", Index(transfer.host),
                   " is handed out by step ", Index(plan.id), " while step ",
                   Index(step), ", in flight, touches it");
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

void CanaryEngine::CopyIn(const StepPlan& plan, StepResult* result) {
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
    const std::vector<SlotIndex> from = SlotsOf(source);
    const std::vector<SlotIndex> to = SlotsOf(destination);
    for (size_t i = 0; i < from.size(); ++i) {
      const auto offset = static_cast<int32_t>(i) % layout_.page_size;
      if (offset < copy.num_tokens) memory_[to[i]] = memory_[from[i]];
    }
    touched_[plan.id].insert(source);
    pass_on_loss(lost_.contains(source), destination);
  }
}

void CanaryEngine::CopyTags(const BlockTransfer& transfer, bool to_host) {
  std::vector<Tag>& host = host_memory_[Index(transfer.host)];
  const std::vector<SlotIndex> slots = SlotsOf(transfer.block);
  host.resize(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    (to_host ? host[i] : memory_[slots[i]]) =
        to_host ? memory_[slots[i]] : host[i];
  }
}

void CanaryEngine::LoseBlocks(const std::vector<BlockId>& blocks) {
  losses_.insert(losses_.end(), blocks.begin(), blocks.end());
}

void CanaryEngine::LoseHostBlocks(const std::vector<HostBlockId>& blocks) {
  host_losses_.insert(host_losses_.end(), blocks.begin(), blocks.end());
}

void CanaryEngine::CarryOutLosses(StepResult* result) {
  for (const BlockId block : std::exchange(losses_, {})) {
    result->lost_blocks.push_back(block);
    lost_.insert(block);
    for (const SlotIndex slot : SlotsOf(block)) memory_[slot] = Tag{};
  }
  for (const HostBlockId block : std::exchange(host_losses_, {})) {
    result->lost_host_blocks.push_back(block);
    lost_host_.insert(block);
    std::ranges::fill(host_memory_[Index(block)], Tag{});
  }
}

}  // namespace blockmgr
