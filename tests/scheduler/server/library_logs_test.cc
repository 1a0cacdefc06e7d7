#include "scheduler/server/library_logs.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "proto/blockmgr/v1/request.pb.h"
#include "tests/scheduler/server/captured_log.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LibraryLogsTest : public ::testing::Test {
 protected:
  LibraryLogsTest() {
    grpc_init();  // it logs nothing before
    RouteLibraryLogs();
  }
  ~LibraryLogsTest() override {
    grpc_shutdown();
    gpr_set_log_function(nullptr);
    google::protobuf::SetLogHandler(handler_);
  }

  const CapturedLog log_;
  google::protobuf::LogHandler* const handler_ =
      google::protobuf::SetLogHandler(nullptr);
};

TEST_F(LibraryLogsTest, ErrorsAreALineForEachLibrary) {
  v1::CancelRequest request;
  for (int i = 0; i < 1000; ++i) {
    gpr_log(GPR_ERROR, "bad\nheader \x1b[2J");
    gpr_log(GPR_INFO, "nobody wants to know");
    EXPECT_FALSE(request.ParseFromString("\x0A\x01\xFF"));
  }
  EXPECT_EQ(log_.num_lines(), 2);
  EXPECT_THAT(log_.text(), HasSubstr("grpc: bad\\nheader \\x1b[2J"));
  EXPECT_THAT(log_.text(),
              HasSubstr("protobuf: String field "
                        "\\'blockmgr.v1.CancelRequest.request_id\\'"));
  EXPECT_THAT(log_.text(), Not(HasSubstr("nobody")));
}

TEST_F(LibraryLogsTest, LastWordsAreAlwaysSaid) {
  for (int i = 0; i < 3; ++i) gpr_log(GPR_ERROR, "assertion failed: x");
  EXPECT_EQ(log_.num_lines(), 3);
  EXPECT_THAT(log_.text(), HasSubstr("library_logs_test.cc:"));
}

TEST_F(LibraryLogsTest, DebuggingSaysAll) {
  spdlog::default_logger()->set_level(spdlog::level::debug);
  for (int i = 0; i < 10; ++i) gpr_log(GPR_ERROR, "bad");
  EXPECT_GE(log_.num_lines(), 10);
}

}  // namespace
}  // namespace blockmgr
