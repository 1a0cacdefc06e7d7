#include "engine/tables/tables.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

bool IsSlice(int64_t begin, int64_t count, size_t size) {
  return begin >= 0 && count >= 0 && begin <= static_cast<int64_t>(size) &&
         count <= static_cast<int64_t>(size) - begin;
}

absl::Status CheckArray(const char* field, size_t size, size_t expected) {
  if (size == expected) return absl::OkStatus();
  return Invalid("plan.", field, ": expected ", expected, " elements, got ",
                 size);
}

}  // namespace

EngineTables::EngineTables(const ModelLayout& layout, int32_t max_sequences,
                           int32_t num_host_blocks)
    : layout_(layout),
      max_sequences_(max_sequences),
      host_blocks_(static_cast<size_t>(num_host_blocks)) {}

absl::Status EngineTables::Apply(const StepPlan& plan) {
  ++num_plans_;
  BM_RETURN_IF_ERROR(CheckShapes(plan));
  for (const SequenceSlot slot : plan.released) {
    BM_RETURN_IF_ERROR(CheckSlot("plan.released", slot));
    Pending& pending = PendingOf(slot);
    if (!InUse(slot) || pending.released) {
      return Invalid("plan.released: slot ", Index(slot), " is not in use");
    }
    pending.released = true;
  }
  BM_RETURN_IF_ERROR(CheckDroppedSwaps(plan));
  for (const SwapOut& out : plan.swap_outs) {
    BM_RETURN_IF_ERROR(CheckSwapOut(plan, out));
  }
  BM_RETURN_IF_ERROR(CheckStarts(plan));
  BM_RETURN_IF_ERROR(CheckDropped(plan));
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    BM_RETURN_IF_ERROR(CheckScheduled(plan, i));
  }
  for (const SequenceStart& start : plan.starts) {
    // Cached tokens have their blocks among this step's new blocks.
    if (start.num_cached_tokens > 0 && start.source == kNoSequenceSlot &&
        !PendingOf(start.slot).scheduled) {
      return Invalid("plan.starts of slot ", Index(start.slot), ": ",
                     start.num_cached_tokens, " cached tokens, but no blocks");
    }
    if (start.swap != kNoSwap) {
      BM_RETURN_IF_ERROR(CheckPagesIn(plan, start));
    }
  }
  BM_RETURN_IF_ERROR(CheckCopies(plan));
  for (const SequenceStart& start : plan.starts) {
    if (IsPartlyCached(start) && PendingOf(start.slot).num_copied == 0) {
      return Invalid("plan.starts of slot ", Index(start.slot),
                     ": expected num_cached_tokens to be a multiple of ",
                     layout_.page_size, " or a copy, got ",
                     start.num_cached_tokens, " and none");
    }
  }

  ++num_steps_;
  for (const SwapId swap : plan.dropped_swaps) swapped_.erase(swap);
  for (const SwapOut& out : plan.swap_outs) Leave(plan, out);
  for (const SequenceSlot slot : plan.released) Release(slot);
  for (const SequenceStart& start : plan.starts) Start(plan, start);
  for (const RegionId region : plan.dropped_regions) regions_.erase(region);
  for (const CopyOnWrite& copy : plan.copies) {
    // A start on cached blocks has an empty table: its run brings the block.
    std::vector<BlockId>& blocks = group_of(copy.slot, copy.group).blocks;
    if (!blocks.empty()) blocks.back() = copy.blocks.destination;
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) Run(plan, i);
  return absl::OkStatus();
}

void EngineTables::Run(const StepPlan& plan, size_t i) {
  SequenceTable& table = table_of(plan.slots[i]);
  const size_t num_groups = table.groups.size();
  const bool has_windows = layout_.has_windows();
  for (size_t g = 0; g < num_groups; ++g) {
    GroupTable& group = table.groups[g];
    if (has_windows && group.region.cut > 0) {
      group.region_is_past = !IsAttended(group.region, static_cast<int32_t>(g),
                                         table.num_computed + 1);
    }
    const int64_t begin = plan.block_offsets[i * num_groups + g];
    const int64_t end = plan.block_offsets[i * num_groups + g + 1];
    if (begin == end) continue;
    group.blocks.insert(group.blocks.end(), plan.blocks.begin() + begin,
                        plan.blocks.begin() + end);
  }
  table.num_computed += plan.num_tokens[i];
  if (!plan.num_drafts.empty()) {
    table.tokens.insert(table.tokens.end(), table.drafts.begin(),
                        table.drafts.begin() + plan.num_drafts[i]);
  }
  table.drafts.clear();
}

void EngineTables::AddSampled(SequenceSlot slot, int32_t token) {
  SequenceTable& table = table_of(slot);
  BM_CHECK(table.in_use);
  BM_CHECK(table.num_computed == static_cast<int64_t>(table.tokens.size()));
  table.tokens.push_back(token);
}

void EngineTables::RejectDrafts(SequenceSlot slot, int32_t num_drafts,
                                int32_t num_accepted) {
  SequenceTable& table = table_of(slot);
  BM_CHECK(num_accepted >= 0);
  BM_CHECK(num_accepted <= num_drafts);
  table.num_computed -= num_drafts - num_accepted;
  table.tokens.resize(static_cast<size_t>(table.num_computed));
  CutBlocks(table.num_computed, &table);
}

void EngineTables::SetDrafts(SequenceSlot slot,
                             std::span<const int32_t> drafts) {
  SequenceTable& table = table_of(slot);
  BM_CHECK(table.in_use);
  table.drafts.assign(drafts.begin(), drafts.end());
}

void EngineTables::Reset() {
  rows_.clear();
  pending_.clear();
  committed_.clear();
  regions_.clear();
  swapped_.clear();
  std::ranges::fill(host_blocks_, HostBlock{});
}

absl::Status EngineTables::CheckSlot(const char* field,
                                     SequenceSlot slot) const {
  if (Index(slot) >= 0 && Index(slot) < max_sequences_) {
    return absl::OkStatus();
  }
  return Invalid(field, ": expected a slot in [0, ", max_sequences_, "), got ",
                 Index(slot));
}

absl::Status EngineTables::CheckShapes(const StepPlan& plan) const {
  const size_t n = plan.slots.size();
  BM_RETURN_IF_ERROR(CheckArray("positions", plan.positions.size(), n));
  BM_RETURN_IF_ERROR(CheckArray("num_tokens", plan.num_tokens.size(), n));
  BM_RETURN_IF_ERROR(CheckArray("samples", plan.samples.size(), n));
  if (!plan.num_drafts.empty()) {
    BM_RETURN_IF_ERROR(CheckArray("num_drafts", plan.num_drafts.size(), n));
  }
  // A plan without sequences may leave the offsets out.
  if (n == 0 && plan.block_offsets.empty()) {
    return CheckArray("blocks", plan.blocks.size(), 0);
  }
  const size_t num_rows = n * static_cast<size_t>(layout_.num_groups());
  BM_RETURN_IF_ERROR(
      CheckArray("block_offsets", plan.block_offsets.size(), num_rows + 1));
  if (plan.block_offsets.front() != 0 ||
      plan.block_offsets.back() != static_cast<int64_t>(plan.blocks.size()) ||
      !std::is_sorted(plan.block_offsets.begin(), plan.block_offsets.end())) {
    return Invalid("plan.block_offsets: expected ascending offsets from 0 to ",
                   plan.blocks.size());
  }
  for (const BlockId block : plan.blocks) {
    // CheckNewBlocks says which blocks must be null in a group with a window.
    if (!IsBlock(block) && (!layout_.has_windows() || block != kNullBlock)) {
      return Invalid("plan.blocks: expected block ids in [1, ",
                     layout_.num_blocks, "), got ", Index(block));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckStarts(const StepPlan& plan) {
  for (size_t i = 0; i < plan.starts.size(); ++i) {
    const SequenceStart& start = plan.starts[i];
    BM_RETURN_IF_ERROR(CheckSlot("plan.starts.slot", start.slot));
    Pending& pending = PendingOf(start.slot);
    const bool is_taken = InUse(start.slot) && !pending.released;
    if ((is_taken && start.source != start.slot) || pending.start >= 0) {
      return Invalid("plan.starts of slot ", Index(start.slot),
                     ": expected a free slot, got one in use");
    }
    BM_RETURN_IF_ERROR(CheckStart(plan, start));
    if (start.source != kNoSequenceSlot) {
      BM_RETURN_IF_ERROR(CheckSource(plan, start));
    }
    if (start.swap != kNoSwap) BM_RETURN_IF_ERROR(CheckSwapIn(plan, start));
    PendingOf(start.slot).start = static_cast<int32_t>(i);
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckStart(const StepPlan& plan,
                                      const SequenceStart& start) const {
  const auto fail = [&](const auto&... parts) {
    return Invalid("plan.starts of slot ", Index(start.slot), ": ", parts...);
  };
  if (start.num_tokens < 1 ||
      !IsSlice(start.token_begin, start.num_tokens, plan.start_tokens.size())) {
    return fail("expected at least one token out of start_tokens (",
                plan.start_tokens.size(), "), got [", start.token_begin, ", +",
                start.num_tokens, ")");
  }
  for (const int32_t token :
       std::span(plan.start_tokens)
           .subspan(static_cast<size_t>(start.token_begin),
                    static_cast<size_t>(start.num_tokens))) {
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
  const auto region = regions_.find(start.region);
  if (region == regions_.end()) {
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

absl::Status EngineTables::CheckDropped(const StepPlan& plan) const {
  absl::flat_hash_set<RegionId> seen;
  for (const RegionId region : plan.dropped_regions) {
    if (!regions_.contains(region) || !seen.insert(region).second) {
      return Invalid("plan.dropped_regions: expected regions that are kept, ",
                     "each once, got ", Index(region));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckScheduled(const StepPlan& plan, size_t i) {
  const SequenceSlot slot = plan.slots[i];
  BM_RETURN_IF_ERROR(CheckSlot("plan.slots", slot));
  const auto fail = [&](const auto&... parts) {
    return Invalid("plan of slot ", Index(slot), ": ", parts...);
  };
  Pending& pending = PendingOf(slot);
  if (pending.scheduled) return fail("scheduled twice");
  pending.scheduled = true;
  pending.run = i;
  int64_t known = 0;
  int64_t computed = 0;
  size_t num_ready = 0;
  const SequenceStart* start = nullptr;
  if (pending.start >= 0) {
    start = &plan.starts[static_cast<size_t>(pending.start)];
    known = start->num_tokens;
    computed = start->num_cached_tokens;
  } else if (InUse(slot) && !pending.released) {
    const SequenceTable& table = row(slot);
    known = static_cast<int64_t>(table.tokens.size());
    computed = table.num_computed;
    num_ready = table.drafts.size();
  } else {
    return fail("scheduled, but not in use");
  }
  if (!plan.num_drafts.empty()) {
    BM_RETURN_IF_ERROR(CheckDrafts(plan, i, num_ready));
    known += plan.num_drafts[i];
  }
  const int64_t end = int64_t{plan.positions[i]} + plan.num_tokens[i];
  if (plan.positions[i] != computed) {
    return fail("expected position ", computed, ", got ", plan.positions[i]);
  }
  if (plan.num_tokens[i] < 1 || end > known) {
    return fail("expected 1..", known - computed, " tokens, got ",
                plan.num_tokens[i]);
  }
  if (plan.samples[i] != 0 && end != known) {
    return fail("samples after position ", end, ", but ", known,
                " tokens are known");
  }
  // Most runs of a decode step get no blocks, and have room in those they have.
  const size_t num_groups = static_cast<size_t>(layout_.num_groups());
  if (start == nullptr && plan.block_offsets[i * num_groups] ==
                              plan.block_offsets[(i + 1) * num_groups]) {
    const GroupTable& group = row(slot).groups.front();
    const int64_t num_blocks = std::ssize(group.blocks);
    if (end <= group.region.cut + num_blocks * layout_.page_size) {
      return absl::OkStatus();
    }
  }
  return CheckNewBlocks(plan, i, start, end);
}

absl::Status EngineTables::CheckDrafts(const StepPlan& plan, size_t i,
                                       size_t num_ready) const {
  const int32_t num_drafts = plan.num_drafts[i];
  if (num_drafts == 0) return absl::OkStatus();
  if (num_drafts < 0 || num_drafts > static_cast<int64_t>(num_ready)) {
    return Invalid("plan.num_drafts of slot ", Index(plan.slots[i]),
                   ": expected 0..", num_ready, ", got ", num_drafts);
  }
  if (plan.samples[i] == 0) {
    return Invalid("plan.num_drafts of slot ", Index(plan.slots[i]),
                   ": expected 0, as it does not sample, got ", num_drafts);
  }
  return absl::OkStatus();
}

bool EngineTables::InUse(SequenceSlot slot) const {
  return Index(slot) < static_cast<int64_t>(rows_.size()) && row(slot).in_use;
}

EngineTables::Pending& EngineTables::PendingOf(SequenceSlot slot) {
  const auto index = static_cast<size_t>(Index(slot));
  if (index >= pending_.size()) pending_.resize(index + 1);
  Pending& pending = pending_[index];
  if (pending.plan != num_plans_) pending = Pending{.plan = num_plans_};
  return pending;
}

EngineTables::Committed& EngineTables::CommittedOf(SequenceSlot slot) {
  const auto index = static_cast<size_t>(Index(slot));
  if (index >= committed_.size()) committed_.resize(index + 1);
  Committed& committed = committed_[index];
  if (committed.step != num_steps_) committed = Committed{.step = num_steps_};
  return committed;
}

void EngineTables::Release(SequenceSlot slot) {
  SequenceTable& table = table_of(slot);
  table.in_use = false;
  table.tokens.clear();
  table.num_computed = 0;
  for (GroupTable& group : table.groups) {
    group.region = TableRegion();
    group.region_is_past = false;
    group.blocks.clear();
  }
  table.num_evictions = 0;
  table.drafts.clear();
}

void EngineTables::Start(const StepPlan& plan, const SequenceStart& start) {
  const auto index = static_cast<size_t>(Index(start.slot));
  if (index >= rows_.size()) rows_.resize(index + 1);
  SequenceTable& table = rows_[index];
  if (start.source != kNoSequenceSlot) {
    if (start.source != start.slot) table = row(start.source);
    CutBlocks(start.num_cached_tokens, &table);
    table.num_evictions = 0;
  }
  table.groups.resize(static_cast<size_t>(layout_.num_groups()));
  table.in_use = true;
  table.drafts.clear();
  table.request = start.request;
  table.query_window = start.query_window;
  const auto first = plan.start_tokens.begin() + start.token_begin;
  table.tokens.assign(first, first + start.num_tokens);
  table.num_computed = start.num_cached_tokens;
  if (start.swap != kNoSwap) {
    ComeBack(plan, start, &table);
  } else if (start.region != kNoRegion) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const TableRegion* const region = TakenRegion(start, group);
      if (region == nullptr) continue;
      table.groups[static_cast<size_t>(group)].region = *region;
    }
  }
}

}  // namespace blockmgr
