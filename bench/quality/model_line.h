// ModelLine: scheduler, block manager and engine with a language model in one
// process, for measurements of what the model answers.
//
// It is what blockmgrd and blockmgr-engine are together, without gRPC: blocks
// are shared and freed as there. A caller submits requests and runs steps until
// one of them has ended. The logits behind chosen positions of a request are
// handed to its reader.
//
// Thread-compatible.
#ifndef BENCH_QUALITY_MODEL_LINE_H_
#define BENCH_QUALITY_MODEL_LINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "engine/reference/tiny_engine.h"
#include "engine/reference/tiny_model.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

struct ModelLineOptions {
  std::shared_ptr<const LanguageModel> model;
  DType dtype = DType::kBFloat16;  // of K and V
  int32_t page_size = 16;
  int32_t num_blocks = 0;
  int32_t num_threads = 1;
  QueryStatsTables query_stats = {};
};

// LogitsReader says which logits of a request are read, and by whom.
struct LogitsReader {
  std::vector<int32_t> positions;  // ascending
  std::function<void(int32_t position, std::span<const float> logits)> read;
};

// LineOutcome is the state of a request so far, or its end.
struct LineOutcome {
  FinishEffect finish;  // of request 0 while it lives
  int32_t num_tokens = 0;
  std::vector<EvictionEffect> evictions;
  double seconds = 0.0;  // of the engine, of all steps that ran meanwhile
};

class ModelLine {
 public:
  // Errs as Scheduler::Create and the backends do.
  static absl::StatusOr<std::unique_ptr<ModelLine>> Create(
      const ModelLineOptions& options);

  // Returns the number of the request, or why the scheduler refuses it.
  absl::StatusOr<RequestId> Submit(Request request, LogitsReader reader = {});
  // Ends and forgets the request. One that has ended is forgotten.
  absl::Status Cancel(RequestId request);
  // Run steps until the request has its first token, or has ended, after which
  // it is forgotten. Err if the engine or the scheduler does, or if the request
  // has failed or can never run.
  absl::StatusOr<LineOutcome> RunUntilToken(RequestId request);
  absl::StatusOr<LineOutcome> RunUntilEnd(RequestId request);

  const ModelLayout& layout() const { return scheduler_->layout(); }
  SchedulerStats stats() const { return scheduler_->stats(); }
  absl::Status ValidateEviction(const RequestEviction& eviction) const {
    return scheduler_->ValidateEviction(eviction);
  }

 private:
  ModelLine(std::unique_ptr<Scheduler> scheduler,
            std::unique_ptr<TinyEngine> engine);

  // Runs one step. False: there is nothing to run.
  absl::StatusOr<bool> Step();
  // Adds effects_ to the outcomes.
  void Record();
  absl::Status RunUntil(const std::function<bool()>& is_done);
  // Returns the reader of the request in the slot if it reads this position.
  const LogitsReader* ReaderOf(SequenceSlot slot, int32_t position) const;

  const std::unique_ptr<Scheduler> scheduler_;
  const std::unique_ptr<TinyEngine> engine_;
  std::map<RequestId, LogitsReader> readers_;  // of live requests
  std::map<SequenceSlot, RequestId> requests_;
  std::map<RequestId, LineOutcome> outcomes_;  // of live and ended requests
  Effects effects_;
};

}  // namespace blockmgr

#endif  // BENCH_QUALITY_MODEL_LINE_H_
