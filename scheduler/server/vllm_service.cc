#include "scheduler/server/vllm_service.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/grpc_status.h"
#include "scheduler/server/kv_event_batches.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/raw_messages.h"
#include "scheduler/server/sha256.h"
#include "scheduler/server/vllm_generate.h"
#include "wire/vllm_wire.h"

namespace blockmgr {
namespace {

namespace common = ::smg::grpc::common;
namespace engine = ::vllm::grpc::engine;

// The most bytes of a chunk. A stream holds one chunk at a time.
constexpr size_t kTokenizerChunkBytes = size_t{256} << 10;
// The time between two looks at the requests, for a call that waits until no
// request is left.
constexpr std::chrono::milliseconds kIdleInterval{20};
constexpr float kMaxFlushSeconds = 600;
constexpr int kMaxAbortIds = 1024;

// The first byte of the sessions of calls. Text of clients is UTF-8, so no
// client can choose such a session.
constexpr char kSessionPrefix[] = "\xFF";

// Serves a call that reads the core's state. `fill` makes the answer of the
// state. If `check` is given and finds a fault, the call fails with it.
template <typename Request, typename Response, typename Fill>
grpc::ServerUnaryReactor* ServeStats(
    CoreThread* core, grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& request, grpc::ByteBuffer* bytes, Fill fill,
    absl::Status (*check)(const Request&) = nullptr) {
  return ServeUnary<Request>(
      context, request, {},
      [&](const Request& parsed,
          grpc::ServerUnaryReactor* reactor) -> absl::Status {
        if (check != nullptr) BM_RETURN_IF_ERROR(check(parsed));
        core->Post(GetStats{
            false, [reactor, bytes, fill = std::move(fill)](
                       const absl::StatusOr<CoreStats>& stats) mutable {
              Response response;
              absl::Status status = stats.status();
              if (status.ok()) status = fill(*stats, &response);
              Answer(reactor, status, response, bytes);
            }});
        return absl::OkStatus();
      });
}

absl::Status CheckRank(bool has_rank, int32_t rank) {
  if (!has_rank || rank == 0) return absl::OkStatus();
  return Invalid("dp_rank: expected 0, the only one, got ", rank);
}

// Flush is one call of FlushCache. It waits until no request is unfinished,
// then drops the cache. The object lives until it has answered. After a
// cancellation it answers soon.
class Flush : public std::enable_shared_from_this<Flush> {
 public:
  Flush(CoreThread* core, Worker* timer, CallLimit::Place place,
        float timeout_seconds, const grpc::CallbackServerContext* context,
        grpc::ServerUnaryReactor* reactor, grpc::ByteBuffer* response)
      : core_(core),
        timer_(timer),
        place_(std::move(place)),
        deadline_(Worker::Clock::now() +
                  std::chrono::milliseconds(
                      static_cast<int64_t>(timeout_seconds * 1e3F))),
        context_(context),
        reactor_(reactor),
        response_(response) {}

  void Look() {
    core_->Post(GetStats{false, [self = shared_from_this()](
                                    const absl::StatusOr<CoreStats>& stats) {
                           if (!stats.ok()) {
                             self->reactor_->Finish(ToGrpc(stats.status()));
                             return;
                           }
                           self->Decide(stats->scheduler);
                         }});
  }

 private:
  void Decide(const SchedulerStats& stats) {
    if (context_->IsCancelled()) {
      reactor_->Finish(grpc::Status::CANCELLED);
      return;
    }
    const int32_t num_live = stats.num_running + stats.num_waiting;
    if (num_live == 0) {
      core_->Post(ResetPrefixCache{
          [self = shared_from_this()](const absl::StatusOr<CacheReset>& reset) {
            common::FlushCacheResponse response;
            if (reset.ok()) {
              response.set_success(true);
              response.set_message(
                  absl::StrCat("dropped ", reset->num_dropped, " blocks"));
            }
            Answer(self->reactor_, reset.status(), response, self->response_);
          }});
      return;
    }
    if (Worker::Clock::now() < deadline_) {
      timer_->Post(Worker::Clock::now() + kIdleInterval,
                   [self = shared_from_this()] { self->Look(); });
      return;
    }
    common::FlushCacheResponse response;
    response.set_message(absl::StrCat(
        "expected no unfinished request within timeout_s, got ", num_live));
    Answer(reactor_, absl::OkStatus(), response, response_);
  }

  CoreThread* const core_;
  Worker* const timer_;
  const CallLimit::Place place_;
  const Worker::Clock::time_point deadline_;
  const grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* const reactor_;
  grpc::ByteBuffer* const response_;
};

// One call of GetTokenizer. It owns itself until gRPC calls OnDone, together
// with everybody who holds a shared pointer to it. A thread that has no other
// work makes the messages, because a digest takes milliseconds.
class TokenizerStream final
    : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
      public std::enable_shared_from_this<TokenizerStream> {
 public:
  void Start(CoreThread* core, Worker* worker, TokenizerDigest* digest,
             absl::StatusOr<CallLimit::Place> place) {
    self_ = shared_from_this();
    worker_ = worker;
    digest_ = digest;
    if (!place.ok()) {
      End(ToGrpc(place.status()));
      return;
    }
    {
      MutexLock lock(&mutex_);
      place_ = *std::move(place);
    }
    core->Post(GetStats{false, [self = shared_from_this()](
                                   const absl::StatusOr<CoreStats>& stats) {
                          self->TakeModel(stats);
                        }});
  }

 private:
  void TakeModel(const absl::StatusOr<CoreStats>& stats) {
    if (!stats.ok()) {
      End(ToGrpc(stats.status()));
      return;
    }
    if (stats->model == nullptr || stats->model->tokenizer_zip.empty()) {
      End(grpc::Status(grpc::StatusCode::NOT_FOUND,
                       "the engine has announced no tokenizer "
                       "(AttachRequest.model.tokenizer_zip)"));
      return;
    }
    model_ = stats->model;
    PostWrite();
  }

  void PostWrite() {
    worker_->Post(Worker::Clock::now(),
                  [self = shared_from_this()] { self->WriteNext(); });
  }

  void WriteNext() {
    const std::string& zip = model_->tokenizer_zip;
    const size_t size = std::min(kTokenizerChunkBytes, zip.size() - next_);
    if (size == 0) {
      End(grpc::Status::OK);
      return;
    }
    common::GetTokenizerChunk chunk;
    chunk.set_data(zip.substr(next_, size));
    next_ += size;
    if (next_ == zip.size()) chunk.set_sha256(digest_->Of(model_));
    bytes_ = ToBytes(chunk);
    MutexLock lock(&mutex_);
    if (!finished_) StartWrite(&bytes_);
  }

  void OnWriteDone(bool ok) override {
    // If `ok` is false, the stream is broken and OnCancel follows.
    if (ok) PostWrite();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override { const auto self = std::move(self_); }

  void End(const grpc::Status& status) {
    MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    // A client that learns of the end may open the next stream.
    place_.reset();
    Finish(status);
  }

  // Keeps the stream alive from Start to OnDone.
  std::shared_ptr<TokenizerStream> self_;

  // Used by one thread at a time, because one operation starts the next.
  Worker* worker_ = nullptr;
  TokenizerDigest* digest_ = nullptr;  // used by the worker only
  std::shared_ptr<const ServedModel> model_;
  size_t next_ = 0;  // index of the next byte
  grpc::ByteBuffer bytes_;

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  CallLimit::Place place_ ABSL_GUARDED_BY(mutex_);
};

// The metadata entry, or nothing.
absl::StatusOr<std::string> OptionsOf(
    const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range(kOptionsMetadata);
  if (begin == end) return std::string();
  if (std::next(begin) != end) {
    return Invalid(kOptionsMetadata, ": expected one entry, got ",
                   std::distance(begin, end));
  }
  return std::string(begin->second.data(), begin->second.size());
}

absl::Status NoEngine() { return absl::UnavailableError("no engine attached"); }

void FillServerInfo(const CoreStats& stats, int32_t max_num_seqs,
                    engine::GetServerInfoResponse* info) {
  info->set_active_requests(static_cast<uint32_t>(stats.scheduler.num_running +
                                                  stats.scheduler.num_waiting));
  info->set_server_type("vllm-grpc");
  info->set_data_parallel_size(1);
  info->set_max_num_seqs(max_num_seqs);
  if (!stats.layout.has_value()) return;
  info->set_block_size(stats.layout->page_size);
  info->set_kv_cache_dtype(std::string(DTypeName(stats.layout->dtype)));
}

}  // namespace

const std::string& TokenizerDigest::Of(
    const std::shared_ptr<const ServedModel>& model) {
  if (digest_.empty() || model_.lock() != model) {
    digest_ = Sha256Hex(model->tokenizer_zip);
    model_ = model;
  }
  return digest_;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  engine::GenerateRequest parsed;
  const absl::Status status =
      ParseMessage(*request,
                   {.max_bytes = options_.max_generate_bytes,
                    .allowance_bytes = options_.generate_allowance_bytes},
                   &parsed);
  const absl::StatusOr<std::string> options = OptionsOf(*context);
  absl::StatusOr<GenerateCall> call = !status.ok() ? status
                                      : !options.ok()
                                          ? options.status()
                                          : FromProto(parsed, *options);
  const auto stream = std::make_shared<GenerateStream>(
      core_, &worker_, absl::StrCat(kSessionPrefix, ++num_calls_),
      options_.max_pending_bytes, call);
  stream->Start(std::move(call));
  return stream.get();
}

grpc::ServerUnaryReactor* VllmService::Abort(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<engine::AbortRequest>(
      context, *request, {},
      [this, response](const engine::AbortRequest& abort,
                       grpc::ServerUnaryReactor* reactor) -> absl::Status {
        if (abort.request_ids_size() > kMaxAbortIds) {
          return Invalid("request_ids: expected at most ", kMaxAbortIds,
                         ", got ", abort.request_ids_size());
        }
        core_->Post(AbortCommand{
            {abort.request_ids().begin(), abort.request_ids().end()},
            [reactor, response](const absl::Status& status) {
              Answer(reactor, status, engine::AbortResponse(), response);
            }});
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* VllmService::HealthCheck(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeStats<engine::HealthCheckRequest, engine::HealthCheckResponse>(
      core_, context, *request, response,
      [](const CoreStats& stats, engine::HealthCheckResponse* health) {
        health->set_healthy(stats.engine_attached && !stats.draining);
        health->set_message(stats.draining ? "the daemon is shutting down"
                            : !stats.engine_attached ? "no engine attached"
                                                     : "healthy");
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeStats<engine::GetModelInfoRequest, engine::GetModelInfoResponse>(
      core_, context, *request, response,
      [](const CoreStats& stats, engine::GetModelInfoResponse* info) {
        if (!stats.engine_attached) return NoEngine();
        ToProto(stats, info);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeStats<engine::GetServerInfoRequest,
                    engine::GetServerInfoResponse>(
      core_, context, *request, response,
      [this](const CoreStats& stats, engine::GetServerInfoResponse* info) {
        FillServerInfo(stats, options_.max_num_seqs, info);
        info->set_uptime_seconds(std::chrono::duration<double>(
                                     std::chrono::steady_clock::now() - start_)
                                     .count());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* VllmService::GetLoads(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeStats<engine::GetLoadsRequest, engine::GetLoadsResponse>(
      core_, context, *request, response,
      [this](const CoreStats& stats, engine::GetLoadsResponse* loads) {
        loads->set_timestamp(absl::FormatTime(absl::RFC3339_sec, absl::Now(),
                                              absl::UTCTimeZone()));
        loads->set_dp_rank_count(1);
        ToProto(LoadStats{.core = stats,
                          .max_num_seqs = options_.max_num_seqs,
                          .tokens_per_second =
                              rate_.Look(stats.scheduler.num_output_tokens,
                                         stats.clock_seconds)},
                loads->add_loads());
        return absl::OkStatus();
      },
      [](const engine::GetLoadsRequest& get) {
        return CheckRank(get.has_dp_rank(), get.dp_rank());
      });
}

grpc::ServerUnaryReactor* VllmService::FlushCache(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<common::FlushCacheRequest>(
      context, *request, {},
      [this, context, response](
          const common::FlushCacheRequest& flush,
          grpc::ServerUnaryReactor* reactor) -> absl::Status {
        // The comparisons are false for NaN.
        if (!(flush.timeout_s() >= 0 &&
              flush.timeout_s() <= kMaxFlushSeconds)) {
          return Invalid("timeout_s: expected 0 to ", kMaxFlushSeconds,
                         ", got ", flush.timeout_s());
        }
        BM_ASSIGN_OR_RETURN(CallLimit::Place place, flushes_.Take());
        std::make_shared<Flush>(core_, &worker_, std::move(place),
                                flush.timeout_s(), context, reactor, response)
            ->Look();
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::GetTokenizer(
    grpc::CallbackServerContext* /*context*/, const grpc::ByteBuffer* request) {
  common::GetTokenizerRequest parsed;
  const absl::Status status = ParseMessage(*request, {}, &parsed);
  const auto stream = std::make_shared<TokenizerStream>();
  stream->Start(core_, &tokenizer_worker_, &tokenizer_digest_,
                status.ok() ? tokenizers_.Take() : status);
  return stream.get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::SubscribeKvEvents(
    grpc::CallbackServerContext* /*context*/, const grpc::ByteBuffer* request) {
  common::SubscribeKvEventsRequest parsed;
  const absl::Status status = ParseMessage(*request, {}, &parsed);
  absl::StatusOr<CallLimit::Place> place =
      status.ok() ? subscriptions_.Take() : status;
  const grpc::Status opened = ToGrpc(place.status());
  return watches_->Open(
      opened, PrefixCacheCursor(),
      std::make_unique<KvEventBatches>(
          parsed, &rate_, options_.max_num_seqs,
          place.ok() ? *std::move(place) : CallLimit::Place()));
}

}  // namespace blockmgr
