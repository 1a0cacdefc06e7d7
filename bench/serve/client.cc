#include "bench/serve/client.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// A daemon answers these at once; this only bounds the wait for a hung one.
constexpr std::chrono::seconds kUnaryTimeout{30};
constexpr std::chrono::seconds kOpenTimeout{30};
constexpr std::chrono::milliseconds kReadyPoll{100};
constexpr std::chrono::milliseconds kReadyConnect{500};

absl::Status FromGrpc(const grpc::Status& status) {
  // The codes of both are the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

// Unique among the clients of a daemon: ids must differ between live requests.
std::string NewSession() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return absl::StrCat(
      "bench-", getpid(), "-",
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // Tokens of thousands of requests may come in one message.
  arguments.SetMaxReceiveMessageSize(-1);
  // A daemon that is being started is looked for often.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also how long an attempt may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      address, grpc::InsecureChannelCredentials(), arguments);
  // gRPC 1.51 ends its thread of callbacks with the last channel, and may do so
  // twice when a call is just ending: a channel that is never given up keeps
  // the thread.
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::shared_ptr<grpc::Channel>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(channel);
  return channel;
}

}  // namespace

// The one stream. Reads until it ends.
class LoadClient::TokenReader : public grpc::ClientReadReactor<v1::TokenBatch> {
 public:
  explicit TokenReader(LoadClient* client) : client_(client) {}

  void Start(v1::RequestService::Stub* stub, const std::string& session) {
    request_.set_client_session(session);
    stub->async()->StreamTokens(&context_, &request_, this);
    StartRead(&batch_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    client_->OnBatch(batch_);
    StartRead(&batch_);
  }

  void OnDone(const grpc::Status& status) override {
    client_->OnStreamEnd(status);
  }

 private:
  LoadClient* const client_;
  grpc::ClientContext context_;
  v1::StreamTokensRequest request_;
  v1::TokenBatch batch_;  // reused from message to message
};

// Owned by its callback.
struct LoadClient::SubmitCall {
  grpc::ClientContext context;
  v1::SubmitRequest request;
  v1::SubmitResponse response;
};

LoadClient::LoadClient(const std::string& address,
                       std::vector<RequestRecord> records, OnTokens on_tokens)
    : address_(address),
      on_tokens_(std::move(on_tokens)),
      session_(NewSession()),
      channel_(NewChannel(address)),
      requests_(v1::RequestService::NewStub(channel_)),
      admin_(v1::AdminService::NewStub(channel_)),
      records_(std::move(records)),
      ended_(records_.size(), false) {}

LoadClient::~LoadClient() {
  const std::lock_guard<std::mutex> lock(mutex_);
  BM_CHECK(reader_ == nullptr || stream_ended_);
  BM_CHECK(num_submitting_ == 0);
}

absl::StatusOr<v1::GetStatsResponse> LoadClient::GetStats(
    bool reset_peaks, std::chrono::duration<double> timeout) {
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
  v1::GetStatsRequest request;
  request.set_reset_peaks(reset_peaks);
  v1::GetStatsResponse response;
  const grpc::Status status = admin_->GetStats(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

absl::StatusOr<v1::ResetPrefixCacheResponse> LoadClient::ResetPrefixCache() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kUnaryTimeout);
  v1::ResetPrefixCacheResponse response;
  const grpc::Status status = admin_->ResetPrefixCache(
      &context, v1::ResetPrefixCacheRequest(), &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

absl::Status LoadClient::WaitUntilReady(std::chrono::duration<double> timeout) {
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  for (bool first = true;; first = false) {
    // A connection comes about only while somebody waits for it.
    channel_->WaitForConnected(std::chrono::system_clock::now() +
                               kReadyConnect);
    const absl::StatusOr<v1::GetStatsResponse> stats =
        GetStats(false, std::max<std::chrono::duration<double>>(
                            deadline - Clock::now(), kReadyPoll));
    if (stats.ok() && stats->engine_attached()) return absl::OkStatus();
    const std::string missing =
        stats.ok() ? "the daemon has no engine yet (blockmgr-engine)"
                   : absl::StrCat("no daemon answers yet (blockmgrd; ",
                                  stats.status().message(), ")");
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("ready-check-timeout-sec: at ", address_, " ", missing));
    }
    if (first) {
      absl::FPrintF(stderr, "waiting up to %g s: at %s %s\n", timeout.count(),
                    address_, missing);
    }
    std::this_thread::sleep_for(kReadyPoll);
  }
}

absl::Status LoadClient::Open() {
  BM_CHECK(reader_ == nullptr);
  start_ = Clock::now();
  reader_ = std::make_unique<TokenReader>(this);
  reader_->Start(requests_.get(), session_);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kOpenTimeout,
                      [this] { return stream_open_ || stream_ended_; });
    if (stream_open_ && !stream_ended_) {
      start_ = Clock::now();
      return absl::OkStatus();
    }
  }
  Close();
  const std::lock_guard<std::mutex> lock(mutex_);
  return absl::Status(
      stream_status_.code(),
      absl::StrCat("at ", address_, " the token stream did not open: ",
                   stream_status_.message()));
}

void LoadClient::Submit(int64_t index, v1::SubmitRequest message) {
  auto call = std::make_shared<SubmitCall>();
  call->request = std::move(message);
  call->request.set_client_session(session_);
  call->request.set_request_id(absl::StrCat(session_, "/", index));
  call->context.set_deadline(std::chrono::system_clock::now() + kUnaryTimeout);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_[static_cast<size_t>(index)].sent_s = SecondsSinceStart();
    ++counts_.sent;
    if (stream_ended_) {
      Finish(index, stream_status_);
      return;
    }
    ++num_submitting_;
  }
  SubmitCall* const borrowed = call.get();
  requests_->async()->Submit(
      &borrowed->context, &borrowed->request, &borrowed->response,
      [this, index, call = std::move(call)](const grpc::Status& status) {
        OnSubmitted(index, status);
      });
}

LoadClient::Counts LoadClient::WaitUntilBelow(int64_t limit,
                                              Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, deadline, [this, limit] {
    return counts_.unfinished() < limit || stream_ended_;
  });
  return counts_;
}

LoadClient::Counts LoadClient::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

bool LoadClient::broken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stream_ended_;
}

double LoadClient::last_event_s() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_event_s_;
}

void LoadClient::Close() {
  if (reader_ == nullptr) return;
  reader_->Cancel();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stream_ended_ && num_submitting_ == 0; });
}

std::vector<RequestRecord> LoadClient::TakeRecords() {
  const std::lock_guard<std::mutex> lock(mutex_);
  BM_CHECK(stream_ended_ && num_submitting_ == 0);
  return std::move(records_);
}

double LoadClient::SecondsSinceStart() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

int64_t LoadClient::IndexOf(const std::string& request_id) const {
  absl::string_view text = request_id;
  int64_t index = -1;
  if (!absl::ConsumePrefix(&text, session_) ||
      !absl::ConsumePrefix(&text, "/") || !absl::SimpleAtoi(text, &index) ||
      index < 0) {
    return -1;
  }
  return index;
}

void LoadClient::OnBatch(const v1::TokenBatch& batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!stream_open_) {
    stream_open_ = true;
    changed_.notify_all();
  }
  if (batch.chunks().empty()) return;  // start_ may not be set yet
  const double time_s = SecondsSinceStart();
  for (const v1::TokenChunk& chunk : batch.chunks()) OnChunk(chunk, time_s);
}

void LoadClient::OnChunk(const v1::TokenChunk& chunk, double time_s) {
  const int64_t index = IndexOf(chunk.request_id());
  if (index < 0 || index >= static_cast<int64_t>(records_.size()) ||
      ended_[static_cast<size_t>(index)]) {
    return;  // of a request that has failed here already
  }
  RequestRecord& record = records_[static_cast<size_t>(index)];
  const auto received = static_cast<int64_t>(record.tokens_s.size());
  if (chunk.first_index() != received) {
    Finish(index,
           absl::DataLossError(absl::StrCat("expected output token ", received,
                                            ", got ", chunk.first_index())));
    return;
  }
  record.tokens_s.insert(record.tokens_s.end(),
                         static_cast<size_t>(chunk.tokens_size()), time_s);
  if (on_tokens_) {
    on_tokens_(index, std::span(chunk.tokens().data(),
                                static_cast<size_t>(chunk.tokens_size())));
  }
  record.cached_tokens = chunk.num_cached_tokens();  // known in the last chunk
  switch (chunk.finish_reason()) {
    case v1::FINISH_REASON_UNSPECIFIED:
      return;
    case v1::FINISH_REASON_LENGTH:
    case v1::FINISH_REASON_STOP:
      Finish(index, record.tokens_s.empty()
                        ? absl::DataLossError("ended without a token")
                        : absl::OkStatus());
      return;
    case v1::FINISH_REASON_CANCELLED:
      Finish(index, absl::CancelledError("cancelled by the daemon"));
      return;
    default:
      Finish(index, absl::UnknownError(chunk.error()));
  }
}

void LoadClient::OnStreamEnd(const grpc::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stream_ended_ = true;
  stream_status_ =
      status.ok() ? absl::UnavailableError("the daemon ended the token stream")
                  : FromGrpc(status);
  for (size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].sent_s.has_value() && !ended_[i]) {
      Finish(static_cast<int64_t>(i), stream_status_);
    }
  }
  changed_.notify_all();
}

void LoadClient::OnSubmitted(int64_t index, const grpc::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_submitting_;
  if (!status.ok() && !ended_[static_cast<size_t>(index)]) {
    Finish(index, FromGrpc(status));
  }
  changed_.notify_all();
}

void LoadClient::Finish(int64_t index, absl::Status status) {
  const auto i = static_cast<size_t>(index);
  BM_CHECK(!ended_[i]);
  ended_[i] = true;
  records_[i].completed = status.ok();
  if (!status.ok()) ++counts_.failed;
  records_[i].failure = std::move(status);
  ++counts_.done;
  last_event_s_ = SecondsSinceStart();
  changed_.notify_all();
}

std::string WhyIncomparable(const v1::GetStatsResponse& before,
                            const absl::StatusOr<v1::GetStatsResponse>& after) {
  if (!after.ok()) {
    return absl::StrCat("the daemon did not answer at the end: ",
                        after.status().message());
  }
  if (after->epoch() != before.epoch()) {
    return "the daemon was started again during the run";
  }
  if (after->generation() != before.generation()) {
    return "an engine of another geometry attached during the run";
  }
  return "";
}

}  // namespace blockmgr
