// LoadClient: the gRPC half of `blockmgr-bench serve`.
//
// One StreamTokens stream carries the tokens of all requests; each Submit is an
// asynchronous unary call. Arrivals of tokens are stamped when their message is
// read, so that slow bookkeeping elsewhere does not count as latency.
//
// Life: WaitUntilReady, Open, any number of Submits, WaitUntil..., Close. After
// Close nothing arrives any more and the records may be taken.
// Thread-safe: callbacks of gRPC write the records under a lock.
#ifndef BENCH_SERVE_CLIENT_H_
#define BENCH_SERVE_CLIENT_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include "bench/metrics.h"
#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "proto/blockmgr/v1/request.grpc.pb.h"

namespace blockmgr {

class LoadClient {
 public:
  using Clock = std::chrono::steady_clock;

  // Counts says how far the run is. `done` counts the failed requests, too.
  struct Counts {
    int64_t sent = 0;
    int64_t done = 0;
    int64_t failed = 0;
    int64_t unfinished() const { return sent - done; }
  };

  // Hears the tokens of request `index` as they arrive, in a thread of gRPC,
  // one call at a time.
  using OnTokens =
      std::function<void(int64_t index, std::span<const uint32_t> tokens)>;

  // `records` has one entry per request, in order. `on_tokens` may be empty.
  LoadClient(const std::string& address, std::vector<RequestRecord> records,
             OnTokens on_tokens = {});
  // REQUIRES: never opened, or closed.
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // Waits until the daemon answers and has an engine, and says so on standard
  // error if that takes time. DeadlineExceeded says what was missing.
  absl::Status WaitUntilReady(std::chrono::duration<double> timeout);
  absl::StatusOr<v1::GetStatsResponse> GetStats(
      bool reset_peaks,
      std::chrono::duration<double> timeout = std::chrono::seconds(30));

  absl::StatusOr<v1::ResetPrefixCacheResponse> ResetPrefixCache();

  // Opens the token stream and starts the clock of the run.
  absl::Status Open();
  // Sends request `index`, whose id and session this fills in. Returns at once.
  // After the stream has broken the request fails with the stream's status.
  void Submit(int64_t index, v1::SubmitRequest message);

  // Waits until fewer than `limit` requests are unfinished, until `deadline`,
  // or until the stream breaks.
  Counts WaitUntilBelow(int64_t limit, Clock::time_point deadline);
  Counts counts() const;
  bool broken() const;
  Clock::time_point start() const { return start_; }
  // When the last request ended, from the start, in seconds.
  double last_event_s() const;

  // Ends the stream and waits for all callbacks. Requests unfinished then have
  // failed.
  void Close();
  // REQUIRES: closed.
  std::vector<RequestRecord> TakeRecords();

 private:
  class TokenReader;
  struct SubmitCall;

  double SecondsSinceStart() const;
  void OnBatch(const v1::TokenBatch& batch);
  // REQUIRES: mutex_ is held.
  void OnChunk(const v1::TokenChunk& chunk, double time_s);
  void OnStreamEnd(const grpc::Status& status);
  void OnSubmitted(int64_t index, const grpc::Status& status);
  // REQUIRES: mutex_ is held.
  void Finish(int64_t index, absl::Status status);
  // The request of this run that an id names, or -1.
  int64_t IndexOf(const std::string& request_id) const;

  const std::string address_;
  const OnTokens on_tokens_;
  const std::string session_;  // prefix of all request ids, too
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::RequestService::Stub> requests_;
  const std::unique_ptr<v1::AdminService::Stub> admin_;
  Clock::time_point start_;  // constant after Open
  std::unique_ptr<TokenReader> reader_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::vector<RequestRecord> records_;
  std::vector<bool> ended_;  // by request
  Counts counts_;
  double last_event_s_ = 0;
  int64_t num_submitting_ = 0;  // unanswered Submits
  bool stream_open_ = false;    // the first batch has come
  bool stream_ended_ = false;
  absl::Status stream_status_;
};

// Returns why the counters of two answers cannot be subtracted, or an empty
// text if they can.
std::string WhyIncomparable(const v1::GetStatsResponse& before,
                            const absl::StatusOr<v1::GetStatsResponse>& after);

}  // namespace blockmgr

#endif  // BENCH_SERVE_CLIENT_H_
