// blockmgrd: the daemon.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <absl/strings/str_cat.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "blockmgr/base/run_main.h"
#include "blockmgr/base/status_macros.h"
#include "program/command_line.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/awake_clock.h"
#include "scheduler/server/default_address.h"
#include "scheduler/server/eviction_flags.h"
#include "scheduler/server/flag_checks.h"
#include "scheduler/server/flag_names.h"
#include "scheduler/server/library_logs.h"
#include "scheduler/server/scheduler_flags.h"
#include "scheduler/server/server.h"
#include "scheduler/server/service_manager.h"
#include "scheduler/server/stderr_log.h"

namespace blockmgr {
namespace {

constexpr std::chrono::milliseconds kShutdownGrace{1000};
// Between looks at the health, and, while draining, at the requests left.
constexpr std::chrono::milliseconds kHealthPeriod{1000};
constexpr std::chrono::milliseconds kDrainPeriod{20};

struct Flags {
  ServerOptions server;
  double drain_timeout_s = 30;
  std::string log_level = "info";
  std::vector<std::string> tenants;  // see ParseTenant
  EvictionFlags default_eviction;
};

void AddFlags(CLI::App* app, Flags* flags) {
  ServerOptions& server = flags->server;
  app->add_option("--listen", server.listen,
                  "unix:PATH, or HOST:PORT on the loopback (port 0: any)")
      ->default_str(DefaultAddress());
  app->add_option(
      "--metrics-listen", server.metrics_listen,
      "HOST:PORT to serve metrics at, for Prometheus: GET /metrics, "
      "plain HTTP (port 0: any; default: nowhere)");
  app->add_option("--drain-timeout", flags->drain_timeout_s,
                  "Seconds that requests may take to finish, and clients to "
                  "read their tokens, after the first SIGTERM or SIGINT; a "
                  "second signal cancels them at once")
      ->check(NumberIn(0))
      ->capture_default_str();
  app->add_option("--step-timeout", server.step_timeout_s,
                  "Seconds that an engine may take to answer a plan before it "
                  "is taken for lost, and its requests wait for the next one "
                  "(0: no limit), without those in which this process is "
                  "stopped")
      ->check(NumberIn(0))
      ->capture_default_str();
  app->add_option("--log-level", flags->log_level, "Of the log on stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app->add_option("--max-connections", server.max_connections,
                  "Of engines and clients together, as far as the limit of "
                  "descriptors allows; more are closed at once")
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
                  "Of scores in all EvictByScores calls together, and of "
                  "those that requests were evicted by, until they end (they "
                  "are needed again after a preemption)")
      ->capture_default_str();
  app->add_option("--score-timeout", server.score_timeout_s,
                  "Seconds that a call of EvictByScores may take to send its "
                  "scores, for which room is kept from its header on")
      ->capture_default_str();
  app->add_option("--max-pending-token-bytes", server.max_pending_token_bytes,
                  "Of tokens that a client leaves unread before it is cut off")
      ->capture_default_str();
}

void AddBudgetTableFlag(CLI::App* app, ServerOptions* options) {
  app->add_option("--budget-table", options->budget_tables,
                  "A budget table that policies may name: an LU-KV profile, "
                  "head scores as JSON (HeadKV's, too) or retention counts as "
                  ".npy; may be repeated")
      ->check(Utf8Text())
      ->type_name("NAME=FILE");
}

constexpr SchedulerFlagTexts kSchedulerTexts{
    .max_num_batched_tokens = "Token budget of a step",
    .max_num_seqs = "Sequences that may hold blocks",
    .max_model_len = "Tokens of a request, prompt and output together",
    .long_prefill_token_threshold =
        "Longest prefill chunk of a request in a step (0: the token budget)",
    .watermark = "--admission vllm: fraction of the pool that it leaves free",
    .max_steps_in_flight = "Plans out before the first is answered, 1..4",
    .num_speculative_tokens =
        "Drafts of a sequence that a step verifies at most, of an engine that "
        "has some (0: none)",
    .max_waiting =
        "Requests that may wait; more are refused with RESOURCE_EXHAUSTED",
    .max_waiting_tokens =
        "Tokens of prompts that may wait, 4 bytes of this process each; more "
        "are refused like that, but not a request that waits alone",
    .max_num_blocks =
        "Blocks that an engine's pool, or its host memory, may have; each "
        "takes 260 bytes of this process, or 750 with regions",
    .query_window =
        "Queries that the engine keeps of every sequence, for evictions "
        "ordered from outside, which observe no more",
    .enable_prefix_caching =
        "Reuse the blocks of equal prefixes (on by default)",
    .reuse_partial_blocks =
        "Copy the first rows of a cached block where a prompt goes on as it "
        "begins, instead of computing them",
    .compaction =
        "Where an eviction puts what it keeps: fresh blocks while there are "
        "some, or the sequence's own (in-place)"};

constexpr PolicyFlagTexts kPolicyTexts{
    .scheduling_policy =
        "Who is next of those that wait: the first to come, the lowest "
        "priority value, or the longest cached prefix (with --prefix-aging). "
        "Preempted requests keep their place",
    .admission =
        "What must be free to admit a request: its whole prompt and the "
        "--watermark (vllm); all blocks it and those running will ever need, "
        "so that nobody is preempted (guaranteed); the blocks of its next "
        "step, pausing whoever came last (max_utilization)",
    .chunk_policy =
        "How prompts share a step: the oldest first, or equal shares in whole "
        "pages",
    .prefix_aging =
        "--scheduling-policy prefix: tokens of cached prefix that a step of "
        "waiting is worth; more, and long waits count for more",
    .max_bypasses =
        "How often later requests may pass one that does not fit; then they "
        "wait behind it (0: never)",
    .min_prefix_wait_tokens =
        "A request waits instead of computing this many tokens that a running "
        "one with the same prefix is about to compute (0: never)",
    .max_prefix_wait_steps = "... for at most so many steps",
    .max_long_prefills =
        "Prompts above --long-prefill-token-threshold computed at a time; "
        "shorter ones pass them (0: no limit)"};

void AddTenantFlags(CLI::App* app, Flags* flags) {
  const std::string group = "Tenants";
  SchedulerOptions& options = flags->server.scheduler;
  app->add_option("--tenant", flags->tenants,
                  "Limits of a tenant, or of all others for the name *: "
                  "weight (its fair share, 1..1000), max-blocks (that its "
                  "running requests have or may still take; more wait), "
                  "max-requests and max-queued-tokens (of prompts; more are "
                  "refused with RESOURCE_EXHAUSTED); may be repeated")
      ->check(Utf8Text())
      ->type_name("NAME:LIMIT=N[,LIMIT=N...]")
      ->group(group);
  app->add_flag("--fair-share", options.fair_share,
                "Serve the tenant first that has been served least for its "
                "weight (virtual token counter); its own requests by "
                "--scheduling-policy")
      ->group(group);
  app->add_option("--max-tenants", options.max_tenants,
                  "Tenants remembered at a time; one more is refused while "
                  "all have requests")
      ->capture_default_str()
      ->group(group);
}

// Connections take descriptors, of which many shells allow 1,024 only until
// they are asked for more.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // where not, it is as it was
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

int Serve(const CLI::App& app, const Flags& flags, const sigset_t& signals) {
  const absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(
      flags.server,
      [](const ModelLayout& layout, const SchedulerOptions& options) {
        return Scheduler::Create(layout, options);
      });
  if (!started.ok()) {
    const std::string error(started.status().message());
    std::fprintf(stderr, "blockmgrd: %s\n", NameFlags(app, error).c_str());
    return EXIT_FAILURE;
  }
  Server& server = **started;
  spdlog::info("listening on {}", server.address());
  if (!server.metrics_address().empty()) {
    spdlog::info("metrics at http://{}/metrics", server.metrics_address());
  }

  // Nobody changes the environment.
  const char* const value =
      std::getenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe)
  const std::string manager = value == nullptr ? "" : value;
  // READY again and again: a manager may be too busy to take the first.
  const auto look = [&server, &manager] {
    if (server.UpdateHealth()) {
      NotifyServiceManager(manager, "READY=1\nWATCHDOG=1");
    }
  };
  look();
  while (WaitForSignal(signals, kHealthPeriod) == 0) look();

  NotifyServiceManager(manager, "STOPPING=1");
  spdlog::info("draining for up to {} s; a second signal cancels at once",
               flags.drain_timeout_s);
  server.BeginDrain();
  AwakeClock clock;
  while (!server.drained() &&
         clock.Look(SteadyNowSeconds()) <= flags.drain_timeout_s &&
         WaitForSignal(signals, kDrainPeriod) == 0) {
    server.UpdateHealth();
  }
  if (!server.drained()) spdlog::warn("cancelling what is left");
  server.Shutdown(kShutdownGrace);
  spdlog::info("stopped");
  return EXIT_SUCCESS;
}

// Flags whose values are texts of our own; errors begin with the flag.
absl::Status ReadTexts(const CLI::App& app, Flags* flags) {
  if (app.count("--listen") == 0) {
    absl::StatusOr<std::string> address = DefaultListenAddress();
    if (!address.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("listen: ", address.status().message()));
    }
    flags->server.listen = *std::move(address);
  }
  for (const std::string& tenant : flags->tenants) {
    BM_RETURN_IF_ERROR(ParseTenant(tenant, &flags->server.scheduler));
  }
  BM_ASSIGN_OR_RETURN(flags->server.default_eviction,
                      ResolveEviction(flags->default_eviction));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Owns the paged KV cache of an LLM serving engine and schedules its "
      "steps.\nAn engine attaches with its pool; frontends submit requests and "
      "stream tokens.",
      "blockmgrd"};
  Flags flags;
  AddFlags(&app, &flags);
  AddBudgetTableFlag(&app, &flags.server);
  AddSchedulerFlags(&app, kSchedulerTexts, &flags.server.scheduler);
  AddPolicyFlags(&app, kPolicyTexts, &flags.server.scheduler);
  AddTenantFlags(&app, &flags);
  AddEvictionFlags(&app, &flags.default_eviction,
                   "Eviction of requests that say nothing of it");
  if (const std::optional<int> status = ParseCommandLine(&app, argc, argv)) {
    return *status;
  }
  if (const absl::Status status = ReadTexts(app, &flags); !status.ok()) {
    std::fprintf(stderr, "blockmgrd: --%s\n",
                 std::string(status.message()).c_str());
    return EXIT_FAILURE;
  }

  // Before any thread starts: all of them inherit the mask, and the signals
  // come to WaitForSignal alone.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  LogToStderr("blockmgrd");
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  spdlog::info("{}", ProgramVersion("blockmgrd"));
  RouteLibraryLogs();
  RaiseDescriptorLimit();
  return Serve(app, flags, signals);
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) {
  return blockmgr::RunMain(&blockmgr::Main, argc, argv);
}
