// Drafts of speculative decoding: announced, run, and rejected.

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "engine/tables/tables.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

absl::Status EngineTables::CheckDrafts(const StepPlan& plan, size_t i,
                                       size_t num_ready) const {
  const int32_t num_drafts = plan.num_drafts[i];
  if (num_drafts == 0) return absl::OkStatus();
  if (num_drafts < 0 || num_drafts > static_cast<int64_t>(num_ready)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan.num_drafts of slot ", Index(plan.slots[i]),
                     ": expected 0..", num_ready, ", got ", num_drafts));
  }
  if (plan.samples[i] == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan.num_drafts of slot ", Index(plan.slots[i]),
                     ": expected 0, as it does not sample, got ", num_drafts));
  }
  return absl::OkStatus();
}

void EngineTables::RejectDrafts(SequenceSlot slot, int32_t num_drafts,
                                int32_t num_accepted) {
  SequenceTable& table = rows_[static_cast<size_t>(Index(slot))];
  BM_CHECK(num_accepted >= 0);
  BM_CHECK(num_accepted <= num_drafts);
  table.num_computed -= num_drafts - num_accepted;
  table.tokens.resize(static_cast<size_t>(table.num_computed));
  table.tail_blocks.resize(
      static_cast<size_t>(CeilDiv(table.tail_length(), layout_.page_size)));
  CutWindows(table.num_computed, &table);
}

void EngineTables::SetDrafts(SequenceSlot slot,
                             std::span<const int32_t> drafts) {
  SequenceTable& table = rows_[static_cast<size_t>(Index(slot))];
  BM_CHECK(table.in_use);
  table.drafts.assign(drafts.begin(), drafts.end());
}

}  // namespace blockmgr
