#include "tests/sim/world_core.h"

namespace blockmgr::sim {

void WorldCore::Start(BudgetTables tables, std::function<void()> check) {
  check_ = std::move(check);
  CoreOptions core;
  core.tables = std::move(tables);
  core.scheduler = options_.Scheduler();
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
}

void WorldCore::OpenPass() {
  core_->BeginPass(static_cast<double>(transport_.now()) * 1e-3);
  pass_is_open_ = true;
  num_in_pass_ = 0;
}

void WorldCore::ClosePass() {
  pass_is_open_ = false;
  core_->EndPass();
  check_();
}

void WorldCore::Post(Command command) {
  const bool opened = !pass_is_open_;
  if (opened) OpenPass();
  core_->Handle(&command);
  if (opened || ++num_in_pass_ >= options_.batch) ClosePass();
}

void WorldCore::Advance(int64_t ticks) {
  const int64_t end = transport_.now() + ticks;
  bool more = true;
  while (more && report_->ok()) {
    if (options_.batch > 1 && !pass_is_open_) OpenPass();
    more = transport_.DeliverNext(end);
    if (more || !pass_is_open_) continue;
    ClosePass();  // may send messages that are due at once
    more = transport_.HasDue(end);
  }
  if (pass_is_open_) ClosePass();
}

void WorldCore::Call(Transport::Delivery delivery) {
  if (has_faults_ && random_.OneIn(options_.lose_one_in)) return;
  const bool twice = has_faults_ && random_.OneIn(options_.repeat_one_in);
  if (twice) Send(Delay(3 * options_.call_delay), delivery);
  Send(Delay(options_.call_delay), std::move(delivery));
}

}  // namespace blockmgr::sim
