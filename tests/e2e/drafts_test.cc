// Speculative decoding over real gRPC: whatever is proposed, accepted, rejected
// and preempted, every logit is the dense model's and every output the one of a
// request alone, without drafts.

#include <map>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
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
  const auto [answers, stats, checked] = Serve(options, RequestsFor(jobs));
  ExpectDrafts(stats);
  EXPECT_GT(stats.num_preemptions(), 0u);
  options.max_drafts = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    std::vector<int32_t> alone;
    RunAlone(options, jobs[i].prompt, jobs[i].max_tokens, &alone);
    EXPECT_EQ(answers.at(absl::StrCat("r", i)).tokens, alone);
  }
}

TEST(DraftsTest, EqualsTheDenseModelThroughEvictionsInDecode) {
  constexpr uint64_t kSeed = 32;
  std::mt19937_64 random(kSeed);
  std::vector<v1::SubmitRequest> requests;
  for (int32_t i = 0; i < 8; ++i) {
    v1::SubmitRequest request = Line::MakeRequest(
        absl::StrCat("r", i), RandomTokens(30 + 5 * i, &random), 110);
    v1::RequestEviction* eviction = request.mutable_eviction();
    eviction->set_mode(v1::EVICTION_MODE_DECODE);
    eviction->set_compress_every(32);
    eviction->mutable_policy()->mutable_snapkv()->set_window(8);
    eviction->mutable_policy()->mutable_adakv();
    eviction->mutable_target()->set_tokens_per_head(24);
    requests.push_back(request);
  }
  const auto [answers, stats, checked] = Serve(Options(kSeed, 61), requests);
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.tokens.size(), 110u) << id;
  }
  ExpectDrafts(stats);
  EXPECT_GE(stats.num_evictions(), 24u);
}

}  // namespace
}  // namespace blockmgr
