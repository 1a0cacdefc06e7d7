// An engine that refuses evictions, over real gRPC against a dense model: who
// was refused goes on with all that it has.

#include <cstdint>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RefusalsTest, WhoFitsWithoutOutputsWhatItDoesWithout) {
  std::mt19937_64 random(21);
  // Prompts of 13 blocks: the pool has 19.
  const LineOptions options{
      .model = SmallModel(21),
      .num_blocks = 20,
      .page_size = 16,
      .scheduler = SmallScheduler(true, 2),
      .refuses = [](const EvictionOrder&) { return true; }};
  Line line(options);
  line.Open();
  const std::vector<int32_t> prompt = RandomTokens(200, &random);
  v1::SubmitRequest fits = Line::MakeRequest("fits", prompt, 30);
  SetEviction(v1::EVICTION_MODE_AFTER_PREFILL, &fits);
  ASSERT_TRUE(line.Submit(fits).ok());
  line.WaitForAnswers(1);
  // 320 tokens, compressed after every 48 of them.
  v1::SubmitRequest never =
      Line::MakeRequest("never", RandomTokens(310, &random), 10);
  SetEviction(v1::EVICTION_MODE_EVERY_CHUNK, &never)->set_compress_every(48);
  ASSERT_TRUE(line.Submit(never).ok());
  const auto& answers = line.WaitForAnswers(2);
  EXPECT_EQ(answers.at("fits").reason, v1::FINISH_REASON_LENGTH);
  std::vector<int32_t> alone;
  RunAlone(options, prompt, 30, &alone);
  EXPECT_EQ(answers.at("fits").tokens, alone);
  EXPECT_EQ(answers.at("never").reason, v1::FINISH_REASON_FAILED);
  EXPECT_THAT(answers.at("never").error,
              AllOf(HasSubstr("the engine refused the eviction: length: "),
                    HasSubstr("blocks at its peak, the pool has 19")));
  const v1::GetStatsResponse stats = line.GetStats();
  EXPECT_GE(stats.num_refused_evictions(), 2u);
  EXPECT_EQ(stats.num_evictions(), 0u);
  line.ExpectNothingLeaked();
  line.Close();
}

class RefusedNowAndThenTest
    : public ::testing::TestWithParam<v1::EvictionMode> {};

INSTANTIATE_TEST_SUITE_P(Modes, RefusedNowAndThenTest,
                         ::testing::Values(v1::EVICTION_MODE_EVERY_CHUNK,
                                           v1::EVICTION_MODE_DECODE));

// Half of all evictions, in a pool where requests are preempted and computed
// again: every logit is that of the dense model without those that were
// refused.
TEST_P(RefusedNowAndThenTest, ARecomputationEqualsWhatWasComputedWithout) {
  std::mt19937_64 random(22);
  const LineOptions options{.model = SmallModel(22),
                            .num_blocks = 20,
                            .page_size = 16,
                            .scheduler = SmallScheduler(false, 2),
                            .refuses = [](const EvictionOrder& order) {
                              return order.length / 16 % 2 == 0;
                            }};
  std::vector<v1::SubmitRequest> requests;
  for (int32_t i = 0; i < 12; ++i) {
    requests.push_back(Line::MakeRequest(
        absl::StrCat("r", i), RandomTokens(100 + 3 * i, &random), 90));
    SetEviction(GetParam(), &requests.back())->set_compress_every(16);
  }
  const Served served = Serve(options, requests);
  EXPECT_GE(served.stats.num_refused_evictions(), 20u);
  EXPECT_GE(served.stats.num_evictions(), 20u);
  EXPECT_GE(served.stats.num_preemptions(), 3u);
  EXPECT_GE(served.checked.replays, 1);
}

}  // namespace
}  // namespace blockmgr
