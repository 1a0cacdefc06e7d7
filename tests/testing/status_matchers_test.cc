#include "tests/testing/status_matchers.h"

#include <memory>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(StatusMatchersTest, AcceptWhatTheyDescribe) {
  const absl::Status error = absl::InvalidArgumentError("window: got -1");
  const absl::StatusOr<int> error_or = error;
  EXPECT_OK(absl::OkStatus());
  EXPECT_OK(absl::StatusOr<int>(3));
  EXPECT_THAT(error, StatusIs(kInvalid));
  EXPECT_THAT(error, StatusIs(kInvalid, HasSubstr("window")));
  EXPECT_THAT(error, StatusIs(kInvalid, "window: got -1"));
  EXPECT_THAT(error_or, StatusIs(kInvalid, HasSubstr("-1")));
}

TEST(StatusMatchersTest, RejectAllElse) {
  const absl::Status error = absl::InvalidArgumentError("window: got -1");
  EXPECT_THAT(error, Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(error), Not(IsOk()));
  EXPECT_THAT(absl::OkStatus(), Not(StatusIs(kInvalid)));
  EXPECT_THAT(error, Not(StatusIs(absl::StatusCode::kNotFound)));
  EXPECT_THAT(error, Not(StatusIs(kInvalid, HasSubstr("alpha"))));
  EXPECT_THAT(error, Not(StatusIs(kInvalid, "window")));
  EXPECT_THAT(error,
              Not(StatusIs(absl::StatusCode::kNotFound, HasSubstr("window"))));
}

TEST(StatusMatchersTest, FailureShowsTheStatus) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(absl::NotFoundError("no such thing")),
                          "no such thing");
}

TEST(StatusMatchersTest, AssignMovesTheValueOut) {
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<int> value,
      absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(7)));
  EXPECT_EQ(*value, 7);
}

void AssignFromError(bool* went_on) {
  ASSERT_OK_AND_ASSIGN(*went_on,
                       absl::StatusOr<bool>(absl::NotFoundError("gone")));
  *went_on = true;
}

TEST(StatusMatchersTest, AssignFromAnErrorFailsAndReturns) {
  static bool went_on = false;
  EXPECT_FATAL_FAILURE(AssignFromError(&went_on), "gone");
  EXPECT_FALSE(went_on);
}

}  // namespace
}  // namespace blockmgr
