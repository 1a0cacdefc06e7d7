// The gRPC half of the load client against a scripted daemon.
#include "bench/serve/client.h"

#include <chrono>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/fake_daemon.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

class LoadClientTest : public FakeDaemonTest {
 protected:
  // Far enough away that only a hang would reach it.
  static LoadClient::Clock::time_point Never() {
    return LoadClient::Clock::now() + std::chrono::minutes(5);
  }

  static v1::SubmitRequest Message(int32_t max_tokens) {
    v1::SubmitRequest message;
    message.add_prompt_token_ids(1);
    message.set_max_tokens(max_tokens);
    return message;
  }
};

TEST_F(LoadClientTest, CountsAndStampsWhatWasSubmitted) {
  StartDaemon({});
  LoadClient client(address_, std::vector<RequestRecord>(3));
  ASSERT_OK(client.WaitUntilReady(std::chrono::seconds(20)));
  ASSERT_OK(client.Open());
  for (int64_t i = 0; i < 3; ++i) client.Submit(i, Message(4));
  const LoadClient::Counts counts = client.WaitUntilBelow(1, Never());
  EXPECT_EQ(counts.sent, 3);
  EXPECT_EQ(counts.done, 3);
  EXPECT_EQ(counts.failed, 0);
  EXPECT_FALSE(client.broken());
  const double last_s = client.last_event_s();
  client.Close();
  for (const RequestRecord& record : client.TakeRecords()) {
    EXPECT_TRUE(record.completed) << record.failure;
    ASSERT_EQ(record.tokens_s.size(), 4u);
    EXPECT_GE(record.tokens_s.front(), *record.sent_s);
    EXPECT_GE(last_s, record.tokens_s.back());
  }
}

TEST_F(LoadClientTest, SubmitAfterTheStreamBrokeFailsAtOnce) {
  StartDaemon({.submissions_before_break = 0});
  LoadClient client(address_, std::vector<RequestRecord>(2));
  ASSERT_OK(client.Open());
  client.Submit(0, Message(1));
  client.WaitUntilBelow(1, Never());
  ASSERT_TRUE(client.broken());
  client.Submit(1, Message(1));
  EXPECT_EQ(client.counts().failed, 2);
  client.Close();
  for (const RequestRecord& record : client.TakeRecords()) {
    EXPECT_THAT(record.failure, StatusIs(absl::StatusCode::kUnavailable,
                                         HasSubstr("gone away")));
  }
}

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
