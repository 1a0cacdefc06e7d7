#include "scheduler/server/listener.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/server/listen_address.h"
#include "scheduler/server/mutex.h"
#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, AcceptsUnixAndLoopback) {
  for (const char* good : {"unix:/tmp/a", "unix:a", "127.0.0.1:50051",
                           "[::1]:50051", "localhost:0", "127.1.2.3:1"}) {
    EXPECT_OK(ParseListenAddress(good)) << good;
  }
  EXPECT_EQ(ParseListenAddress("unix:///tmp/a")->path, "/tmp/a");
}

TEST(ListenAddressTest, RefusesAllElse) {
  for (const std::string& bad :
       {std::string("0.0.0.0:1"), std::string("[::]:1"),
        std::string("example.com:1"), std::string("127.0.0.1"),
        std::string("127.0.0.1:x"), std::string("127.0.0.1:65536"),
        std::string(":1"), std::string("unix:"),
        "unix:" + std::string(200, 'x')}) {
    EXPECT_THAT(ParseListenAddress(bad), IsInvalid("listen")) << bad;
  }
}

TEST(ListenAddressTest, LeavesFilesAlone) {
  const TempFolder folder;
  EXPECT_THAT(RemoveStaleSocket({"unix:" + folder.path(), folder.path()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a socket")));
}

// As from an /etc/hosts that gives a name 127.0.0.1 twice.
TEST(DistinctAddressesTest, NamesEachOnce) {
  std::array<sockaddr_storage, 4> stored{};
  std::array<addrinfo, 4> found{};
  const std::array<int, 4> last_bytes = {1, 1, 1, 2};
  for (size_t i = 0; i < found.size(); ++i) {
    const bool is_ipv6 = i == 1;
    if (is_ipv6) {
      auto* const ipv6 = reinterpret_cast<sockaddr_in6*>(&stored[i]);
      ipv6->sin6_family = AF_INET6;
      ipv6->sin6_addr = in6addr_loopback;
    } else {
      auto* const ipv4 = reinterpret_cast<sockaddr_in*>(&stored[i]);
      ipv4->sin_family = AF_INET;
      ipv4->sin_port = htons(static_cast<uint16_t>(i));  // does not matter
      ipv4->sin_addr.s_addr = htonl((127u << 24) + last_bytes[i]);
    }
    found[i].ai_addr = reinterpret_cast<sockaddr*>(&stored[i]);
    found[i].ai_addrlen = is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (i > 0) found[i - 1].ai_next = &found[i];
  }
  const std::vector<SocketAddress> addresses = DistinctAddresses(found.data());
  ASSERT_EQ(addresses.size(), 3u);
  EXPECT_EQ(addresses[0].address.ss_family, AF_INET);
  EXPECT_EQ(addresses[1].address.ss_family, AF_INET6);
  EXPECT_EQ(addresses[2].address.ss_family, AF_INET);
}

// -1 if nobody listens there.
Descriptor ConnectToLoopback(int32_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(client.get(), reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)) == 0
             ? std::move(client)
             : Descriptor(-1);
}

// Waits until the peer has written, or is gone: false.
bool ReadsByte(const Descriptor& client) {
  char byte = 0;
  return read(client.get(), &byte, 1) == 1;
}

class ListenerTest : public ::testing::Test {
 protected:
  void Open(const std::string& address, int32_t max_connections) {
    ASSERT_OK_AND_ASSIGN(const ListenAddress parsed,
                         ParseListenAddress(address));
    ASSERT_OK_AND_ASSIGN(listener_, Listener::Open(parsed, max_connections));
  }
  // Greets every connection with a byte.
  void Start() {
    listener_->Start([this](const Listener::Accepted& accepted) {
      MutexLock lock(&mutex_);
      taken_.emplace_back(accepted.connection);
      last_uid_ = accepted.uid;
      EXPECT_EQ(write(accepted.connection, "x", 1), 1);
    });
  }
  int num_taken() {
    MutexLock lock(&mutex_);
    return static_cast<int>(taken_.size());
  }
  std::optional<uid_t> last_uid() {
    MutexLock lock(&mutex_);
    return last_uid_;
  }
  void CloseOne() {
    MutexLock lock(&mutex_);
    taken_.pop_back();
  }

  TempFolder folder_;
  const std::string path_ = folder_.path() + "/s";
  Mutex mutex_;
  std::vector<Descriptor> taken_ ABSL_GUARDED_BY(mutex_);
  std::optional<uid_t> last_uid_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Listener> listener_;  // ends before what it calls
};

TEST_F(ListenerTest, ConnectionsWaitForStart) {
  Open("unix:" + path_, 10);
  EXPECT_EQ(listener_->address(), "unix:" + path_);
  struct stat found {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0660u);
  const Descriptor early = ConnectToUnix(path_);
  Start();
  EXPECT_TRUE(ReadsByte(early));
  const Descriptor late = ConnectToUnix(path_);
  EXPECT_TRUE(ReadsByte(late));
  listener_->Stop();
  EXPECT_NE(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(ConnectToUnix(path_).get(), -1);
  EXPECT_EQ(num_taken(), 2);
  EXPECT_EQ(last_uid(), geteuid());
}

TEST_F(ListenerTest, ListensOnTheLoopback) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    Open(std::string(host) + ":0", 10);
    Start();
    ASSERT_OK_AND_ASSIGN(const HostPort bound,
                         ParseHostPort("", "", listener_->address()));
    EXPECT_EQ(bound.host, host);
    const Descriptor client = ConnectToLoopback(bound.port);
    EXPECT_TRUE(ReadsByte(client));
    EXPECT_EQ(last_uid(), std::nullopt);
    ASSERT_OK_AND_ASSIGN(const ListenAddress again,
                         ParseListenAddress(listener_->address()));
    EXPECT_THAT(Listener::Open(again, 10),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in use")));
    listener_->Stop();
    EXPECT_EQ(ConnectToLoopback(bound.port).get(), -1);
  }
}

TEST_F(ListenerTest, ClosesWhatIsAboveTheLimit) {
  Open("unix:" + path_, 3);
  Start();
  std::vector<Descriptor> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(ConnectToUnix(path_));
    EXPECT_TRUE(ReadsByte(clients.back()));
  }
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(ReadsByte(ConnectToUnix(path_)));
  EXPECT_EQ(num_taken(), 3);
  // Nobody tells the listener.
  CloseOne();
  EXPECT_TRUE(WaitUntil([&] {
    clients.push_back(ConnectToUnix(path_));
    return ReadsByte(clients.back());
  }));
  EXPECT_EQ(num_taken(), 3);
  EXPECT_FALSE(ReadsByte(ConnectToUnix(path_)));
}

TEST_F(ListenerTest, AcceptsAgainAfterDescriptorsRanOut) {
  Open("unix:" + path_, 10);
  Start();
  const Descriptor first = ConnectToUnix(path_);
  EXPECT_TRUE(ReadsByte(first));
  std::vector<Descriptor> clients;
  clients.reserve(2);
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Everything below the lowest that is free is taken.
  const int lowest = fcntl(first.get(), F_DUPFD_CLOEXEC, 0);
  close(lowest);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const Descriptor& client : clients) {
    EXPECT_TRUE(ConnectToUnix(client, path_));
  }
  // Long enough for several trials; whether there were any, the rest shows.
  usleep(300'000);
  EXPECT_EQ(num_taken(), 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const Descriptor& client : clients) EXPECT_TRUE(ReadsByte(client));
}

TEST_F(ListenerTest, TakesNoMoreThanTheProcessMayHave) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(before.rlim_cur, 200);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Open("unix:" + path_, 1 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(listener_->max_connections(), 200);
  EXPECT_GT(listener_->max_connections(), 100);
}

TEST_F(ListenerTest, LeavesTheSocketOfAnotherProcess) {
  ASSERT_OK_AND_ASSIGN(const ListenAddress address,
                       ParseListenAddress("unix:" + path_));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Listener> first,
                       Listener::Open(address, 10));
  // Somebody removes both.
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(unlink((path_ + ".lock").c_str()), 0);
  Open("unix:" + path_, 10);
  Start();
  first->Stop();
  EXPECT_TRUE(ReadsByte(ConnectToUnix(path_)));
  EXPECT_EQ(access((path_ + ".lock").c_str(), F_OK), 0);
}

// Between the look at a socket of a dead daemon and the new one.
TEST_F(ListenerTest, OfManyThatStartOneListens) {
  ASSERT_OK_AND_ASSIGN(const ListenAddress address,
                       ParseListenAddress("unix:" + path_));
  constexpr int kStarts = 40;
  for (int round = 0; round < 20; ++round) {
    // Nobody listens here any more.
    const Descriptor dead = BindToUnix(SOCK_STREAM, path_);
    ASSERT_GE(dead.get(), 0);
    std::vector<absl::StatusOr<std::unique_ptr<Listener>>> opened(kStarts);
    std::vector<std::thread> threads;
    threads.reserve(kStarts);
    for (auto& each : opened) {
      threads.emplace_back(
          [&each, &address] { each = Listener::Open(address, 10); });
    }
    for (std::thread& thread : threads) thread.join();
    int num_open = 0;
    for (auto& each : opened) {
      num_open += each.ok() ? 1 : 0;
      if (each.ok()) continue;
      EXPECT_THAT(each, StatusIs(absl::StatusCode::kAlreadyExists,
                                 HasSubstr("another daemon is running")));
    }
    EXPECT_EQ(num_open, 1) << "round " << round;
    EXPECT_GE(ConnectToUnix(path_).get(), 0);
    for (auto& each : opened) {
      if (each.ok()) (*each)->Stop();
    }
    struct stat found {};
    EXPECT_NE(stat((path_ + ".lock").c_str(), &found), 0);
  }
}

}  // namespace
}  // namespace blockmgr
