#include "scheduler/server/core_thread.h"

#include <chrono>
#include <utility>
#include <variant>

#include "blockmgr/base/check.h"
#include "scheduler/server/awake_clock.h"

namespace blockmgr {
namespace {

// The most commands of one pass. The time of a pass is limited, too
// (max_pass_s). Both limits together bound how long the result of a step waits
// behind a burst of submissions. The last command of a pass may exceed either
// limit.
constexpr int32_t kMaxCommandsPerPass = 256;

// Returns how much a command counts for in kMaxCommandsPerPass. A call counts
// as many as it has answers.
int32_t CountSubmissions(const Command& command) {
  const auto* const generate = std::get_if<GenerateCommand>(&command);
  return generate == nullptr ? 1 : generate->num_answers;
}

bool MustNotBeRefused(const Command& command) {
  return std::holds_alternative<ClientGone>(command) ||
         std::holds_alternative<EngineResult>(command) ||
         std::holds_alternative<EngineLost>(command) ||
         std::holds_alternative<Drain>(command) ||
         std::holds_alternative<CloseAll>(command);
}

// On a single processor a spinning thread takes the time that the poster needs.
constexpr unsigned kMinProcessorsToSpin = 2;

inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

CoreThread::CoreThread(CoreThreadOptions options, SchedulerFactory factory)
    : spin_us_(std::thread::hardware_concurrency() >= kMinProcessorsToSpin
                   ? options.spin_us
                   : 0),
      max_pass_s_(options.max_pass_s),
      queue_(static_cast<size_t>(options.queue_capacity)),
      core_(std::move(options.core), std::move(factory)),
      thread_([this] { Run(); }) {}

CoreThread::~CoreThread() { Stop(); }

void CoreThread::Post(Command command) {
  num_posting_.fetch_add(1);
  if (stopping_.load()) {
    num_posting_.fetch_sub(1);
    Refuse(&command, absl::UnavailableError("the daemon has stopped"));
    return;
  }
  auto owned = std::make_unique<Command>(std::move(command));
  if (queue_.bounded_push(owned.get())) {
    owned.release();  // NOLINT(bugprone-unused-return-value): the queue's now
  } else if (MustNotBeRefused(*owned)) {
    MutexLock lock(&mutex_);
    urgent_.push_back(std::move(owned));
  } else {
    num_posting_.fetch_sub(1);
    // To an engine that attaches, ResourceExhausted means that its message is
    // too large.
    const auto code = std::holds_alternative<AttachEngine>(*owned)
                          ? absl::StatusCode::kUnavailable
                          : absl::StatusCode::kResourceExhausted;
    Refuse(owned.get(),
           absl::Status(code, "the daemon's command queue is full"));
    return;
  }
  Signal();
  num_posting_.fetch_sub(1);
}

void CoreThread::Signal() {
  signals_.fetch_add(1);
  // Both accesses are sequentially consistent. Either this thread sees that the
  // core thread sleeps, or the core thread sees the new count.
  if (!sleeping_.load()) return;
  // The lock cannot be taken between the sleeper's look and its wait.
  { MutexLock lock(&mutex_); }
  wake_.NotifyAll();
}

void CoreThread::WaitForSignal(uint64_t seen) {
  if (spin_us_ > 0) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    do {
      for (int i = 0; i < 32; ++i) {
        if (signals_.load() != seen) return;
        Relax();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  sleeping_.store(true);
  {
    MutexLock lock(&mutex_);
    while (signals_.load() == seen) wake_.Wait(&mutex_);
  }
  sleeping_.store(false);
}

void CoreThread::Run() {
  while (true) {
    const uint64_t seen = signals_.load();
    const bool stopping = stopping_.load() && num_posting_.load() == 0;
    probe_seen_.store(probe_sent_.load());
    core_.BeginPass(SteadyNowSeconds());
    HandleUrgent();
    const bool more = HandleQueued();
    core_.EndPass();
    if (more) continue;
    // Every call of Post that was under way when stopping_ was set has ended,
    // and its command has been handled.
    if (stopping) return;
    if (stopping_.load()) {
      std::this_thread::yield();
      continue;
    }
    WaitForSignal(seen);
  }
}

bool CoreThread::HandleQueued() {
  const double end = SteadyNowSeconds() + max_pass_s_;
  int32_t handled = 0;
  Command* next = nullptr;
  while (queue_.pop(next)) {
    const std::unique_ptr<Command> command(next);
    handled += CountSubmissions(*command);
    core_.Handle(command.get());
    if (handled >= kMaxCommandsPerPass) return true;
    if (SteadyNowSeconds() >= end) return true;
  }
  return false;
}

void CoreThread::HandleUrgent() {
  {
    MutexLock lock(&mutex_);
    std::swap(taken_, urgent_);
  }
  for (const auto& command : taken_) core_.Handle(command.get());
  taken_.clear();
}

void CoreThread::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  Signal();
  thread_.join();
  BM_CHECK(queue_.empty());
}

bool CoreThread::Probe() {
  const bool turned = probe_seen_.load() == probe_sent_.load();
  probe_sent_.fetch_add(1);
  Signal();
  return turned;
}

}  // namespace blockmgr
