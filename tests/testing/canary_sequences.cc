#include "tests/testing/canary_sequences.h"

#include <algorithm>
#include <utility>

#include "blockmgr/base/status_macros.h"
#include "tests/testing/canary_error.h"

namespace blockmgr {

void CanaryContents::Cut(int32_t length) {
  chain.resize(length);
  content.resize(length);
  steps.resize(length);
}

void CanarySequences::Clear() {
  std::ranges::fill(contents_, CanaryContents{});
  regions_.clear();
  swaps_.clear();
}

absl::Status CanarySequences::Apply(const StepPlan& plan) {
  for (const SwapId swap : plan.dropped_swaps) swaps_.erase(swap);
  for (const SwapOut& out : plan.swap_outs) {
    swaps_[out.swap] = contents(out.slot);
  }
  for (const SequenceSlot slot : plan.released) contents(slot) = {};
  for (const SequenceStart& start : plan.starts) {
    BM_RETURN_IF_ERROR(Start(start));
  }
  for (const RegionId region : plan.dropped_regions) regions_.erase(region);
  return absl::OkStatus();
}

void CanarySequences::ExtendChain(SequenceSlot slot) {
  std::vector<uint64_t>& chain = contents(slot).chain;
  const std::vector<int32_t>& tokens = row(slot).tokens;
  for (size_t i = chain.size(); i < tokens.size(); ++i) {
    chain.push_back(ExtendHash(i == 0 ? 0 : chain.back(), tokens[i]));
  }
}

absl::Status CanarySequences::Start(const SequenceStart& start) {
  const SequenceSlot slot = start.slot;
  CanaryContents source;
  if (start.source != kNoSequenceSlot) source = contents(start.source);
  CanaryContents& now = contents(slot);
  now = {};
  now.is_open = true;
  now.incarnation = next_incarnation_++;
  now.info = start.info;
  now.num_cached = start.num_cached_tokens;
  now.positions.resize(layout_.num_groups());
  ExtendChain(slot);
  if (start.region != kNoRegion) {
    const CanaryContents& past = regions_.at(start.region).contents;
    BM_RETURN_IF_ERROR(GoOn(past, past.length(), start));
  }
  if (source.is_open) {
    BM_RETURN_IF_ERROR(GoOn(source, start.num_cached_tokens, start));
  }
  if (start.swap != kNoSwap) {
    const CanaryContents past = std::move(swaps_.extract(start.swap).mapped());
    if (start.region != kNoRegion && past.history != now.history) {
      return CanaryError("slot ", Index(slot), " starts on region ",
                         Index(start.region), " instead of the one of swap ",
                         Index(start.swap));
    }
    BM_RETURN_IF_ERROR(GoOn(past, start.num_cached_tokens, start));
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (row(slot).groups[group].region.cut > 0 &&
        RegionFrom(slot, group, 0) == nullptr) {
      return CanaryError("slot ", Index(slot),
                         " starts without a part of its region of group ",
                         group);
    }
  }
  // The rest of a hit was computed without any eviction but those.
  now.steps.assign(now.content.size(), StepId{0});
  while (now.length() < now.num_cached) now.Compute(StepId{0});
  return absl::OkStatus();
}

absl::Status CanarySequences::GoOn(const CanaryContents& past, int32_t length,
                                   const SequenceStart& start) {
  CanaryContents& now = contents(start.slot);
  // Evictions after these tokens depend on what comes after them.
  const int32_t least =
      past.evictions.empty() ? 1 : past.evictions.back().length;
  if (length < least || past.chain[length - 1] != now.chain[length - 1]) {
    return CanaryError("slot ", Index(start.slot), " starts with ", length,
                       " other tokens than the ", past.length(),
                       " computed, or before the eviction at ", least);
  }
  now.content.assign(past.content.begin(), past.content.begin() + length);
  now.history = past.history;
  now.evictions = past.evictions;
  now.positions = past.positions;
  return absl::OkStatus();
}

void CanarySequences::Evict(const EvictionOrder& order,
                            std::span<const int32_t> ranks,
                            std::vector<int32_t> positions) {
  CanaryContents& now = contents(order.slot);
  now.positions[order.group] = std::move(positions);
  if (order.group == 0) {
    now.evictions.push_back({.length = order.length, .cut = order.cut});
  }
  now.history = ExtendHash(ExtendHash(now.history, order.length), order.cut);
  for (const int32_t rank : ranks) now.history = ExtendHash(now.history, rank);
  const RegionId name = tables_.KeptName(order.slot);
  if (name == kNoRegion) return;
  KeptRegion& kept = regions_[name];
  kept.contents = now;
  if (order.group == 0) {
    const auto blocks = RegionFrom(order.slot, 0, 0)->blocks();
    kept.blocks.assign(blocks.begin(), blocks.end());
  }
}

int32_t CanarySequences::FirstAttended(int32_t group, int32_t length) const {
  const int32_t window = layout_.window_of(group);
  return window == 0 ? 0 : std::max(0, length + 1 - window);
}

const RegionLayout* CanarySequences::RegionFrom(SequenceSlot slot,
                                                int32_t group,
                                                int32_t first) const {
  const RegionLayout* const region =
      row(slot).groups[group].region.layout.get();
  return region != nullptr && region->cut() > first ? region : nullptr;
}

CanaryView CanarySequences::ViewOf(SequenceSlot slot, int32_t group,
                                   int32_t first, int32_t end) const {
  CanaryView view;
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

CanaryView CanarySequences::ViewBelow(const EvictionOrder& order) const {
  return ViewOf(order.slot, order.group,
                FirstAttended(order.group, order.length), order.cut);
}

std::vector<BlockId> CanarySequences::BlocksFrom(SequenceSlot slot,
                                                 int32_t length) const {
  std::vector<BlockId> found;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t first = FirstAttended(group, length);
    const RegionLayout* const region = RegionFrom(slot, group, first);
    if (region != nullptr) {
      found.insert(found.end(), region->blocks().begin(),
                   region->blocks().end());
    }
    // A start may not have any blocks yet.
    const GroupTable& table = row(slot).groups[group];
    const int32_t begin = std::max(0, first - table.region.cut);
    for (int64_t i = begin / layout_.page_size; i < std::ssize(table.blocks);
         ++i) {
      if (table.blocks[i] != kNullBlock) found.push_back(table.blocks[i]);
    }
  }
  return found;
}

std::vector<int32_t> CanarySequences::CountHolders() const {
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  for (int32_t i = 0; i < std::ssize(contents_); ++i) {
    if (!contents_[i].is_open) continue;
    for (const BlockId block : LiveBlocks(SequenceSlot{i})) {
      ++holders[Index(block)];
    }
  }
  return holders;
}

std::vector<BlockId> CanarySequences::KeptBlocks() const {
  std::vector<BlockId> blocks;
  for (const auto& [id, region] : regions_) {
    blocks.insert(blocks.end(), region.blocks.begin(), region.blocks.end());
  }
  return blocks;
}

}  // namespace blockmgr
