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

// DraftsChangeNoOutput of windows_test.cc has drafts without evictions.
TEST(DraftsTest, EqualsTheDenseModelThroughEvictionsInDecode) {
  constexpr uint64_t kSeed = 32;
  std::mt19937_64 random(kSeed);
  LineOptions options{.model = SmallModel(kSeed),
                      .num_blocks = 61,
                      .page_size = 16,
                      .scheduler = SmallScheduler(true, 3)};
  options.scheduler.num_speculative_tokens = 4;
  options.max_drafts = 6;
  std::vector<v1::SubmitRequest> requests;
  for (int32_t i = 0; i < 8; ++i) {
    v1::SubmitRequest request = Line::MakeRequest(
        absl::StrCat("r", i), RandomTokens(30 + 5 * i, &random), 110);
    SetEviction(v1::EVICTION_MODE_DECODE, &request)
        ->mutable_target()
        ->set_tokens_per_head(24);
    requests.push_back(request);
  }
  const Served outcome = Serve(options, requests);
  for (const auto& [id, answer] : outcome.answers) {
    EXPECT_EQ(answer.tokens.size(), 110u) << id;
  }
  EXPECT_GT(outcome.stats.num_accepted_tokens(), 50u);
  EXPECT_GT(outcome.stats.num_draft_tokens(),
            outcome.stats.num_accepted_tokens() + 50);
  EXPECT_GE(outcome.stats.num_evictions(), 24u);
}

}  // namespace
}  // namespace blockmgr
