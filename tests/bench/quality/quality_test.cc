#include "bench/quality/quality.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/quality/quality_testing.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Json = nlohmann::ordered_json;

QualitySubject ByteSubject() {
  return {.model_name = "bytes", .model = ByteModel(3), .source = ByteSource()};
}

QualityOptions SmallOptions(const TempFolder& folder) {
  QualityOptions options;
  options.tasks = {"fact", "continuation"};
  options.lengths = {512};
  options.cells = {.modes = {"agnostic", "aware"},
                   .policies = {"keydiff | adakv", "streaming"},
                   .keep_ratios = {"0.5"},
                   .keep_tokens = {}};
  options.num_prompts = 2;
  options.turns = 2;
  options.dtype = "float32";
  options.num_threads = 1;
  options.output = folder.File("out");
  options.disable_tqdm = true;
  return options;
}

std::string FileText(const std::string& name) {
  std::ifstream file(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(QualityTest, AReportOfAllGroups) {
  const TempFolder folder;
  const QualityOptions options = SmallOptions(folder);
  ASSERT_OK_AND_ASSIGN(const Json report,
                       MeasureQuality(options, ByteSubject()));
  ASSERT_EQ(report["groups"].size(), 4u);  // 2 tasks, 2 modes
  for (const Json& group : report["groups"]) {
    EXPECT_EQ(group["num_contexts"], 2);
    EXPECT_EQ(group["num_answers"], group["task"] == "fact" ? 4 : 2);
    ASSERT_EQ(group["cells"].size(), 3u);
    EXPECT_EQ(group["cells"][0]["policy"], "full");
    EXPECT_EQ(group["cells"][0]["kl"]["mean"], 0.0);
    EXPECT_LT(group["cells"][1]["kept_share"], 0.6);
    EXPECT_GT(group["cells"][2]["kl"]["mean"], 0.0);
  }
  EXPECT_EQ(Json::parse(FileText(folder.File("out/report.json"))), report);
  EXPECT_THAT(FileText(folder.File("out/report.html")),
              HasSubstr("fact, 512 tokens, agnostic"));
}

TEST(QualityTest, AnInterruptedMeasurementGoesOn) {
  const TempFolder folder;
  const QualityOptions options = SmallOptions(folder);
  ASSERT_OK(MeasureQuality(options, ByteSubject()));
  const std::string name = folder.File("out/samples.jsonl");
  const std::string whole = FileText(name);
  std::vector<std::string> lines = absl::StrSplit(whole, '\n');
  ASSERT_EQ(lines.size(), 10u);  // a configuration, 8 samples, the end
  // Some samples, and a part of one. Those that are there are not measured
  // again: one of them has a figure that no measurement gives.
  const size_t at = lines[1].find("\"tokens_per_s\":");
  lines[1].replace(at, lines[1].find(',', at) - at, "\"tokens_per_s\":-5.0");
  folder.Write("out/samples.jsonl", absl::StrCat(lines[0], "\n", lines[1], "\n",
                                                 lines[2].substr(0, 50)));
  ASSERT_OK_AND_ASSIGN(const Json report,
                       MeasureQuality(options, ByteSubject()));
  const std::string again = FileText(name);
  EXPECT_THAT(again, HasSubstr("\"tokens_per_s\":-5.0"));
  EXPECT_EQ(std::ranges::count(again, '\n'), 9);
  for (const Json& group : report["groups"]) {
    EXPECT_EQ(group["num_contexts"], 2);
  }
}

TEST(QualityTest, CellsAreChosenByName) {
  const TempFolder folder;
  QualityOptions options = SmallOptions(folder);
  options.num_prompts = 1;
  options.only = "fact/512/aware/0.5/stream";
  ASSERT_OK_AND_ASSIGN(const Json report,
                       MeasureQuality(options, ByteSubject()));
  ASSERT_EQ(report["groups"].size(), 1u);
  ASSERT_EQ(report["groups"][0]["cells"].size(), 2u);
  options.only = "nothing";
  EXPECT_THAT(MeasureQuality(options, ByteSubject()), IsInvalid("--cells"));
}

TEST(QualityTest, PromptsOfAFile) {
  const TempFolder folder;
  QualityOptions options = SmallOptions(folder);
  options.num_prompts.reset();
  options.prompts = folder.Write(
      "prompts.jsonl",
      "{\"context\": \"" + std::string(300, 'x') +
          "\", \"questions\": [\"Sun?\"], \"answers\": [\"No\"]}\n");
  ASSERT_OK_AND_ASSIGN(const Json report,
                       MeasureQuality(options, ByteSubject()));
  ASSERT_EQ(report["groups"].size(), 2u);
  EXPECT_EQ(report["groups"][0]["task"], "prompts");
  EXPECT_EQ(report["groups"][0]["num_contexts"], 1);
}

TEST(QualityTest, AllPromptsOfAFileOrTheFirstOnes) {
  const TempFolder folder;
  QualityOptions options = SmallOptions(folder);
  options.num_prompts.reset();
  options.cells = {.modes = {"agnostic"},
                   .policies = {"streaming"},
                   .keep_ratios = {"0.5"},
                   .keep_tokens = {}};
  std::string lines;
  for (int i = 0; i < 22; ++i) {
    absl::StrAppend(&lines, "{\"context\": \"", std::string(40, 'x'), i,
                    "\", \"questions\": [\"?\"], \"answers\": [\"N\"]}\n");
  }
  options.prompts = folder.Write("prompts.jsonl", lines);
  ASSERT_OK_AND_ASSIGN(const Json all, MeasureQuality(options, ByteSubject()));
  EXPECT_EQ(all["groups"][0]["num_contexts"], 22);
  options.num_prompts = 23;
  EXPECT_THAT(MeasureQuality(options, ByteSubject()),
              IsInvalid("--num-prompts: expected at most 22", "got 23"));
  options.num_prompts = 2;
  options.output = folder.File("first");
  ASSERT_OK_AND_ASSIGN(const Json first,
                       MeasureQuality(options, ByteSubject()));
  EXPECT_EQ(first["groups"][0]["num_contexts"], 2);
}

TEST(QualityTest, PromptsOfAFileRefuseTheFlagsOfMadeOnes) {
  for (const char* flag :
       {"--tasks=fact", "--lengths=512", "--turns=2", "--continuation-tokens=9",
        "--seed=1", "--filler=a.txt"}) {
    CLI::App app;
    QualityOptions options;
    AddQualityFlags(&app, &options);
    EXPECT_THAT(
        ParseFlags(&app, {"--model", "m", "--prompts", "p.jsonl", flag}),
        IsInvalid("--prompts", " excludes "))
        << flag;
  }
}

// Their times differ.
TEST(QualityTest, GoesOnOnlyWithAsManyThreads) {
  const TempFolder folder;
  QualityOptions options = SmallOptions(folder);
  options.num_prompts = 1;
  options.only = "fact/512/agnostic/0.5/streaming";
  ASSERT_OK_AND_ASSIGN(const Json report,
                       MeasureQuality(options, ByteSubject()));
  EXPECT_TRUE(report["configuration"]["version"].is_string());
  options.num_threads = 2;
  EXPECT_THAT(MeasureQuality(options, ByteSubject()),
              IsInvalid("threads: expected 2, got 1", "--output"));
}

// Samples of other prompts, or of another model, are no samples of these.
TEST(QualityTest, GoesOnOnlyWithTheSameContents) {
  const TempFolder folder;
  QualityOptions options = SmallOptions(folder);
  const auto write = [&](const std::string& answer) {
    options.prompts = folder.Write(
        "prompts.jsonl", "{\"context\": \"" + std::string(300, 'x') +
                             "\", \"questions\": [\"Sun?\"], \"answers\": "
                             "[\"" +
                             answer + "\"]}\n");
  };
  options.num_prompts.reset();
  write("No");
  ASSERT_OK(MeasureQuality(options, ByteSubject()));
  EXPECT_OK(MeasureQuality(options, ByteSubject()));
  write("So");
  EXPECT_THAT(MeasureQuality(options, ByteSubject()), IsInvalid("--output"));
  write("No");
  QualitySubject other = ByteSubject();
  other.model_fingerprint = "another";
  EXPECT_THAT(MeasureQuality(options, other), IsInvalid("--output"));
}

TEST(QualityTest, ErrorsComeBeforeTheWork) {
  const TempFolder folder;
  const auto error_of = [&](const auto& change) {
    QualityOptions options = SmallOptions(folder);
    change(&options);
    const auto report = MeasureQuality(options, ByteSubject());
    EXPECT_FALSE(report.ok());
    return std::string(report.status().message());
  };
  EXPECT_THAT(error_of([](QualityOptions* o) { o->lengths = {64}; }),
              HasSubstr("--lengths"));
  EXPECT_THAT(error_of([](QualityOptions* o) {
                o->lengths = {512, 600};
              }),
              HasSubstr("--lengths: expected multiples of 16, got 600"));
  EXPECT_THAT(error_of([](QualityOptions* o) { o->cells.modes = {"x"}; }),
              HasSubstr("--modes"));
  EXPECT_THAT(error_of([](QualityOptions* o) { o->query_stats = {"a"}; }),
              HasSubstr("--query-stats"));
  EXPECT_THAT(error_of([](QualityOptions* o) { o->budget_tables = {"a"}; }),
              HasSubstr("budget_table"));
  EXPECT_THAT(error_of([](QualityOptions* o) { o->prompts = "/none"; }),
              HasSubstr("--prompts"));
  EXPECT_THAT(error_of([](QualityOptions* o) {
                o->cells.policies = {"expected_attention(stats=none)"};
              }),
              HasSubstr("stats"));
  EXPECT_THAT(
      error_of([](QualityOptions* o) { o->cells.modes = {"decode=17"}; }),
      HasSubstr("compress_every"));
  // In the way of the report, which is written last.
  std::filesystem::create_directories(folder.File("out/report.html"));
  EXPECT_THAT(error_of([](QualityOptions*) {}),
              AllOf(HasSubstr("--output: expected a file that can be written"),
                    HasSubstr("report.html")));
  EXPECT_FALSE(std::filesystem::exists(folder.File("out/samples.jsonl")));
}

TEST(QualityTest, RefusesAFileThatIsNoModel) {
  const TempFolder folder;
  QualityOptions options = SmallOptions(folder);
  options.model = folder.Write("model.gguf", "no model");
  EXPECT_FALSE(RunQuality(options).ok());
}

}  // namespace
}  // namespace blockmgr
