#include "bench/micro/micro.h"

#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/micro/benchmarks.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

// The options that `blockmgr-bench micro ARGUMENTS` gives.
MicroOptions Parse(const std::string& arguments) {
  CLI::App app;
  MicroOptions options;
  AddMicroFlags(&app, &options);
  app.parse(arguments);
  return options;
}

TEST(MicroFlagsTest, AreReadAndHaveDefaults) {
  const MicroOptions none = Parse("");
  EXPECT_EQ(none.runs, 5);
  EXPECT_EQ(none.filter, "");
  EXPECT_FALSE(none.json.has_value());
  EXPECT_FALSE(none.tiny);
  EXPECT_FALSE(none.check);
  const MicroOptions all =
      Parse("--runs 3 --filter ^decode --json out.json --tiny --check");
  EXPECT_EQ(all.runs, 3);
  EXPECT_EQ(all.filter, "^decode");
  EXPECT_EQ(all.json, "out.json");
  EXPECT_TRUE(all.tiny);
  EXPECT_TRUE(all.check);
}

TEST(MicroFlagsTest, JsonAloneMeansStandardOutput) {
  EXPECT_EQ(Parse("--json").json, "-");
  EXPECT_EQ(Parse("--json -").json, "-");
  EXPECT_EQ(Parse("--json --runs 2").json, "-");
  EXPECT_EQ(Parse("--json --runs 2").runs, 2);
}

TEST(MicroFlagsTest, RefusesWhatCannotBeMeant) {
  EXPECT_THROW(Parse("--runs 0"), CLI::ParseError);
  EXPECT_THROW(Parse("--runs many"), CLI::ParseError);
  EXPECT_THROW(Parse("--benchmark_filter=decode"), CLI::ParseError);
}

TEST(MicroTest, EveryFigureIsFiniteAndPositive) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Figure> figures,
                       RunMicro({.runs = 2, .tiny = true}));
  std::set<std::string> keys;
  for (const Figure& figure : figures) {
    SCOPED_TRACE(figure.key);
    EXPECT_TRUE(keys.insert(figure.key).second);
    EXPECT_TRUE(std::isfinite(figure.max));
    EXPECT_GT(figure.min, 0);
    EXPECT_LE(figure.min, figure.median);
    EXPECT_LE(figure.median, figure.max);
    EXPECT_FALSE(figure.limit.has_value());  // those are for the true sizes
  }
  // All that is promised, and what is told beside it.
  for (const auto& [key, limit] : Limits()) {
    EXPECT_TRUE(keys.contains(key)) << key;
    EXPECT_GT(limit, 0) << key;
  }
  EXPECT_THAT(keys, IsSupersetOf(
                        {"decode_step_256.p99_us", "decode_step_256.p99_9_us",
                         "decode_step_1536.p99_us", "decode_step_1536.p99_9_us",
                         "decode_step_256_windows.ratio",
                         "decode_step_256_drafts.p50_us", "waiting_100.p50_us",
                         "waiting_100.p99_9_us", "waiting_100.slowest_us",
                         "waiting_10000.p50_us", "waiting_10000.p99_9_us",
                         "waiting_10000.slowest_us", "commit_eviction.p99_9_us",
                         "reclaim.ns_per_block", "metadata.bytes_per_block",
                         "metadata.bytes_per_block_with_regions"}));
}

TEST(MicroTest, FilterChoosesBenchmarks) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Figure> figures,
      RunMicro({.runs = 1, .filter = "^(allocate|prefix)", .tiny = true}));
  std::set<std::string> names;
  for (const Figure& figure : figures) {
    const std::vector<std::string> parts = absl::StrSplit(figure.key, '.');
    names.insert(parts[0]);
  }
  EXPECT_THAT(names, UnorderedElementsAre("allocate_free", "prefix_match_32k"));
}

TEST(MicroTest, BadFilterIsNamed) {
  EXPECT_THAT(RunMicro({.filter = "decode(", .tiny = true}),
              IsInvalid("'decode('"));
  // Says what there is.
  EXPECT_THAT(RunMicro({.filter = "encode", .tiny = true}),
              IsInvalid("allocate_free"));
}

std::vector<Figure> TwoFigures() {
  return {{.key = "decode_step_256.p50_us",
           .median = 60,
           .min = 40,
           .max = 80,
           .limit = 50},
          {.key = "waiting_100.p50_us", .median = 7.5, .min = 7, .max = 8}};
}

TEST(MicroTest, JsonHasMediansByKeyAndTheirSpreadBeside) {
  const nlohmann::ordered_json json =
      FiguresToJson({.runs = 3, .tiny = true}, TwoFigures());
  EXPECT_EQ(json.dump(),
            R"({"benchmark":"micro","runs":3,"tiny":true,)"
            R"("min":{"decode_step_256.p50_us":40.0,"waiting_100.p50_us":7.0},)"
            R"("max":{"decode_step_256.p50_us":80.0,"waiting_100.p50_us":8.0},)"
            R"("limit":{"decode_step_256.p50_us":50.0},)"
            R"("decode_step_256.p50_us":60.0,"waiting_100.p50_us":7.5})");
}

TEST(MicroTest, TableShowsWhatIsAboveItsLimit) {
  std::vector<Figure> figures = TwoFigures();
  EXPECT_THAT(FormatFigures({}, figures),
              ::testing::ContainsRegex(
                  "decode_step_256.p50_us +60.00 +40.00 +80.00 +50  ABOVE\n"
                  "waiting_100.p50_us +7.50 +7.00 +8.00\n"));
  figures[0].median = 50;
  EXPECT_THAT(FormatFigures({}, figures),
              ::testing::ContainsRegex("80.00 +50  ok\n"));
}

TEST(MicroTest, ChecksNameWhatIsAboveItsLimit) {
  std::vector<Figure> figures = TwoFigures();
  EXPECT_THAT(CheckFigures(figures),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "decode_step_256.p50_us: expected at most 50, got 60"));
  figures[0].median = 50;
  EXPECT_OK(CheckFigures(figures));
}

TEST(MicroTest, WritesJsonToAFile) {
  const TempFolder folder;
  const std::string path = folder.File("micro.json");
  ASSERT_OK(Micro(
      {.runs = 1, .filter = "allocate_free", .json = path, .tiny = true}));
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  EXPECT_GT(json.at("allocate_free.ns_per_block").get<double>(), 0);
  EXPECT_THAT(Micro({.runs = 1,
                     .filter = "allocate_free",
                     .json = folder.File("missing/micro.json"),
                     .tiny = true}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("missing")));
}

}  // namespace
}  // namespace blockmgr
