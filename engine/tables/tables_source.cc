// Sequences that start on the tables of others or on parts of cached blocks,
// and the copies that this takes.

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "engine/tables/tables.h"

namespace blockmgr {
namespace {

template <typename... Parts>
absl::Status Refused(const char* field, SequenceSlot slot,
                     const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " of slot ", Index(slot), ": ", parts...));
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
  if (num_cached < std::max(source.cut, 1) ||
      num_cached > source.num_computed) {
    return fail("expected num_cached_tokens in [", std::max(source.cut, 1),
                ", ", source.num_computed, "] (of its source), got ",
                num_cached);
  }
  if (!std::equal(source.tokens.begin(), source.tokens.begin() + num_cached,
                  plan.start_tokens.begin() + start.token_begin)) {
    return fail("expected the first ", num_cached,
                " tokens to be those of its source, slot ",
                Index(start.source));
  }
  return CheckSourceWindows(start);
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
    const SequenceTable* table = nullptr;
    int64_t num_blocks = 0;
    if (pending.start < 0) {
      table = &row(copy.slot);
      num_blocks = std::ssize(table->tail_blocks);
    } else {
      const SequenceStart& start =
          plan.starts[static_cast<size_t>(pending.start)];
      if (start.source == kNoSequenceSlot) {
        BM_RETURN_IF_ERROR(CheckPart(plan, start, copy));
        continue;
      }
      table = &row(start.source);
      num_blocks = SourceBlocks(start);
    }
    if (num_blocks == 0) return fail("expected a tail, got none");
    const BlockId last = LastBlock(*table, copy.group, num_blocks);
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
  // That the run has blocks for all its tokens has been checked.
  const int64_t cut =
      start.region == kNoRegion ? 0 : regions_.at(start.region).region.cut;
  const int64_t place = plan.block_offsets[PendingOf(copy.slot).run] +
                        (start.num_cached_tokens - cut) / layout_.page_size;
  const BlockId own = plan.blocks[static_cast<size_t>(place)];
  if (copy.blocks.destination == own) return absl::OkStatus();
  return fail("expected its block ", Index(own), " as destination, got ",
              Index(copy.blocks.destination));
}

}  // namespace blockmgr
