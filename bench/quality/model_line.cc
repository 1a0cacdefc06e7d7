#include "bench/quality/model_line.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "blockmgr/base/status_macros.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/sampler.h"
#include "kernels/backend.h"
#include "scheduler/scheduler_options.h"

namespace blockmgr {
namespace {

// A request that is compressed, the one that goes on from it, and some more.
constexpr int32_t kMaxSequences = 8;
constexpr int32_t kMaxQueryWindow = 512;

SchedulerOptions SchedulingOf(const ModelLineOptions& options) {
  SchedulerOptions scheduling;
  scheduling.max_num_seqs = kMaxSequences;
  scheduling.max_steps_in_flight = 1;
  scheduling.watermark = 0.0;
  scheduling.query_window = kMaxQueryWindow;
  scheduling.engine.num_scorer_states = kMaxSequences;
  scheduling.engine.supports_window_evictions = true;
  scheduling.engine.sampling = {
      .fields = Sampler::kFields,
      .vocabulary_size = options.model->shape().vocabulary};
  for (const auto& [name, table] : options.query_stats) {
    scheduling.engine.query_stats[name] = QueryStatsFingerprint(*table);
  }
  return scheduling;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelLine>> ModelLine::Create(
    const ModelLineOptions& options) {
  const ModelLayout layout =
      MakeLayout(options.model->shape(), options.page_size, options.dtype,
                 options.num_blocks);
  BM_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler,
                      Scheduler::Create(layout, SchedulingOf(options)));
  BM_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Backend>> backends,
                      CreateCpuShards(layout));
  auto engine = std::make_unique<TinyEngine>(
      options.model, layout, std::move(backends),
      TinyEngineOptions{.max_sequences = kMaxSequences,
                        .num_threads = options.num_threads,
                        .query_stats = options.query_stats});
  // The constructor is private.
  return std::unique_ptr<ModelLine>(
      new ModelLine(std::move(scheduler), std::move(engine)));
}

ModelLine::ModelLine(std::unique_ptr<Scheduler> scheduler,
                     std::unique_ptr<TinyEngine> engine)
    : scheduler_(std::move(scheduler)), engine_(std::move(engine)) {
  engine_->set_observer({.on_start =
                             [this](const SequenceStart& start) {
                               requests_[start.slot] = start.request;
                             },
                         .on_logits =
                             [this](SequenceSlot slot, int32_t position,
                                    std::span<const float> logits) {
                               const LogitsReader* reader =
                                   ReaderOf(slot, position);
                               if (reader != nullptr) {
                                 reader->read(position, logits);
                               }
                             },
                         .wants_logits =
                             [this](SequenceSlot slot, int32_t position) {
                               return ReaderOf(slot, position) != nullptr;
                             }});
}

const LogitsReader* ModelLine::ReaderOf(SequenceSlot slot,
                                        int32_t position) const {
  const auto request = requests_.find(slot);
  if (request == requests_.end()) return nullptr;
  const auto found = readers_.find(request->second);
  if (found == readers_.end()) return nullptr;
  const LogitsReader& reader = found->second;
  return std::ranges::binary_search(reader.positions, position) ? &reader
                                                                : nullptr;
}

absl::StatusOr<RequestId> ModelLine::Submit(Request request,
                                            LogitsReader reader) {
  BM_ASSIGN_OR_RETURN(const RequestId id,
                      scheduler_->Submit(std::move(request)));
  if (reader.read) readers_[id] = std::move(reader);
  outcomes_[id] = {};
  return id;
}

absl::Status ModelLine::Cancel(RequestId request) {
  if (outcomes_[request].finish.request == request) {
    outcomes_.erase(request);
    return absl::OkStatus();
  }
  effects_.Clear();
  BM_RETURN_IF_ERROR(scheduler_->Cancel(request, &effects_));
  Record();
  outcomes_.erase(request);
  return absl::OkStatus();
}

absl::StatusOr<bool> ModelLine::Step() {
  StepPlan plan;
  if (!scheduler_->Schedule(&plan)) return false;
  StepResult result;
  const auto begin = std::chrono::steady_clock::now();
  BM_RETURN_IF_ERROR(engine_->Run(plan, &result));
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  for (auto& [id, outcome] : outcomes_) outcome.seconds += took.count();
  effects_.Clear();
  BM_RETURN_IF_ERROR(scheduler_->Update(result, &effects_));
  Record();
  return true;
}

void ModelLine::Record() {
  for (const TokenEffect& effect : effects_.tokens) {
    ++outcomes_[effect.request].num_tokens;
  }
  for (EvictionEffect& effect : effects_.evictions) {
    outcomes_[effect.request].evictions.push_back(std::move(effect));
  }
  for (FinishEffect& effect : effects_.finished) {
    readers_.erase(effect.request);
    outcomes_[effect.request].finish = std::move(effect);
  }
}

absl::Status ModelLine::RunUntil(const std::function<bool()>& is_done) {
  while (!is_done()) {
    BM_ASSIGN_OR_RETURN(const bool ran, Step());
    if (!ran) {
      return absl::InternalError("a request waits and there is no step to run");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LineOutcome> ModelLine::RunUntilToken(RequestId request) {
  const LineOutcome& outcome = outcomes_[request];
  BM_RETURN_IF_ERROR(RunUntil([&] {
    return outcome.num_tokens > 0 || outcome.finish.request == request;
  }));
  BM_RETURN_IF_ERROR(outcome.finish.status);
  return outcome;
}

absl::StatusOr<LineOutcome> ModelLine::RunUntilEnd(RequestId request) {
  LineOutcome& outcome = outcomes_[request];
  BM_RETURN_IF_ERROR(
      RunUntil([&] { return outcome.finish.request == request; }));
  LineOutcome ended = std::move(outcome);
  outcomes_.erase(request);
  BM_RETURN_IF_ERROR(ended.finish.status);
  return ended;
}

}  // namespace blockmgr
