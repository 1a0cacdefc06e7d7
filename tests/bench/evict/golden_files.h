// The golden vectors of a test.
#ifndef TESTS_BENCH_EVICT_GOLDEN_FILES_H_
#define TESTS_BENCH_EVICT_GOLDEN_FILES_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "bench/evict/golden.h"
#include "bench/evict/golden_methods.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

inline const std::map<std::string, GoldenMethod>& AllGoldenMethods() {
  static const auto methods = [] {
    auto read =
        ReadGoldenMethods(absl::StrCat(BLOCKMGR_GOLDEN_DIR, "/methods.txt"));
    EXPECT_THAT(read, IsOk());
    return read.ok() ? *read : std::map<std::string, GoldenMethod>();
  }();
  return methods;
}

inline std::vector<GoldenCase> GoldenCasesOf(const std::string& file) {
  auto cases = ReadGoldenFile(absl::StrCat(BLOCKMGR_GOLDEN_DIR, "/", file));
  EXPECT_THAT(cases, IsOk());
  return cases.ok() ? *cases : std::vector<GoldenCase>();
}

// The first case of a method in the small set.
inline GoldenCase FirstGoldenCase(const std::string& method) {
  for (const char* file :
       {"qkv.txt", "select_ties.txt", "budgets.txt", "lukv_solver.txt"}) {
    for (GoldenCase& golden : GoldenCasesOf(absl::StrCat("other/", file))) {
      if (golden.method == method) return std::move(golden);
    }
  }
  ADD_FAILURE() << "no case of " << method;
  return {};
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_EVICT_GOLDEN_FILES_H_
