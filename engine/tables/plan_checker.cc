#include "engine/tables/plan_checker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

absl::Status CheckArray(const char* field, size_t size, size_t expected) {
  if (size == expected) return absl::OkStatus();
  return Invalid("plan.", field, ": expected ", expected, " elements, got ",
                 size);
}

}  // namespace

absl::Status PlanChecker::Check() {
  ++notes_.num_plans;
  notes_.ended.clear();
  notes_.taken.clear();
  BM_RETURN_IF_ERROR(CheckShapes());
  BM_RETURN_IF_ERROR(CheckReleased());
  BM_RETURN_IF_ERROR(CheckDroppedSwaps());
  for (const SwapOut& out : plan_.swap_outs) {
    BM_RETURN_IF_ERROR(CheckSwapOut(out));
  }
  BM_RETURN_IF_ERROR(CheckStarts());
  BM_RETURN_IF_ERROR(CheckDroppedRegions());
  for (size_t run = 0; run < plan_.slots.size(); ++run) {
    BM_RETURN_IF_ERROR(CheckScheduled(run));
  }
  BM_RETURN_IF_ERROR(CheckCached());
  BM_RETURN_IF_ERROR(CheckCopies());
  return CheckPartsAreCopied();
}

absl::Status PlanChecker::CheckShapes() const {
  const size_t n = plan_.slots.size();
  BM_RETURN_IF_ERROR(CheckArray("positions", plan_.positions.size(), n));
  BM_RETURN_IF_ERROR(CheckArray("num_tokens", plan_.num_tokens.size(), n));
  BM_RETURN_IF_ERROR(CheckArray("samples", plan_.samples.size(), n));
  if (!plan_.num_drafts.empty()) {
    BM_RETURN_IF_ERROR(CheckArray("num_drafts", plan_.num_drafts.size(), n));
  }
  // A plan without sequences may leave the offsets out.
  if (n == 0 && plan_.block_offsets.empty()) {
    return CheckArray("blocks", plan_.blocks.size(), 0);
  }
  const size_t num_rows = n * static_cast<size_t>(layout_.num_groups());
  BM_RETURN_IF_ERROR(
      CheckArray("block_offsets", plan_.block_offsets.size(), num_rows + 1));
  if (plan_.block_offsets.front() != 0 ||
      plan_.block_offsets.back() != static_cast<int64_t>(plan_.blocks.size()) ||
      !std::is_sorted(plan_.block_offsets.begin(), plan_.block_offsets.end())) {
    return Invalid("plan.block_offsets: expected ascending offsets from 0 to ",
                   plan_.blocks.size());
  }
  for (const BlockId block : plan_.blocks) {
    // CheckNewBlocks says which blocks must be null in a group with a window.
    if (!state_.IsBlock(block) &&
        (!layout_.has_windows() || block != kNullBlock)) {
      return Invalid("plan.blocks: expected block ids in [1, ",
                     layout_.num_blocks, "), got ", Index(block));
    }
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckReleased() {
  for (const SequenceSlot slot : plan_.released) {
    BM_RETURN_IF_ERROR(state_.CheckSlot("plan.released", slot));
    PlanNotes::Slot& notes = notes_.Of(slot);
    if (!state_.IsInUse(slot) || notes.released) {
      return Invalid("plan.released: slot ", Index(slot), " is not in use");
    }
    notes.released = true;
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckDroppedRegions() const {
  absl::flat_hash_set<RegionId> seen;
  for (const RegionId region : plan_.dropped_regions) {
    if (!state_.regions.contains(region) || !seen.insert(region).second) {
      return Invalid("plan.dropped_regions: expected regions that are kept, ",
                     "each once, got ", Index(region));
    }
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckScheduled(size_t run) {
  const SequenceSlot slot = plan_.slots[run];
  BM_RETURN_IF_ERROR(state_.CheckSlot("plan.slots", slot));
  const auto fail = [&](const auto&... parts) {
    return InvalidSlot("plan", slot, parts...);
  };
  PlanNotes::Slot& notes = notes_.Of(slot);
  if (notes.scheduled) return fail("scheduled twice");
  notes.scheduled = true;
  notes.run = run;
  int64_t known = 0;
  int64_t computed = 0;
  size_t num_ready = 0;
  const SequenceStart* start = nullptr;
  if (notes.start >= 0) {
    start = &plan_.starts[static_cast<size_t>(notes.start)];
    known = start->num_tokens;
    computed = start->num_cached_tokens;
  } else if (state_.IsInUse(slot) && !notes.released) {
    const SequenceTable& table = state_.row(slot);
    known = static_cast<int64_t>(table.tokens.size());
    computed = table.num_computed;
    num_ready = table.drafts.size();
  } else {
    return fail("scheduled, but not in use");
  }
  if (!plan_.num_drafts.empty()) {
    BM_RETURN_IF_ERROR(CheckDrafts(run, num_ready));
    known += plan_.num_drafts[run];
  }
  const int64_t end = int64_t{plan_.positions[run]} + plan_.num_tokens[run];
  if (plan_.positions[run] != computed) {
    return fail("expected position ", computed, ", got ", plan_.positions[run]);
  }
  if (plan_.num_tokens[run] < 1 || end > known) {
    return fail("expected 1..", known - computed, " tokens, got ",
                plan_.num_tokens[run]);
  }
  if (plan_.samples[run] != 0 && end != known) {
    return fail("samples after position ", end, ", but ", known,
                " tokens are known");
  }
  // Most runs of a decode step get no blocks, because their last blocks have
  // room.
  const size_t num_groups = static_cast<size_t>(layout_.num_groups());
  if (start == nullptr && plan_.block_offsets[run * num_groups] ==
                              plan_.block_offsets[(run + 1) * num_groups]) {
    const GroupTable& group = state_.row(slot).groups.front();
    const int64_t num_blocks = std::ssize(group.blocks);
    if (end <= group.region.cut + num_blocks * layout_.page_size) {
      return absl::OkStatus();
    }
  }
  return CheckNewBlocks(run, start, end);
}

absl::Status PlanChecker::CheckDrafts(size_t run, size_t num_ready) const {
  const int32_t num_drafts = plan_.num_drafts[run];
  if (num_drafts == 0) return absl::OkStatus();
  if (num_drafts < 0 || num_drafts > static_cast<int64_t>(num_ready)) {
    return InvalidSlot("plan.num_drafts", plan_.slots[run], "expected 0..",
                       num_ready, ", got ", num_drafts);
  }
  if (plan_.samples[run] == 0) {
    return InvalidSlot("plan.num_drafts", plan_.slots[run],
                       "expected 0, as it does not sample, got ", num_drafts);
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckNewBlocks(size_t run, const SequenceStart* start,
                                         int64_t end) const {
  const int64_t page_size = layout_.page_size;
  // The end of the blocks in the groups before.
  std::optional<int64_t> reached;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const auto fail = [&](const auto&... parts) {
      return Invalid("plan.blocks of slot ", Index(plan_.slots[run]),
                     ", group ", group, ": ", parts...);
    };
    const std::span<const BlockId> blocks =
        plan_.NewBlocks(layout_, run, group);
    int64_t begin = NewBegin(run, start, group);
    const int64_t behind = begin + std::ssize(blocks) * page_size;
    if (end > behind) {
      return fail("expected blocks for positions below ", end,
                  ", got blocks for positions below ", behind);
    }
    if (behind != reached.value_or(behind)) {
      return fail("expected blocks for positions below ", *reached,
                  ", as in group 0, got blocks for positions below ", behind);
    }
    reached = behind;
    const int64_t first =
        start == nullptr
            ? 0
            : layout_.FirstPage(group, start->num_cached_tokens) * page_size;
    for (const BlockId block : blocks) {
      const bool is_left_out = begin < first;
      if ((block == kNullBlock) != is_left_out) {
        return fail("expected ", is_left_out ? "no block" : "a block",
                    " for page ", begin / page_size, ", got ", Index(block));
      }
      begin += page_size;
    }
  }
  return absl::OkStatus();
}

int64_t PlanChecker::NewBegin(size_t run, const SequenceStart* start,
                              int32_t group) const {
  const int64_t page_size = layout_.page_size;
  if (start == nullptr) {
    const GroupTable& table = state_.group_of(plan_.slots[run], group);
    return table.region.cut + std::ssize(table.blocks) * page_size;
  }
  if (start->source != kNoSequenceSlot) {
    return CeilDiv<int64_t>(start->num_cached_tokens, page_size) * page_size;
  }
  const TableRegion* const region = state_.TakenRegion(*start, group);
  return region == nullptr ? 0 : region->cut;
}

}  // namespace blockmgr
