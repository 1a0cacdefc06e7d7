// A scripted daemon for tests of the load client.
#ifndef TESTS_BENCH_FAKE_DAEMON_H_
#define TESTS_BENCH_FAKE_DAEMON_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "proto/blockmgr/v1/request.grpc.pb.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {

// Thread-safe. Answers a Submit with its tokens, one message each, unless told
// otherwise.
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
    // The events between a reset of the peaks, or the first submission, and the
    // next look at the statistics.
    bool restarts = false;          // the daemon
    bool changes_geometry = false;  // an engine of another one attaches
    bool others_reset_peaks = false;
    bool dies = false;       // no further look
    int others_running = 0;  // requests of other clients
    uint64_t num_ended = 0;  // requests of anybody, during the run
    int in_use_blocks = 0;   // that a reset of the cache leaves
    bool refuses_reset = false;
  };

  explicit FakeDaemon(Script script) : script_(script) {}

  grpc::Status GetStats(grpc::ServerContext*,
                        const v1::GetStatsRequest* request,
                        v1::GetStatsResponse* response) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool has_begun = peaks_reset_ || !requests_.empty();
    if (has_begun && script_.dies) {
      return {grpc::StatusCode::UNAVAILABLE, "gone for good"};
    }
    const bool begins_anew =
        has_begun && (script_.restarts || script_.changes_geometry);
    response->set_epoch(has_begun && script_.restarts ? 6 : 5);
    response->set_generation(has_begun && script_.changes_geometry ? 2 : 1);
    response->set_num_running(script_.others_running);
    response->set_num_finished(peaks_reset_ ? script_.num_ended : 0);
    response->set_max_used_blocks(60);
    response->set_num_steps(begins_anew ? 3 : 1000);
    response->set_peaks_since_seconds(peaks_since_seconds_ +
                                      (script_.others_reset_peaks ? 1 : 0));
    response->set_engine_attached(script_.engine_attached);
    response->set_engine_name("fake");
    response->mutable_layout()->set_num_blocks(77);
    response->set_clock_seconds(10.0 * num_stats_);
    response->set_running_request_seconds(25.0 * num_stats_);
    response->set_num_preemptions(100 + num_stats_);
    response->set_max_running(6);
    ++num_stats_;
    if (request->reset_peaks()) {
      peaks_reset_ = true;
      peaks_since_seconds_ = response->clock_seconds();
    }
    return grpc::Status::OK;
  }

  grpc::Status ResetPrefixCache(
      grpc::ServerContext*, const v1::ResetPrefixCacheRequest*,
      v1::ResetPrefixCacheResponse* response) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (script_.refuses_reset) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many commands"};
    }
    // Before anything is sent, or counted.
    cache_resets_ += requests_.empty() && !peaks_reset_ ? 1 : 100;
    response->set_in_use_blocks(script_.in_use_blocks);
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
  int cache_resets() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cache_resets_;
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
  double peaks_since_seconds_ = 0;
  int cache_resets_ = 0;
  int num_stats_ = 0;
};

// A fake daemon on a real socket in a folder of its own.
class FakeDaemonTest : public ::testing::Test {
 protected:
  void TearDown() override { StopDaemon(); }

  void StopDaemon() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  void StartDaemon(const FakeDaemon::Script& script) {
    daemon_ = std::make_unique<FakeDaemon>(script);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(
        static_cast<v1::RequestService::Service*>(daemon_.get()));
    builder.RegisterService(
        static_cast<v1::AdminService::Service*>(daemon_.get()));
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  const TempFolder folder_;
  const std::string address_ = "unix:" + folder_.File("socket");
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace blockmgr

#endif  // TESTS_BENCH_FAKE_DAEMON_H_
