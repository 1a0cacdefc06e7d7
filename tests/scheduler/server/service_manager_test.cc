#include "scheduler/server/service_manager.h"

#include <cstddef>
#include <string>

#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

// Returns the message that has come, or "".
std::string Received(const Descriptor& manager) {
  char text[256];
  const ssize_t size = recv(manager.get(), text, sizeof(text), MSG_DONTWAIT);
  return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
}

TEST(ServiceManagerTest, HearsOfItAtAPath) {
  const TempFolder folder;
  const std::string path = folder.path() + "/notify";
  const Descriptor manager = BindToUnix(SOCK_DGRAM, path);
  ASSERT_GE(manager.get(), 0);
  NotifyServiceManager(path, "READY=1\nSTATUS=x");
  EXPECT_EQ(Received(manager), "READY=1\nSTATUS=x");
}

TEST(ServiceManagerTest, HearsOfItAtANameWithoutAFile) {
  const std::string name = "blockmgr-test-" + std::to_string(getpid());
  const Descriptor manager =
      BindToUnix(SOCK_DGRAM, std::string(1, '\0') + name);
  ASSERT_GE(manager.get(), 0);
  NotifyServiceManager("@" + name, "WATCHDOG=1");
  EXPECT_EQ(Received(manager), "WATCHDOG=1");
}

TEST(ServiceManagerTest, NobodyNeedsToListen) {
  const TempFolder folder;
  const std::string path = folder.path() + "/notify";
  { const Descriptor gone = BindToUnix(SOCK_DGRAM, path); }
  for (const std::string& nowhere :
       {std::string(), std::string("@"), path, folder.path() + "/none",
        std::string(200, 'x')}) {
    NotifyServiceManager(nowhere, "READY=1");  // and returns
  }
}

}  // namespace
}  // namespace blockmgr
