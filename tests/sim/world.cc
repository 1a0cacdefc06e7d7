// Time, passes, phases and operators.

#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/sim/world_sinks.h"

namespace blockmgr::sim {

World::World(const SimOptions& options, Report* report)
    : options_(options),
      report_(report),
      canary_(options.Layout(), options.max_num_seqs, options.Canary()) {
  CoreOptions core;
  for (size_t i = 0; i < requests_.tables().size(); ++i) {
    core.tables.emplace(absl::StrCat("table", i), requests_.tables()[i]);
  }
  core.scheduler = options.Scheduler();
  core.epoch = 77;
  core_ = std::make_unique<Core>(
      std::move(core),
      [this](const ModelLayout& layout, const SchedulerOptions& scheduler)
          -> absl::StatusOr<std::unique_ptr<Scheduler>> {
        auto made = std::make_unique<AuditedScheduler>(
            layout, scheduler, options_.other_choices == 0, report_);
        scheduler_ = made.get();
        return made;
      });
  StartEngine(0);
  for (int32_t i = 0; i < options.num_clients; ++i) {
    clients_.emplace_back().session = absl::StrCat("client", i);
    OpenStream(i);
  }
  Advance(1);
}

World::~World() {
  // Late deliveries may not find half a world.
  core_.reset();
}

void World::OpenPass() {
  core_->BeginPass(static_cast<double>(transport_.now()) * 1e-3);
  pass_is_open_ = true;
  num_in_pass_ = 0;
}

void World::ClosePass() {
  pass_is_open_ = false;
  core_->EndPass();
  CheckAlive();
}

void World::CheckAlive() {
  // Nobody waits for nothing.
  if (scheduler_ == nullptr || sink_ == nullptr || !sink_->alive) return;
  if (scheduler_->num_steps_in_flight() == 0 &&
      scheduler_->has_unfinished_requests()) {
    report_->Fail(
        "an engine is attached, requests wait, and no step is issued");
  }
}

void World::Post(Command command) {
  const bool opened = !pass_is_open_;
  if (opened) OpenPass();
  core_->Handle(&command);
  if (opened || ++num_in_pass_ >= options_.batch) ClosePass();
}

void World::Advance(int64_t ticks) {
  const int64_t end = transport_.now() + ticks;
  bool more = true;
  while (more && report_->ok()) {
    if (options_.batch > 1 && !pass_is_open_) OpenPass();
    more = transport_.DeliverNext(end);
    if (more || !pass_is_open_) continue;
    ClosePass();  // which may send what is due at once
    more = transport_.HasDue(end);
  }
  if (pass_is_open_) ClosePass();
}

std::shared_ptr<World::OnceReply> World::Expect(const char* what) {
  return std::make_shared<OnceReply>(report_, what);
}

int64_t World::Delay(int32_t most) {
  return most <= 0 ? 0 : random_.Between(0, most);
}

void World::Call(Transport::Delivery delivery) {
  if (faults_ && random_.OneIn(options_.lose_one_in)) return;
  const bool twice = faults_ && random_.OneIn(options_.repeat_one_in);
  if (twice) transport_.Send(Delay(3 * options_.call_delay), delivery);
  transport_.Send(Delay(options_.call_delay), std::move(delivery));
}

void World::Apply(const Event& event) {
  if (!report_->ok()) return;
  random_ = Random(event.noise);
  ++report_->counts().events;
  report_->Note(transport_.now(), ": ", EventName(event.kind), " ",
                absl::Hex(event.noise));
  switch (event.kind) {
    case EventKind::kAdvance:
      return Advance(random_.Between(1, 3));
    case EventKind::kSubmit:
      return Submit();
    case EventKind::kResubmit:
      return Resubmit();
    case EventKind::kCancel:
      return Cancel();
    case EventKind::kEvict:
      return Evict();
    case EventKind::kHangUp:
      return HangUp();
    case EventKind::kSlowClient:
      clients_[random_.Next() % clients_.size()].slow = true;
      return;
    case EventKind::kCrash:
      return Crash();
    case EventKind::kCorrupt:
      if (random_.OneIn(4)) {
        wire_fault_ = static_cast<WireFault>(random_.Between(1, 3));
        return;
      }
      // An answer with evictions is spoiled twice as often, since not every
      // answer has any.
      corruption_ = static_cast<Corruption>(random_.Between(1, 8));
      if (random_.OneIn(6)) corruption_ = Corruption::kLostBlock;
      if (random_.OneIn(6)) corruption_ = Corruption::kDrafts;
      return;
    case EventKind::kStaleOpen:
      return StaleOpen();
    case EventKind::kWrongAttach:
      return WrongAttach();
    case EventKind::kReset:
      return ResetCache();
    case EventKind::kStats:
      return AskStats();
    case EventKind::kLoseBlocks:
      return LoseBlocks();
    case EventKind::kHoldPlans:
      return HoldPlans();
  }
}

void World::Heal() {
  if (!report_->ok()) return;
  report_->Note("--- heal");
  faults_ = false;
  corruption_ = Corruption::kNone;
  wire_fault_ = WireFault::kNone;
  for (Client& client : clients_) client.slow = false;
  random_ = Random(0x4EA1);
  // What is on its way arrives, engine and clients come back.
  Advance(100);
  // Whatever happened, new requests are served too.
  for (int32_t i = 0; i < options_.num_clients; ++i) {
    if (clients_[i].sink == nullptr) OpenStream(i);
    ServedRequest served;
    served.client = i;
    served.request.id = absl::StrCat("after", i);
    served.request.prompt = {1};
    served.request.max_tokens = 2;
    numbers_[served.request.id] = static_cast<int32_t>(served_.size());
    served_.push_back(std::move(served));
  }
  Advance(1);
  for (int32_t i = 0; i < options_.num_clients; ++i) {
    const auto index =
        static_cast<int32_t>(served_.size()) - options_.num_clients + i;
    Call([this, index] { SendSubmit(index); });
  }
  Advance(options_.call_delay + 1);
  if (!report_->ok() || scheduler_ == nullptr) return;
  const uint64_t last_step =
      report_->counts().steps + scheduler_->ledger().CountStepsToDrain();
  // Answers come sooner than this many ticks after plans.
  int64_t idle = 0;
  while (report_->ok() && scheduler_->has_unfinished_requests()) {
    const uint64_t before = report_->counts().steps;
    Advance(1);
    idle = report_->counts().steps == before ? idle + 1 : 0;
    if (report_->counts().steps > last_step || idle > 100) {
      report_->Fail("healed, ", report_->counts().steps, " steps (at most ",
                    last_step, ") and ", scheduler_->ledger().num_live(),
                    " requests have not ended");
    }
  }
  Advance(100);
}

void World::Quiesce() {
  if (!report_->ok() || scheduler_ == nullptr) return;
  report_->Note("--- quiesce");
  quiescing_ = true;
  CheckServed();
  scheduler_->CheckQuiescent();
  AskStats();
  Advance(10);
  const auto drained = Expect("Drain");
  bool is_drained = false;
  Post(Drain{[drained, &is_drained](const absl::Status& status) {
    drained->Came(status);
    is_drained = status.ok();
  }});
  const auto refused = Expect("Submit");
  Post(SubmitCommand{clients_[0].session, Request{},
                     [this, refused](const absl::Status& status) {
                       refused->Came(status);
                       if (!absl::IsUnavailable(status)) {
                         report_->Fail("Submit after Drain: ",
                                       status.ToString());
                       }
                     }});
  if (!is_drained) report_->Fail("nothing runs and the drain goes on");
  ResetCache();
  Advance(10);
  const BlockManagerStats blocks = scheduler_->stats().blocks;
  if (blocks.free_blocks != blocks.num_blocks - 1) {
    report_->Fail(blocks.free_blocks, " of ", blocks.num_blocks - 1,
                  " blocks are free at the end");
  }
  Post(CloseAll{absl::UnavailableError("the end")});
  Advance(10);
}

void World::AskStats() {
  Call([this] {
    const auto reply = Expect("GetStats");
    Post(GetStats{random_.OneIn(2),
                  [this, reply](absl::StatusOr<CoreStats> stats) {
                    reply->Came(stats.status());
                    if (!stats.ok()) return report_->Fail("GetStats failed");
                    const SchedulerStats& now = stats->scheduler;
                    if (now.num_running > stats->max_running ||
                        now.blocks.used_blocks > stats->max_used_blocks) {
                      report_->Fail("peaks are below the present");
                    }
                  }});
  });
}

void World::ResetCache() {
  Call([this] {
    const auto reply = Expect("ResetPrefixCache");
    Post(
        ResetPrefixCache{[reply](auto reset) { reply->Came(reset.status()); }});
  });
}

}  // namespace blockmgr::sim
