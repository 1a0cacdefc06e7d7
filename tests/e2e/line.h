// The whole line in one process: a daemon's server, a tiny engine with its
// reference checker, and a frontend, joined by real gRPC over a unix socket.
#ifndef TESTS_E2E_LINE_H_
#define TESTS_E2E_LINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/sampling_params.h"
#include "engine/reference/client.h"
#include "engine/reference/tiny_engine.h"
#include "kernels/backend.h"
#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "proto/blockmgr/v1/eviction.grpc.pb.h"
#include "proto/blockmgr/v1/request.grpc.pb.h"
#include "scheduler/server/server.h"
#include "tests/e2e/reference_checker.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {

// Makes the backends of a layout, one for each shard.
using BackendFactory =
    std::function<absl::StatusOr<std::vector<std::unique_ptr<Backend>>>(
        const ModelLayout& layout)>;

struct LineOptions {
  std::shared_ptr<const LanguageModel> model;
  int32_t num_blocks = 64;
  int32_t page_size = 16;
  int32_t num_shards = 1;
  SchedulerOptions scheduler;
  int32_t num_scorer_states = 0;
  QueryStatsTables query_stats = {};
  std::vector<std::string> budget_tables = {};  // NAME=FILE
  TinyFault fault = {};
  int32_t num_host_blocks = 0;
  TinyHostFault host_fault = {};
  // Whether the engine refuses an order. The same one is always, or never.
  std::function<bool(const EvictionOrder& order)> refuses = {};
  // Changes what the engine answers to a plan.
  std::function<void(const StepPlan& plan, StepResult* result)> spoils = {};
  // How the engine's stream ends, as a regular expression; empty: in order.
  std::string engine_error = {};
  int32_t max_drafts = 0;  // that the engine proposes
  // This step, counted from 1, begins after the SubmitTogether that follows
  // WaitForHold; 0: none.
  int32_t hold_at_step = 0;
  DType dtype = DType::kFloat32;
  BackendFactory backends = &CreateCpuShards;
  ReferenceMargins margins = {};
};

// A tiny engine with the pool, the host tier and the drafts of these options;
// nothing is observed, and nothing fails.
std::unique_ptr<TinyEngine> MakeEngine(const LineOptions& options,
                                       int32_t num_blocks,
                                       int32_t max_sequences);

// What became of one request, as the frontend saw it.
struct Answer {
  std::vector<int32_t> tokens;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  std::string error;
  int32_t num_preemptions = 0;
  int32_t num_cached_tokens = 0;
  std::vector<v1::TokenLogProbs> logprobs;
  std::vector<v1::TokenLogProbs> prompt_logprobs;
};

class Line {
 public:
  explicit Line(LineOptions options);
  ~Line();

  // Opens the token stream and waits until the engine is attached.
  void Open();
  grpc::Status Submit(const v1::SubmitRequest& request);
  // The engine runs no step until all are submitted: how many contend for the
  // pool is not a question of who is faster.
  void SubmitTogether(const std::vector<v1::SubmitRequest>& requests);
  // Until the engine has come to hold_at_step.
  void WaitForHold() { held_.wait(false); }
  // A request with greedy decoding of exactly `max_tokens` tokens.
  static v1::SubmitRequest MakeRequest(const std::string& id,
                                       const std::vector<int32_t>& prompt,
                                       int32_t max_tokens);
  grpc::Status Evict(const v1::EvictRequest& request,
                     v1::EvictResponse* response);
  grpc::Status EvictByScores(const v1::EvictRequest& header,
                             const std::vector<float>& scores,
                             v1::EvictResponse* response);
  // Reads the token stream until `id` has this many tokens, or has ended.
  void WaitForTokens(const std::string& id, size_t num_tokens);
  // Those read so far.
  const std::vector<int32_t>& TokensOf(const std::string& id) const {
    return answers_.at(id).tokens;
  }
  // Reads until `count` requests have ended.
  const std::map<std::string, Answer>& WaitForAnswers(size_t count);
  // Once no step is in flight: free + cached must be all of the pool, and all
  // of it must be free after a cache reset.
  void ExpectNothingLeaked();
  v1::GetStatsResponse GetStats();
  // Ends engine and daemon, so that the checker may be read.
  void Close();

  ReferenceChecker& checker() { return *checker_; }

 private:
  bool ReadBatch();
  // What the engine gets in place of a plan.
  StepPlan Spoiled(const StepPlan& plan) const;
  static void SetDeadline(grpc::ClientContext* context);

  const LineOptions options_;
  TempFolder folder_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<TinyEngine> engine_;
  std::unique_ptr<ReferenceChecker> checker_;
  std::unique_ptr<EngineClient> client_;
  std::thread engine_thread_;
  absl::Status engine_status_;
  int32_t num_steps_ = 0;           // that have begun; the engine's thread
  std::atomic<bool> held_ = false;  // no step begins
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RequestService::Stub> requests_;
  std::unique_ptr<v1::EvictionService::Stub> evictions_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  std::unique_ptr<grpc::ClientContext> stream_context_;
  std::unique_ptr<grpc::ClientReader<v1::TokenBatch>> stream_;
  std::map<std::string, Answer> answers_;
  size_t num_ended_ = 0;
};

// The end of requests, and of the line that has served them.
struct Served {
  std::map<std::string, Answer> answers;
  v1::GetStatsResponse stats;
  ReferenceCounts checked;
  // By prompt.
  std::map<std::vector<int32_t>, ReferenceChecker::LogitsByPosition> logits;
};

// Serves requests that are submitted together, to their length, and compares
// all that is computed and kept with the dense model; nothing may leak.
Served Serve(const LineOptions& options,
             const std::vector<v1::SubmitRequest>& requests);
// Does the same for requests that have been submitted; closes the line.
Served Finish(Line* line, size_t num_requests);

// The same engine and scheduler without a daemon, one request at a time in a
// pool where it never meets another: what a request computes alone.
ReferenceChecker::LogitsByPosition RunAlone(
    const LineOptions& options, const std::vector<int32_t>& prompt,
    int32_t max_tokens, std::vector<int32_t>* tokens,
    const std::optional<SamplingParams>& sampling = std::nullopt);

}  // namespace blockmgr

#endif  // TESTS_E2E_LINE_H_
