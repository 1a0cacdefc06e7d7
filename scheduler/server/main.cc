// blockmgrd: the daemon.
#include <chrono>
#include <csignal>
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
#include "program/flag_names.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/awake_clock.h"
#include "scheduler/server/default_address.h"
#include "scheduler/server/eviction_flags.h"
#include "scheduler/server/flag_checks.h"
#include "scheduler/server/kv_event_publisher.h"
#include "scheduler/server/library_logs.h"
#include "scheduler/server/option_flags.h"
#include "scheduler/server/server.h"
#include "scheduler/server/service_manager.h"
#include "scheduler/server/stderr_log.h"

namespace blockmgr {
namespace {

constexpr std::chrono::milliseconds kShutdownGrace{1000};
// The time between two checks of the health and, while draining, between two
// checks of the requests left.
constexpr std::chrono::milliseconds kHealthPeriod{1000};
constexpr std::chrono::milliseconds kDrainPeriod{20};

struct Flags {
  ServerOptions server;
  double drain_timeout_s = 30;
  std::string log_level = "info";
  // ParseTenant reads each text.
  std::vector<std::string> tenants;
  EvictionFlags default_eviction;
};

void AddFlags(CLI::App* app, Flags* flags) {
  ServerOptions& server = flags->server;
  app->add_option("--listen", server.listen,
                  "Address for engines and clients: unix:PATH, or HOST:PORT on "
                  "the loopback (port 0: any)")
      ->default_str(DefaultAddress());
  app->add_option("--metrics-listen", server.metrics_listen,
                  "HOST:PORT at which Prometheus finds metrics: GET /metrics, "
                  "plain HTTP (port 0: any) [default: none are served]");
  app->add_option("--drain-timeout", flags->drain_timeout_s,
                  "Seconds that requests may take to finish, and clients to "
                  "read their tokens, after the first SIGTERM or SIGINT; a "
                  "second signal cancels them at once")
      ->check(NumberIn(0))
      ->capture_default_str();
  app->add_option("--log-level", flags->log_level, "Level of the log on stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
}

void AddKvEventFlags(CLI::App* app, KvEventOptions* options) {
  const std::string group = "KV events";
  app->add_option("--kv-events-endpoint", options->endpoint,
                  "Publishes KV events as vLLM does, on ZeroMQ: "
                  "tcp://ADDRESS:PORT on the loopback (port 0: any), or "
                  "ipc://PATH. They have prompts in them [default: none are "
                  "published]")
      ->group(group);
  app->add_option("--kv-events-replay-endpoint", options->replay_endpoint,
                  "Endpoint at which subscribers ask for batches that they "
                  "have missed [default: there is none]")
      ->group(group);
  app->add_option("--kv-events-topic", options->topic,
                  "Topic of the events; llm-d wants kv@POD@MODEL [default: an "
                  "empty one]")
      ->check(Utf8Text())
      ->group(group);
  app->add_option("--kv-events-compressed-topic", options->compressed_topic,
                  "Topic of events of compressed prefixes, which only "
                  "consumers made for them understand [default: none are "
                  "published]")
      ->check(Utf8Text())
      ->group(group);
  app->add_flag("--kv-events-remote", options->remote,
                "Allows endpoints that other machines can reach: whoever "
                "reaches them can read prompts")
      ->group(group);
}

void AddBudgetTableFlag(CLI::App* app, ServerOptions* options) {
  app->add_option("--budget-table", options->budget_tables,
                  "A budget table that policies may name: an LU-KV profile, "
                  "head scores as JSON (HeadKV's, too) or retention counts as "
                  ".npy; may be repeated")
      ->check(Utf8Text())
      ->type_name("NAME=FILE");
}

void AddOptionFlags(CLI::App* app, Flags* flags) {
  SchedulerOptions& options = flags->server.scheduler;
  VisitServerOptions(flags->server, OptionFlags(app, "Server"));
  VisitStepOptions(options, OptionFlags(app, "Scheduler"));
  VisitPolicyOptions(options, OptionFlags(app, "Scheduling policy"));
  const std::string clients = "Clients";
  VisitClientOptions(options, OptionFlags(app, clients));
  app->add_option("--tenant", flags->tenants,
                  absl::StrCat("Limits of a tenant, or of each other tenant "
                               "for the name *; may be repeated. ",
                               DescribeTenantLimits()))
      ->check(Utf8Text())
      ->type_name("NAME:LIMIT=N[,LIMIT=N...]")
      ->group(clients);
}

// Connections take descriptors. Many shells allow 1,024 descriptors by default,
// and more for a process that asks.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  // If the call fails, the limit stays as it was.
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Waits for a signal of `set` and returns it. Returns 0 after `timeout`.
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
    PrintError(app, started.status().message(), EvictionFields());
    return EXIT_FAILURE;
  }
  Server& server = **started;
  spdlog::info("listening on {}", server.address());
  if (!server.metrics_address().empty()) {
    spdlog::info("metrics at http://{}/metrics", server.metrics_address());
  }

  if (const KvEventPublisher* const events = server.kv_events()) {
    spdlog::info("KV events at {}{}{}", events->endpoint(),
                 events->replay_endpoint().empty() ? "" : ", replays at ",
                 events->replay_endpoint());
  }

  // Nobody changes the environment.
  const char* const value =
      std::getenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe)
  const std::string manager = value == nullptr ? "" : value;
  // READY is sent repeatedly, because a manager may be too busy to take the
  // first one.
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

// Reads the flags whose values are texts of our own. Errors begin with the name
// of the flag.
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
  AddKvEventFlags(&app, &flags.server.kv_events);
  AddBudgetTableFlag(&app, &flags.server);
  AddOptionFlags(&app, &flags);
  AddEvictionFlags(&app, &flags.default_eviction,
                   "Eviction of requests that do not set their own");
  if (const std::optional<int> status = ParseCommandLine(&app, argc, argv)) {
    return *status;
  }
  if (const absl::Status status = ReadTexts(app, &flags); !status.ok()) {
    PrintError(app, status.message());
    return EXIT_FAILURE;
  }

  // The signals are blocked before any thread starts. All threads inherit the
  // mask, so only WaitForSignal gets the signals.
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
