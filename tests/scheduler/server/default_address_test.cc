#include "scheduler/server/default_address.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MATCHER_P(Finds, address, "") {
  *result_listener << arg.status();
  return arg.ok() && *arg == address;
}

class DefaultAddressTest : public ::testing::Test {
 protected:
  DefaultAddressTest() {
    places_.runtime = Make("run", 0700);
    places_.service = folder_.File("service");  // not installed
    places_.temporary = Make("tmp", 01777);
  }

  std::string Make(const std::string& name, mode_t mode) const {
    std::string path = folder_.File(name);
    EXPECT_EQ(mkdir(path.c_str(), mode), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);  // whatever the umask
    return path;
  }
  std::string Temporary() const {
    return absl::StrCat(places_.temporary, "/blockmgr-", geteuid());
  }
  static void Bind(const std::string& folder) {
    const int bound = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    (folder + "/blockmgr.sock").copy(name.sun_path, sizeof(name.sun_path) - 1);
    EXPECT_EQ(
        bind(bound, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    close(bound);
  }
  static std::string In(const std::string& folder) {
    return "unix:" + folder + "/blockmgr.sock";
  }
  // Daemon and clients agree.
  void ExpectAddressIn(const std::string& folder) const {
    EXPECT_EQ(DefaultAddress(places_), In(folder));
    EXPECT_THAT(DefaultListenAddress(places_), Finds(In(folder)));
    EXPECT_THAT(DefaultDaemonAddress(places_), Finds(In(folder)));
  }
  void ExpectRefused(const std::string& what) const {
    EXPECT_THAT(DefaultListenAddress(places_),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(Temporary()), HasSubstr(what))));
    EXPECT_THAT(DefaultDaemonAddress(places_),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(Temporary()), HasSubstr(what))));
  }

  TempFolder folder_;
  SocketPlaces places_;
};

TEST_F(DefaultAddressTest, PrefersTheRuntimeFolder) {
  ExpectAddressIn(places_.runtime);
  EXPECT_FALSE(std::filesystem::exists(Temporary()));
}

TEST_F(DefaultAddressTest, ReadsTheEnvironment) {
  // One thread: NOLINTBEGIN(concurrency-mt-unsafe)
  setenv("XDG_RUNTIME_DIR", places_.runtime.c_str(), 1);
  setenv("TMPDIR", places_.temporary.c_str(), 1);
  const SocketPlaces usual = UsualSocketPlaces();
  EXPECT_EQ(usual.runtime, places_.runtime);
  EXPECT_EQ(usual.temporary, places_.temporary);
  EXPECT_EQ(usual.service, "/run/blockmgr");
  unsetenv("XDG_RUNTIME_DIR");
  unsetenv("TMPDIR");
  // NOLINTEND(concurrency-mt-unsafe)
  EXPECT_EQ(UsualSocketPlaces().runtime, "");
}

TEST_F(DefaultAddressTest, TakesNoRuntimeFolderThatOthersMayWriteTo) {
  for (const mode_t mode : {0770, 0702, 01777}) {
    ASSERT_EQ(chmod(places_.runtime.c_str(), mode), 0);
    ExpectAddressIn(Temporary());
  }
  for (const std::string& none :
       {std::string(), std::string("/no/such/folder"), std::string("run")}) {
    places_.runtime = none;
    ExpectAddressIn(Temporary());
  }
}

TEST_F(DefaultAddressTest, TakesNoFolderOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives folders away";
  ASSERT_EQ(chown(places_.runtime.c_str(), 65534, 65534), 0);
  ExpectAddressIn(Temporary());
  ASSERT_EQ(chown(Temporary().c_str(), 65534, 65534), 0);
  ExpectRefused("got a folder of user 65534, mode 0700");
}

TEST_F(DefaultAddressTest, MakesAFolderOfItsOwnAmongTemporaryOnes) {
  places_.runtime.clear();
  EXPECT_EQ(DefaultAddress(places_), In(Temporary()));
  EXPECT_FALSE(std::filesystem::exists(Temporary()));  // that only looks
  ExpectAddressIn(Temporary());
  struct stat found {};
  ASSERT_EQ(lstat(Temporary().c_str(), &found), 0);
  EXPECT_TRUE(S_ISDIR(found.st_mode));
  EXPECT_EQ(found.st_mode & 07777, 0700u);
  ExpectAddressIn(Temporary());
}

TEST_F(DefaultAddressTest, RefusesWhatSomebodyHasPutThere) {
  places_.runtime.clear();
  ASSERT_EQ(symlink(Make("elsewhere", 0700).c_str(), Temporary().c_str()), 0);
  ExpectRefused("got a symbolic link");
  ASSERT_EQ(unlink(Temporary().c_str()), 0);
  Make("tmp/" + absl::StrCat("blockmgr-", geteuid()), 0770);
  ExpectRefused("mode 0770");
}

TEST_F(DefaultAddressTest, AClientWithoutADaemonOfItsOwnLooksForTheService) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives folders away";
  Make("service", 0750);
  Bind(places_.service);
  const std::string socket = places_.service + "/blockmgr.sock";
  ASSERT_EQ(chown(places_.service.c_str(), 65534, 65534), 0);
  ASSERT_EQ(chown(socket.c_str(), 65534, 65534), 0);
  EXPECT_THAT(DefaultListenAddress(places_), Finds(In(places_.runtime)));
  EXPECT_THAT(DefaultDaemonAddress(places_), Finds(In(places_.service)));
  // Neither the service's user nor root.
  ASSERT_EQ(chown(socket.c_str(), 65533, 65534), 0);
  EXPECT_THAT(DefaultDaemonAddress(places_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected a socket of user 65534 or of root, "
                                 "got a socket of user 65533")));
  ASSERT_EQ(chown(socket.c_str(), 65534, 65534), 0);
  ASSERT_EQ(chmod(places_.service.c_str(), 0770), 0);
  EXPECT_THAT(
      DefaultDaemonAddress(places_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("mode 0770")));
  Bind(places_.runtime);
  ExpectAddressIn(places_.runtime);
}

TEST_F(DefaultAddressTest, NobodyCanKeepAClientFromTheService) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives folders away";
  places_.runtime.clear();
  Make("service", 0750);
  Bind(places_.service);
  ASSERT_EQ(chown(places_.service.c_str(), 65534, 65534), 0);
  EXPECT_THAT(DefaultDaemonAddress(places_), Finds(In(places_.service)));
  EXPECT_FALSE(std::filesystem::exists(Temporary()));
  Make("tmp/" + absl::StrCat("blockmgr-", geteuid()), 0700);
  ASSERT_EQ(chown(Temporary().c_str(), 65533, 65533), 0);
  EXPECT_THAT(DefaultDaemonAddress(places_), Finds(In(places_.service)));
}

TEST_F(DefaultAddressTest, TheServiceListensInItsFolder) {
  places_.runtime.clear();
  Make("service", 0750);
  ExpectAddressIn(places_.service);
}

TEST_F(DefaultAddressTest, AClientConnectsToNoSocketOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives sockets away";
  Bind(places_.runtime);
  ExpectAddressIn(places_.runtime);
  const std::string socket = places_.runtime + "/blockmgr.sock";
  ASSERT_EQ(chown(socket.c_str(), 65534, 65534), 0);
  EXPECT_THAT(DefaultDaemonAddress(places_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("got a socket of user 65534")));
}

TEST(CheckDaemonAddressTest, TakesSocketsAndPorts) {
  for (const char* address : {"unix:/tmp/a.sock", "unix:a.sock",
                              "127.0.0.1:7070", "[::1]:1", "localhost:65535"}) {
    EXPECT_TRUE(CheckDaemonAddress(address).ok()) << address;
  }
}

TEST(CheckDaemonAddressTest, RefusesWhatNoDaemonCanListenAt) {
  for (const char* address :
       {"", "foo", "/tmp/a.sock", "unix:", ":7070", "127.0.0.1",
        "localhost:", "localhost:0", "localhost:65536", "localhost:port"}) {
    EXPECT_THAT(CheckDaemonAddress(address),
                IsInvalid("expected unix:PATH, or HOST:PORT",
                          absl::StrCat("got '", address, "'")));
  }
}

}  // namespace
}  // namespace blockmgr
