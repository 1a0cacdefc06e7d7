#include "bench/sim.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/sim_flags.h"
#include "scheduler/server/option_flags.h"

namespace blockmgr {
namespace {

class Simulation {
 public:
  Simulation(const BenchPlan& plan, std::unique_ptr<Scheduler> scheduler,
             const SimOptions& options, Progress* progress)
      : plan_(plan),
        scheduler_(std::move(scheduler)),
        engine_(scheduler_->layout(), options.model, options.seed,
                options.scheduler.engine.num_host_blocks),
        progress_(progress),
        records_(plan.workload.requests.size()) {
    for (size_t i = 0; i < records_.size(); ++i) {
      const WorkloadRequest& request = plan.workload.requests[i];
      records_[i].intended_s = request.arrival_s;
      records_[i].prompt_tokens = request.prompt_tokens();
      records_[i].failure = absl::InternalError("not finished");
    }
  }

  absl::StatusOr<RunResult> Run();

 private:
  // All blocks are free or cached, and after a reset of the cache free.
  absl::Status CheckNothingIsLost();

  // A step the engine has in hand.
  struct Running {
    double end_s;
    StepResult result;
  };

  // Submits what has arrived, as far as the concurrency limit lets it.
  void Send();
  void Submit(size_t index);
  void Issue();
  // Hands the oldest step's result over.
  absl::Status Settle();
  void Record(const Effects& effects);
  void Fail(size_t index, absl::Status status);
  // Moves virtual time on; what runs now has been running until then.
  void AdvanceTo(double time_s);
  double NextArrival() const;
  SystemCounters Counters() const;

  const BenchPlan& plan_;
  const std::unique_ptr<Scheduler> scheduler_;
  SimEngine engine_;
  Progress* const progress_;

  double now_s_ = 0;
  double engine_free_s_ = 0;
  std::deque<Running> running_;  // by end
  StepPlan step_;                // executed at once, so one is enough
  Effects effects_;

  std::vector<RequestRecord> records_;
  absl::flat_hash_map<RequestId, size_t> live_;  // to the request's index
  size_t num_sent_ = 0;
  int64_t num_done_ = 0;
  int64_t num_failed_ = 0;

  double running_request_seconds_ = 0;
  int32_t num_running_ = 0;
  int32_t max_running_ = 0;
  int32_t max_used_blocks_ = 0;
};

void Simulation::AdvanceTo(double time_s) {
  BM_CHECK(time_s >= now_s_);
  running_request_seconds_ += num_running_ * (time_s - now_s_);
  now_s_ = time_s;
}

double Simulation::NextArrival() const {
  const bool held_back =
      plan_.max_concurrency.has_value() &&
      live_.size() >= static_cast<size_t>(*plan_.max_concurrency);
  if (held_back || num_sent_ == records_.size()) {
    return std::numeric_limits<double>::infinity();
  }
  return std::max(now_s_, records_[num_sent_].intended_s);
}

void Simulation::Send() {
  while (NextArrival() <= now_s_) Submit(num_sent_++);
}

void Simulation::Submit(size_t index) {
  const WorkloadRequest& source = plan_.workload.requests[index];
  records_[index].sent_s = now_s_;
  // A prompt that the scheduler would refuse is not made.
  absl::Status length = scheduler_->options().CheckLength(
      source.prompt_tokens(), source.output_tokens);
  if (!length.ok()) return Fail(index, std::move(length));
  Request request;
  request.id = absl::StrCat("request-", index);
  request.prompt = SynthesizeTokens(source.prompt, plan_.vocab_size);
  request.max_tokens = source.output_tokens;
  request.eviction = plan_.eviction;
  const absl::StatusOr<RequestId> id = scheduler_->Submit(std::move(request));
  if (id.ok()) {
    live_.emplace(*id, index);
  } else {
    Fail(index, id.status());
  }
}

void Simulation::Fail(size_t index, absl::Status status) {
  records_[index].failure = std::move(status);
  ++num_failed_;
  ++num_done_;
}

void Simulation::Issue() {
  while (scheduler_->Schedule(&step_)) {
    Running running;
    const double duration_s = engine_.Run(step_, &running.result);
    running.end_s = std::max(now_s_, engine_free_s_) + duration_s;
    engine_free_s_ = running.end_s;
    running_.push_back(std::move(running));
  }
  num_running_ = scheduler_->num_running();
  max_running_ = std::max(max_running_, num_running_);
  max_used_blocks_ = std::max(max_used_blocks_, scheduler_->num_used_blocks());
}

absl::Status Simulation::Settle() {
  effects_.Clear();
  BM_RETURN_IF_ERROR(scheduler_->Update(running_.front().result, &effects_));
  running_.pop_front();
  Record(effects_);
  return absl::OkStatus();
}

void Simulation::Record(const Effects& effects) {
  for (const TokenEffect& effect : effects.tokens) {
    RequestRecord& record = records_[live_.at(effect.request)];
    BM_CHECK(effect.index == static_cast<int32_t>(record.tokens_s.size()));
    record.tokens_s.push_back(now_s_);
  }
  for (const FinishEffect& effect : effects.finished) {
    const auto found = live_.find(effect.request);
    const size_t index = found->second;
    live_.erase(found);
    if (effect.reason == FinishReason::kFailed) {
      Fail(index, effect.status);
    } else {
      records_[index].completed = true;
      ++num_done_;
    }
  }
  if (progress_ != nullptr) progress_->Update(num_done_, num_failed_);
}

SystemCounters Simulation::Counters() const {
  return {.mean_requests_in_flight =
              now_s_ > 0 ? running_request_seconds_ / now_s_ : 0.0,
          .scheduler = scheduler_->stats()};
}

absl::Status Simulation::CheckNothingIsLost() {
  const BlockManagerStats ended = scheduler_->stats().blocks;
  scheduler_->ResetPrefixCache();
  const BlockManagerStats reset = scheduler_->stats().blocks;
  const int32_t expected = ended.num_blocks - 1;
  if (ended.free_blocks + ended.cached_blocks == expected &&
      reset.free_blocks == expected) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      "blocks are lost: expected ", expected, " free or cached, got ",
      ended.free_blocks, " + ", ended.cached_blocks,
      "; free after a reset of the cache: ", reset.free_blocks));
}

absl::StatusOr<RunResult> Simulation::Run() {
  while (true) {
    Send();
    Issue();
    const double arrival_s = NextArrival();
    const double step_s = running_.empty()
                              ? std::numeric_limits<double>::infinity()
                              : running_.front().end_s;
    const double next_s = std::min(arrival_s, step_s);
    if (next_s == std::numeric_limits<double>::infinity()) break;
    AdvanceTo(next_s);
    if (step_s <= arrival_s) BM_RETURN_IF_ERROR(Settle());
  }
  if (!live_.empty()) {
    return absl::InternalError(absl::StrCat(
        "the scheduler stopped with ", live_.size(), " requests unfinished"));
  }
  RunResult result;
  result.records = std::move(records_);
  result.duration_s = now_s_;
  result.counters = Counters();
  result.peaks = {.max_requests_in_flight = max_running_,
                  .max_used_blocks = max_used_blocks_};
  result.prefix_cache = "new";
  result.endpoint_type = "sim";
  BM_RETURN_IF_ERROR(CheckNothingIsLost());
  return result;
}

// A visitor of options that copies them into the configuration of a report.
struct ConfigRows {
  RunResult* result;

  template <typename T>
  void Number(absl::string_view name, T value, std::type_identity_t<T> /*min*/,
              std::type_identity_t<T> /*max*/, const char* /*help*/) {
    result->config.emplace_back(name, value);
  }
  void Fraction(absl::string_view name, double value, const char* /*help*/) {
    result->config.emplace_back(name, value);
  }
  void Bool(absl::string_view name, bool value, const char* /*help*/) {
    result->config.emplace_back(name, value ? 1 : 0);
  }
  template <typename Enum>
  void Choice(absl::string_view name, Enum value, const char* /*help*/) {
    result->choices.emplace_back(name, EnumName(value));
  }
};

void AddConfig(const SimOptions& options, RunResult* result) {
  result->config = {
      {"num_blocks", options.num_blocks},
      {"num_host_blocks", options.scheduler.engine.num_host_blocks}};
  VisitStepOptions(options.scheduler, ConfigRows{result});
  VisitPolicyOptions(options.scheduler, ConfigRows{result});
  const SimModel& model = options.model;
  const std::pair<const char*, double> rows[] = {
      {"num_layers", model.num_layers},
      {"num_heads", model.num_heads},
      {"num_q_heads", model.num_q_heads},
      {"head_dim", model.head_dim},
      {"page_size", model.page_size},
      {"num_shards", model.num_shards},
      {"window", model.window},
      {"layer_params", model.layer_params},
      {"output_params", model.output_params},
      {"weight_bytes", model.weight_bytes},
      {"flops", model.flops},
      {"bandwidth", model.bandwidth},
      {"attention_flops", model.attention_flops},
      {"attention_bandwidth", model.attention_bandwidth},
      {"step_overhead_s", model.step_overhead_s},
      {"host_bandwidth", model.host_bandwidth},
      {"head_concentration", model.head_concentration},
      {"num_drafts", model.num_drafts},
      {"draft_acceptance", model.draft_acceptance},
  };
  result->config.insert(result->config.end(), std::begin(rows), std::end(rows));
  for (size_t i = 0; i < model.group_windows.size(); ++i) {
    result->config.emplace_back(absl::StrCat("group_windows[", i, "]"),
                                model.group_windows[i]);
  }
}

}  // namespace

void AddSimFlags(CLI::App* app, SimOptions* options) {
  app->add_option("--num-blocks", options->num_blocks,
                  "Blocks of the pool, the null block included")
      ->check(CLI::Range(2, 1 << 30))
      ->capture_default_str()
      ->group("Scheduler");
  AddHostBlocksFlag(app, &options->scheduler.engine.num_host_blocks)
      ->group("Scheduler");
  AddShardsFlag(app, &options->model.num_shards);
  VisitStepOptions(options->scheduler, OptionFlags(app, "Scheduler"));
  VisitPolicyOptions(options->scheduler, OptionFlags(app, "Scheduling policy"));
  AddSimModelFlags(app, &options->model);
}

absl::StatusOr<RunResult> RunSim(const SimOptions& options,
                                 const BenchPlan& plan, Progress* progress) {
  BM_RETURN_IF_ERROR(options.model.Validate());
  const ModelLayout layout = MakeLayout(options.model, options.num_blocks);
  BM_RETURN_IF_ERROR(layout.Validate());
  if (plan.eviction.policy.needs_table()) {
    return Invalid(
        "eviction: expected a policy without a budget table (only a daemon "
        "loads them), got ",
        FormatPolicy(plan.eviction.policy));
  }
  SchedulerOptions scheduling = options.scheduler;
  // The engine only pretends to accumulate scores.
  scheduling.engine.num_scorer_states = scheduling.max_num_seqs;
  scheduling.engine.supports_window_evictions = true;
  if (plan.eviction.policy.needs_query_stats()) {
    scheduling.engine.query_stats[plan.eviction.policy.scorer.stats] = "";
  }
  BM_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler,
                      Scheduler::Create(layout, scheduling));
  Simulation simulation(plan, std::move(scheduler), options, progress);
  BM_ASSIGN_OR_RETURN(RunResult result, simulation.Run());
  result.model_id = "sim";
  AddConfig(options, &result);
  return result;
}

}  // namespace blockmgr
