// A daemon on a unix socket in a folder of its own, and scripted peers for it.
#ifndef TESTS_SCHEDULER_SERVER_SERVER_HARNESS_H_
#define TESTS_SCHEDULER_SERVER_SERVER_HARNESS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <unistd.h>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "proto/blockmgr/v1/engine.grpc.pb.h"
#include "proto/blockmgr/v1/eviction.grpc.pb.h"
#include "proto/blockmgr/v1/request.grpc.pb.h"
#include "scheduler/server/server.h"
#include "tests/scheduler/server/fake_scheduler.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {

MATCHER_P2(GrpcError, code, text, "") {
  *result_listener << "code " << arg.error_code() << ": "
                   << arg.error_message();
  return arg.error_code() == code &&
         arg.error_message().find(text) != std::string::npos;
}

// A descriptor that is closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    return *this;
  }
  int get() const { return descriptor_; }

 private:
  void Close() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor_;
};

// A socket of `type` bound to a path, or to a name that begins with a zero; -1:
// it cannot be bound.
Descriptor BindToUnix(int type, const std::string& path);
// False: nobody listens there.
bool ConnectToUnix(const Descriptor& client, const std::string& path);
// A connection, or -1.
Descriptor ConnectToUnix(const std::string& path);

// A channel that shares no connection with any other, and takes 64 KiB ahead of
// a reader.
std::shared_ptr<grpc::Channel> Connect(const std::string& address);

// What grpc.health.v1 answers: 1 SERVING, 2 NOT_SERVING, -1: an error.
int AskHealth(const std::shared_ptr<grpc::Channel>& channel,
              const std::string& service);

// Waits up to a minute, for what other threads and processes bring about.
[[nodiscard]] bool WaitUntil(const std::function<bool()>& condition);

v1::AttachRequest AttachRequestFor(const ModelLayout& layout);

// An engine that answers when it is told to. At its end its stream breaks.
class FakeEngine {
 public:
  explicit FakeEngine(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::EngineService::NewStub(channel)) {}
  explicit FakeEngine(const std::string& address)
      : FakeEngine(Connect(address)) {}
  ~FakeEngine();

  grpc::Status Attach(const v1::AttachRequest& request);
  grpc::Status Attach(const ModelLayout& layout, bool replace = false);
  // Opens the stream with the attachment's epoch and session.
  void OpenStream();
  void Send(const v1::EngineMessage& message) { stream_->Write(message); }
  bool ReadPlan(v1::StepPlan* plan) { return stream_->Read(plan); }
  // Every sequence samples 42, every eviction keeps one entry per head.
  void Answer(const v1::StepPlan& plan);
  // Reads and answers plans until the stream ends.
  void AnswerAll();
  // Runs AnswerAll in a thread of its own. Until JoinAnswers no other thread
  // may read plans.
  void StartAnswers();
  // Waits for that thread.
  void JoinAnswers();
  grpc::Status Finish();
  void Break() { context_->TryCancel(); }

  v1::AttachResponse attached;
  std::string token_data;  // what it says of every token
  // Behind min_tokens, it finds the last stop string of each request that has
  // any.
  bool finds_stops = false;
  int num_evictions = 0;  // that it has answered

 private:
  std::unique_ptr<v1::EngineService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::EngineMessage, v1::StepPlan>>
      stream_;
  std::map<int32_t, v1::RequestInfo> infos_;  // by slot
  std::thread answers_;
};

v1::SubmitRequest MakeSubmit(const std::string& session, const std::string& id,
                             int32_t max_tokens);

// One client session. Open() returns when the daemon knows the stream; the
// constructor calls it, unless told otherwise.
class FakeFrontend {
 public:
  FakeFrontend(const std::string& address, std::string session,
               bool opens = true);
  ~FakeFrontend();

  void Open();
  grpc::Status Submit(const v1::SubmitRequest& request);
  grpc::Status Submit(const std::string& id, int32_t max_tokens) {
    return Submit(MakeSubmit(session_, id, max_tokens));
  }
  grpc::Status Cancel(const std::string& id);
  // Reads until the request ends; its tokens and its end.
  v1::TokenChunk ReadRequest(const std::string& id);
  // Reads to the end of the stream.
  grpc::Status Drain();
  void Disconnect() { context_->TryCancel(); }

 private:
  const std::string session_;
  std::unique_ptr<v1::RequestService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::TokenBatch>> reader_;
  std::map<std::string, v1::TokenChunk> chunks_;  // merged, per request
};

class ServerTest : public ::testing::Test {
 protected:
  // On a socket in `folder_`, unless the options say where.
  void Start(ServerOptions options,
             SchedulerFactory factory = FakeScheduler::Make);
  void SetUp() override { Start(ServerOptions()); }

  const std::string& address() const { return server_->address(); }
  v1::GetStatsResponse Stats();
  // Waits as long for what the daemon's regular looks bring about.
  [[nodiscard]] bool WaitUpdating(const std::function<bool()>& condition);
  // Attached, with its stream open and known to the daemon.
  std::unique_ptr<FakeEngine> StartEngine(
      const v1::AttachRequest& request = AttachRequestFor(SmallLayout()));
  v1::ResetPrefixCacheResponse ResetPrefixCache();

  TempFolder folder_;
  std::unique_ptr<Server> server_;
};

// A server with an engine that answers everything, and a frontend whose
// requests put prompts into the prefix cache.
class CachingServerTest : public ServerTest {
 protected:
  void TearDown() override { Detach(); }

  void Attach(const ModelLayout& layout = SmallLayout());
  void Detach();
  // Waits until the daemon knows that there is no engine, and attaches another.
  void Reattach(const ModelLayout& layout);
  // Caches a page of `token`, or, of a longer prompt, a region.
  void Serve(uint32_t token, int num_tokens = SmallLayout().page_size);

 private:
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<FakeFrontend> frontend_;
  int num_served_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_SCHEDULER_SERVER_SERVER_HARNESS_H_
