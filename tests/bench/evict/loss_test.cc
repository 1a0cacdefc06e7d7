#include "bench/evict/loss.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "tests/bench/evict/evict_command.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

LossFlags Example() {
  LossFlags flags;
  flags.tensors.synthetic = "2x4x2x160x16";
  flags.policies.policies = {"random", "snapkv | adakv"};
  flags.keep_ratio = "0.4";
  flags.queries_window = 8;
  return flags;
}

// One layer of two query heads, by hand.
LossReport SmallReport() {
  LossReport report;
  report.keep_ratio = "0.25";
  report.queries_window = 4;
  report.length = 64;
  report.num_q_heads = 2;
  report.policies = {"knorm | uniform | topk"};
  PolicyLoss& loss = report.losses.emplace_back();
  loss.layers = {{0.875, 12.5, 8, 2, 10}};
  loss.q_heads = {{0.75, 10, 6, 1.5, 5}, {1.0, 2.5, 2, 0.5, 5}};
  return report;
}

TEST(LossTest, MeasuresEveryPolicyOnEveryLayer) {
  ASSERT_OK_AND_ASSIGN(const LossReport report, ComputeLoss(Example()));
  EXPECT_EQ(report.keep_ratio, "0.4");
  EXPECT_EQ(report.length, 160);
  EXPECT_TRUE(report.has_output_projection);
  ASSERT_EQ(report.losses.size(), 2u);
  for (const PolicyLoss& loss : report.losses) {
    ASSERT_EQ(loss.layers.size(), 2u);
    ASSERT_EQ(loss.q_heads.size(), 8u);
    for (const LossMeans& layer : loss.layers) {
      EXPECT_GT(layer.kept_mass, 0.0);
      EXPECT_LT(layer.kept_mass, 1.0);
      EXPECT_GT(layer.perturbation, 0.0);
      EXPECT_LE(layer.perturbation, layer.critical_kv_bound * (1 + 1e-5));
      EXPECT_LE(layer.critical_kv_bound, layer.ada_kv_bound * (1 + 1e-5));
    }
  }
  // Tensors with sharp heads: attention beats chance.
  EXPECT_LT(MeanRelative(report.losses[1]), MeanRelative(report.losses[0]));
}

// Whatever says how much, wherever pages end.
TEST(LossTest, KeepingEverythingOfOddLengthsLosesNothing) {
  LossFlags flags;
  flags.policies.policies = {
      "knorm",
      "knorm | pyramid",
      "snapkv | adakv | critical",
      "snapkv | ada_pyramid",
      "snapkv | global | topk | round(token)",
      "snapkv | adakv | topk | round(token) | parity(released)",
      "snapkv | ada_pyramid | topk | round(token) | parity(released)",
      "snapkv | uniform | critical | round(token) | parity(kvpress)"};
  flags.keep_ratio = "1";
  for (const char* length : {"1", "17", "100", "131"}) {
    flags.tensors.synthetic = absl::StrCat("2x4x2x", length, "x16");
    ASSERT_OK_AND_ASSIGN(const LossReport report, ComputeLoss(flags));
    ASSERT_EQ(report.losses.size(), flags.policies.policies.size());
    for (size_t i = 0; i < report.losses.size(); ++i) {
      EXPECT_EQ(MeanRelative(report.losses[i]), 0.0)
          << report.policies[i] << " of " << length;
    }
  }
}

// Nobody said 32: all queries there are.
TEST(LossTest, MeasuresAllQueriesOfShortTensors) {
  LossFlags flags = Example();
  flags.queries_window.reset();
  flags.tensors.synthetic = "1x4x2x20x16";
  ASSERT_OK_AND_ASSIGN(const LossReport of_short, ComputeLoss(flags));
  EXPECT_EQ(of_short.queries_window, 20);
  flags.queries_window = 20;
  ASSERT_OK_AND_ASSIGN(const LossReport said, ComputeLoss(flags));
  EXPECT_EQ(FormatLoss(of_short, true), FormatLoss(said, true));
  flags.queries_window.reset();
  flags.tensors.synthetic = "1x4x2x40x16";
  ASSERT_OK_AND_ASSIGN(const LossReport of_long, ComputeLoss(flags));
  EXPECT_EQ(of_long.queries_window, 32);
}

TEST(LossTest, ErrorsNameTheFlag) {
  LossFlags flags = Example();
  flags.keep_ratio = "0";
  EXPECT_THAT(ComputeLoss(flags).status().ToString(),
              HasSubstr("--keep-ratio: "));
  flags = Example();
  flags.queries_window = 161;
  EXPECT_THAT(
      ComputeLoss(flags).status().ToString(),
      AllOf(HasSubstr("--queries-window: expected"), HasSubstr("got 161")));
  flags = Example();
  flags.policies.policies = {"nothing"};
  EXPECT_THAT(ComputeLoss(flags).status().ToString(),
              HasSubstr("--policy 'nothing': "));
  flags = Example();
  flags.tensors.synthetic.clear();
  EXPECT_THAT(ComputeLoss(flags).status().ToString(), HasSubstr("--synthetic"));
}

TEST(LossTest, ExternalBudgetsHaveNoKeepRatio) {
  const TempFolder folder;
  LossFlags flags = Example();
  flags.tensors.synthetic = "1x2x2x64x16";
  flags.policies.policies = {"knorm | external"};
  flags.policies.budgets = folder.File("b.npy");
  ASSERT_OK(WriteNpy(flags.policies.budgets, {{1, 2}, {32, 0}}));
  EXPECT_THAT(ComputeLoss(flags).status().ToString(),
              HasSubstr("--keep-ratio: expected a policy without external "
                        "budgets, got none"));
  flags.keep_ratio.reset();
  ASSERT_OK_AND_ASSIGN(const LossReport report, ComputeLoss(flags));
  EXPECT_THAT(FormatLoss(report, false),
              AllOf(HasSubstr("external budgets of 64 positions"),
                    HasSubstr("kept fraction of the entries: 0.25000\n")));
  const nlohmann::ordered_json json = LossJson(report, false);
  EXPECT_TRUE(json["keep_ratio"].is_null());
  EXPECT_EQ(json["policies"][0]["kept_fraction"], 0.25);
  // The others' ratio.
  flags.keep_ratio = "0.5";
  flags.policies.policies.push_back("knorm | uniform");
  ASSERT_OK_AND_ASSIGN(const LossReport both, ComputeLoss(flags));
  EXPECT_EQ(LossJson(both, false)["keep_ratio"], "0.5");
  EXPECT_EQ(LossJson(both, false)["policies"][1]["kept_fraction"], 0.5);
}

TEST(LossTest, TableHasARowPerLayerAndOnDemandPerHead) {
  const std::string table = FormatLoss(SmallReport(), false);
  EXPECT_THAT(table, HasSubstr("keep ratio 0.25 of 64 positions"));
  EXPECT_THAT(table, HasSubstr("last 4 queries\nno W_O given: "));
  EXPECT_THAT(table, HasSubstr("\nknorm | uniform | topk\n"));
  EXPECT_THAT(table,
              HasSubstr("\n    0     all   0.875000          12.5             8"
                        "             2   0.20000\n"));
  EXPECT_THAT(table, HasSubstr("of the layers: 0.20000\n"));
  EXPECT_THAT(table, Not(HasSubstr("0.750000")));
  const std::string heads = FormatLoss(SmallReport(), true);
  EXPECT_THAT(heads, HasSubstr("\n    0       0   0.750000            10"));
  EXPECT_THAT(heads, HasSubstr("\n    0       1   1.000000           2.5"));
  for (const absl::string_view line : absl::StrSplit(heads, '\n')) {
    EXPECT_LE(line.size(), 80u) << std::string(line);
  }
}

TEST(LossTest, JsonHasTheSameNumbers) {
  const nlohmann::ordered_json json = LossJson(SmallReport(), true);
  EXPECT_EQ(json["keep_ratio"], "0.25");
  EXPECT_EQ(json["output_projection"], "identity");
  EXPECT_EQ(json["policies"][0]["policy"], "knorm | uniform | topk");
  EXPECT_EQ(json["policies"][0]["mean_relative_perturbation"], 0.2);
  const auto& layer = json["policies"][0]["layers"][0];
  EXPECT_EQ(layer["kept_mass"], 0.875);
  EXPECT_EQ(layer["ada_kv_bound"], 12.5);
  EXPECT_EQ(layer["critical_kv_bound"], 8.0);
  EXPECT_EQ(layer["perturbation"], 2.0);
  EXPECT_EQ(layer["output_norm"], 10.0);
  EXPECT_EQ(layer["relative_perturbation"], 0.2);
  EXPECT_EQ(layer["q_heads"].size(), 2u);
  EXPECT_EQ(layer["q_heads"][0]["perturbation"], 1.5);
  EXPECT_FALSE(
      LossJson(SmallReport(), false)["policies"][0]["layers"][0].contains(
          "q_heads"));
}

TEST(LossCommandTest, PrintsAndSetsTheExitStatus) {
  const CommandOutcome outcome = RunEvictCommand(
      AddLossCommand,
      {"loss", "--synthetic", "1x2x1x64x16", "--policy", "streaming",
       "--keep-ratio", "0.5", "--queries-window", "4", "--json", "--per-head"});
  EXPECT_EQ(outcome.exit_status, 0);
  const auto json =
      nlohmann::ordered_json::parse(outcome.output, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["policies"][0]["layers"][0]["q_heads"].size(), 2u);
}

TEST(LossCommandTest, FailuresGoToStandardError) {
  const CommandOutcome outcome = RunEvictCommand(
      AddLossCommand,
      {"loss", "--synthetic", "1x2x1x64x16", "--policy", "bad"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors,
              HasSubstr("blockmgr-evict loss: --policy 'bad': "));
}

}  // namespace
}  // namespace blockmgr
