#include "bench/evict/loss_contexts.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "tests/bench/evict/evict_command.h"
#include "tests/bench/evict/small_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two policies on two contexts, by hand. The second loses less on both.
ContextsLoss SmallLoss() {
  ContextsLoss loss;
  loss.keep_ratio = "0.25";
  loss.queries_window = 4;
  loss.length = 64;
  loss.num_contexts = 2;
  loss.policies = {"knorm | uniform | topk", "random | uniform | topk"};
  loss.losses = {{{0.5, 0.25, 0.5, 4.0, 0.75}, {0.5, 0.25, 0.5, 5.0, 0.75}},
                 {{0.75, 0.5, 0.25, 6.0, 1.0}, {0.75, 0.5, 0.125, 7.0, 1.0}}};
  return loss;
}

class ContextsLossTest : public ::testing::Test {
 protected:
  ContextsLossTest() {
    WriteSmallModel(folder_.File("model.gguf"));
    WriteSmallText(folder_.File("text"), 8);
    flags_.tensors.model = folder_.File("model.gguf");
    flags_.tensors.texts = {folder_.File("text")};
    flags_.tensors.context = 48;
    flags_.tensors.num_threads = 1;
    flags_.policies.policies = {"random", "snapkv(window=4)"};
    flags_.keep_ratio = "0.4";
    flags_.queries_window = 8;
    flags_.num_contexts = 3;
  }

  const TempFolder folder_;
  LossFlags flags_;
};

TEST_F(ContextsLossTest, TheFirstContextIsThatOfOneText) {
  ASSERT_OK_AND_ASSIGN(const ContextsLoss loss, ComputeContextsLoss(flags_));
  ASSERT_OK_AND_ASSIGN(const LossReport one, ComputeLoss(flags_));
  EXPECT_EQ(loss.length, 48);
  EXPECT_EQ(loss.queries_window, 8);
  EXPECT_EQ(loss.policies, one.policies);
  ASSERT_EQ(loss.losses.size(), 2u);
  for (size_t i = 0; i < loss.losses.size(); ++i) {
    ASSERT_EQ(loss.losses[i].size(), 3u);
    const ContextLoss& first = loss.losses[i].front();
    EXPECT_EQ(first.relative, MeanRelative(one.losses[i]));
    const std::vector<LossMeans>& layers = one.losses[i].layers;
    EXPECT_DOUBLE_EQ(first.kept_mass,
                     (layers[0].kept_mass + layers[1].kept_mass) / 2.0);
    EXPECT_EQ(first.needed_kept, 0.0);
    EXPECT_NE(loss.losses[i][1].relative, first.relative);
  }
}

TEST_F(ContextsLossTest, KeepingEverythingKeepsWhatIsNeeded) {
  flags_.keep_ratio = "1";
  flags_.query_tokens = 6;
  ASSERT_OK_AND_ASSIGN(const ContextsLoss loss, ComputeContextsLoss(flags_));
  for (const std::vector<ContextLoss>& contexts : loss.losses) {
    for (const ContextLoss& context : contexts) {
      EXPECT_EQ(context.heads_kept, 1.0);
      EXPECT_EQ(context.relative, 0.0);
      EXPECT_NEAR(context.needed_kept, 1.0, 1e-5);
    }
  }
}

TEST_F(ContextsLossTest, ErrorsNameTheFlag) {
  flags_.keep_ratio = "0";
  EXPECT_THAT(ComputeContextsLoss(flags_).status().ToString(),
              HasSubstr("--keep-ratio: "));
  flags_.keep_ratio = "0.4";
  flags_.num_contexts = 100;
  EXPECT_THAT(ComputeContextsLoss(flags_).status().ToString(),
              HasSubstr("--num-contexts: expected at most 4"));
}

TEST_F(ContextsLossTest, TheCommandPrintsARowPerPolicy) {
  const CommandOutcome outcome = RunEvictCommand(
      AddLossCommand, {"loss", "--model", flags_.tensors.model, "--text",
                       flags_.tensors.texts[0], "--context", "48", "--threads",
                       "1", "--num-contexts", "2", "--query-tokens", "4",
                       "--policy", "random", "--policy", "streaming"});
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("of 48 positions, last 32 queries, 2 contexts"),
                    HasSubstr("\n| random \\| uniform \\| topk | "),
                    HasSubstr("kept of what 4 tokens need")));
}

TEST_F(ContextsLossTest, ExternalBudgetsHaveNoKeepRatio) {
  flags_.policies.policies = {"random | external"};
  flags_.policies.budgets = folder_.File("b.npy");
  ASSERT_OK(WriteNpy(flags_.policies.budgets, {{2, 2}, {32, 0, 0, 16}}));
  flags_.keep_ratio = "0.4";
  EXPECT_THAT(ComputeContextsLoss(flags_).status().ToString(),
              HasSubstr("--keep-ratio: "));
  flags_.keep_ratio.reset();
  ASSERT_OK_AND_ASSIGN(const ContextsLoss loss, ComputeContextsLoss(flags_));
  EXPECT_THAT(FormatContextsLoss(loss),
              AllOf(HasSubstr("external budgets of 48 positions"),
                    HasSubstr("kept fractions of the entries: 0.25000\n")));
  const nlohmann::ordered_json json = ContextsLossJson(loss);
  EXPECT_TRUE(json["keep_ratio"].is_null());
  EXPECT_EQ(json["policies"][0]["kept_fraction"], 0.25);
}

TEST(ContextsSummaryTest, ComparesWithTheFirstPolicy) {
  const ContextsLoss loss = SmallLoss();
  const ContextsSummary first = SummarizeContexts(loss, 0);
  EXPECT_EQ(first.of_first.mean, 1.0);
  EXPECT_EQ(first.less_often.mean, 0.0);
  EXPECT_EQ(first.needed_gain.mean, 0.0);
  const ContextsSummary second = SummarizeContexts(loss, 1);
  EXPECT_EQ(second.kept_mass.mean, 0.75);
  EXPECT_EQ(second.heads_kept.mean, 0.5);
  EXPECT_EQ(second.relative.mean, 0.1875);
  EXPECT_EQ(second.of_first.mean, 0.375);
  EXPECT_EQ(second.key_volume.mean, 6.5);
  EXPECT_EQ(second.key_volume_gain.mean, 2.0);
  EXPECT_EQ(second.key_volume_gain.low, 2.0);
  EXPECT_EQ(second.of_first.low, 0.25);
  EXPECT_EQ(second.of_first.high, 0.5);
  EXPECT_EQ(second.less_often.mean, 1.0);
  EXPECT_EQ(second.needed_kept.mean, 1.0);
  EXPECT_EQ(second.needed_gain.low, 0.25);
}

TEST(ContextsSummaryTest, TableAndJsonHaveTheSameNumbers) {
  ContextsLoss loss = SmallLoss();
  EXPECT_THAT(
      FormatContextsLoss(loss),
      HasSubstr(
          "| random \\| uniform \\| topk | 0.750 [0.750, 0.750] | "
          "0.500 [0.500, 0.500] | 0.188 [0.125, 0.250] | 0.375 "
          "[0.250, 0.500] | 1.000 [1.000, 1.000] | 6.500 [6.000, 7.000] | "
          "2.000 [2.000, 2.000] |\n"));
  EXPECT_FALSE(ContextsLossJson(loss)["policies"][1].contains("needed_kept"));
  loss.query_tokens = 16;
  EXPECT_THAT(FormatContextsLoss(loss),
              HasSubstr(" | 1.000 [1.000, 1.000] | 0.250 [0.250, 0.250] |\n"));
  const nlohmann::ordered_json json = ContextsLossJson(loss);
  EXPECT_EQ(json["keep_ratio"], "0.25");
  EXPECT_EQ(json["num_contexts"], 2);
  EXPECT_EQ(json["policies"][1]["policy"], "random | uniform | topk");
  EXPECT_EQ(json["policies"][1]["of_first"]["mean"], 0.375);
  EXPECT_EQ(json["policies"][1]["needed_gain"]["high"], 0.25);
  EXPECT_EQ(json["policies"][1]["key_log_determinant"]["mean"], 6.5);
  EXPECT_EQ(json["policies"][1]["key_log_determinant_gain"]["mean"], 2.0);
}

}  // namespace
}  // namespace blockmgr
