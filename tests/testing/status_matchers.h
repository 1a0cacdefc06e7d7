// GoogleTest matchers for absl::Status and absl::StatusOr, which the packaged
// Abseil does not have.
//
//   EXPECT_THAT(layout.Validate(), IsOk());
//   EXPECT_THAT(tier.Find(id), StatusIs(absl::StatusCode::kNotFound));
//   EXPECT_THAT(ParsePolicy(text),
//               StatusIs(absl::StatusCode::kInvalidArgument,
//                        HasSubstr("window")));
//   ASSERT_OK_AND_ASSIGN(const PolicySpec spec, ParsePolicy(text));
#ifndef TESTS_TESTING_STATUS_MATCHERS_H_
#define TESTS_TESTING_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace internal {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}

template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

// absl::Status has no PrintTo: without this a failure would print its bytes.
template <typename StatusType>
bool DescribeStatus(const StatusType& value, bool matches,
                    ::testing::MatchResultListener* listener) {
  *listener << "whose status is " << GetStatus(value).ToString();
  return matches;
}

}  // namespace internal

// Matches an OK Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  return internal::DescribeStatus(arg, internal::GetStatus(arg).ok(),
                                  result_listener);
}

// Matches a Status or StatusOr of the given code.
MATCHER_P(StatusIs, code,
          (negation ? "does not have status code " : "has status code ") +
              absl::StatusCodeToString(code)) {
  return internal::DescribeStatus(arg, internal::GetStatus(arg).code() == code,
                                  result_listener);
}

// Matches a Status or StatusOr of the given code whose message matches
// `message`: a string matcher such as HasSubstr, or the whole message.
MATCHER_P2(StatusIs, code, message,
           (negation ? "does not have status code " : "has status code ") +
               absl::StatusCodeToString(code) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message)) {
  const absl::Status& status = internal::GetStatus(arg);
  const bool matches =
      status.code() == code &&
      ::testing::Matches(::testing::SafeMatcherCast<std::string>(message))(
          std::string(status.message()));
  return internal::DescribeStatus(arg, matches, result_listener);
}

}  // namespace blockmgr

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::blockmgr::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::blockmgr::IsOk())

#define BM_TEST_CONCAT_INNER_(a, b) a##b
#define BM_TEST_CONCAT_(a, b) BM_TEST_CONCAT_INNER_(a, b)

// ASSERT_OK_AND_ASSIGN(auto value, Expression()): assigns the value, or fails
// the test and returns. A type with a comma in it needs an alias.
#define ASSERT_OK_AND_ASSIGN(lhs, expression) \
  ASSERT_OK_AND_ASSIGN_(BM_TEST_CONCAT_(bm_test_or_, __LINE__), lhs, expression)
#define ASSERT_OK_AND_ASSIGN_(result, lhs, expression) \
  auto result = (expression);                          \
  ASSERT_THAT(result, ::blockmgr::IsOk());             \
  lhs = *std::move(result)

#endif  // TESTS_TESTING_STATUS_MATCHERS_H_
