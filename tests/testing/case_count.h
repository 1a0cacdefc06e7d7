// How many random cases to try.
#ifndef TESTS_TESTING_CASE_COUNT_H_
#define TESTS_TESTING_CASE_COUNT_H_

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/testing/sanitizers.h"

namespace blockmgr {

// Random tests run a part of their cases: always under sanitizers, which make
// them an order slower, and where BLOCKMGR_TEST_BRIEF says so, as all do that
// are not nightly.
inline constexpr bool kBrief = kSanitized || BLOCKMGR_TEST_BRIEF;

// Sanitizers run half of the cases of what is not nightly.
inline constexpr bool kBriefest = kSanitized && BLOCKMGR_TEST_BRIEF;

inline constexpr int32_t kCaseDivisor = kBriefest ? 20 : kBrief ? 10 : 1;

// Of `count` slow cases, so many are run.
constexpr uint64_t SlowCases(uint64_t count) {
  return kBrief ? (count + 3) / 4 : count;
}

// Of a number that happens in all slow cases, what must happen in those that
// are run.
constexpr int64_t SlowFloor(int64_t all) { return kBrief ? all / 6 : all; }

// `usual`, times the whole number in BLOCKMGR_TEST_CASES, which slow tests set
// (bm_more_cases in tests/CMakeLists.txt).
inline uint64_t CountCases(uint64_t usual) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment
  const char* factor = std::getenv("BLOCKMGR_TEST_CASES");
  return factor == nullptr ? usual : usual * std::stoull(factor);
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_CASE_COUNT_H_
