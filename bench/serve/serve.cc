#include "bench/serve/serve.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "bench/serve/client.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/default_address.h"
#include "scheduler/server/flag_checks.h"
#include "wire/request_wire.h"

namespace blockmgr {
namespace {

using Clock = LoadClient::Clock;

// How often the progress bar is looked after.
constexpr std::chrono::milliseconds kTick{100};

v1::SubmitRequest ToProto(const WorkloadRequest& request,
                          const BenchPlan& plan) {
  v1::SubmitRequest message;
  const std::vector<int32_t> tokens =
      SynthesizeTokens(request.prompt, plan.vocab_size);
  message.mutable_prompt_token_ids()->Add(tokens.begin(), tokens.end());
  message.set_max_tokens(request.output_tokens);
  // Requests are greedy and as long as the workload says. If the model could
  // end them, each policy would have another load.
  message.mutable_sampling()->set_temperature(0);
  message.mutable_sampling()->set_ignore_eos(true);
  // Set in any case: none is none, whatever the daemon's default.
  ToProto(plan.eviction, message.mutable_eviction());
  return message;
}

std::vector<RequestRecord> NewRecords(const BenchPlan& plan) {
  std::vector<RequestRecord> records(plan.workload.requests.size());
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].intended_s = plan.workload.requests[i].arrival_s;
    records[i].prompt_tokens = plan.workload.requests[i].prompt_tokens();
    records[i].failure =
        absl::UnavailableError("not sent: the token stream had ended");
  }
  return records;
}

class Run {
 public:
  Run(LoadClient* client, const BenchPlan& plan, Progress* progress)
      : client_(client), plan_(plan), progress_(progress) {}

  // Sends everything on time, then waits for the last token.
  void Execute() {
    const std::vector<WorkloadRequest>& requests = plan_.workload.requests;
    for (size_t i = 0; i < requests.size() && !client_->broken(); ++i) {
      // Made before the wait, so that making it delays nothing.
      v1::SubmitRequest message = ToProto(requests[i], plan_);
      SleepUntil(client_->start() +
                 std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<double>(requests[i].arrival_s)));
      if (plan_.max_concurrency.has_value()) WaitBelow(*plan_.max_concurrency);
      client_->Submit(static_cast<int64_t>(i), std::move(message));
    }
    WaitBelow(1);
  }

 private:
  void Show(const LoadClient::Counts& counts) {
    if (progress_ != nullptr) progress_->Update(counts.done, counts.failed);
  }

  void SleepUntil(Clock::time_point time) {
    while (Clock::now() < time && !client_->broken()) {
      Show(client_->counts());
      std::this_thread::sleep_until(std::min(time, Clock::now() + kTick));
    }
  }

  void WaitBelow(int64_t limit) {
    while (true) {
      const LoadClient::Counts counts =
          client_->WaitUntilBelow(limit, Clock::now() + kTick);
      Show(counts);
      if (counts.unfinished() < limit || client_->broken()) return;
    }
  }

  LoadClient* const client_;
  const BenchPlan& plan_;
  Progress* const progress_;
};

// Returns how much the daemon's counters grew between two answers. REQUIRES:
// the counters did not start again in between.
SystemCounters Difference(const v1::GetStatsResponse& before,
                          const v1::GetStatsResponse& after) {
  const double seconds = after.clock_seconds() - before.clock_seconds();
  SystemCounters counters;
  if (seconds > 0) {
    counters.mean_requests_in_flight =
        (after.running_request_seconds() - before.running_request_seconds()) /
        seconds;
  }
  SchedulerStats earlier;
  FromProto(before, &earlier);
  FromProto(after, &counters.scheduler);
  SubtractCounters(earlier, &counters.scheduler);
  return counters;
}

// `before` has reset the peaks.
void AddSystem(const v1::GetStatsResponse& before,
               const absl::StatusOr<v1::GetStatsResponse>& after,
               RunResult* result) {
  const std::string why_not = WhyIncomparable(before, after);
  if (!why_not.empty()) {
    result->notes.push_back(
        absl::StrCat("what the daemon counted is not known: ", why_not));
    return;
  }
  result->counters = Difference(before, *after);
  if (after->peaks_since_seconds() == before.clock_seconds()) {
    result->peaks = {.max_requests_in_flight = after->max_running(),
                     .max_used_blocks = after->max_used_blocks()};
  } else {
    result->notes.push_back(
        "the most that the daemon saw is not known: another client has reset "
        "its peaks during the run");
  }
}

std::vector<std::pair<std::string, double>> Config(
    const v1::GetStatsResponse& stats) {
  const v1::ModelLayout& layout = stats.layout();
  std::vector<std::pair<std::string, double>> config = {
      {"num_blocks", layout.num_blocks()},
      {"num_layers", layout.num_layers()},
      {"num_heads", layout.num_heads()},
      {"num_q_heads", layout.num_q_heads()},
      {"head_dim", layout.head_dim()},
      {"page_size", layout.page_size()},
      {"num_shards", std::max(1, layout.num_shards())},
      {"window", layout.window()}};
  for (int i = 0; i < layout.group_windows_size(); ++i) {
    config.emplace_back(absl::StrCat("group_windows[", i, "]"),
                        layout.group_windows(i));
  }
  return config;
}

}  // namespace

absl::StatusOr<std::string> AddressOf(const ServeOptions& options) {
  absl::StatusOr<std::string> address =
      options.address.has_value() ? *options.address : DefaultDaemonAddress();
  absl::Status status = address.status();
  if (status.ok()) status = CheckDaemonAddress(*address);
  if (status.ok()) return address;
  return absl::Status(status.code(),
                      absl::StrCat("--address: ", status.message()));
}

void AddDaemonFlags(CLI::App* app, ServeOptions* options) {
  app->add_option("--address", options->address,
                  "Where the daemon listens: unix:PATH or HOST:PORT")
      ->default_str(DefaultAddress())
      ->group("Daemon");
  app->add_option("--ready-check-timeout-sec", options->ready_check_timeout_s,
                  "Wait this long for a daemon with an engine attached")
      ->check(NumberIn(0, 1e6))
      ->capture_default_str()
      ->group("Daemon");
}

void AddServeFlags(CLI::App* app, ServeOptions* options) {
  AddDaemonFlags(app, options);
  app->add_flag("--keep-prefix-cache", options->keep_prefix_cache,
                "Do not reset the daemon's prefix cache before the run: what "
                "runs before it have left there is found again")
      ->group("Daemon");
}

namespace {

// Empties the daemon's prefix cache before the run: a second run of the same
// workload would otherwise find its own prompts in the cache.
absl::Status EmptyPrefixCache(LoadClient* client, RunResult* result) {
  const absl::StatusOr<v1::ResetPrefixCacheResponse> reset =
      client->ResetPrefixCache();
  if (!reset.ok()) {
    return absl::Status(
        reset.status().code(),
        absl::StrCat("the prefix cache cannot be reset (a run with "
                     "--keep-prefix-cache need not): ",
                     reset.status().message()));
  }
  result->prefix_cache = "reset";
  if (reset->in_use_blocks() > 0) {
    result->notes.push_back(
        absl::StrCat(reset->in_use_blocks(),
                     " blocks of the prefix cache were not reset: requests of "
                     "other clients held them"));
  }
  return absl::OkStatus();
}

// Notes requests of other clients: those at the start, and those that ended
// during the run. REQUIRES: the run has ended; counters and records are known.
void NoteOthers(const v1::GetStatsResponse& before,
                const absl::StatusOr<v1::GetStatsResponse>& after,
                RunResult* result) {
  if (before.num_running() + before.num_waiting() > 0) {
    result->notes.push_back(absl::StrCat(
        "other clients had ", before.num_running(), " requests running and ",
        before.num_waiting(),
        " waiting at the start: they share the pool, and are counted, too"));
  }
  if (!result->counters.has_value()) return;  // nothing was counted
  const auto num_ended =
      static_cast<int64_t>(after->num_finished() - before.num_finished());
  const int64_t num_others = num_ended - std::ssize(result->records);
  if (num_others <= 0) return;
  result->notes.push_back(
      absl::StrCat("at least ", num_others,
                   " requests of other clients ended during the run: they "
                   "share the pool, and are counted, too"));
}

}  // namespace

absl::StatusOr<RunResult> RunServe(const ServeOptions& options,
                                   const BenchPlan& plan, Progress* progress) {
  BM_ASSIGN_OR_RETURN(const std::string address, AddressOf(options));
  LoadClient client(address, NewRecords(plan));
  BM_RETURN_IF_ERROR(client.WaitUntilReady(
      std::chrono::duration<double>(options.ready_check_timeout_s)));
  RunResult result;
  result.prefix_cache = "kept";
  if (!options.keep_prefix_cache) {
    BM_RETURN_IF_ERROR(EmptyPrefixCache(&client, &result));
  }
  BM_ASSIGN_OR_RETURN(const v1::GetStatsResponse before,
                      client.GetStats(/*reset_peaks=*/true));
  BM_RETURN_IF_ERROR(client.Open());
  Run(&client, plan, progress).Execute();
  const absl::StatusOr<v1::GetStatsResponse> after =
      client.GetStats(/*reset_peaks=*/false);
  client.Close();

  result.duration_s = client.last_event_s();
  result.records = client.TakeRecords();
  AddSystem(before, after, &result);
  NoteOthers(before, after, &result);
  result.endpoint_type = "grpc";
  const v1::GetStatsResponse& last = after.ok() ? *after : before;
  result.model_id = last.engine_name();
  result.config = Config(last);
  return result;
}

}  // namespace blockmgr
