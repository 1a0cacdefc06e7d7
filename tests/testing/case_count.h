// How many random cases to try.
#ifndef TESTS_TESTING_CASE_COUNT_H_
#define TESTS_TESTING_CASE_COUNT_H_

#include <cstdint>
#include <cstdlib>
#include <string>

namespace blockmgr {

// `usual`, times the whole number in BLOCKMGR_TEST_CASES, which slow tests set
// (bm_more_cases in tests/CMakeLists.txt).
inline uint64_t CaseCount(uint64_t usual) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment
  const char* factor = std::getenv("BLOCKMGR_TEST_CASES");
  return factor == nullptr ? usual : usual * std::stoull(factor);
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_CASE_COUNT_H_
