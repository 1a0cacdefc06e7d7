#include "scheduler/server/grpc_status.h"

#include <string>

#include <gtest/gtest.h>

#include "scheduler/server/peer_text.h"

namespace blockmgr {
namespace {

TEST(GrpcStatusTest, LongMessagesAreShortened) {
  const grpc::Status status =
      ToGrpc(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_EQ(status.error_code(), grpc::INTERNAL);
  EXPECT_LT(status.error_message().size(), 2 * kMaxTextBytes);
}

TEST(GrpcStatusTest, StatusKeepsCodeAndText) {
  const grpc::Status status = ToGrpc(absl::AbortedError("why"));
  EXPECT_EQ(status.error_code(), grpc::ABORTED);
  EXPECT_EQ(status.error_message(), "why");
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace blockmgr
