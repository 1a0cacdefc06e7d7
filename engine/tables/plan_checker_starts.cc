// PlanChecker: copies, and starts of sequences on other sequences or on cached
// blocks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "engine/tables/plan_checker.h"
#include "engine/tables/slice.h"

namespace blockmgr {

absl::Status PlanChecker::CheckStarts() {
  for (size_t i = 0; i < plan_.starts.size(); ++i) {
    const SequenceStart& start = plan_.starts[i];
    BM_RETURN_IF_ERROR(state_.CheckSlot("plan.starts.slot", start.slot));
    PlanNotes::Slot& notes = notes_.Of(start.slot);
    const bool is_taken = state_.IsInUse(start.slot) && !notes.released;
    if ((is_taken && start.source != start.slot) || notes.start >= 0) {
      return InvalidSlot("plan.starts", start.slot,
                         "expected a free slot, got one in use");
    }
    BM_RETURN_IF_ERROR(CheckStart(start));
    if (start.source != kNoSequenceSlot) {
      BM_RETURN_IF_ERROR(CheckSource(start));
    }
    if (start.swap != kNoSwap) BM_RETURN_IF_ERROR(CheckSwapIn(start));
    notes_.Of(start.slot).start = static_cast<int32_t>(i);
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckStart(const SequenceStart& start) const {
  const auto fail = [&](const auto&... parts) {
    return InvalidSlot("plan.starts", start.slot, parts...);
  };
  const auto tokens =
      Slice(plan_.start_tokens, start.token_begin, start.num_tokens);
  if (!tokens.has_value() || tokens->empty()) {
    return fail("expected at least one token out of start_tokens (",
                plan_.start_tokens.size(), "), got [", start.token_begin, ", +",
                start.num_tokens, ")");
  }
  for (const int32_t token : *tokens) {
    if (token < 0) return fail("expected no negative token, got ", token);
  }
  if (start.num_cached_tokens < 0 ||
      start.num_cached_tokens >= start.num_tokens) {
    return fail("expected num_cached_tokens to be at least 0 and below ",
                start.num_tokens, ", got ", start.num_cached_tokens);
  }
  if (start.query_window < 0) {
    return fail("expected query_window >= 0, got ", start.query_window);
  }
  if (start.region == kNoRegion) return absl::OkStatus();
  const auto region = state_.regions.find(start.region);
  if (region == state_.regions.end()) {
    return fail("expected a region that is kept, got ", Index(start.region));
  }
  const int32_t least = region->second.front().length;
  if (start.num_cached_tokens < least) {
    return fail("expected num_cached_tokens to be at least ", least,
                " (of the sequence that made region ", Index(start.region),
                "), got ", start.num_cached_tokens);
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckSource(const SequenceStart& start) {
  const auto fail = [&](const auto&... parts) {
    return InvalidSlot("plan.starts", start.slot, parts...);
  };
  BM_RETURN_IF_ERROR(state_.CheckSlot("plan.starts.source", start.source));
  const PlanNotes::Slot notes = notes_.Of(start.source);
  if (!state_.IsInUse(start.source) || notes.released || notes.start >= 0 ||
      start.region != kNoRegion) {
    return fail("expected a source that goes on, and no region, got slot ",
                Index(start.source), " and region ", Index(start.region));
  }
  const SequenceTable& source = state_.row(start.source);
  const int32_t num_cached = start.num_cached_tokens;
  if (num_cached < 1 || num_cached > source.num_computed) {
    return fail("expected num_cached_tokens in [1, ", source.num_computed,
                "] (of its source), got ", num_cached);
  }
  if (!std::equal(source.tokens.begin(), source.tokens.begin() + num_cached,
                  plan_.start_tokens.begin() + start.token_begin)) {
    return fail("expected the first ", num_cached,
                " tokens to be those of its source, slot ",
                Index(start.source));
  }
  return CheckSourceGroups(start);
}

absl::Status PlanChecker::CheckSourceGroups(const SequenceStart& start) const {
  const int32_t num_tokens = start.num_cached_tokens;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupTable& table = state_.group_of(start.source, group);
    const TableRegion& region = table.region;
    // The source may have gone on by one token. So the check is about the pages
    // that the next token attends to.
    const int32_t least = state_.LeastTokens(region, group);
    if (num_tokens < least &&
        state_.IsAttended(region, group, num_tokens + 1)) {
      return InvalidSlot("plan.starts", start.slot, "expected at least the ",
                         least, " tokens of the region of group ", group,
                         " in slot ", Index(start.source), ", got ",
                         num_tokens);
    }
    const int32_t begin = region.cut / layout_.page_size;
    const int32_t end = CeilDiv(num_tokens, layout_.page_size);
    for (int32_t page =
             std::max(layout_.FirstPage(group, num_tokens + 1), begin);
         page < end; ++page) {
      if (table.blocks[static_cast<size_t>(page - begin)] != kNullBlock) {
        continue;
      }
      return InvalidSlot("plan.starts", start.slot,
                         "expected a source that has what ", num_tokens,
                         " tokens need, got slot ", Index(start.source),
                         " without page ", page, " of group ", group);
    }
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckCached() {
  for (const SequenceStart& start : plan_.starts) {
    // Cached tokens have their blocks among this step's new blocks.
    if (start.num_cached_tokens > 0 && start.source == kNoSequenceSlot &&
        !notes_.Of(start.slot).scheduled) {
      return InvalidSlot("plan.starts", start.slot, start.num_cached_tokens,
                         " cached tokens, but no blocks");
    }
    if (start.swap != kNoSwap) BM_RETURN_IF_ERROR(CheckPagesIn(start));
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckCopies() {
  for (const CopyOnWrite& copy : plan_.copies) {
    BM_RETURN_IF_ERROR(state_.CheckSlot("plan.copies.slot", copy.slot));
    const auto fail = [&](const auto&... parts) {
      return InvalidSlot("plan.copies", copy.slot, parts...);
    };
    PlanNotes::Slot& notes = notes_.Of(copy.slot);
    if (!notes.scheduled || copy.group != notes.num_copied ||
        copy.group >= layout_.num_groups()) {
      return fail("expected a scheduled slot, once for each of ",
                  layout_.num_groups(), " layer groups, in order, got group ",
                  copy.group);
    }
    ++notes.num_copied;
    if (!state_.IsBlock(copy.blocks.destination)) {
      return fail("expected a destination in [1, ", layout_.num_blocks,
                  "), got ", Index(copy.blocks.destination));
    }
    if (copy.num_tokens < 1 || copy.num_tokens > layout_.page_size) {
      return fail("expected num_tokens in [1, ", layout_.page_size, "], got ",
                  copy.num_tokens);
    }
    // The blocks that hold the slot's tokens.
    std::span<const BlockId> blocks;
    if (notes.start < 0) {
      blocks = state_.group_of(copy.slot, copy.group).blocks;
    } else {
      const SequenceStart& start =
          plan_.starts[static_cast<size_t>(notes.start)];
      if (start.source == kNoSequenceSlot) {
        BM_RETURN_IF_ERROR(CheckPart(start, copy));
        continue;
      }
      const GroupTable& source = state_.group_of(start.source, copy.group);
      blocks = std::span(source.blocks)
                   .first(static_cast<size_t>(
                       CeilDiv(start.num_cached_tokens - source.region.cut,
                               layout_.page_size)));
    }
    if (blocks.empty()) return fail("expected a tail, got none");
    const BlockId last = blocks.back();
    if (copy.blocks.source != last) {
      return fail("expected its last block ", Index(last), " as source, got ",
                  Index(copy.blocks.source));
    }
  }
  for (const CopyOnWrite& copy : plan_.copies) {
    const int32_t num_copied = notes_.Of(copy.slot).num_copied;
    if (num_copied == layout_.num_groups()) continue;
    return InvalidSlot("plan.copies", copy.slot, "expected a copy for each of ",
                       layout_.num_groups(), " layer groups, got ", num_copied);
  }
  return absl::OkStatus();
}

absl::Status PlanChecker::CheckPart(const SequenceStart& start,
                                    const CopyOnWrite& copy) {
  const auto fail = [&](const auto&... parts) {
    return InvalidSlot("plan.copies", copy.slot, parts...);
  };
  if (!IsPartlyCached(start) || layout_.has_windows()) {
    return fail("expected a tail, got none");
  }
  if (!state_.IsBlock(copy.blocks.source)) {
    return fail("expected a source in [1, ", layout_.num_blocks, "), got ",
                Index(copy.blocks.source));
  }
  // An earlier check has made sure that the run has blocks for all its tokens.
  const TableRegion* const region = state_.TakenRegion(start, copy.group);
  const int32_t cut = region == nullptr ? 0 : region->cut;
  const BlockId own = plan_.NewBlocks(layout_, notes_.Of(copy.slot).run,
                                      copy.group)[static_cast<size_t>(
      (start.num_cached_tokens - cut) / layout_.page_size)];
  if (copy.blocks.destination == own) return absl::OkStatus();
  return fail("expected its block ", Index(own), " as destination, got ",
              Index(copy.blocks.destination));
}

absl::Status PlanChecker::CheckPartsAreCopied() {
  for (const SequenceStart& start : plan_.starts) {
    if (IsPartlyCached(start) && notes_.Of(start.slot).num_copied == 0) {
      return InvalidSlot("plan.starts", start.slot,
                         "expected num_cached_tokens to be a multiple of ",
                         layout_.page_size, " or a copy, got ",
                         start.num_cached_tokens, " and none");
    }
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
