#include "bench/evict/query_stats_profile.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "blockmgr/base/read_file.h"
#include "tests/bench/evict/evict_command.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTextLayers = 2;
constexpr int64_t kTextHeads = 3;
constexpr int64_t kTextDim = 4;

// [kTextLayers, kTextHeads, length, kTextDim]
NpyArray QueriesOf(int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  NpyArray array{.shape = {kTextLayers, kTextHeads, length, kTextDim},
                 .values = {}};
  for (int64_t i = 0; i < kTextLayers * kTextHeads * length * kTextDim; ++i) {
    array.values.push_back(static_cast<float>(random() % 1000) / 100.0f);
  }
  return array;
}

struct Moments {
  double mean_i = 0;
  double mean_j = 0;
  double product = 0;
  double covariance() const { return product - mean_i * mean_j; }
};

// Returns the moments of elements i and j behind the first `sinks` positions of
// all texts.
Moments MomentsOf(const std::vector<NpyArray>& texts, int64_t sinks,
                  int64_t head, int64_t i, int64_t j) {
  Moments sums;
  int64_t count = 0;
  for (const NpyArray& text : texts) {
    const int64_t length = text.shape[2];
    for (int64_t position = sinks; position < length; ++position, ++count) {
      const auto* row = &text.values[static_cast<size_t>(
          (head * length + position) * kTextDim)];
      sums.mean_i += row[i];
      sums.mean_j += row[j];
      sums.product += double{row[i]} * double{row[j]};
    }
  }
  const auto n = static_cast<double>(count);
  return {sums.mean_i / n, sums.mean_j / n, sums.product / n};
}

TEST(QueryStatsProfileTest, MeasuresAllTextsBehindTheirSinks) {
  const TempFolder folder;
  const std::vector<NpyArray> texts = {QueriesOf(9, 1), QueriesOf(20, 2)};
  ProfileFlags flags;
  flags.model = "m";
  for (const NpyArray& text : texts) {
    flags.raw_queries.push_back(
        folder.File(absl::StrCat(text.shape[2], ".npy")));
    ASSERT_THAT(WriteNpy(flags.raw_queries.back(), text), IsOk());
  }
  for (const int32_t sinks : {-1, 0, 7}) {
    SCOPED_TRACE(sinks);
    flags.sinks = sinks;
    const int64_t skipped = sinks < 0 ? 4 : sinks;
    ASSERT_OK_AND_ASSIGN(const QueryStatsTable table, MeasureQueryStats(flags));
    EXPECT_THAT(table.CheckShape(kTextLayers, kTextHeads, kTextDim), IsOk());
    EXPECT_EQ(table.num_queries, 29 - 2 * skipped);
    EXPECT_EQ(table.model, "m");
    size_t mean = 0;
    size_t covariance = 0;
    for (int64_t head = 0; head < kTextLayers * kTextHeads; ++head) {
      for (int64_t i = 0; i < kTextDim; ++i) {
        EXPECT_NEAR(table.means[mean++],
                    MomentsOf(texts, skipped, head, i, i).mean_i, 1e-6);
        for (int64_t j = i; j < kTextDim; ++j) {
          EXPECT_NEAR(table.covariances[covariance++],
                      MomentsOf(texts, skipped, head, i, j).covariance(), 1e-5);
        }
      }
    }
  }
}

TEST(QueryStatsProfileTest, ErrorsNameFlagAndFile) {
  const TempFolder folder;
  ProfileFlags flags;
  EXPECT_THAT(MeasureQueryStats(flags),
              IsInvalid("--query-stats: expected queries", "got 0"));
  const std::string first = folder.File("first.npy");
  ASSERT_THAT(WriteNpy(first, QueriesOf(9, 1)), IsOk());
  flags.raw_queries = {first};
  flags.tiny = true;
  EXPECT_THAT(MeasureQueryStats(flags), IsInvalid("--query-stats", "got 2"));
  flags.tiny = false;
  flags.sinks = 9;
  EXPECT_THAT(MeasureQueryStats(flags),
              IsInvalid(first, "more positions than --sinks 9, got 9"));
  flags.sinks = -1;
  const std::string second = folder.File("second.npy");
  flags.raw_queries = {first, second};
  EXPECT_THAT(MeasureQueryStats(flags),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("--raw-queries"), HasSubstr(second))));
  ASSERT_THAT(WriteNpy(second, {{2, 9}, std::vector<float>(18)}), IsOk());
  EXPECT_THAT(MeasureQueryStats(flags),
              IsInvalid(second, "[layers,] query heads"));
  ASSERT_THAT(WriteNpy(second, {{2, 9, 3}, std::vector<float>(54)}), IsOk());
  EXPECT_THAT(MeasureQueryStats(flags), IsInvalid(second, "a multiple of 4"));
  ASSERT_THAT(WriteNpy(second, {{3, 9, 4}, std::vector<float>(108)}), IsOk());
  EXPECT_THAT(
      MeasureQueryStats(flags),
      IsInvalid(second, "layers, query heads and head dim of the first"));
  flags.query_stats = folder.File("out.lukv");
  EXPECT_THAT(RunQueryStats(flags),
              IsInvalid("--query-stats: expected a name that ends in .qstats",
                        "out.lukv"));
}

TEST(QueryStatsProfileTest, TheTextSaysHowAlikeQueriesAre) {
  const QueryStatsTable table{.num_layers = 1,
                              .num_q_heads = 2,
                              .head_dim = 2,
                              .num_queries = 10,
                              .model = "",
                              .means = {3.0f, 1.0f, 0.0f, 0.0f},
                              .covariances = {20.0f, -5.0f, 10.0f, 0, 0, 0}};
  EXPECT_THAT(QueryStatsText(table),
              AllOf(HasSubstr("1 layers of 2 query heads of 2 elements; 10"),
                    HasSubstr("\n    0  25.00   0.00\n")));
}

// From the command line to the table that engines read.
TEST(QueryStatsProfileTest, TheCommandWritesAndShowsATable) {
  const TempFolder folder;
  const std::string path = folder.File("tiny.qstats");
  EXPECT_EQ(
      RunEvictCommand(AddProfileCommand,
                      {"profile", "--tiny", "--num-contexts", "1", "--context",
                       "40", "--query-tokens", "2", "--query-stats", path})
          .exit_status,
      0);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFile(path));
  ASSERT_OK_AND_ASSIGN(const QueryStatsTable table, DecodeQueryStats(bytes));
  EXPECT_THAT(table.CheckShape(4, 8, 32), IsOk());
  EXPECT_EQ(table.num_queries, 37);  // 40 and one of the query, but 4 sinks
  ProfileFlags show;
  show.show = path;
  ASSERT_OK_AND_ASSIGN(const std::string text, RunProfile(show));
  EXPECT_THAT(text, HasSubstr("model tiny"));
  show.json = true;
  EXPECT_THAT(RunProfile(show), IsInvalid("--json", "query statistics"));
}

TEST(QueryStatsProfileTest, TheCommandRefusesFlagsOfProfiles) {
  for (const char* line :
       {"profile --tiny --query-stats a --output b",
        "profile --tiny --query-stats a --scorer keydiff",
        "profile --tiny --raw-queries a", "profile --query-stats a --json"}) {
    EXPECT_NE(RunEvictCommand(AddProfileCommand, absl::StrSplit(line, ' '))
                  .usage_error,
              "")
        << line;
  }
}

}  // namespace
}  // namespace blockmgr
