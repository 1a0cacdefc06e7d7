#include "tests/fuzz/fuzz_target.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <unistd.h>

#include <absl/strings/str_cat.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include "blockmgr/step_plan.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/mutator.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"

namespace blockmgr::fuzz {
namespace {

constexpr uint64_t kNumInputs = 4000;

// Said by whoever aborts: Require, and checks of the product.
char input_name[128];

void SayInput(int signal) {
  const ssize_t written = write(STDERR_FILENO, input_name, sizeof(input_name));
  std::signal(signal, SIG_DFL);
  std::raise(written < 0 ? SIGKILL : signal);
}

class FuzzTest : public testing::TestWithParam<FuzzTarget> {
 protected:
  FuzzTest() : before_(std::signal(SIGABRT, SayInput)) {
    // It would tell of every text that is not UTF-8.
    google::protobuf::SetLogHandler(nullptr);
  }
  ~FuzzTest() override { std::signal(SIGABRT, before_); }

 private:
  void (*const before_)(int);
};

TEST_P(FuzzTest, SurvivesSeeds) {
  const std::vector<std::string> seeds = GetParam().make_seeds();
  ASSERT_FALSE(seeds.empty());
  for (size_t i = 0; i < seeds.size(); ++i) {
    std::snprintf(input_name, sizeof(input_name), "seed %zu\n", i);
    GetParam().run(seeds[i]);
  }
}

TEST_P(FuzzTest, SurvivesWhatSeedsBecome) {
  const std::vector<std::string> seeds = GetParam().make_seeds();
  for (uint64_t i = 0; i < SlowCases(kNumInputs); ++i) {
    std::snprintf(input_name, sizeof(input_name), "input %d\n",
                  static_cast<int>(i));
    Rng rng(i);
    GetParam().run(Mutate(seeds, rng));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FuzzTest, testing::ValuesIn(FuzzTargets()),
                         [](const auto& instance) {
                           return std::string(instance.param.name);
                         });

// Of all that a plan can hold, some plan of theirs has some.
TEST(CommandsTest, SeedsReachAllThatPlansHold) {
  StepPlan all;
  int num_drafts = 0;
  int num_groups = 0;
  int num_regions = 0;
  int num_forks = 0;
  int num_scored = 0;
  const auto add = [](const auto& from, auto* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  for (const std::string& seed : MakeCommands()) {
    std::vector<StepPlan> plans;
    Play(seed, &plans);
    for (const StepPlan& plan : plans) {
      add(plan.dropped_swaps, &all.dropped_swaps);
      add(plan.swap_outs, &all.swap_outs);
      add(plan.released, &all.released);
      add(plan.dropped_regions, &all.dropped_regions);
      add(plan.copies, &all.copies);
      add(plan.blocks, &all.blocks);
      add(plan.transfers_in, &all.transfers_in);
      for (const int32_t drafts : plan.num_drafts) num_drafts += drafts;
      for (const EvictionOrder& order : plan.evictions) {
        num_groups += order.group;
        num_scored += order.scores != nullptr ? 1 : 0;
      }
      for (const SequenceStart& start : plan.starts) {
        num_regions += start.region != kNoRegion ? 1 : 0;
        num_forks += start.source != kNoSequenceSlot ? 1 : 0;
      }
    }
  }
  EXPECT_FALSE(all.dropped_swaps.empty());
  EXPECT_FALSE(all.swap_outs.empty());
  EXPECT_FALSE(all.released.empty());
  EXPECT_FALSE(all.dropped_regions.empty());
  EXPECT_FALSE(all.copies.empty());
  // Starts leave out what is before their windows.
  EXPECT_NE(std::ranges::count(all.blocks, kNullBlock), 0);
  EXPECT_FALSE(all.transfers_in.empty());
  EXPECT_GT(num_drafts, 0);
  EXPECT_GT(num_groups, 0);
  EXPECT_GT(num_regions, 0);
  EXPECT_GT(num_forks, 0);
  EXPECT_GT(num_scored, 0);
}

TEST(MutatorTest, FollowsFromTheSeedAlone) {
  const std::vector<std::string> seeds = {
      "one", absl::StrCat("two", kPartEnd, "parts")};
  bool differ = false;
  for (uint64_t i = 0; i < 100; ++i) {
    Rng rng(i);
    Rng again(i);
    const std::string input = Mutate(seeds, rng);
    EXPECT_EQ(input, Mutate(seeds, again));
    differ = differ || (input != seeds[0] && input != seeds[1]);
  }
  EXPECT_TRUE(differ);
}

}  // namespace
}  // namespace blockmgr::fuzz
