#include "scheduler/server/service_manager.h"

#include <cstddef>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

class ServiceManagerTest : public ::testing::Test {
 protected:
  // A manager that listens there; -1: none.
  static Descriptor Listen(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    Descriptor manager(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return bind(manager.get(), reinterpret_cast<const sockaddr*>(&address),
                length) == 0
               ? std::move(manager)
               : Descriptor(-1);
  }

  // What has come; empty: nothing.
  static std::string Received(const Descriptor& manager) {
    char text[256];
    const ssize_t size = recv(manager.get(), text, sizeof(text), MSG_DONTWAIT);
    return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
  }
};

TEST_F(ServiceManagerTest, HearsOfItAtAPath) {
  const TempFolder folder;
  const std::string path = folder.path() + "/notify";
  const Descriptor manager = Listen(path);
  ASSERT_GE(manager.get(), 0);
  NotifyServiceManager(path, "READY=1\nSTATUS=x");
  EXPECT_EQ(Received(manager), "READY=1\nSTATUS=x");
}

TEST_F(ServiceManagerTest, HearsOfItAtANameWithoutAFile) {
  const std::string name = "blockmgr-test-" + std::to_string(getpid());
  const Descriptor manager = Listen(std::string(1, '\0') + name);
  ASSERT_GE(manager.get(), 0);
  NotifyServiceManager("@" + name, "WATCHDOG=1");
  EXPECT_EQ(Received(manager), "WATCHDOG=1");
}

TEST_F(ServiceManagerTest, NobodyNeedsToListen) {
  const TempFolder folder;
  const std::string path = folder.path() + "/notify";
  { const Descriptor gone = Listen(path); }
  for (const std::string& nowhere :
       {std::string(), std::string("@"), path, folder.path() + "/none",
        std::string(200, 'x')}) {
    NotifyServiceManager(nowhere, "READY=1");  // and returns
  }
}

}  // namespace
}  // namespace blockmgr
