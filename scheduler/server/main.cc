// blockmgrd: the daemon.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <string>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "scheduler/scheduler.h"
#include "scheduler/server/default_address.h"
#include "scheduler/server/server.h"

namespace blockmgr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kShutdownGrace{1000};
// Between looks at the health, and, while draining, at the requests left.
constexpr std::chrono::milliseconds kHealthPeriod{1000};
constexpr std::chrono::milliseconds kDrainPeriod{20};

struct Flags {
  ServerOptions server;
  double drain_timeout_s = 30;
  std::string log_level = "info";
};

void AddFlags(CLI::App* app, Flags* flags) {
  ServerOptions& server = flags->server;
  server.listen = DefaultAddress();
  app->add_option("--listen", server.listen,
                  "unix:PATH, or HOST:PORT on the loopback (port 0: any)")
      ->capture_default_str();
  app->add_option("--drain-timeout", flags->drain_timeout_s,
                  "Seconds that requests may take to finish after the first "
                  "SIGTERM or SIGINT; a second signal cancels them at once")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--log-level", flags->log_level, "Of the log on stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app->add_option("--queue-capacity", server.queue_capacity,
                  "Commands that may wait for the core thread; more are "
                  "refused with RESOURCE_EXHAUSTED")
      ->capture_default_str();
  app->add_option("--spin-us", server.spin_us,
                  "Microseconds that the core thread looks for work before it "
                  "sleeps (0 on a single processor)")
      ->capture_default_str();
  app->add_option("--max-score-bytes", server.max_score_bytes,
                  "Of scores in all EvictByScores calls together")
      ->capture_default_str();
  app->add_option("--max-pending-token-bytes", server.max_pending_token_bytes,
                  "Of tokens that a client leaves unread before it is cut off")
      ->capture_default_str();
}

void AddBudgetTableFlag(CLI::App* app, ServerOptions* options) {
  app->add_option("--budget-table", options->budget_tables,
                  "A budget table that policies may name: an LU-KV profile or "
                  "HeadKV scores as JSON; may be repeated")
      ->type_name("NAME=FILE");
}

void AddSchedulerFlags(CLI::App* app, SchedulerOptions* options) {
  const std::string group = "Scheduler";
  app->add_option("--max-num-batched-tokens", options->max_num_batched_tokens,
                  "Token budget of a step")
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-num-seqs", options->max_num_seqs,
                  "Sequences that may hold blocks")
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-model-len", options->max_model_len,
                  "Tokens of a request, prompt and output together")
      ->capture_default_str()
      ->group(group);
  app->add_option("--long-prefill-token-threshold",
                  options->long_prefill_token_threshold,
                  "Longest prefill chunk of a request in a step (0: the token "
                  "budget)")
      ->capture_default_str()
      ->group(group);
  app->add_option("--watermark", options->watermark,
                  "Fraction of the pool that admission leaves free")
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-steps-in-flight", options->max_steps_in_flight,
                  "Plans out before the first is answered, 1..4")
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-waiting", options->max_waiting,
                  "Requests that may wait; more are refused with "
                  "RESOURCE_EXHAUSTED")
      ->capture_default_str()
      ->group(group);
  app->add_option("--query-window", options->query_window,
                  "Queries that the engine keeps of every sequence, for "
                  "evictions ordered from outside")
      ->capture_default_str()
      ->group(group);
  app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                options->enable_prefix_caching,
                "Reuse the blocks of equal prefixes (on by default)")
      ->group(group);
  static const std::map<std::string, CompactionPreference> kCompaction{
      {"fresh", CompactionPreference::kFreshFirst},
      {"in-place", CompactionPreference::kInPlace}};
  app->add_option("--compaction", options->compaction,
                  "Where an eviction puts what it keeps: fresh blocks while "
                  "there are some, or the sequence's own (in-place)")
      ->transform(
          CLI::CheckedTransformer(kCompaction).description("fresh|in-place"))
      ->default_str("fresh")
      ->group(group);
}

// A signal of `set`, or 0 after `timeout`.
int WaitForSignal(const sigset_t& set, std::chrono::milliseconds timeout) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec wait{};
  wait.tv_sec = seconds.count();
  wait.tv_nsec = std::chrono::nanoseconds(timeout - seconds).count();
  const int signal = sigtimedwait(&set, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

int Serve(const Flags& flags, const sigset_t& signals) {
  const absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(
      flags.server,
      [](const ModelLayout& layout, const SchedulerOptions& options) {
        return Scheduler::Create(layout, options);
      });
  if (!started.ok()) {
    spdlog::error("{}", std::string(started.status().message()));
    return EXIT_FAILURE;
  }
  Server& server = **started;
  spdlog::info("listening on {}", server.address());

  while (WaitForSignal(signals, kHealthPeriod) == 0) server.UpdateHealth();

  spdlog::info("draining for up to {} s; a second signal cancels at once",
               flags.drain_timeout_s);
  server.BeginDrain();
  const auto deadline =
      Clock::now() + std::chrono::duration<double>(flags.drain_timeout_s);
  while (!server.drained() && Clock::now() < deadline &&
         WaitForSignal(signals, kDrainPeriod) == 0) {
  }
  if (!server.drained()) spdlog::warn("cancelling the requests left");
  server.Shutdown(kShutdownGrace);
  spdlog::info("stopped");
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Owns the paged KV cache of an LLM serving engine and schedules its "
      "steps.\nAn engine attaches with its pool; frontends submit requests and "
      "stream tokens."};
  Flags flags;
  AddFlags(&app, &flags);
  AddBudgetTableFlag(&app, &flags.server);
  AddSchedulerFlags(&app, &flags.server.scheduler);
  CLI11_PARSE(app, argc, argv);

  // Before any thread starts: all of them inherit the mask, and the signals
  // come to WaitForSignal alone.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  spdlog::set_default_logger(spdlog::stderr_logger_mt("blockmgrd"));
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  return Serve(flags, signals);
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) { return blockmgr::Main(argc, argv); }
