#include "tests/sim/audited_scheduler.h"

#include <string>
#include <utility>

#include "tests/sim/plan_trace.h"

namespace blockmgr::sim {
namespace {

// What a call has appended to effects that were not empty before.
Effects Appended(const Effects& effects, int64_t num_tokens,
                 int64_t num_finished, int64_t num_evictions) {
  Effects appended;
  appended.tokens.assign(effects.tokens.begin() + num_tokens,
                         effects.tokens.end());
  appended.finished.assign(effects.finished.begin() + num_finished,
                           effects.finished.end());
  appended.evictions.assign(effects.evictions.begin() + num_evictions,
                            effects.evictions.end());
  return appended;
}

template <typename Call>
Effects EffectsOf(Effects* effects, Call call) {
  const int64_t num_tokens = std::ssize(effects->tokens);
  const int64_t num_finished = std::ssize(effects->finished);
  const int64_t num_evictions = std::ssize(effects->evictions);
  call();
  return Appended(*effects, num_tokens, num_finished, num_evictions);
}

}  // namespace

AuditedScheduler::AuditedScheduler(const ModelLayout& layout,
                                   const SchedulerOptions& options,
                                   bool replays, Report* report)
    : SchedulerImpl(layout, options),
      report_(report),
      ledger_(layout, options, replays, report) {
  // One who is always up to date, and one who is often behind, so that it has
  // to begin anew.
  const CacheReader reader(layout.page_size);
  readers_ = {{.interval = 1, .max_blocks = 1000, .cache = reader},
              {.interval = 17, .max_blocks = 30, .cache = reader}};
}

void AuditedScheduler::Audit() {
  CheckInvariants();
  ledger_.Compare(manager(), stats());
  ReadPrefixCache();
}

void AuditedScheduler::ReadPrefixCache() {
  ++num_calls_;
  for (Reader& reader : readers_) {
    if (num_calls_ % reader.interval != 0) continue;
    // A stream breaks off now and then.
    if (++reader.num_readings % 5 == 0) {
      reader.cache.ReadInPart(prefix_cache(), reader.max_blocks,
                              reader.num_readings % 7);
      continue;
    }
    if (!reader.cache.Read(prefix_cache(), reader.max_blocks)) continue;
    const std::string difference = reader.cache.Difference(prefix_cache());
    if (!difference.empty()) {
      report_->Fail("a reader of the prefix cache is wrong: ", difference);
    }
  }
}

void AuditedScheduler::ExpectUnchanged(uint64_t before, const char* call) {
  if (StateHash() != before) report_->Fail("a refused ", call, " left a trace");
}

SwapId AuditedScheduler::TakeHostBlocks(SequenceSlot slot,
                                        std::vector<BlockTransfer>* transfers) {
  if (failing_swap_outs_.contains(num_swap_outs_++)) return kNoSwap;
  const uint64_t before = StateHash();
  const size_t num_transfers = transfers->size();
  const SwapId swap = SchedulerImpl::TakeHostBlocks(slot, transfers);
  if (swap != kNoSwap) return swap;
  ExpectUnchanged(before, "SwapOut");
  if (transfers->size() != num_transfers) {
    report_->Fail("a refused SwapOut has copies");
  }
  return swap;
}

absl::StatusOr<RequestId> AuditedScheduler::Submit(Request request) {
  const uint64_t before = StateHash();
  const Request copy = request;
  absl::StatusOr<RequestId> id = SchedulerImpl::Submit(std::move(request));
  report_->Note("  submit ", copy.id, " prompt ", copy.prompt.size(),
                " output ", copy.max_tokens, ": ",
                id.ok() ? absl::StrCat(Index(*id)) : id.status().ToString());
  ledger_.OnSubmit(copy, id);
  if (!id.ok()) ExpectUnchanged(before, "Submit");
  Audit();
  return id;
}

absl::Status AuditedScheduler::Cancel(RequestId request, Effects* effects) {
  const uint64_t before = StateHash();
  absl::Status status;
  const Effects appended = EffectsOf(
      effects, [&] { status = SchedulerImpl::Cancel(request, effects); });
  report_->Note("  cancel ", Index(request), ": ", status.ToString());
  ledger_.OnCancel(request, status, appended);
  if (!status.ok()) ExpectUnchanged(before, "Cancel");
  Audit();
  return status;
}

absl::StatusOr<uint64_t> AuditedScheduler::Evict(RequestId request,
                                                 EvictionCommand command) {
  const uint64_t before = StateHash();
  absl::StatusOr<uint64_t> number =
      SchedulerImpl::Evict(request, std::move(command));
  report_->Note("  evict ", Index(request), ": ", number.status().ToString());
  ledger_.OnEvict(request, number);
  if (!number.ok()) ExpectUnchanged(before, "Evict");
  Audit();
  return number;
}

bool AuditedScheduler::WithdrawEviction(RequestId request, uint64_t command) {
  const uint64_t before = StateHash();
  const bool withdrawn = SchedulerImpl::WithdrawEviction(request, command);
  report_->Note("  withdraw ", command, " of ", Index(request), ": ",
                withdrawn);
  if (withdrawn) {
    ledger_.OnWithdraw(command);
  } else {
    ExpectUnchanged(before, "WithdrawEviction");
  }
  Audit();
  return withdrawn;
}

bool AuditedScheduler::Schedule(StepPlan* plan) {
  const uint64_t before = StateHash();
  if (!SchedulerImpl::Schedule(plan)) {
    ExpectUnchanged(before, "Schedule");
    if (num_steps_in_flight() == 0 && has_unfinished_requests()) {
      report_->Fail("nothing is in flight, requests wait, and nobody runs");
    }
    return false;
  }
  ++report_->counts().steps;
  report_->Note("  step ", Index(plan->id), ": ", plan->released.size(),
                " released, ", plan->starts.size(), " started, ",
                plan->slots.size(), " run ", plan->total_tokens(), " tokens, ",
                plan->blocks.size(), " blocks, ", plan->evictions.size(),
                " evictions");
  MixPlan(*plan, report_);
  ledger_.OnPlan(*plan);
  Audit();
  return true;
}

absl::Status AuditedScheduler::Update(const StepResult& result,
                                      Effects* effects) {
  const uint64_t before = StateHash();
  absl::Status status;
  const Effects appended = EffectsOf(
      effects, [&] { status = SchedulerImpl::Update(result, effects); });
  report_->Note("  answer ", Index(result.id), ": ", appended.tokens.size(),
                " tokens, ", appended.finished.size(), " ends, ",
                appended.evictions.size(), " evictions, ", status.ToString());
  report_->Mix(appended.tokens.size());
  ledger_.OnResult(result, status, appended);
  if (status.ok() && !result.lost_blocks.empty()) ledger_.TakeCuts(manager());
  ledger_.TakeLeft(manager());
  if (!status.ok()) ExpectUnchanged(before, "Update");
  Audit();
  return status;
}

void AuditedScheduler::LoseEngine(Effects* effects) {
  ++report_->counts().engine_losses;
  const Effects appended =
      EffectsOf(effects, [&] { SchedulerImpl::LoseEngine(effects); });
  report_->Note("  engine lost");
  ledger_.OnLoseEngine(appended);
  Audit();
  const BlockManagerStats blocks = stats().blocks;
  if (blocks.free_blocks != blocks.num_blocks - 1) {
    report_->Fail("blocks are in use without an engine");
  }
}

CacheReset AuditedScheduler::ResetPrefixCache() {
  const CacheReset reset = SchedulerImpl::ResetPrefixCache();
  report_->Note("  reset: ", reset.num_dropped, " blocks dropped, ",
                reset.num_in_use, " in use");
  report_->Mix(reset.num_dropped);
  report_->Mix(reset.num_in_use);
  ledger_.OnReset();
  const BlockManagerStats blocks = stats().blocks;
  if (blocks.cached_blocks != 0) {
    report_->Fail(blocks.cached_blocks, " blocks are cached after a reset");
  }
  if (reset.num_in_use > blocks.used_blocks) {
    report_->Fail("a reset kept ", reset.num_in_use, " blocks, ",
                  blocks.used_blocks, " are in use");
  }
  Audit();
  return reset;
}

void AuditedScheduler::CheckQuiescent() {
  ledger_.CheckQuiescent(stats());
  const BlockManagerStats blocks = stats().blocks;
  if (blocks.free_blocks + blocks.cached_blocks != blocks.num_blocks - 1) {
    report_->Fail("at rest ", blocks.free_blocks, " blocks are free and ",
                  blocks.cached_blocks, " cached of ", blocks.num_blocks - 1);
  }
}

}  // namespace blockmgr::sim
