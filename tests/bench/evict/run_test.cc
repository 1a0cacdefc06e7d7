#include "bench/evict/run.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/read_file.h"
#include "tests/bench/evict/evict_command.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Two layers of two heads, budgets 3, 1 and 2, 0 of 4.
RunReport SmallRunReport() {
  RunReport report;
  report.policy = "keydiff | adakv | topk";
  report.target.ratio = *KeepRatio::Parse("0.4");
  report.num_layers = 2;
  report.num_heads = 2;
  report.length = 4;
  report.page_size = 2;
  report.row_bytes = 1 << 18;
  report.run.budgets = {3, 1, 2, 0};
  report.run.keep.offsets = {0, 3, 4, 6, 6};
  report.run.keep.ranks = {0, 2, 3, 1, 0, 3};
  return report;
}

TEST(RunReportTest, PrintsATable) {
  RunReport report = SmallRunReport();
  // Pages: 2 + 1 + 1 + 0 of 2 tokens of 2 * 256 KiB.
  EXPECT_EQ(FormatRun(report),
            "policy  keydiff | adakv | topk\n"
            "layer        min   median      max       kept\n"
            "0              1        2        3          4\n"
            "1              0        1        2          2\n"
            "kept    6 of 16 entries (37.50 %)\n"
            "bytes   4.0 of 8.0 MiB in pages of 2\n");
  report.row_bytes = 0;
  report.run.keep.num_nan = 5;
  const std::string text = FormatRun(report);
  EXPECT_THAT(text, HasSubstr("NaN     5 scores"));
  EXPECT_THAT(text, Not(HasSubstr("bytes")));
}

TEST(RunReportTest, TheMedianOfTwoIsTheirMean) {
  RunReport report = SmallRunReport();
  report.run.budgets = {4, 1, 2, 0};
  EXPECT_THAT(FormatRun(report),
              HasSubstr("0              1      2.5        4          5\n"));
}

TEST(RunReportTest, IsJsonWithEveryPosition) {
  RunReport report = SmallRunReport();
  const nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(RunJson(report).dump());
  EXPECT_EQ(json["policy"], "keydiff | adakv | topk");
  EXPECT_EQ(json["keep_ratio"], 0.4);
  EXPECT_EQ(json["num_kept"], 6);
  EXPECT_EQ(json["num_entries"], 16);
  EXPECT_EQ(json["kept_bytes"], 4 << 20);
  EXPECT_EQ(json["full_bytes"], 8 << 20);
  EXPECT_EQ(json["budgets"].dump(), "[[3,1],[2,0]]");
  EXPECT_EQ(json["positions"].dump(), "[[[0,2,3],[1]],[[0,3],[]]]");
  EXPECT_FALSE(json.contains("keep_tokens"));
  EXPECT_FALSE(json.contains("block"));
  report.target.kind = EvictionTarget::Kind::kTokens;
  report.target.tokens = 9;
  report.block = 3;
  EXPECT_EQ(RunJson(report)["keep_tokens"], 9);
  EXPECT_EQ(RunJson(report)["block"], 3);
}

TEST(RunReportTest, PadsPositions) {
  std::vector<int64_t> shape;
  EXPECT_THAT(PaddedPositions(SmallRunReport(), &shape),
              ElementsAre(0, 2, 3, 1, -1, -1, 0, 3, -1, -1, -1, -1));
  EXPECT_THAT(shape, ElementsAre(2, 2, 3));
}

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "run");
  return RunEvictCommand(AddRunCommand, std::move(arguments));
}

TEST(RunCommandTest, RunsOnMadeUpTensors) {
  const CommandOutcome outcome =
      RunCommand({"--policy", "snapkv | adakv", "--keep-ratio", "0.25",
                  "--synthetic", "2x4x2x256x16"});
  EXPECT_EQ(outcome.errors, "");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.output, StartsWith("policy  snapkv | adakv | topk\n"));
  EXPECT_THAT(outcome.output, HasSubstr("kept    256 of 1024 entries"));
}

// Scores in, positions and budgets out, through files.
TEST(RunCommandTest, ReadsAndWritesArrays) {
  const TempFolder folder;
  NpyArray scores;
  scores.shape = {2, 5};
  scores.values = {5, 1, 4, 2, 3, 1, 2, 3, 4, 5};
  ASSERT_THAT(WriteNpy(folder.File("s.npy"), scores), IsOk());
  const CommandOutcome outcome =
      RunCommand({"--policy", "external | uniform | topk | round(token)",
                  "--keep-tokens", "2", "--scores", folder.File("s.npy"),
                  "--output-positions", folder.File("p.npy"),
                  "--output-budgets", folder.File("b.npy"), "--json"});
  EXPECT_EQ(outcome.errors, "");
  EXPECT_EQ(outcome.exit_status, 0);
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json["positions"].dump(), "[[[0,2],[3,4]]]");
  EXPECT_EQ(json["keep_tokens"], 2);
  ASSERT_OK_AND_ASSIGN(const NpyArray positions, ReadNpy(folder.File("p.npy")));
  EXPECT_THAT(positions.shape, ElementsAre(1, 2, 2));
  EXPECT_THAT(positions.values, ElementsAre(0, 2, 3, 4));
  ASSERT_OK_AND_ASSIGN(const NpyArray budgets, ReadNpy(folder.File("b.npy")));
  EXPECT_THAT(budgets.shape, ElementsAre(1, 2));
  EXPECT_THAT(budgets.values, ElementsAre(2, 2));
}

// The budgets are what they are: 0 keeps nothing of a head.
TEST(RunCommandTest, TakesBudgetsOfOnesOwn) {
  const TempFolder folder;
  const std::string scores = folder.File("s.npy");
  const std::string budgets = folder.File("b.npy");
  ASSERT_THAT(WriteNpy(scores, {{3, 4}, {5, 1, 4, 2, 1, 2, 3, 4, 1, 1, 1, 1}}),
              IsOk());
  ASSERT_THAT(WriteNpy(budgets, {{1, 3}, {3, 0, 9}}), IsOk());
  std::vector<std::string> arguments = {
      "--policy",  "external | external | topk | round(token)",
      "--budgets", budgets,
      "--scores",  scores,
      "--json"};
  const CommandOutcome outcome = RunCommand(arguments);
  EXPECT_EQ(outcome.errors, "");
  EXPECT_EQ(outcome.exit_status, 0);
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json["positions"].dump(), "[[[0,2,3],[],[0,1,2,3]]]");
  EXPECT_EQ(json["budgets"].dump(), "[[3,0,4]]");
  EXPECT_EQ(json["external_budgets"], true);
  arguments.insert(arguments.end(), {"--keep-tokens", "3"});
  EXPECT_THAT(RunCommand(arguments).errors,
              HasSubstr("expected neither with --budgets, got one"));
}

// As many budgets as there are heads, but not of these layers.
TEST(RunCommandTest, BudgetsHaveTheShapeOfTheModel) {
  const TempFolder folder;
  const std::string budgets = folder.File("b.npy");
  ASSERT_THAT(WriteNpy(budgets, {{2, 1}, {3, 4}}), IsOk());
  const CommandOutcome outcome =
      RunCommand({"--policy", "knorm | external", "--budgets", budgets,
                  "--synthetic", "1x2x2x64x8"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors,
              HasSubstr("budgets: expected [1, 2], layers and KV heads, got "
                        "[2, 1]"));
}

TEST(RunCommandTest, WritesBothFilesOrNone) {
  const TempFolder folder;
  const std::string positions = folder.Write("p.npy", "as it was");
  const CommandOutcome outcome = RunCommand(
      {"--policy", "knorm", "--keep-ratio", "0.5", "--synthetic", "1x2x2x64x8",
       "--output-positions", positions, "--output-budgets", "/dev/full"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("--output-budgets: "));
  ASSERT_OK_AND_ASSIGN(const std::string left, ReadFile(positions));
  EXPECT_EQ(left, "as it was");
  EXPECT_FALSE(ReadFile(positions + ".part").ok());
}

TEST(RunCommandTest, OneFileByTwoNamesIsRefused) {
  const TempFolder folder;
  const CommandOutcome outcome =
      RunCommand({"--policy", "knorm", "--keep-ratio", "0.5", "--synthetic",
                  "1x2x2x64x8", "--output-positions", folder.File("a.npy"),
                  "--output-budgets", folder.File("./a.npy")});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors,
              HasSubstr("--output-budgets: expected a file of its own"));
}

TEST(RunCommandTest, OutputFilesAreCheckedBeforeTheRun) {
  const TempFolder folder;
  for (const char* flag : {"--output-positions", "--output-budgets"}) {
    const CommandOutcome outcome =
        RunCommand({"--policy", "knorm", "--keep-ratio", "0.5", "--synthetic",
                    "1x2x2x64x8", flag, folder.File("no/such.npy")});
    EXPECT_EQ(outcome.exit_status, -1);
    EXPECT_THAT(outcome.usage_error,
                StartsWith(absl::StrCat(
                    flag, ": expected a file that can be written")));
  }
}

TEST(RunCommandTest, RunsByBlocks) {
  const std::vector<std::string> arguments = {
      "--policy",      "knorm | uniform | topk | round(token)",
      "--keep-tokens", "10",
      "--synthetic",   "1x2x1x64x8",
      "--json"};
  std::vector<std::string> by_blocks = arguments;
  by_blocks.insert(by_blocks.end(), {"--block", "7"});
  // Norms do not change: block by block, the same entries stay.
  EXPECT_EQ(nlohmann::json::parse(RunCommand(arguments).output)["positions"],
            nlohmann::json::parse(RunCommand(by_blocks).output)["positions"]);
}

TEST(RunCommandTest, ExplainsWhatItCannotDo) {
  const std::vector<std::string> made = {"--synthetic", "1x2x1x64x8"};
  struct Failure {
    std::vector<std::string> arguments;
    const char* why;
  };
  const Failure failures[] = {
      {{"--policy", "keydif", "--keep-ratio", "0.5"}, "unknown scorer"},
      {{"--policy", "keydiff", "--keep-ratio", "1.5"}, "--keep-ratio: "},
      {{"--policy", "keydiff", "--policy", "tova", "--keep-ratio", "0.5"},
       "--policy: expected exactly one, got 2"},
      {{"--policy", "keydiff", "--keep-ratio", "0.5", "--block", "4"},
       "--block: expected --keep-tokens, got --keep-ratio"},
      {{"--policy", "external", "--keep-ratio", "0.5"}, "scores: expected"},
      {{"--policy", "tova"}, "expected exactly one, got neither"},
      {{"--policy", "tova", "--keep-ratio", "0.5", "--keep-tokens", "5"},
       "expected exactly one, got both"},
      {{"--policy", "tova | external", "--keep-ratio", "0.5"}, "--budgets"},
      {{"--policy", "tova | external", "--budgets", "/nowhere/b.npy"},
       "--budgets: "},
      {{"--policy", "keydiff", "--keep-ratio", "0.5", "--output-budgets", "o",
        "--output-positions", "o"},
       "--output-budgets: expected a file of its own"},
      {{"--policy", "keydiff", "--keep-ratio", "0.5", "--output-budgets",
        "b.json"},
       "--output-budgets: expected a name that ends in .npy, for a NumPy array "
       "is written, got 'b.json'"},
      {{"--policy", "keydiff", "--keep-ratio", "0.5", "--output-positions",
        "p.txt"},
       "--output-positions: expected a name that ends in .npy"},
  };
  for (const Failure& failure : failures) {
    std::vector<std::string> arguments = failure.arguments;
    arguments.insert(arguments.end(), made.begin(), made.end());
    const CommandOutcome outcome = RunCommand(arguments);
    EXPECT_EQ(outcome.exit_status, 1) << failure.why;
    EXPECT_THAT(outcome.errors, HasSubstr(failure.why));
    EXPECT_THAT(outcome.output, IsEmpty());
  }
}

TEST(RunCommandTest, WantsAPolicy) {
  EXPECT_EQ(RunCommand({"--keep-ratio", "0.5", "--synthetic", "1x2x1x64x8"})
                .exit_status,
            -1);
}

}  // namespace
}  // namespace blockmgr
