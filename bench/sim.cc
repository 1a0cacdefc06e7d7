#include "bench/sim.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "engine/reference/sim_flags.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/scheduler_flags.h"

namespace blockmgr {
namespace {

class Simulation {
 public:
  Simulation(const BenchPlan& plan, std::unique_ptr<Scheduler> scheduler,
             const SimOptions& options, Progress* progress)
      : plan_(plan),
        scheduler_(std::move(scheduler)),
        engine_(scheduler_->layout(), options.model, options.seed,
                options.scheduler.num_host_blocks),
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
  SystemPeaks Peaks() const;

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
  const SchedulerStats stats = scheduler_->stats();
  return {
      .mean_requests_in_flight =
          now_s_ > 0 ? running_request_seconds_ / now_s_ : 0.0,
      .num_steps = stats.num_steps,
      .preemptions = stats.num_preemptions,
      .swap_ins = stats.num_swap_ins,
      .swapped_in_tokens = stats.num_swapped_in_tokens,
      .prompt_tokens = stats.num_prompt_tokens,
      .cached_tokens = stats.num_cached_tokens,
      .cached_region_tokens = stats.num_cached_region_tokens,
      .computed_tokens = stats.num_computed_tokens,
      .recomputed_tokens = stats.num_recomputed_tokens,
      .draft_tokens = stats.num_draft_tokens,
      .accepted_tokens = stats.num_accepted_tokens,
      .evictions = stats.num_evictions,
      .squeezes = stats.num_squeezes,
      .evicted_entries = stats.evicted_entries,
      .evicted_bytes = stats.evicted_bytes,
      .num_blocks = stats.blocks.num_blocks,
  };
}

SystemPeaks Simulation::Peaks() const {
  const SchedulerStats stats = scheduler_->stats();
  return {
      .max_requests_in_flight = max_running_,
      .max_used_blocks = max_used_blocks_,
      .kept_entries_min = stats.kept_entries_min,
      .kept_entries_median = stats.kept_entries_median,
      .kept_entries_max = stats.kept_entries_max,
  };
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
  result.peaks = Peaks();
  result.prefix_cache = "new";
  result.endpoint_type = "sim";
  BM_RETURN_IF_ERROR(CheckNothingIsLost());
  return result;
}

template <typename Enum>
std::string ChoiceName(const std::map<std::string, Enum>& names, Enum value) {
  const auto found = std::ranges::find(
      names, value,
      [](const auto& name) -> const Enum& { return name.second; });
  BM_CHECK(found != names.end());
  return found->first;
}

std::vector<std::pair<std::string, std::string>> Choices(
    const SchedulerOptions& scheduler) {
  return {
      {"scheduling_policy",
       ChoiceName(SchedulingPolicyNames(), scheduler.policy)},
      {"admission", ChoiceName(AdmissionPolicyNames(), scheduler.admission)},
      {"chunk_policy", ChoiceName(ChunkPolicyNames(), scheduler.chunk_policy)}};
}

std::vector<std::pair<std::string, double>> Config(const SimOptions& options) {
  const SchedulerOptions& scheduler = options.scheduler;
  const SimModel& model = options.model;
  std::vector<std::pair<std::string, double>> config = {
      {"num_blocks", options.num_blocks},
      {"num_host_blocks", scheduler.num_host_blocks},
      {"max_num_batched_tokens", scheduler.max_num_batched_tokens},
      {"max_num_seqs", scheduler.max_num_seqs},
      {"max_model_len", scheduler.max_model_len},
      {"long_prefill_token_threshold", scheduler.long_prefill_token_threshold},
      {"watermark", scheduler.watermark},
      {"max_steps_in_flight", scheduler.max_steps_in_flight},
      {"num_speculative_tokens", scheduler.num_speculative_tokens},
      {"prefix_aging", scheduler.prefix_aging},
      {"max_bypasses", scheduler.max_bypasses},
      {"min_prefix_wait_tokens", scheduler.min_prefix_wait_tokens},
      {"max_prefix_wait_steps", scheduler.max_prefix_wait_steps},
      {"max_long_prefills", scheduler.max_long_prefills},
      {"enable_prefix_caching", scheduler.enable_prefix_caching ? 1 : 0},
      {"reuse_partial_blocks", scheduler.reuse_partial_blocks ? 1 : 0},
      {"num_layers", model.num_layers},
      {"num_heads", model.num_heads},
      {"num_q_heads", model.num_q_heads},
      {"head_dim", model.head_dim},
      {"page_size", model.page_size},
      {"num_shards", model.num_shards},
      {"window", model.window},
      {"num_params", model.num_params},
      {"weight_bytes", model.weight_bytes},
      {"flops", model.flops},
      {"bandwidth", model.bandwidth},
      {"step_overhead_s", model.step_overhead_s},
      {"host_bandwidth", model.host_bandwidth},
      {"head_concentration", model.head_concentration},
      {"num_drafts", model.num_drafts},
      {"draft_acceptance", model.draft_acceptance},
  };
  for (size_t i = 0; i < model.group_windows.size(); ++i) {
    config.emplace_back(absl::StrCat("group_windows[", i, "]"),
                        model.group_windows[i]);
  }
  return config;
}

constexpr SchedulerFlagTexts kSchedulerTexts{
    .max_num_batched_tokens = "tokens in one step",
    .max_num_seqs = "sequences that hold blocks at one time",
    .max_model_len = "prompt and output tokens of one request",
    .long_prefill_token_threshold =
        "longest prefill chunk of one request in a step; 0: no limit but the "
        "step's",
    .watermark = "fraction of the pool that admission leaves free",
    .max_steps_in_flight = "steps issued before the first is answered",
    .num_speculative_tokens =
        "drafts of a sequence that a step verifies at most, of those of "
        "--sim-drafts",
    .max_num_blocks =
        "blocks that the pool, or host memory, may have; each takes 250 bytes "
        "of this process, or 740 with regions",
    .enable_prefix_caching = "share the blocks of equal prefixes [default: on]",
    .reuse_partial_blocks =
        "copy the first rows of a cached block where a prompt goes on as it "
        "begins"};

constexpr PolicyFlagTexts kPolicyTexts{
    .scheduling_policy =
        "who is next of those that wait: the first to come, the lowest "
        "priority value (here all have the same), or the longest cached prefix",
    .admission =
        "what must be free to admit a request: its whole prompt and the "
        "watermark; all it and those running will ever need; its next step",
    .chunk_policy =
        "how prompts share a step: the oldest first, or equal shares",
    .prefix_aging =
        "--scheduling-policy prefix: tokens of cached prefix that a step of "
        "waiting is worth",
    .max_bypasses = "how often later requests may pass one that does not fit",
    .min_prefix_wait_tokens =
        "wait instead of computing this many tokens that a running request is "
        "about to compute; 0: never",
    .max_prefix_wait_steps = "... for at most so many steps",
    .max_long_prefills =
        "prompts above the threshold computed at a time; 0: no limit"};

}  // namespace

void AddSimFlags(CLI::App* app, SimOptions* options) {
  app->add_option("--num-blocks", options->num_blocks,
                  "blocks of the pool, the null block included")
      ->check(CLI::Range(2, 1 << 30))
      ->capture_default_str()
      ->group("Scheduler");
  app->add_option("--num-host-blocks", options->scheduler.num_host_blocks,
                  "blocks of host memory for the KV of preempted requests; 0: "
                  "they are computed again")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group("Scheduler");
  AddShardsFlag(app, &options->model.num_shards);
  AddSchedulerFlags(app, kSchedulerTexts, &options->scheduler);
  AddPolicyFlags(app, kPolicyTexts, &options->scheduler);
  AddSimModelFlags(app, &options->model);
}

absl::StatusOr<RunResult> RunSim(const SimOptions& options,
                                 const BenchPlan& plan, Progress* progress) {
  BM_RETURN_IF_ERROR(options.model.Validate());
  const ModelLayout layout = MakeLayout(options.model, options.num_blocks);
  BM_RETURN_IF_ERROR(layout.Validate());
  if (plan.eviction.policy.needs_table()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "eviction: expected a policy without a budget table (only a daemon "
        "loads them), got ",
        FormatPolicy(plan.eviction.policy)));
  }
  SchedulerOptions scheduling = options.scheduler;
  // The engine only pretends to accumulate scores.
  scheduling.num_scorer_states = scheduling.max_num_seqs;
  scheduling.supports_window_evictions = true;
  BM_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler,
                      Scheduler::Create(layout, scheduling));
  Simulation simulation(plan, std::move(scheduler), options, progress);
  BM_ASSIGN_OR_RETURN(RunResult result, simulation.Run());
  result.model_id = "sim";
  result.config = Config(options);
  result.choices = Choices(options.scheduler);
  return result;
}

}  // namespace blockmgr
