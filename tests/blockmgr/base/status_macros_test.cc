#include "blockmgr/base/status_macros.h"

#include <memory>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using BoxOr = absl::StatusOr<std::unique_ptr<int>>;

absl::Status Forward(const absl::Status& status, bool* went_on) {
  BM_RETURN_IF_ERROR(status);
  *went_on = true;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnIfErrorReturnsTheError) {
  bool went_on = false;
  EXPECT_THAT(Forward(absl::NotFoundError("gone"), &went_on),
              StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_FALSE(went_on);
}

TEST(StatusMacrosTest, ReturnIfErrorGoesOnWhenOk) {
  bool went_on = false;
  EXPECT_OK(Forward(absl::OkStatus(), &went_on));
  EXPECT_TRUE(went_on);
}

TEST(StatusMacrosTest, CheckOkPrintsTheError) {
  BM_CHECK_OK(absl::OkStatus());
  EXPECT_DEATH(BM_CHECK_OK(absl::NotFoundError("the device is gone")),
               "NOT_FOUND: the device is gone");
}

absl::StatusOr<int> AddBoxes(BoxOr a, BoxOr b) {
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<int> left, std::move(a));
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<int> right, std::move(b));
  return *left + *right;
}

TEST(StatusMacrosTest, AssignOrReturnMovesTheValueOut) {
  ASSERT_OK_AND_ASSIGN(const int sum, AddBoxes(std::make_unique<int>(3),
                                               std::make_unique<int>(4)));
  EXPECT_EQ(sum, 7);
}

TEST(StatusMacrosTest, AssignOrReturnReturnsTheFirstError) {
  EXPECT_THAT(AddBoxes(absl::NotFoundError("a"), absl::AbortedError("b")),
              StatusIs(absl::StatusCode::kNotFound, "a"));
  EXPECT_THAT(AddBoxes(std::make_unique<int>(1), absl::AbortedError("b")),
              StatusIs(absl::StatusCode::kAborted, "b"));
}

}  // namespace
}  // namespace blockmgr
