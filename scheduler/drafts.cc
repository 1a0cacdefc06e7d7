// Speculative decoding: drafts of the engine in plans and answers.
//
// The engine proposes and verifies; here are the slots. A run with drafts has a
// slot for each of them, as if all were accepted; its answer settles those that
// were and voids the others. Drafts are an extra of the step: they take tokens
// that are left when everybody who runs has its own (half of them, while others
// wait to be admitted) and blocks that nobody who runs wants, and go where no
// length is to be exact.

#include <algorithm>
#include <optional>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/require_range.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {

bool SchedulerImpl::AwaitsDrafts() const {
  // Drafts come after the last token, and which of them count is not known
  // before the answer. A step issued ahead would leave out who has some; from
  // then on the two would take turns, each in batches of its own, for ever.
  // Hiding the way to the engine and back is not worth that.
  return num_speculating_ > 0 &&
         std::ranges::any_of(running_, [](const RequestState* request) {
           return request->num_drafts > 0 && request->num_placeholders > 0;
         });
}

void SchedulerImpl::PlanDrafts(BlockBudget* budget, int32_t* token_budget) {
  if (num_speculating_ == 0) return;
  const int32_t page_size = layout().page_size;
  const int32_t num_groups = layout().num_groups();
  std::optional<int32_t> spare;
  // Else who runs with drafts could keep others out for as long as it runs.
  const int32_t left_for_others =
      waiting_.front() == nullptr || manager_.num_open_slots() == 0
          ? 0
          : *token_budget / 2;
  for (StepDecision::Run& run : decision_.runs) {
    if (*token_budget <= left_for_others) return;
    const RequestState& request = *run.request;
    if (request.num_drafts == 0 || run.order >= 0) continue;
    int32_t num_drafts =
        std::min(MaxDrafts(request), *token_budget - left_for_others);
    const SequenceCache& sequence = manager_.sequence(request.slot);
    const int32_t end = sequence.num_reserved + run.num_tokens - sequence.cut();
    const int32_t room = CeilDiv(end, page_size) * page_size - end;
    if (num_drafts > room) {
      if (!spare.has_value()) spare = SpareBlocks(*budget);
      num_drafts = static_cast<int32_t>(std::min<int64_t>(
          num_drafts, room + int64_t{*spare / num_groups} * page_size));
    }
    if (num_drafts <= 0) continue;
    if (num_drafts > room) {
      const int32_t num_blocks =
          num_groups * CeilDiv(num_drafts - room, page_size);
      *spare -= num_blocks;
      budget->available -= num_blocks;
      run.num_blocks += num_blocks;
    }
    *token_budget -= num_drafts;
    run.num_tokens += num_drafts;
    run.num_drafts = num_drafts;
    decision_.has_drafts = true;
  }
}

int32_t SchedulerImpl::MaxDrafts(const RequestState& request) const {
  int32_t end = request.last_length();
  if (request.next_compression < std::ssize(request.eviction.compressions)) {
    end = std::min(
        end,
        request.eviction.compressions[request.next_compression].length - 1);
  }
  return std::min({request.num_drafts, options_.num_speculative_tokens,
                   end - request.num_tokens()});
}

int32_t SchedulerImpl::SpareBlocks(const BlockBudget& budget) const {
  int64_t needed = BlocksSoon();
  for (const StepDecision::Run& run : decision_.runs) needed -= run.num_blocks;
  return static_cast<int32_t>(std::clamp<int64_t>(
      budget.available - std::max<int64_t>(needed, 0), 0, INT32_MAX));
}

absl::Status SchedulerImpl::ValidateDrafts(const StepInFlight& step,
                                           const StepResult& result) const {
  const auto check_size = [&step](const char* field, size_t size) {
    if (size == 0 || size == step.runs.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, ": expected none or ",
                                                   step.runs.size(),
                                                   " numbers, got ", size));
  };
  BM_RETURN_IF_ERROR(check_size("num_accepted", result.num_accepted.size()));
  BM_RETURN_IF_ERROR(check_size("num_drafts", result.num_drafts.size()));
  int64_t num_accepted = 0;
  for (size_t i = 0; i < result.num_accepted.size(); ++i) {
    if (result.num_accepted[i] < 0 ||
        result.num_accepted[i] > step.runs[i].num_drafts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "num_accepted[", i, "]: expected 0 to ", step.runs[i].num_drafts,
          " (the drafts of the run), got ", result.num_accepted[i]));
    }
    num_accepted += result.num_accepted[i];
  }
  if (std::ssize(result.accepted) != num_accepted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "accepted: expected ", num_accepted,
        " tokens (the sum of num_accepted), got ", result.accepted.size()));
  }
  for (size_t i = 0; i < result.accepted.size(); ++i) {
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat("accepted[", i, "]"),
                                    result.accepted[i], 0, INT32_MAX));
  }
  for (size_t i = 0; i < result.num_drafts.size(); ++i) {
    const bool may_have = step.runs[i].samples;
    if (result.num_drafts[i] < 0 || (!may_have && result.num_drafts[i] > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "num_drafts[", i, "]: expected ",
          may_have ? "at least 0" : "0, as the run does not sample", ", got ",
          result.num_drafts[i]));
    }
  }
  return absl::OkStatus();
}

void SchedulerImpl::SetDrafts(RequestState* request, int32_t num_drafts) {
  // What a rejected query has added to a scorer's state stays in it.
  const bool may_have = options_.num_speculative_tokens > 0 &&
                        request->eviction.scorer_state == ScorerState::kNone;
  const int32_t before = request->num_drafts;
  request->num_drafts = may_have ? num_drafts : 0;
  num_speculating_ += (request->num_drafts > 0 ? 1 : 0) - (before > 0 ? 1 : 0);
}

int32_t SchedulerImpl::TakeAccepted(const StepInFlight::Run& run,
                                    std::span<const int32_t> accepted,
                                    Effects* effects, bool* stops) {
  int32_t num_taken = 0;
  for (const int32_t token : accepted) {
    *stops = AddOutput(run.request, token, effects);
    ++num_taken;
    if (*stops) break;
  }
  totals_.num_draft_tokens += run.num_drafts;
  totals_.num_accepted_tokens += num_taken;
  // The last output is never an input.
  return num_taken + (*stops ? 0 : 1);
}

void SchedulerImpl::VoidRejected(const StepInFlight::Run& run,
                                 int32_t num_settled) {
  RequestState& request = *run.request;
  const int32_t num_void = run.num_tokens - num_settled;
  manager_.Rollback(request.slot, num_void);
  request.num_computed -= num_void;
  request.num_placeholders -= run.num_drafts;
  request.num_unverified = 0;
}

}  // namespace blockmgr
