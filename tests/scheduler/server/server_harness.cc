#include "tests/scheduler/server/server_harness.h"

#include <chrono>
#include <cstddef>
#include <future>
#include <thread>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>

#include <grpcpp/generic/generic_stub.h>

#include "tests/testing/status_matchers.h"
#include "wire/policy_wire.h"

namespace blockmgr {

Descriptor BindToUnix(int type, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  Descriptor bound(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  return bind(bound.get(), reinterpret_cast<const sockaddr*>(&address),
              length) == 0
             ? std::move(bound)
             : Descriptor(-1);
}

bool ConnectToUnix(const Descriptor& client, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return connect(client.get(), reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)) == 0;
}

Descriptor ConnectToUnix(const std::string& path) {
  Descriptor client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ConnectToUnix(client, path) ? std::move(client) : Descriptor(-1);
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Else how much is sent ahead of a reader grows while nobody reads.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

int AskHealth(const std::shared_ptr<grpc::Channel>& channel,
              const std::string& service) {
  // The health messages are not packaged. These two have the same first field:
  // a string in the request, a varint in the response.
  v1::StreamTokensRequest request;
  request.set_client_session(service);
  v1::EvictResponse response;
  grpc::TemplatedGenericStub<v1::StreamTokensRequest, v1::EvictResponse> stub(
      channel);
  grpc::ClientContext context;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &request, &response,
                 [&done](grpc::Status s) { done.set_value(std::move(s)); });
  return done.get_future().get().ok() ? response.cut() : -1;
}

bool WaitUntil(const std::function<bool()>& condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

v1::AttachRequest AttachRequestFor(const ModelLayout& layout) {
  v1::AttachRequest request;
  ToProto(layout, request.mutable_layout());
  request.set_engine_name("fake");
  return request;
}

FakeEngine::~FakeEngine() {
  if (context_ != nullptr) Break();
  JoinAnswers();
}

grpc::Status FakeEngine::Attach(const v1::AttachRequest& request) {
  grpc::ClientContext context;
  return stub_->Attach(&context, request, &attached);
}

grpc::Status FakeEngine::Attach(const ModelLayout& layout, bool replace) {
  v1::AttachRequest request = AttachRequestFor(layout);
  request.set_replace(replace);
  return Attach(request);
}

void FakeEngine::OpenStream() {
  context_ = std::make_unique<grpc::ClientContext>();
  stream_ = stub_->RunSteps(context_.get());
  v1::EngineMessage hello;
  hello.set_epoch(attached.epoch());
  hello.set_session(attached.session());
  stream_->Write(hello);
}

void FakeEngine::Answer(const v1::StepPlan& plan) {
  v1::EngineMessage message;
  message.set_epoch(attached.epoch());
  message.set_session(attached.session());
  message.mutable_result()->set_step(plan.step());
  for (const v1::SequenceStart& start : plan.starts()) {
    infos_[start.slot()] = start.info();
  }
  for (int i = 0; i < plan.slots_size(); ++i) {
    message.mutable_result()->add_sampled(42);
    const v1::RequestInfo& info = infos_[plan.slots(i)];
    const int32_t num_outputs =
        plan.positions(i) + plan.num_tokens(i) - info.num_prompt_tokens() + 1;
    if (finds_stops && info.sampling().stop_size() > 0 &&
        num_outputs > info.sampling().min_tokens()) {
      v1::StopMatch* match = message.mutable_result()->add_stop_matches();
      match->set_run(i);
      match->set_stop(info.sampling().stop_size() - 1);
    }
    if (!token_data.empty()) {
      message.mutable_result()->add_token_data(token_data);
    }
  }
  for (int i = 0; i < plan.evictions_size(); ++i) {
    ++num_evictions;
    v1::EvictionOutcome* outcome = message.mutable_result()->add_evictions();
    outcome->set_ok(true);
    for (int head = 0; head < SmallLayout().pages_per_block(); ++head) {
      outcome->add_counts(1);
    }
  }
  stream_->Write(message);
}

void FakeEngine::AnswerAll() {
  v1::StepPlan plan;
  while (stream_->Read(&plan)) Answer(plan);
}

void FakeEngine::StartAnswers() {
  answers_ = std::thread([this] { AnswerAll(); });
}

void FakeEngine::JoinAnswers() {
  if (answers_.joinable()) answers_.join();
}

grpc::Status FakeEngine::Finish() {
  stream_->WritesDone();
  v1::StepPlan plan;
  while (stream_->Read(&plan)) {
  }
  return stream_->Finish();
}

v1::SubmitRequest MakeSubmit(const std::string& session, const std::string& id,
                             int32_t max_tokens) {
  v1::SubmitRequest request;
  request.set_client_session(session);
  request.set_request_id(id);
  for (uint32_t token = 1; token < 5; ++token) {
    request.add_prompt_token_ids(token);
  }
  request.set_max_tokens(max_tokens);
  return request;
}

FakeFrontend::FakeFrontend(const std::string& address, std::string session,
                           bool opens)
    : session_(std::move(session)),
      stub_(v1::RequestService::NewStub(Connect(address))) {
  if (opens) Open();
}

FakeFrontend::~FakeFrontend() {
  if (reader_ == nullptr) return;
  Disconnect();
  Drain();
}

void FakeFrontend::Open() {
  context_ = std::make_unique<grpc::ClientContext>();
  v1::StreamTokensRequest request;
  request.set_client_session(session_);
  reader_ = stub_->StreamTokens(context_.get(), request);
  v1::TokenBatch first;
  EXPECT_TRUE(reader_->Read(&first));
  EXPECT_EQ(first.chunks_size(), 0);
}

grpc::Status FakeFrontend::Submit(const v1::SubmitRequest& request) {
  grpc::ClientContext context;
  v1::SubmitResponse response;
  return stub_->Submit(&context, request, &response);
}

grpc::Status FakeFrontend::Cancel(const std::string& id) {
  grpc::ClientContext context;
  v1::CancelRequest request;
  request.set_request_id(id);
  v1::CancelResponse response;
  return stub_->Cancel(&context, request, &response);
}

v1::TokenChunk FakeFrontend::ReadRequest(const std::string& id) {
  v1::TokenBatch batch;
  while (chunks_[id].finish_reason() == v1::FINISH_REASON_UNSPECIFIED) {
    if (!reader_->Read(&batch)) break;
    for (const v1::TokenChunk& chunk : batch.chunks()) {
      v1::TokenChunk& merged = chunks_[chunk.request_id()];
      EXPECT_EQ(chunk.first_index(), merged.tokens_size());
      merged.MergeFrom(chunk);
    }
  }
  return chunks_[id];
}

grpc::Status FakeFrontend::Drain() {
  v1::TokenBatch batch;
  while (reader_->Read(&batch)) {
  }
  grpc::Status status = reader_->Finish();
  reader_.reset();
  return status;
}

void ServerTest::Start(ServerOptions options, SchedulerFactory factory) {
  server_.reset();
  if (options.listen.empty()) {
    options.listen = "unix:" + folder_.path() + "/s.sock";
  }
  ASSERT_OK_AND_ASSIGN(server_, Server::Start(options, std::move(factory)));
}

v1::GetStatsResponse ServerTest::Stats() {
  const auto stub = v1::AdminService::NewStub(Connect(address()));
  grpc::ClientContext context;
  v1::GetStatsResponse response;
  EXPECT_TRUE(stub->GetStats(&context, v1::GetStatsRequest(), &response).ok());
  return response;
}

bool ServerTest::WaitUpdating(const std::function<bool()>& condition) {
  return WaitUntil([&] {
    server_->UpdateHealth();
    return condition();
  });
}

std::unique_ptr<FakeEngine> ServerTest::StartEngine(
    const v1::AttachRequest& request) {
  auto engine = std::make_unique<FakeEngine>(address());
  const grpc::Status status = engine->Attach(request);
  EXPECT_TRUE(status.ok()) << status.error_message();
  engine->OpenStream();
  EXPECT_TRUE(WaitUntil([this] { return Stats().engine_attached(); }));
  return engine;
}

v1::ResetPrefixCacheResponse ServerTest::ResetPrefixCache() {
  const auto stub = v1::AdminService::NewStub(Connect(address()));
  grpc::ClientContext context;
  v1::ResetPrefixCacheResponse response;
  const v1::ResetPrefixCacheRequest request;
  EXPECT_TRUE(stub->ResetPrefixCache(&context, request, &response).ok());
  return response;
}

void CachingServerTest::Attach(const ModelLayout& layout) {
  engine_ = StartEngine(AttachRequestFor(layout));
  engine_->StartAnswers();
  frontend_ = std::make_unique<FakeFrontend>(address(), "a");
}

void CachingServerTest::Detach() {
  frontend_.reset();
  engine_.reset();
}

void CachingServerTest::Reattach(const ModelLayout& layout) {
  Detach();
  ASSERT_TRUE(WaitUntil([this] { return !Stats().engine_attached(); }));
  Attach(layout);
}

void CachingServerTest::Serve(uint32_t token, int num_tokens) {
  const std::string id = std::to_string(num_served_++);
  v1::SubmitRequest request = MakeSubmit("a", id, 1);
  request.clear_prompt_token_ids();
  for (int i = 0; i < num_tokens; ++i) request.add_prompt_token_ids(token);
  const grpc::Status status = frontend_->Submit(request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(frontend_->ReadRequest(id).finish_reason(),
            v1::FINISH_REASON_LENGTH);
}

}  // namespace blockmgr
