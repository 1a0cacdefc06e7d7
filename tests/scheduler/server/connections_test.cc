#include "scheduler/server/connections.h"

#include <string>
#include <thread>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

constexpr uid_t kNobody = 65534;

// A connection that another user has made. The thread, and it alone, becomes
// him: that is what the system call does where the library's function changes
// all threads.
Descriptor ConnectAs(uid_t uid, const std::string& path) {
  Descriptor connection(-1);
  std::thread([&] {
    if (syscall(SYS_setresuid, -1, uid, -1) != 0) return;
    connection = ConnectToUnix(path);
  }).join();
  return connection;
}

std::shared_ptr<grpc::Channel> ChannelOver(Descriptor connection) {
  // Takes the descriptor over.
  return grpc::CreateInsecureChannelFromFd("peer", dup(connection.get()));
}

class ConnectionsTest : public ServerTest {
 protected:
  std::string path() const { return folder_.path() + "/s.sock"; }
  // So that file modes alone keep nobody out.
  void OpenToAll() const {
    ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
    ASSERT_EQ(chmod(path().c_str(), 0666), 0);
  }

  // Attached engines serve on, whatever `stranger` tries.
  void CannotReplace(FakeEngine* stranger) {
    const auto denied = GrpcError(grpc::PERMISSION_DENIED,
                                  "replace: expected a caller of the daemon's "
                                  "own user, or root, on its unix socket");
    const auto engine = StartEngine();
    EXPECT_THAT(stranger->Attach(SmallLayout(), true), denied);
    EXPECT_THAT(stranger->Attach(SmallLayout()),
                GrpcError(grpc::ALREADY_EXISTS,
                          "is attached already. To take its place, set "
                          "replace"));
    FakeFrontend frontend(address(), "a");
    ASSERT_TRUE(frontend.Submit("r", 1).ok());
    v1::StepPlan plan;
    ASSERT_TRUE(engine->ReadPlan(&plan));
    engine->Answer(plan);
    EXPECT_EQ(frontend.ReadRequest("r").tokens_size(), 1);
  }
};

TEST_F(ConnectionsTest, AnotherUserCannotReplaceAnEngine) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  OpenToAll();
  FakeEngine stranger(ChannelOver(ConnectAs(kNobody, path())));
  CannotReplace(&stranger);
}

TEST_F(ConnectionsTest, AnotherUserCannotTakeTheSessionOfAReplacement) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  OpenToAll();
  const auto engine = StartEngine();
  FakeEngine next(address());
  ASSERT_TRUE(next.Attach(SmallLayout(), true).ok());
  FakeEngine stranger(ChannelOver(ConnectAs(kNobody, path())));
  stranger.attached = next.attached;
  stranger.OpenStream();
  EXPECT_THAT(stranger.Finish(),
              GrpcError(grpc::PERMISSION_DENIED, "replace: expected"));
  next.OpenStream();
  v1::StepPlan plan;
  EXPECT_FALSE(engine->ReadPlan(&plan));
  EXPECT_THAT(engine->Finish(),
              GrpcError(grpc::ABORTED, "has taken its place"));
}

TEST_F(ConnectionsTest, AnotherUserMayAttachWhereThereIsNoEngine) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  OpenToAll();
  FakeEngine stranger(ChannelOver(ConnectAs(kNobody, path())));
  EXPECT_TRUE(stranger.Attach(SmallLayout()).ok());
}

TEST_F(ConnectionsTest, NobodyReplacesAnEngineOverTcp) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  Start(options);
  FakeEngine stranger(address());
  CannotReplace(&stranger);
}

}  // namespace
}  // namespace blockmgr
