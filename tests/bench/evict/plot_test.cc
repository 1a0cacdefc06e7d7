#include "bench/evict/plot.h"

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/loss.h"
#include "bench/evict/policy_runner.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/read_file.h"
#include "tests/bench/charts/xml_elements.h"
#include "tests/bench/evict/evict_command.h"
#include "tests/bench/evict/small_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlotFlags PlotExample() {
  PlotFlags flags;
  flags.tensors.synthetic = "3x4x2x160x16";
  flags.policies.policies = {"snapkv | adakv", "knorm"};
  flags.keep_ratio = "0.4";
  flags.keep_ratios = {"0.3", "0.5", "0.75"};
  flags.queries_window = 8;
  return flags;
}

TEST(PlotTest, BudgetsAreThoseOfTheRuns) {
  const PlotFlags flags = PlotExample();
  ASSERT_OK_AND_ASSIGN(const std::string document, MakePlot(flags));
  const std::vector<XmlElement> elements = XmlReader::Read(document);
  ExpectPicture(elements);
  ASSERT_OK_AND_ASSIGN(const Tensors tensors, ReadTensors(flags.tensors));
  ASSERT_OK_AND_ASSIGN(const PolicyList list, ReadPolicies(flags.policies));
  ASSERT_OK_AND_ASSIGN(const EvictionTarget target,
                       ParseTarget("--keep-ratio", "0.4"));
  std::vector<std::string> expected;
  for (const NamedPolicy& policy : list.policies) {
    ASSERT_OK_AND_ASSIGN(
        const PolicyRun run,
        RunPolicy(policy.policy, target, tensors, policy.options));
    for (int32_t i = 0; i < 6; ++i) {
      expected.push_back(absl::StrCat("layer ", i / 2, ", KV head ", i % 2,
                                      ": ", run.budgets[i], " entries"));
    }
  }
  EXPECT_EQ(Tooltips(elements), expected);
}

TEST(PlotTest, CurvesAreThePerturbationsOfLoss) {
  PlotFlags flags = PlotExample();
  flags.kind = "curve";
  ASSERT_OK_AND_ASSIGN(const std::string document, MakePlot(flags));
  const std::vector<XmlElement> elements = XmlReader::Read(document);
  ExpectPicture(elements);
  const std::vector<std::string> tooltips = Tooltips(elements);
  ASSERT_EQ(tooltips.size(), 6u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const LossReport report,
                         ComputeLoss({.tensors = flags.tensors,
                                      .policies = flags.policies,
                                      .keep_ratio = flags.keep_ratios[i],
                                      .queries_window = flags.queries_window}));
    for (size_t policy = 0; policy < 2; ++policy) {
      EXPECT_EQ(tooltips[3 * policy + i],
                absl::StrFormat("%s: %s, %.6g", report.policies[policy],
                                flags.keep_ratios[i],
                                MeanRelative(report.losses[policy])));
    }
  }
}

TEST(PlotTest, MapsAreThePerturbationsOfQueryHeads) {
  PlotFlags flags = PlotExample();
  flags.kind = "loss";
  ASSERT_OK_AND_ASSIGN(const std::string document, MakePlot(flags));
  const std::vector<XmlElement> elements = XmlReader::Read(document);
  ExpectPicture(elements);
  ASSERT_OK_AND_ASSIGN(const LossReport report,
                       ComputeLoss({.tensors = flags.tensors,
                                    .policies = flags.policies,
                                    .keep_ratio = flags.keep_ratio,
                                    .queries_window = flags.queries_window}));
  std::vector<std::string> expected;
  for (const PolicyLoss& policy : report.losses) {
    const size_t num_q_heads = policy.q_heads.size() / policy.layers.size();
    for (size_t i = 0; i < policy.q_heads.size(); ++i) {
      expected.push_back(absl::StrFormat(
          "layer %d, query head %d: %d thousandths of |y|", i / num_q_heads,
          i % num_q_heads, std::lround(1000.0 * policy.q_heads[i].relative())));
    }
  }
  EXPECT_EQ(Tooltips(elements), expected);
}

// A policy that keeps everything keeps all that is needed; scores that are
// high where the need is keep more of it than others.
TEST(PlotTest, RecallIsOfWhatTheTextNeedsNext) {
  const TempFolder folder;
  PlotFlags flags;
  flags.kind = "recall";
  flags.policies.policies = {"streaming", "snapkv(window=4)"};
  flags.keep_ratios = {"0.25", "1"};
  flags.query_tokens = 20;
  flags.tensors.context = 128;
  EXPECT_THAT(MakePlot(flags).status().ToString(), HasSubstr("--model: "));
  flags.tensors.model = folder.File("model.gguf");
  flags.tensors.texts = {folder.File("text")};
  WriteSmallModel(flags.tensors.model);
  WriteSmallText(flags.tensors.texts[0], 5);
  EXPECT_THAT(MakePlot(flags).status().ToString(),
              HasSubstr("--context: expected at most 115"));
  WriteSmallText(flags.tensors.texts[0], 8);
  ASSERT_OK_AND_ASSIGN(const std::string document, MakePlot(flags));
  const std::vector<std::string> tooltips = Tooltips(XmlReader::Read(document));
  ASSERT_EQ(tooltips.size(), 4u);
  EXPECT_THAT(tooltips[1], HasSubstr(": 1, 1"));
  EXPECT_THAT(tooltips[3], HasSubstr(": 1, 1"));
  EXPECT_THAT(document, HasSubstr("What 20 tokens need of the 128 before"));
}

TEST(PlotTest, ErrorsNameTheFlag) {
  PlotFlags flags = PlotExample();
  flags.kind = "pie";
  EXPECT_THAT(MakePlot(flags).status().ToString(),
              HasSubstr("--kind: expected one of budgets, loss, curve, recall, "
                        "got 'pie'"));
  flags = PlotExample();
  flags.keep_ratio = "2";
  EXPECT_THAT(MakePlot(flags).status().ToString(), HasSubstr("--keep-ratio: "));
  flags.kind = "curve";
  flags.keep_ratios = {"0.5", "-1"};
  EXPECT_THAT(MakePlot(flags).status().ToString(),
              AllOf(HasSubstr("--keep-ratios: "), HasSubstr("-1")));
  flags = PlotExample();
  flags.kind = "curve";
  flags.queries_window = 1000;
  EXPECT_THAT(MakePlot(flags).status().ToString(),
              HasSubstr("--queries-window: "));
}

// A NaN must not be drawn as the smallest perturbation.
TEST(PlotTest, NamesTheHeadWhosePerturbationIsNotANumber) {
  const TempFolder folder;
  NpyArray array{{1, 2, 24, 16}, std::vector<float>(768, 0.5f)};
  PlotFlags flags;
  flags.kind = "loss";
  flags.policies.policies = {"streaming(sinks=0) | uniform | topk"};
  flags.keep_ratio = "0.2";
  flags.tensors.paths.queries = folder.File("q.npy");
  flags.tensors.paths.keys = folder.File("k.npy");
  flags.tensors.paths.values = folder.File("v.npy");
  ASSERT_OK(WriteNpy(flags.tensors.paths.queries, array));
  ASSERT_OK(WriteNpy(flags.tensors.paths.keys, array));
  // The first value of the second head.
  array.values[384] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_OK(WriteNpy(flags.tensors.paths.values, array));
  EXPECT_THAT(
      MakePlot(flags).status().ToString(),
      AllOf(HasSubstr("--kind loss: policy streaming"),
            HasSubstr("layer 0, query head 1: expected a finite perturbation, "
                      "got nan")));
  flags.kind = "curve";
  flags.keep_ratios = {"0.5"};
  EXPECT_THAT(MakePlot(flags).status().ToString(),
              AllOf(HasSubstr("--kind: policy streaming"),
                    HasSubstr("keep ratio 0.5: expected a finite value, got "
                              "nan")));
}

TEST(PlotTest, ExternalBudgetsHaveNoKeepRatio) {
  const TempFolder folder;
  PlotFlags flags = PlotExample();
  flags.tensors.synthetic = "1x2x2x64x16";
  flags.policies.policies = {"knorm | external"};
  flags.policies.budgets = folder.File("b.npy");
  ASSERT_OK(WriteNpy(flags.policies.budgets, {{1, 2}, {32, 0}}));
  for (const char* kind : {"budgets", "loss"}) {
    flags.kind = kind;
    flags.keep_ratio = "0.4";
    flags.policies.policies = {"knorm | external"};
    EXPECT_THAT(MakePlot(flags).status().ToString(),
                HasSubstr("--keep-ratio: expected a policy without external "
                          "budgets, got none"));
    flags.keep_ratio.reset();
    ASSERT_OK_AND_ASSIGN(const std::string document, MakePlot(flags));
    EXPECT_THAT(document, AllOf(HasSubstr(" at external budgets"),
                                HasSubstr(", keeps 0.250")));
    flags.keep_ratio = "0.5";
    flags.policies.policies = {"knorm | external", "knorm"};
    ASSERT_OK_AND_ASSIGN(const std::string both, MakePlot(flags));
    EXPECT_THAT(
        both, AllOf(HasSubstr(" at keep ratio 0.5"), HasSubstr(", keeps 0.250"),
                    HasSubstr(", keeps 0.500")));
  }
}

TEST(PlotTest, CurvesOfShortTensorsAreOfAllQueries) {
  PlotFlags flags = PlotExample();
  flags.kind = "curve";
  flags.tensors.synthetic = "1x2x1x24x16";
  flags.queries_window.reset();
  ASSERT_OK_AND_ASSIGN(const std::string document, MakePlot(flags));
  EXPECT_THAT(document, HasSubstr("last 24 queries of 24"));
}

class PlotCommandTest : public ::testing::Test {
 protected:
  // Plots with these flags, words between spaces, to this file.
  static CommandOutcome Plot(const std::string& flags,
                             const std::string& file) {
    return RunEvictCommand(
        AddPlotCommand,
        absl::StrSplit(absl::StrCat("plot ", flags, " --output ", file), ' '));
  }

  const TempFolder folder_;
};

TEST_F(PlotCommandTest, WritesTheFile) {
  const std::string file = folder_.File("curve.svg");
  const CommandOutcome outcome = Plot(
      "--kind curve --log-y --synthetic 1x2x1x64x16 --policy streaming "
      "--policy keydiff|global --keep-ratios 0.25,0.5,1 --queries-window 4",
      file);
  EXPECT_EQ(outcome.exit_status, 0);
  ASSERT_OK_AND_ASSIGN(const std::string document, ReadFile(file));
  const std::vector<XmlElement> elements = XmlReader::Read(document);
  ExpectPicture(elements);
  // Nothing is lost at 1, and a logarithm has no place for it.
  EXPECT_EQ(Tooltips(elements).size(), 4u);
}

// Before anything is read or computed: there are no such tensors.
TEST_F(PlotCommandTest, RefusesNamesOfOtherPictures) {
  for (const char* name : {"x.png", "x.svg.pdf", "x.SVGZ", "x.html"}) {
    const std::string file = folder_.File(name);
    const CommandOutcome outcome =
        Plot("--keys /nowhere.npy --policy knorm", file);
    EXPECT_EQ(
        outcome.errors,
        absl::StrCat("blockmgr-evict plot: --output: expected a name that ends "
                     "in .svg, for an SVG picture is written, got '",
                     file, "'\n"));
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

TEST_F(PlotCommandTest, TakesNamesThatSayNothingElse) {
  for (const char* name : {"picture", "p.SVG", "..svg", "v1.2.svg"}) {
    const std::string file = folder_.File(name);
    EXPECT_EQ(
        Plot("--synthetic 1x2x1x64x16 --policy streaming", file).exit_status, 0)
        << name;
    EXPECT_TRUE(std::filesystem::exists(file)) << name;
  }
}

TEST_F(PlotCommandTest, RefusesWhatTheOtherKindLooksAt) {
  for (const char* words :
       {"--kind budgets --keep-ratios 0.5", "--kind budgets --log-y",
        "--queries-window 4", "--kind curve --keep-ratio 0.5"}) {
    const CommandOutcome outcome =
        Plot(absl::StrCat("--synthetic 1x2x1x64x16 --policy streaming ", words),
             folder_.File("none.svg"));
    EXPECT_THAT(outcome.errors, HasSubstr(": expected with --kind ")) << words;
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

// Before anything is computed.
TEST_F(PlotCommandTest, SaysWhatItCannotWrite) {
  const std::string file = folder_.File("no/such.svg");
  EXPECT_THAT(
      Plot("--synthetic 1x2x1x64x16 --policy streaming", file).usage_error,
      AllOf(HasSubstr("--output: expected a file"), HasSubstr(file)));
}

}  // namespace
}  // namespace blockmgr
