// The gRPC half of the load client against a scripted daemon: what serve_test,
// which has the rest, does not do with it.
#include "bench/serve/client.h"

#include <chrono>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/fake_daemon.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

using LoadClientTest = FakeDaemonTest;

TEST_F(LoadClientTest, WaitEndsAtItsDeadline) {
  StartDaemon({});
  LoadClient client(address_, std::vector<RequestRecord>(1));
  ASSERT_OK(client.Open());
  // Nothing can be below zero: only the deadline ends the wait.
  const auto deadline =
      LoadClient::Clock::now() + std::chrono::milliseconds(20);
  EXPECT_EQ(client.WaitUntilBelow(0, deadline).sent, 0);
  EXPECT_GE(LoadClient::Clock::now(), deadline);
  client.Close();
}

TEST_F(LoadClientTest, OpenFailsWhereNoDaemonIs) {
  LoadClient client(address_, {});
  EXPECT_THAT(client.Open(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address_)));
}

}  // namespace
}  // namespace blockmgr
