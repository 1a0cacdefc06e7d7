// The load client against a scripted daemon on a real socket.
#include "bench/serve/serve.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "proto/blockmgr/v1/request.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

// Answers a Submit with its tokens, one message each, unless told otherwise.
class FakeDaemon final : public v1::RequestService::Service,
                         public v1::AdminService::Service {
 public:
  struct Script {
    bool engine_attached = true;
    // Requests with a prompt this long are refused.
    int refused_prompt_tokens = -1;
    // The stream ends after this many submissions.
    int submissions_before_break = 1 << 30;
    // First index of the second chunk is wrong.
    bool loses_tokens = false;
    v1::FinishReason finish = v1::FINISH_REASON_LENGTH;
  };

  explicit FakeDaemon(Script script) : script_(script) {}

  grpc::Status GetStats(grpc::ServerContext*,
                        const v1::GetStatsRequest* request,
                        v1::GetStatsResponse* response) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    response->set_engine_attached(script_.engine_attached);
    response->set_engine_name("fake");
    response->mutable_layout()->set_num_blocks(77);
    response->set_clock_seconds(10.0 * num_stats_);
    response->set_running_request_seconds(25.0 * num_stats_);
    response->set_num_preemptions(100 + num_stats_);
    response->set_max_running(6);
    ++num_stats_;
    peaks_reset_ |= request->reset_peaks();
    return grpc::Status::OK;
  }

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                      v1::SubmitResponse*) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(*request);
    if (request->client_session() != session_) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "no stream"};
    }
    if (request->prompt_token_ids_size() == script_.refused_prompt_tokens) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full"};
    }
    if (static_cast<int>(requests_.size()) > script_.submissions_before_break) {
      broken_ = true;
      changed_.notify_all();
      return grpc::Status::OK;
    }
    for (int i = 0; i < request->max_tokens(); ++i) {
      v1::TokenBatch batch;
      v1::TokenChunk* chunk = batch.add_chunks();
      chunk->set_request_id(request->request_id());
      chunk->set_first_index(script_.loses_tokens && i > 0 ? i + 1 : i);
      chunk->add_tokens(7);
      if (i + 1 == request->max_tokens()) {
        chunk->set_finish_reason(script_.finish);
        chunk->set_error("broken on purpose");
      }
      batches_.push_back(std::move(batch));
    }
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status StreamTokens(
      grpc::ServerContext* context, const v1::StreamTokensRequest* request,
      grpc::ServerWriter<v1::TokenBatch>* writer) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      session_ = request->client_session();
    }
    writer->Write(v1::TokenBatch());
    while (!context->IsCancelled()) {
      v1::TokenBatch batch;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (broken_) return {grpc::StatusCode::UNAVAILABLE, "gone away"};
        if (batches_.empty()) {
          changed_.wait_for(lock, std::chrono::milliseconds(20));
          continue;
        }
        batch = std::move(batches_.front());
        batches_.pop_front();
      }
      writer->Write(batch);
    }
    return grpc::Status::CANCELLED;
  }

  std::vector<v1::SubmitRequest> requests() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }
  bool peaks_reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peaks_reset_;
  }

 private:
  const Script script_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string session_;
  std::vector<v1::SubmitRequest> requests_;
  std::deque<v1::TokenBatch> batches_;
  bool broken_ = false;
  bool peaks_reset_ = false;
  int num_stats_ = 0;
};

class ServeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder =
        "/tmp/blockmgr_serve_XXXXXX";  // socket paths are short
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    options_.address = absl::StrCat("unix:", folder_.string(), "/socket");
    options_.ready_check_timeout_s = 20;
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void StartDaemon(const FakeDaemon::Script& script) {
    daemon_ = std::make_unique<FakeDaemon>(script);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options_.address,
                             grpc::InsecureServerCredentials());
    builder.RegisterService(
        static_cast<v1::RequestService::Service*>(daemon_.get()));
    builder.RegisterService(
        static_cast<v1::AdminService::Service*>(daemon_.get()));
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  absl::StatusOr<RunResult> Run(const BenchOptions& bench) {
    const absl::StatusOr<BenchPlan> plan = ResolveOptions(bench);
    if (!plan.ok()) return plan.status();
    return RunServe(options_, *plan, nullptr);
  }

  static BenchOptions Load(int64_t num_prompts) {
    BenchOptions bench;
    bench.dataset.num_prompts = num_prompts;
    bench.dataset.random.input_tokens = 20;
    bench.dataset.random.output_tokens = 3;
    return bench;
  }

  static RunSummary Summary(const RunResult& result) {
    return Summarize(result.records, result.duration_s, {}, {});
  }

  std::filesystem::path folder_;
  ServeOptions options_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ServeTest, RecordsEveryTokenOfEveryRequest) {
  StartDaemon({});
  BenchOptions bench = Load(50);
  bench.arrivals.request_rate = 500.0;
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(bench));
  ASSERT_EQ(result.records.size(), 50u);
  for (const RequestRecord& record : result.records) {
    EXPECT_TRUE(record.completed) << record.failure;
    EXPECT_EQ(record.tokens_s.size(), 3u);
    EXPECT_GE(*record.sent_s, record.intended_s);
    EXPECT_LE(record.tokens_s.back(), result.duration_s);
  }
  EXPECT_EQ(result.model_id, "fake");
  EXPECT_TRUE(daemon_->peaks_reset());
}

TEST_F(ServeTest, CountersAreDifferencesOfTheDaemonsStats) {
  StartDaemon({});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(3)));
  EXPECT_DOUBLE_EQ(result.counters.mean_requests_in_flight, 2.5);
  EXPECT_EQ(result.counters.max_requests_in_flight, 6);
  EXPECT_EQ(result.counters.preemptions, 1u);
}

TEST_F(ServeTest, SendsPromptsLimitsAndEviction) {
  StartDaemon({});
  BenchOptions bench = Load(2);
  bench.keep_ratio = "0.2";
  ASSERT_OK_AND_ASSIGN(const BenchPlan plan, ResolveOptions(bench));
  EXPECT_OK(RunServe(options_, plan, nullptr));
  const std::vector<v1::SubmitRequest> requests = daemon_->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_NE(requests[0].request_id(), requests[1].request_id());
  for (const v1::SubmitRequest& request : requests) {
    EXPECT_EQ(request.max_tokens(), 3);
    EXPECT_EQ(request.eviction().mode(), v1::EVICTION_MODE_AFTER_PREFILL);
    EXPECT_TRUE(request.eviction().policy().has_adakv());
    EXPECT_EQ(request.eviction().target().keep_ratio(), "0.2");
    EXPECT_EQ(request.prompt_token_ids_size(), 20);
  }
  const std::vector<int32_t> expected =
      SynthesizeTokens(plan.workload.requests[0].prompt, plan.vocab_size);
  const auto& first =
      requests[0].request_id().ends_with("/0") ? requests[0] : requests[1];
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                         first.prompt_token_ids().begin()));
}

TEST_F(ServeTest, RefusedRequestsAreCountedWithTheirReason) {
  StartDaemon({.refused_prompt_tokens = 20});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(4)));
  const RunSummary summary = Summary(result);
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").count, 4);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").example, "queue full");
}

TEST_F(ServeTest, ABrokenStreamFailsWhatIsUnfinishedAndUnsent) {
  StartDaemon({.submissions_before_break = 5});
  BenchOptions bench = Load(12);
  bench.max_concurrency = 1;
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(bench));
  const RunSummary summary = Summary(result);
  EXPECT_EQ(summary.completed, 5);
  EXPECT_EQ(summary.failures.at("UNAVAILABLE").count, 7);
  EXPECT_FALSE(result.records.back().sent_s.has_value());
}

TEST_F(ServeTest, LostTokensAreAFailure) {
  StartDaemon({.loses_tokens = true});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(2)));
  EXPECT_EQ(Summary(result).failures.at("DATA_LOSS").count, 2);
}

TEST_F(ServeTest, RequestsTheDaemonFailsCarryItsMessage) {
  StartDaemon({.finish = v1::FINISH_REASON_FAILED});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(1)));
  EXPECT_EQ(Summary(result).failures.at("UNKNOWN").example,
            "broken on purpose");
}

TEST_F(ServeTest, ConcurrencyLimitIsKept) {
  StartDaemon({});
  BenchOptions bench = Load(40);
  bench.max_concurrency = 3;
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(bench));
  EXPECT_EQ(Summary(result).completed, 40);
  EXPECT_THAT(Summary(result).max_concurrent_requests, AllOf(Ge(1), Le(3)));
}

TEST_F(ServeTest, WaitsForAnEngineNoLongerThanAsked) {
  StartDaemon({.engine_attached = false});
  options_.ready_check_timeout_s = 0.3;
  EXPECT_THAT(Run(Load(1)), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     HasSubstr("no engine")));
}

TEST_F(ServeTest, SaysWhereNoDaemonAnswers) {
  options_.ready_check_timeout_s = 0.3;
  EXPECT_THAT(Run(Load(1)), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr(options_.address),
                                           HasSubstr("no daemon answers"))));
}

}  // namespace
}  // namespace blockmgr
