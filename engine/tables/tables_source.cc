// Sequences that start on the tables of others or on parts of cached blocks,
// and the copies that this takes.

#include <algorithm>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/tables/tables.h"

namespace blockmgr {
namespace {

template <typename... Parts>
absl::Status Refused(const char* field, SequenceSlot slot,
                     const Parts&... parts) {
  return Invalid(field, " of slot ", Index(slot), ": ", parts...);
}

}  // namespace

absl::Status EngineTables::CheckSource(const StepPlan& plan,
                                       const SequenceStart& start) {
  const auto fail = [&](const auto&... parts) {
    return Refused("plan.starts", start.slot, parts...);
  };
  BM_RETURN_IF_ERROR(CheckSlot("plan.starts.source", start.source));
  const Pending pending = PendingOf(start.source);
  if (!InUse(start.source) || pending.released || pending.start >= 0 ||
      start.region != kNoRegion) {
    return fail("expected a source that goes on, and no region, got slot ",
                Index(start.source), " and region ", Index(start.region));
  }
  const SequenceTable& source = row(start.source);
  const int32_t num_cached = start.num_cached_tokens;
  if (num_cached < 1 || num_cached > source.num_computed) {
    return fail("expected num_cached_tokens in [1, ", source.num_computed,
                "] (of its source), got ", num_cached);
  }
  if (!std::equal(source.tokens.begin(), source.tokens.begin() + num_cached,
                  plan.start_tokens.begin() + start.token_begin)) {
    return fail("expected the first ", num_cached,
                " tokens to be those of its source, slot ",
                Index(start.source));
  }
  return CheckSourceGroups(start);
}

absl::Status EngineTables::CheckSourceGroups(const SequenceStart& start) const {
  const int32_t num_tokens = start.num_cached_tokens;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupTable& table = group_of(start.source, group);
    const TableRegion& region = table.region;
    // A source may have gone on by one token: what counts is what the next
    // token attends to.
    const int32_t least = LeastTokens(region, group);
    if (num_tokens < least && IsAttended(region, group, num_tokens + 1)) {
      return Refused("plan.starts", start.slot, "expected at least the ", least,
                     " tokens of the region of group ", group, " in slot ",
                     Index(start.source), ", got ", num_tokens);
    }
    const int32_t begin = region.cut / layout_.page_size;
    const int32_t end = CeilDiv(num_tokens, layout_.page_size);
    for (int32_t page =
             std::max(layout_.FirstPage(group, num_tokens + 1), begin);
         page < end; ++page) {
      if (table.blocks[static_cast<size_t>(page - begin)] != kNullBlock) {
        continue;
      }
      return Refused("plan.starts", start.slot,
                     "expected a source that has what ", num_tokens,
                     " tokens need, got slot ", Index(start.source),
                     " without page ", page, " of group ", group);
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckCopies(const StepPlan& plan) {
  for (const CopyOnWrite& copy : plan.copies) {
    BM_RETURN_IF_ERROR(CheckSlot("plan.copies.slot", copy.slot));
    const auto fail = [&](const auto&... parts) {
      return Refused("plan.copies", copy.slot, parts...);
    };
    Pending& pending = PendingOf(copy.slot);
    if (!pending.scheduled || copy.group != pending.num_copied ||
        copy.group >= layout_.num_groups()) {
      return fail("expected a scheduled slot, once for each of ",
                  layout_.num_groups(), " layer groups, in order, got group ",
                  copy.group);
    }
    ++pending.num_copied;
    if (!IsBlock(copy.blocks.destination)) {
      return fail("expected a destination in [1, ", layout_.num_blocks,
                  "), got ", Index(copy.blocks.destination));
    }
    if (copy.num_tokens < 1 || copy.num_tokens > layout_.page_size) {
      return fail("expected num_tokens in [1, ", layout_.page_size, "], got ",
                  copy.num_tokens);
    }
    // The blocks that the slot's tokens are in.
    std::span<const BlockId> blocks;
    if (pending.start < 0) {
      blocks = group_of(copy.slot, copy.group).blocks;
    } else {
      const SequenceStart& start =
          plan.starts[static_cast<size_t>(pending.start)];
      if (start.source == kNoSequenceSlot) {
        BM_RETURN_IF_ERROR(CheckPart(plan, start, copy));
        continue;
      }
      const GroupTable& source = group_of(start.source, copy.group);
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
  for (const CopyOnWrite& copy : plan.copies) {
    const int32_t num_copied = PendingOf(copy.slot).num_copied;
    if (num_copied == layout_.num_groups()) continue;
    return Refused("plan.copies", copy.slot, "expected a copy for each of ",
                   layout_.num_groups(), " layer groups, got ", num_copied);
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckPart(const StepPlan& plan,
                                     const SequenceStart& start,
                                     const CopyOnWrite& copy) {
  const auto fail = [&](const auto&... parts) {
    return Refused("plan.copies", copy.slot, parts...);
  };
  if (!IsPartlyCached(start) || layout_.has_windows()) {
    return fail("expected a tail, got none");
  }
  if (!IsBlock(copy.blocks.source)) {
    return fail("expected a source in [1, ", layout_.num_blocks, "), got ",
                Index(copy.blocks.source));
  }
  // An earlier check has made sure that the run has blocks for all its tokens.
  const TableRegion* const region = TakenRegion(start, copy.group);
  const int32_t cut = region == nullptr ? 0 : region->cut;
  const BlockId own = plan.NewBlocks(layout_, PendingOf(copy.slot).run,
                                     copy.group)[static_cast<size_t>(
      (start.num_cached_tokens - cut) / layout_.page_size)];
  if (copy.blocks.destination == own) return absl::OkStatus();
  return fail("expected its block ", Index(own), " as destination, got ",
              Index(copy.blocks.destination));
}

}  // namespace blockmgr
