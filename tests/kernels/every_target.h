// Runs a test's body once per instruction set this machine has:
//
//   class FooTest : public EveryTargetTest {};
//   TEST_P(FooTest, Fact): ...
//   BM_FOR_EVERY_TARGET(FooTest);
#ifndef TESTS_KERNELS_EVERY_TARGET_H_
#define TESTS_KERNELS_EVERY_TARGET_H_

#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <hwy/highway.h>

namespace blockmgr {

class EveryTargetTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0) {
      GTEST_SKIP() << "not on this machine: " << hwy::TargetName(GetParam());
    }
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline std::string TargetName(const testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace blockmgr

#define BM_FOR_EVERY_TARGET(suite)                                            \
  INSTANTIATE_TEST_SUITE_P(                                                   \
      Targets, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
      TargetName)

#endif  // TESTS_KERNELS_EVERY_TARGET_H_
