// Speculative decoding over real gRPC: whatever is proposed, accepted, rejected
// and preempted, every logit is the dense model's and every output the one of a
// request alone, without drafts.

#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

LineOptions Options(uint64_t seed, int32_t num_blocks) {
  LineOptions options{.model = SmallModel(seed),
                      .num_blocks = num_blocks,
                      .page_size = 16,
                      .scheduler = SmallScheduler(true, 3)};
  options.scheduler.num_speculative_tokens = 4;
  options.max_drafts = 6;
  return options;
}

void ExpectDrafts(const v1::GetStatsResponse& stats) {
  EXPECT_GT(stats.num_accepted_tokens(), 50u);
  EXPECT_GT(stats.num_draft_tokens(), stats.num_accepted_tokens() + 50);
}

TEST(DraftsTest, EqualsTheDenseModelAndItselfAloneUnderPreemption) {
  constexpr uint64_t kSeed = 31;
  std::mt19937_64 random(kSeed);
  const std::vector<Job> jobs = RandomJobs(32, 60, 3, &random);
  LineOptions options = Options(kSeed, 21);
  const Served served = Serve(options, RequestsFor(jobs));
  ExpectDrafts(served.stats);
  EXPECT_GT(served.stats.num_preemptions(), 0u);
  options.max_drafts = 0;
  ExpectAsAlone(options, jobs, served);
}

TEST(DraftsTest, EqualsTheDenseModelThroughEvictionsInDecode) {
  constexpr uint64_t kSeed = 32;
  std::mt19937_64 random(kSeed);
  std::vector<v1::SubmitRequest> requests;
  for (int32_t i = 0; i < 8; ++i) {
    requests.push_back(Line::MakeRequest(
        absl::StrCat("r", i), RandomTokens(30 + 5 * i, &random), 110));
    SetEviction(v1::EVICTION_MODE_DECODE, &requests.back())
        ->mutable_target()
        ->set_tokens_per_head(24);
  }
  const Served served = Serve(Options(kSeed, 61), requests);
  for (const auto& [id, answer] : served.answers) {
    EXPECT_EQ(answer.tokens.size(), 110u) << id;
  }
  ExpectDrafts(served.stats);
  EXPECT_GE(served.stats.num_evictions(), 24u);
}

}  // namespace
}  // namespace blockmgr
