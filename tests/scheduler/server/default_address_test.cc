#include "scheduler/server/default_address.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(DefaultAddressTest, PrefersTheRuntimeFolder) {
  const std::string folder = ::testing::TempDir();
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  EXPECT_EQ(DefaultAddress(), "unix:" + folder + "/blockmgr.sock");
}

TEST(DefaultAddressTest, FallsBackToTheTemporaryFolder) {
  setenv("XDG_RUNTIME_DIR", "/no/such/folder", 1);
  const std::string expected =
      "unix:" + (std::filesystem::temp_directory_path() / "blockmgr-").string();
  EXPECT_THAT(DefaultAddress(), StartsWith(expected));
  EXPECT_THAT(DefaultAddress(), EndsWith(".sock"));
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_THAT(DefaultAddress(), StartsWith(expected));
}

}  // namespace
}  // namespace blockmgr
