// A matcher for the refusal of bad input, whose message has to name it.
//
//   EXPECT_THAT(ParsePolicy(text), IsInvalid("window", "got -1"));
#ifndef TESTS_TESTING_IS_INVALID_H_
#define TESTS_TESTING_IS_INVALID_H_

#include <string>

#include <absl/status/status.h>
#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {

// Matches InvalidArgument, as a Status or StatusOr, with a message that has all
// of these parts.
template <typename... Parts>
auto IsInvalid(const Parts&... parts) {
  return StatusIs(
      absl::StatusCode::kInvalidArgument,
      ::testing::AllOf(::testing::HasSubstr(std::string(parts))...));
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_IS_INVALID_H_
