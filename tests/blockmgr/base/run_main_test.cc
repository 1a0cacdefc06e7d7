#include "blockmgr/base/run_main.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

class RunMainTest : public testing::Test {
 protected:
  int Run(int (*run)(int, char**)) { return RunMain(run, 1, argv_); }

 private:
  char name_[8] = "program";
  char* argv_[2] = {name_, nullptr};
};

TEST_F(RunMainTest, ReturnsTheExitStatus) {
  EXPECT_EQ(Run([](int argc, char** argv) {
              return argc == 1 && argv[1] == nullptr ? 7 : 0;
            }),
            7);
}

TEST_F(RunMainTest, TellsWhatNobodyCaught) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Run([](int, char**) -> int {
              throw std::runtime_error("no more of it");
            }),
            1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("program: no more of it"));
}

// /dev/full takes nothing, which shows when the stream is flushed.
TEST_F(RunMainTest, OutputThatIsLostIsAnError) {
  const auto run_into_full = [this](int (*run)(int, char**)) {
    EXPECT_NE(std::freopen("/dev/full", "w", stdout), nullptr);
    std::_Exit(Run(run));
  };
  EXPECT_EXIT(
      run_into_full([](int, char**) { return std::puts("a") < 0 ? 2 : 0; }),
      testing::ExitedWithCode(1), "program: standard output cannot be written");
  EXPECT_EXIT(
      run_into_full([](int, char**) { return std::puts("a") < 0 ? 0 : 3; }),
      testing::ExitedWithCode(3), "");
  EXPECT_EXIT(run_into_full([](int, char**) { return 0; }),
              testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace blockmgr
