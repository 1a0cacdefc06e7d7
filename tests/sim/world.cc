#include "tests/sim/world.h"

#include <utility>

#include <absl/strings/str_cat.h>

namespace blockmgr::sim {

World::World(const SimOptions& options, Report* report)
    : options_(options), report_(report) {
  core_.Start(clients_.Tables(), [this] { engine_.CheckBusy(); });
  engine_.Start(0);
  clients_.OpenStreams();
  core_.Advance(1);
}

void World::Apply(const Event& event) {
  if (!report_->ok()) return;
  core_.Reseed(event.noise);
  ++report_->counts().events;
  report_->Note(core_.now(), ": ", EventName(event.kind), " ",
                absl::Hex(event.noise));
  switch (event.kind) {
    case EventKind::kAdvance:
      return core_.Advance(core_.random().Between(1, 3));
    case EventKind::kSubmit:
      return clients_.Submit();
    case EventKind::kResubmit:
      return clients_.Resubmit();
    case EventKind::kCancel:
      return clients_.Cancel();
    case EventKind::kEvict:
      return clients_.Evict();
    case EventKind::kHangUp:
      return clients_.HangUp();
    case EventKind::kSlowClient:
      return clients_.SlowDown();
    case EventKind::kCrash:
      return engine_.Crash();
    case EventKind::kCorrupt:
      return engine_.SpoilAnswer();
    case EventKind::kStaleOpen:
      return engine_.StaleOpen();
    case EventKind::kWrongAttach:
      return engine_.WrongAttach();
    case EventKind::kReset:
      return ResetCache();
    case EventKind::kStats:
      return AskStats();
    case EventKind::kLoseBlocks:
      return engine_.LoseBlocks();
    case EventKind::kHoldPlans:
      return engine_.HoldPlans();
  }
}

void World::Heal() {
  if (!report_->ok()) return;
  report_->Note("--- heal");
  core_.StopFaults();
  engine_.Heal();
  clients_.Heal();
  core_.Reseed(0x4EA1);
  // Messages on their way arrive, and engine and clients come back.
  core_.Advance(100);
  clients_.OpenStreams();
  core_.Advance(1);
  // New requests are served too, whatever happened.
  clients_.SubmitLast();
  core_.Advance(options_.call_delay + 1);
  if (!report_->ok() || core_.scheduler() == nullptr) return;
  const uint64_t last_step =
      report_->counts().steps + core_.scheduler()->ledger().CountStepsToDrain();
  // Answers come sooner than this many ticks after plans.
  int64_t idle = 0;
  while (report_->ok() && core_.scheduler()->has_unfinished_requests()) {
    const uint64_t before = report_->counts().steps;
    core_.Advance(1);
    idle = report_->counts().steps == before ? idle + 1 : 0;
    if (report_->counts().steps > last_step || idle > 100) {
      report_->Fail("healed, ", report_->counts().steps, " steps (at most ",
                    last_step, ") and ", core_.scheduler()->ledger().num_live(),
                    " requests have not ended");
    }
  }
  core_.Advance(100);
}

void World::Quiesce() {
  if (!report_->ok() || core_.scheduler() == nullptr) return;
  report_->Note("--- quiesce");
  engine_.Quiesce();
  clients_.CheckServed();
  core_.scheduler()->CheckQuiescent();
  AskStats();
  core_.Advance(10);
  const auto drained = core_.Expect("Drain");
  bool is_drained = false;
  core_.Post(Drain{[drained, &is_drained](const absl::Status& status) {
    drained->Came(status);
    is_drained = status.ok();
  }});
  clients_.CheckRefused();
  if (!is_drained) report_->Fail("nothing runs and the drain goes on");
  ResetCache();
  core_.Advance(10);
  const BlockManagerStats blocks = core_.scheduler()->stats().blocks;
  if (blocks.free_blocks != blocks.num_blocks - 1) {
    report_->Fail(blocks.free_blocks, " of ", blocks.num_blocks - 1,
                  " blocks are free at the end");
  }
  core_.Post(CloseAll{absl::UnavailableError("the end")});
  core_.Advance(10);
}

void World::AskStats() {
  core_.Call([this] {
    const auto reply = core_.Expect("GetStats");
    GetStats command;
    command.reset_peaks = core_.random().OneIn(2);
    command.done = [this, reply](absl::StatusOr<CoreStats> stats) {
      reply->Came(stats.status());
      if (!stats.ok()) return report_->Fail("GetStats failed");
      const SchedulerStats& now = stats->scheduler;
      if (now.num_running > stats->max_running ||
          now.blocks.used_blocks > stats->max_used_blocks) {
        report_->Fail("peaks are below the present");
      }
    };
    core_.Post(std::move(command));
  });
}

void World::ResetCache() {
  core_.Call([this] {
    const auto reply = core_.Expect("ResetPrefixCache");
    core_.Post(
        ResetPrefixCache{[reply](auto reset) { reply->Came(reset.status()); }});
  });
}

}  // namespace blockmgr::sim
