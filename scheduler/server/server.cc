#include "scheduler/server/server.h"

#include <algorithm>
#include <random>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/eviction_requests.h"
#include "scheduler/require_range.h"
#include "scheduler/server/admin_service.h"
#include "scheduler/server/connections.h"
#include "scheduler/server/engine_service.h"
#include "scheduler/server/eviction_service.h"
#include "scheduler/server/listen_address.h"
#include "scheduler/server/listener.h"
#include "scheduler/server/peer_text.h"
#include "scheduler/server/prefix_cache_watches.h"
#include "scheduler/server/raw_messages.h"
#include "scheduler/server/request_service.h"
#include "scheduler/server/vllm_service.h"
#include "wire/vllm_wire.h"

namespace blockmgr {
namespace {

// Services that need an engine.
constexpr const char* kRequestServices[] = {"blockmgr.v1.RequestService",
                                            "vllm.grpc.engine.VllmEngine"};
// The least limit of a received message. One result may have a thousand
// evictions, and each has the counts of all heads of a large model.
constexpr int64_t kMinReceiveBytes = int64_t{16} << 20;
constexpr int64_t kMaxMessage = int64_t{1} << 30;
// The most metadata of a call: the options of Generate, and gRPC's default for
// everything else. gRPC adds 32 bytes for each entry.
constexpr int64_t kMaxMetadataBytes = kMaxOptionsBytes + (int64_t{8} << 10);
// The most bytes that an engine may add to the tokens of a sequence.
constexpr int64_t kTokenDataBytes = int64_t{16} << 10;
// The bytes of a position's log-probabilities: 1 + kMaxLogprobs tokens of up to
// 5 bytes, and as many floats.
constexpr int64_t kMaxLogProbBytes = 256;

// Returns a new random number in every call. Clients tell one daemon from the
// next by such a number, the epoch. The number is never 0, because a message
// without an epoch has 0 there.
uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

// Returns the size of a message with a prompt of max_model_len tokens (5 bytes
// each) and the most of everything else.
int64_t MaxSubmitBytes(const SchedulerOptions& options) {
  return std::min(int64_t{5} * options.max_model_len + (int64_t{1} << 20),
                  kMaxMessage);
}

// Gateways also send the text of the prompt, about 4 bytes per token.
int64_t MaxGenerateBytes(const SchedulerOptions& options) {
  return std::min(int64_t{16} * options.max_model_len + (int64_t{1} << 20),
                  kMaxMessage);
}

// A token id may have one byte on the wire, and takes 12 bytes while it is
// parsed. These are 8 bytes more than kMaxAmplification allows.
constexpr int64_t kTokenAllowanceBytes = 8;

int64_t MaxResultBytes(const SchedulerOptions& options) {
  return std::min(kMinReceiveBytes + options.max_num_seqs * kTokenDataBytes +
                      options.max_num_batched_tokens * kMaxLogProbBytes,
                  kMaxMessage);
}

// Sets limits that keep one peer from harming the others.
void Harden(const ServerOptions& options, grpc::ServerBuilder* builder) {
  // Each service limits the messages of its own methods.
  builder->SetMaxReceiveMessageSize(static_cast<int>(std::max(
      {MaxSubmitBytes(options.scheduler), MaxGenerateBytes(options.scheduler),
       MaxResultBytes(options.scheduler)})));
  // Plans may carry a caller's scores, whose size has a limit of its own.
  builder->SetMaxSendMessageSize(-1);
  // gRPC checks the size limit after inflation only, so a small message could
  // take all memory.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                              static_cast<int>(kMaxMetadataBytes));
  // A frontend keeps a unary call open for each eviction and submission.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16384);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 2000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  // A client that has had no open call for this time makes room for other
  // clients.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300000);
  grpc::ResourceQuota quota("blockmgrd");
  quota.Resize(size_t{256} << 20);
  builder->SetResourceQuota(quota);
}

void SetRequestHealth(grpc::HealthCheckServiceInterface* health, bool serves) {
  for (const char* service : kRequestServices) {
    health->SetServingStatus(service, serves);
  }
}

}  // namespace

class Server::Services {
 public:
  Services(CoreThread* core, const ServerOptions& options)
      : watches_(core),
        engine_(core, MaxResultBytes(options.scheduler)),
        request_(core, options.max_pending_token_bytes,
                 MaxSubmitBytes(options.scheduler)),
        eviction_(core, options.max_score_bytes,
                  std::chrono::milliseconds(
                      static_cast<int64_t>(options.score_timeout_s * 1e3))),
        admin_(core, &watches_),
        vllm_(core, &watches_,
              {.max_pending_bytes = options.max_pending_token_bytes,
               .max_generate_bytes = MaxGenerateBytes(options.scheduler),
               .generate_allowance_bytes =
                   kPartsAllowanceBytes +
                   kTokenAllowanceBytes * options.scheduler.max_model_len,
               .max_num_seqs = options.scheduler.max_num_seqs}) {}

  void Register(grpc::ServerBuilder* builder) {
    builder->RegisterService(&engine_);
    builder->RegisterService(&request_);
    builder->RegisterService(&eviction_);
    builder->RegisterService(&admin_);
    builder->RegisterService(&vllm_);
  }

 private:
  PrefixCacheWatches watches_;
  EngineService engine_;
  RequestService request_;
  EvictionService eviction_;
  AdminService admin_;
  VllmService vllm_;
};

absl::Status ServerOptions::Validate() const {
  BM_RETURN_IF_ERROR(scheduler.Validate());
  BM_RETURN_IF_ERROR(kv_events.Validate());
  RangeChecks checks;
  VisitServerOptions(*this, checks);
  return checks.status();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, SchedulerFactory factory) {
  BM_RETURN_IF_ERROR(options.Validate());
  BM_ASSIGN_OR_RETURN(const ListenAddress address,
                      ParseListenAddress(options.listen));

  CoreThreadOptions core;
  core.core.scheduler = options.scheduler;
  core.core.scheduler.sampling_seed = RandomNumber();
  BM_ASSIGN_OR_RETURN(core.core.tables,
                      LoadBudgetTables(options.budget_tables));
  core.core.default_eviction = options.default_eviction;
  BM_ASSIGN_OR_RETURN(
      core.core.default_eviction.table,
      FindBudgetTable(core.core.tables, options.default_eviction.policy));
  // If the default eviction were invalid, every engine would be refused.
  BM_RETURN_IF_ERROR(
      ValidateEviction(core.core.default_eviction, options.scheduler));
  if (const std::string warning = SharingWarning(core.core.default_eviction);
      !warning.empty()) {
    spdlog::warn("{}", warning);
  }

  std::unique_ptr<Server> server(new Server);
  BM_ASSIGN_OR_RETURN(server->listener_,
                      Listener::Open(address, options.max_connections));
  core.core.epoch = RandomNumber();
  core.core.step_timeout_seconds = options.step_timeout_s;
  core.core.on_engine_change = [server = server.get()](
                                   bool attached, const std::string& what) {
    // Parts of the text come from peers.
    spdlog::info("engine {}: {}", attached ? "attached" : "lost", ForLog(what));
    server->engine_attached_.store(attached);
    grpc::Server* const health = server->health_.load();
    if (health == nullptr) return;
    SetRequestHealth(health->GetHealthCheckService(), attached);
  };
  core.queue_capacity = options.queue_capacity;
  core.spin_us = options.spin_us;
  server->core_ =
      std::make_unique<CoreThread>(std::move(core), std::move(factory));
  if (!options.metrics_listen.empty()) {
    BM_ASSIGN_OR_RETURN(
        server->metrics_,
        MetricsExporter::Start(options.metrics_listen, server->core_.get()));
  }
  if (!options.kv_events.endpoint.empty()) {
    BM_ASSIGN_OR_RETURN(
        server->kv_events_,
        KvEventPublisher::Start(options.kv_events, server->core_.get()));
  }
  server->services_ = std::make_unique<Services>(server->core_.get(), options);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  Listener::Take take = AddConnections(&builder);
  Harden(options, &builder);
  server->services_->Register(&builder);
  server->grpc_ = builder.BuildAndStart();
  if (server->grpc_ == nullptr) {
    return absl::InternalError("gRPC cannot start a server");
  }
  auto* const health = server->grpc_->GetHealthCheckService();
  health->SetServingStatus("", true);
  server->health_.store(server->grpc_.get());
  // An engine may have opened its stream before health_ was set.
  SetRequestHealth(health, server->engine_attached_.load());
  server->listener_->Start(std::move(take));
  return server;
}

Server::~Server() { Shutdown(std::chrono::milliseconds(0)); }

bool Server::UpdateHealth() {
  if (grpc_ == nullptr) return false;
  const bool turns = core_->Probe();
  if (draining_) return turns;
  auto* const health = grpc_->GetHealthCheckService();
  health->SetServingStatus("", turns);
  SetRequestHealth(health, turns && engine_attached_.load());
  return turns;
}

void Server::BeginDrain() {
  if (grpc_ == nullptr || draining_) return;
  draining_ = true;
  // After Shutdown the health service always reports NOT_SERVING.
  grpc_->GetHealthCheckService()->Shutdown();
  core_->Post(Drain{[this](const absl::Status& status) {
    if (status.ok()) drained_.store(true);
  }});
}

void Server::Shutdown(std::chrono::milliseconds grace) {
  if (grpc_ == nullptr) return;
  BeginDrain();
  listener_->Stop();
  core_->Post(CloseAll{absl::UnavailableError("the daemon is shutting down")});
  // The core thread still runs, because it must answer the calls that end here.
  grpc_->Shutdown(std::chrono::system_clock::now() + grace);
  metrics_.reset();
  kv_events_.reset();
  core_->Stop();
  health_.store(nullptr);
  grpc_.reset();
}

}  // namespace blockmgr
