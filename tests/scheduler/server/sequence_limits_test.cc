#include "scheduler/server/sequence_limits.h"

#include <cstddef>
#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

// Three quarters of the 63 blocks besides the null block are usable: 47.
class SequenceLimitsTest : public ::testing::Test {
 protected:
  SequenceLimitsTest() {
    options_.max_model_len = 5000;
    options_.watermark = 0.25;
    layout_.page_size = 16;
    layout_.num_blocks = 64;
  }

  static Request MakeRequest(size_t num_prompt, int32_t max_tokens) {
    Request request;
    request.prompt.assign(num_prompt, 1);
    request.max_tokens = max_tokens;
    return request;
  }

  absl::Status Check(size_t num_prompt, int32_t max_tokens) const {
    Request request = MakeRequest(num_prompt, max_tokens);
    return LimitTokens(options_, &model_, layout_, /*all_tokens=*/false,
                       &request);
  }

  // Returns the tokens that a request may take that asks for 4000.
  int32_t Lower(size_t num_prompt, const char* tenant = "") const {
    Request request = MakeRequest(num_prompt, 4000);
    request.scope.tenant = tenant;
    EXPECT_OK(
        LimitTokens(options_, &model_, layout_, /*all_tokens=*/true, &request));
    return request.max_tokens;
  }

  SchedulerOptions options_;
  ServedModel model_;
  ModelLayout layout_;
};

TEST_F(SequenceLimitsTest, TheLowerOfTwoLimitsCounts) {
  EXPECT_EQ(MaxSequenceTokens(options_, nullptr), 5000);
  EXPECT_EQ(MaxSequenceTokens(options_, &model_), 5000);
  model_.context_tokens = 100;
  EXPECT_EQ(MaxSequenceTokens(options_, &model_), 100);
  model_.context_tokens = 5001;
  EXPECT_EQ(MaxSequenceTokens(options_, &model_), 5000);
}

TEST_F(SequenceLimitsTest, PromptAndTokensFitIntoASequence) {
  model_.context_tokens = 100;
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_OK(Check(99, 1));
  EXPECT_THAT(Check(100, 1), StatusIs(kRefused,
                                      "prompt: expected at most 99 tokens (a "
                                      "sequence has 100), got 100"));
  EXPECT_THAT(Check(40, 61),
              StatusIs(kRefused,
                       "max_tokens: expected at most 60 (a sequence has 100 "
                       "tokens, the prompt 40), got 61"));
  Request request = MakeRequest(100, 1);
  EXPECT_THAT(
      LimitTokens(options_, &model_, layout_, /*all_tokens=*/true, &request),
      StatusIs(kRefused, HasSubstr("prompt: ")));
}

TEST_F(SequenceLimitsTest, AllTokensAreWhatTheSequenceHasRoomFor) {
  model_.context_tokens = 100;
  EXPECT_EQ(Lower(40), 60);
}

TEST_F(SequenceLimitsTest, AllTokensAreWhatThePoolHasRoomFor) {
  EXPECT_EQ(Lower(20), (47 - 2) * 16 - 20);
  layout_.group_windows = {64};  // every page takes two blocks
  EXPECT_EQ(Lower(20), (23 - 2) * 16 - 20);
}

TEST_F(SequenceLimitsTest, AllTokensAreWhatTheTenantHasRoomFor) {
  options_.tenant_limits.max_blocks = 10;
  options_.tenants["small"].max_blocks = 3;
  options_.tenants["large"].max_blocks = 1000;
  EXPECT_EQ(Lower(20, "other"), (10 - 2) * 16 - 20);
  EXPECT_EQ(Lower(20, "small"), 1);  // one page has less room than the prompt
  EXPECT_EQ(Lower(20, "large"), (47 - 2) * 16 - 20);
}

TEST_F(SequenceLimitsTest, FewerTokensStayAsTheyAre) {
  Request request = MakeRequest(20, 7);
  EXPECT_OK(
      LimitTokens(options_, nullptr, layout_, /*all_tokens=*/true, &request));
  EXPECT_EQ(request.max_tokens, 7);
}

}  // namespace
}  // namespace blockmgr
