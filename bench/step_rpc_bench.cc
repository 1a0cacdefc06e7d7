// Measures the time that the daemon adds to a step: one decode step of 256
// sequences through blockmgrd's server, next to an empty message echoed on the
// same kind of bidirectional stream and unix socket.
//
//   EmptyMessage/US      write, echo, read
//   DecodeStep/N/US/R/F  write the result of a step, read the next plan; N
//                        steps in flight. Frontends read all tokens meanwhile,
//                        and R routers watch the prefix cache, of which every
//                        other one does not read what it is told. F: one stream
//                        has all requests (0), each has a stream of
//                        RequestService of its own (1), or a call of
//                        VllmEngine.Generate (2).
//   KvEvents/N/US/S      the same with KV events on ZeroMQ and S subscribers.
//                        Every other subscriber does not read. To be compared
//                        with DecodeStep/N/US/0/0.
//
// US: microseconds for which the engine computes, outside of the timing, before
// each message. 0 is the most the stream can do; a decode step of a model takes
// milliseconds, in which the tokens of the step before are delivered.
// Both ends run in this process, for both. Compare the times of one run.

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>
#include <zmq.hpp>

#include "blockmgr/base/check.h"
#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "proto/blockmgr/v1/engine.grpc.pb.h"
#include "proto/blockmgr/v1/request.grpc.pb.h"
#include "proto/vllm/grpc/engine.grpc.pb.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/server.h"

namespace blockmgr {
namespace {

constexpr int32_t kNumSequences = 256;
// Llama-3.1-8B's shape, and blocks for as many steps as a run may take.
constexpr int32_t kNumBlocks = 1 << 20;
constexpr char kSession[] = "step_rpc_bench";
constexpr int32_t kMaxTokens = 60000;

std::string TemporarySocket() {
  std::string folder =
      (std::filesystem::temp_directory_path() / "blockmgr-bench-XXXXXX")
          .string();
  BM_CHECK(mkdtemp(folder.data()) != nullptr);
  return absl::StrCat("unix:", folder, "/s.sock");
}

void RemoveSocket(const std::string& address) {
  std::filesystem::remove_all(
      std::filesystem::path(address.substr(5)).parent_path());
}

// Processor time of all threads of this process: both ends of every stream.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Times `exchange`, after a pause that is not timed.
template <typename Exchange>
void TimeExchanges(benchmark::State& state, int64_t pause_us,
                   const Exchange& exchange) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(state.max_iterations));
  for (auto _ : state) {
    if (pause_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    }
    const Clock::time_point begin = Clock::now();
    exchange();
    seconds.push_back(
        std::chrono::duration<double>(Clock::now() - begin).count());
    state.SetIterationTime(seconds.back());
  }
  const auto p99 = seconds.begin() + std::ssize(seconds) * 99 / 100;
  std::ranges::nth_element(seconds, p99);
  state.counters["p99_us"] = *p99 * 1e6;
}

// Answers every message with an empty one.
class Echo final : public v1::EngineService::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::EngineMessage, v1::StepPlan>* RunSteps(
      grpc::CallbackServerContext*) override {
    class Reactor final
        : public grpc::ServerBidiReactor<v1::EngineMessage, v1::StepPlan> {
     public:
      Reactor() { StartRead(&message_); }
      void OnReadDone(bool ok) override {
        ok ? StartWrite(&plan_) : Finish(grpc::Status::OK);
      }
      void OnWriteDone(bool ok) override {
        if (ok) StartRead(&message_);
      }
      void OnDone() override { delete this; }

     private:
      v1::EngineMessage message_;
      v1::StepPlan plan_;
    };
    return new Reactor;
  }
};

void EmptyMessage(benchmark::State& state) {
  const std::string address = TemporarySocket();
  Echo service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::EngineService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->RunSteps(&context);
  const v1::EngineMessage message;
  v1::StepPlan plan;
  TimeExchanges(state, state.range(0), [&] {
    BM_CHECK(stream->Write(message));
    BM_CHECK(stream->Read(&plan));
  });
  stream->WritesDone();
  stream->Finish();
  server->Shutdown();
  RemoveSocket(address);
}
BENCHMARK(EmptyMessage)->Arg(0)->Arg(2000)->UseManualTime();

enum class Frontends : int64_t { kOneStream, kStreams, kCalls };

// A client's end of a stream, which reads all messages.
template <typename Message>
class Reader final : public grpc::ClientReadReactor<Message> {
 public:
  void Start() {
    this->StartRead(&message_);
    this->StartCall();
  }
  // Waits for the first message.
  void WaitForFirst() { first_.get_future().wait(); }
  void Cancel() {
    context_.TryCancel();
    done_.get_future().wait();
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  void OnReadDone(bool ok) override {
    if (num_messages_++ == 0) first_.set_value();
    if (ok) this->StartRead(&message_);
  }
  void OnDone(const grpc::Status& /*status*/) override { done_.set_value(); }

  grpc::ClientContext context_;
  Message message_;
  int64_t num_messages_ = 0;
  std::promise<void> first_;
  std::promise<void> done_;
};

// A daemon's server with an attached engine and frontends whose requests all
// decode.
class Daemon {
 public:
  Daemon(int32_t steps_in_flight, int32_t num_routers, Frontends frontends,
         bool has_kv_events = false)
      : address_(TemporarySocket()) {
    ServerOptions options;
    options.listen = address_;
    if (has_kv_events) options.kv_events.endpoint = "tcp://127.0.0.1:0";
    options.scheduler.max_num_seqs = kNumSequences;
    options.scheduler.max_model_len = 1 << 20;
    options.scheduler.max_steps_in_flight = steps_in_flight;
    auto server = Server::Start(options, &Scheduler::Create);
    BM_CHECK(server.ok());
    server_ = *std::move(server);
    channel_ =
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    Attach();
    requests_ = v1::RequestService::NewStub(channel_);
    vllm_ = vllm::grpc::engine::VllmEngine::NewStub(channel_);
    if (frontends == Frontends::kOneStream) {
      OpenStream(kSession);
      for (int32_t i = 0; i < kNumSequences; ++i) Submit(kSession, i);
    }
    for (int32_t i = 0; i < kNumSequences; ++i) {
      const std::string session = absl::StrCat(kSession, i);
      if (frontends == Frontends::kStreams) {
        OpenStream(session);
        Submit(session, i);
      } else if (frontends == Frontends::kCalls) {
        Generate(i);
      }
    }
    for (int32_t i = 0; i < num_routers; ++i) {
      routers_.push_back(std::make_unique<Router>(address_, i % 2 == 0));
    }
  }

  ~Daemon() {
    routers_.clear();
    for (const auto& stream : streams_) stream->Cancel();
    for (const auto& call : generate_calls_) call->Cancel();
    engine_context_.TryCancel();
    steps_->Finish();
    server_->Shutdown(std::chrono::seconds(1));
    RemoveSocket(address_);
  }

  // Reads a plan.
  void Read() { BM_CHECK(steps_->Read(&plan_)); }
  // Answers the plan read last.
  void Answer() {
    v1::StepResult& result = *message_.mutable_result();
    result.Clear();
    result.set_step(plan_.step());
    for (const char samples : plan_.samples()) {
      result.add_sampled(samples != 0 ? 1 : -1);
    }
    BM_CHECK(steps_->Write(message_));
  }
  int32_t num_scheduled() const { return plan_.slots_size(); }
  std::string kv_events() const { return server_->kv_events()->endpoint(); }

 private:
  class Router {
   public:
    Router(const std::string& address, bool reads)
        : stub_(v1::AdminService::NewStub(OwnChannel(address))),
          stream_(stub_->WatchPrefixCache(&context_, {})),
          thread_([this, reads] {
            v1::PrefixCacheUpdate update;
            while (reads && stream_->Read(&update)) {
              benchmark::DoNotOptimize(update);
            }
          }) {}
    ~Router() {
      context_.TryCancel();
      thread_.join();
      stream_->Finish();
    }

   private:
    // Returns a channel whose connection nobody else uses.
    static std::shared_ptr<grpc::Channel> OwnChannel(
        const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      return grpc::CreateCustomChannel(
          address, grpc::InsecureChannelCredentials(), arguments);
    }

    std::unique_ptr<v1::AdminService::Stub> stub_;
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReader<v1::PrefixCacheUpdate>> stream_;
    std::thread thread_;
  };

  void Attach() {
    engines_ = v1::EngineService::NewStub(channel_);
    v1::AttachRequest request;
    v1::ModelLayout& layout = *request.mutable_layout();
    layout.set_num_layers(32);
    layout.set_num_heads(8);
    layout.set_num_q_heads(32);
    layout.set_head_dim(128);
    layout.set_page_size(16);
    layout.set_dtype(v1::DTYPE_BFLOAT16);
    layout.set_num_blocks(kNumBlocks);
    v1::AttachResponse response;
    grpc::ClientContext context;
    BM_CHECK(engines_->Attach(&context, request, &response).ok());
    message_.set_epoch(response.epoch());
    message_.set_session(response.session());
    steps_ = engines_->RunSteps(&engine_context_);
    BM_CHECK(steps_->Write(message_));
  }

  void OpenStream(const std::string& session) {
    v1::StreamTokensRequest open;
    open.set_client_session(session);
    auto& stream =
        streams_.emplace_back(std::make_unique<Reader<v1::TokenBatch>>());
    requests_->async()->StreamTokens(stream->context(), &open, stream.get());
    stream->Start();
    stream->WaitForFirst();
  }

  void Submit(const std::string& session, int32_t i) {
    v1::SubmitRequest request;
    request.set_client_session(session);
    request.set_request_id(absl::StrCat("r", i));
    request.add_prompt_token_ids(static_cast<uint32_t>(i));
    request.set_max_tokens(kMaxTokens);
    v1::SubmitResponse response;
    grpc::Status status;
    do {
      // Unavailable: the engine's stream is still on its way.
      grpc::ClientContext context;
      status = requests_->Submit(&context, request, &response);
    } while (status.error_code() == grpc::StatusCode::UNAVAILABLE);
    BM_CHECK(status.ok());
  }

  void Generate(int32_t i) {
    vllm::grpc::engine::HealthCheckResponse health;
    while (!health.healthy()) {
      grpc::ClientContext context;
      BM_CHECK(vllm_->HealthCheck(&context, {}, &health).ok());
    }
    vllm::grpc::engine::GenerateRequest request;
    request.set_request_id(absl::StrCat("r", i));
    request.mutable_tokenized()->add_input_ids(static_cast<uint32_t>(i));
    request.mutable_sampling_params()->set_temperature(0);
    request.mutable_sampling_params()->set_max_tokens(kMaxTokens);
    request.set_stream(true);
    auto& call = generate_calls_.emplace_back(
        std::make_unique<Reader<vllm::grpc::engine::GenerateResponse>>());
    vllm_->async()->Generate(call->context(), &request, call.get());
    call->Start();
  }

  const std::string address_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EngineService::Stub> engines_;
  grpc::ClientContext engine_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::EngineMessage, v1::StepPlan>>
      steps_;
  std::unique_ptr<v1::RequestService::Stub> requests_;
  std::unique_ptr<vllm::grpc::engine::VllmEngine::Stub> vllm_;
  std::vector<std::unique_ptr<Reader<v1::TokenBatch>>> streams_;
  std::vector<std::unique_ptr<Reader<vllm::grpc::engine::GenerateResponse>>>
      generate_calls_;
  std::vector<std::unique_ptr<Router>> routers_;
  v1::EngineMessage message_;
  v1::StepPlan plan_;
};

void TimeSteps(benchmark::State& state, Daemon* daemon) {
  daemon->Read();
  while (daemon->num_scheduled() < kNumSequences) {
    daemon->Answer();
    daemon->Read();
  }
  const double cpu_seconds = CpuSeconds();
  TimeExchanges(state, state.range(1), [&] {
    daemon->Answer();
    daemon->Read();
  });
  state.counters["sequences"] = daemon->num_scheduled();
  state.counters["cpu_us_per_token"] =
      (CpuSeconds() - cpu_seconds) * 1e6 /
      (static_cast<double>(state.iterations()) * kNumSequences);
}

void DecodeStep(benchmark::State& state) {
  Daemon daemon(static_cast<int32_t>(state.range(0)),
                static_cast<int32_t>(state.range(2)),
                static_cast<Frontends>(state.range(3)));
  TimeSteps(state, &daemon);
}
BENCHMARK(DecodeStep)
    ->ArgsProduct({{1, 2, 4}, {0, 2000}, {0}, {0}})
    ->Args({2, 2000, 1, 0})
    ->Args({2, 2000, 20, 0})
    ->ArgsProduct({{2}, {0, 2000}, {0}, {1, 2}})
    ->UseManualTime();

// A subscriber of KV events. Counts the bytes that it reads.
class Subscriber {
 public:
  Subscriber(const std::string& endpoint, bool reads)
      : socket_(context_, zmq::socket_type::sub) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvhwm, reads ? 100'000 : 1);
    socket_.set(zmq::sockopt::rcvtimeo, 20);
    socket_.set(zmq::sockopt::subscribe, "");
    socket_.connect(endpoint);
    if (reads) thread_ = std::thread([this] { Read(); });
  }
  ~Subscriber() {
    stopping_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  int64_t num_bytes() const { return num_bytes_.load(); }

 private:
  void Read() {
    zmq::message_t frame;
    while (!stopping_.load()) {
      if (!socket_.recv(frame)) continue;
      num_bytes_ += static_cast<int64_t>(frame.size());
    }
  }

  zmq::context_t context_;
  zmq::socket_t socket_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> num_bytes_{0};
  std::thread thread_;
};

void KvEvents(benchmark::State& state) {
  Daemon daemon(static_cast<int32_t>(state.range(0)), 0, Frontends::kOneStream,
                true);
  std::vector<std::unique_ptr<Subscriber>> subscribers;
  for (int64_t i = 0; i < state.range(2); ++i) {
    subscribers.push_back(
        std::make_unique<Subscriber>(daemon.kv_events(), i % 2 == 0));
  }
  TimeSteps(state, &daemon);
  if (!subscribers.empty()) {
    state.counters["bytes"] =
        static_cast<double>(subscribers.front()->num_bytes());
  }
}
BENCHMARK(KvEvents)
    ->Args({2, 2000, 0})
    ->Args({2, 2000, 1})
    ->Args({2, 2000, 20})
    ->UseManualTime();

}  // namespace
}  // namespace blockmgr

BENCHMARK_MAIN();
