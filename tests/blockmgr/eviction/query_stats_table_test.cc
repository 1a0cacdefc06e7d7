#include "blockmgr/eviction/query_stats_table.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/sealed_bytes.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/table_file_cases.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::StatusCode kBadStats = absl::StatusCode::kInvalidArgument;
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

// Two layers of one query head of two elements.
QueryStatsTable SmallStats() {
  return {.num_layers = 2,
          .num_q_heads = 1,
          .head_dim = 2,
          .num_queries = 4000,
          .model = "a model, 8B",
          .means = {0.5f, -1.0f, 2.0f, 0.0f},
          .covariances = {1.0f, -0.5f, 4.0f, 0.0f, 0.0f, 9.0f}};
}

TEST(QueryStatsTableTest, FileSurvivesARoundTrip) {
  const QueryStatsTable table = SmallStats();
  ASSERT_THAT(table.Validate(), IsOk());
  ASSERT_OK_AND_ASSIGN(const QueryStatsTable decoded,
                       DecodeQueryStats(EncodeQueryStats(table)));
  EXPECT_EQ(decoded, table);
}

TEST(QueryStatsTableTest, FileIsLaidOutAsSaid) {
  QueryStatsTable table = SmallStats();
  table.model = "m1";
  EXPECT_EQ(EncodeQueryStats(table),
            Sealed(absl::StrCat(
                "QSTATS01", U32(2), U32(1), U32(2),
                absl::StrCat(U32(4000), U32(0), U32(2), "m1"),
                absl::StrCat(F32(0.5f), F32(-1.0f), F32(2.0f), F32(0.0f)),
                absl::StrCat(F32(1.0f), F32(-0.5f), F32(4.0f)),
                absl::StrCat(F32(0.0f), F32(0.0f), F32(9.0f)))));
}

TEST(QueryStatsTableTest, RefusesDamagedFiles) {
  const std::string file = EncodeQueryStats(SmallStats());
  ExpectDamageRefused(file, DecodeQueryStats);
  EXPECT_THAT(
      DecodeQueryStats(Sealed(file.substr(0, file.size() - 8) + "abcd")),
      StatusIs(kBadStats,
               HasSubstr("file: expected 40 bytes of means and covariances "
                         "after model, got 44")));
}

TEST(QueryStatsTableTest, RefusesAnotherVersion) {
  std::string file = EncodeQueryStats(SmallStats());
  EXPECT_TRUE(IsQueryStats(file));
  file[7] = '2';
  EXPECT_FALSE(IsQueryStats(file));
  EXPECT_THAT(
      DecodeQueryStats(Sealed(file.substr(0, file.size() - 8))),
      StatusIs(kBadStats, HasSubstr("file: expected to begin with QSTATS01")));
}

TEST(QueryStatsTableTest, RefusesHugeCountsWithoutMemoryForThem) {
  const std::string file = EncodeQueryStats(SmallStats());
  constexpr size_t kLayers = 8;
  constexpr size_t kHeads = 12;
  constexpr size_t kDim = 16;
  constexpr size_t kModelSize = 28;
  for (const uint32_t huge :
       {uint32_t{0}, uint32_t{3}, uint32_t{1} << 14, uint32_t{1} << 16,
        uint32_t{1} << 30, uint32_t{0x7FFFFFFF}, uint32_t{0x80000000},
        uint32_t{0xFFFFFFFF}}) {
    for (const size_t offset : {kLayers, kHeads, kDim, kModelSize}) {
      EXPECT_THAT(DecodeQueryStats(WithU32(file, offset, huge)),
                  StatusIs(kBadStats))
          << huge << " at " << offset;
    }
  }
  std::string all_huge = WithU32(file, kDim, 1 << 14);
  for (const size_t offset : {kLayers, kHeads}) {
    all_huge = WithU32(all_huge, offset, 0x7FFFFFFF);
  }
  EXPECT_THAT(DecodeQueryStats(all_huge),
              StatusIs(kBadStats,
                       HasSubstr("covariances: expected less than 2^31 "
                                 "values, got 2147483647 layers of 2147483647 "
                                 "query heads of 134225920")));
  // The upper half of num_queries: as many as no measurement has.
  EXPECT_THAT(
      DecodeQueryStats(WithU32(file, 24, 0x80000000)),
      StatusIs(kBadStats, HasSubstr("num_queries: expected at least 1")));
}

TEST(QueryStatsTableTest, DecodesNothingInvalidWhateverTheBytes) {
  ExpectNothingInvalidDecoded(EncodeQueryStats(SmallStats()), DecodeQueryStats,
                              EncodeQueryStats);
}

struct BadStats {
  std::function<void(QueryStatsTable*)> change;
  const char* field;
  const char* expected;
  const char* got;
};

TEST(QueryStatsTableTest, ErrorsNameFieldExpectedAndGot) {
  const std::vector<BadStats> cases = {
      {[](auto* t) { t->num_layers = 0; }, "num_layers:", "at least 1", "0"},
      {[](auto* t) { t->num_q_heads = -1; }, "num_q_heads:", "at least 1",
       "-1"},
      {[](auto* t) { t->head_dim = 3; }, "head_dim:", "an even number", "3"},
      {[](auto* t) { t->head_dim = 0; }, "head_dim:", "from 2 to 16384", "0"},
      {[](auto* t) { t->num_queries = 0; }, "num_queries:", "at least 1", "0"},
      {[](auto* t) { t->model.assign(4097, 'm'); },
       "model:", "at most 4096 bytes", "4097"},
      {[](auto* t) { t->means.pop_back(); }, "means:", "4 values", "3"},
      {[](auto* t) { t->covariances.push_back(0); }, "covariances:", "6 values",
       "7"},
      {[](auto* t) { t->means[3] = kNotANumber; },
       "means[1][0][1]:", "a number in [-1e+06, 1e+06]", "nan"},
      {[](auto* t) { t->means[0] = kInfinite; }, "means[0][0][0]:", "a number",
       "inf"},
      {[](auto* t) { t->means[0] = -1.5e6f; }, "means[0][0][0]:", "a number",
       "-1.5e+06"},
      {[](auto* t) { t->covariances[2] = -1e-3f; },
       "covariances[0][0](1, 1):", "a number in [0, 1e+12]", "-0.001"},
      {[](auto* t) { t->covariances[1] = kNotANumber; },
       "covariances[0][0](0, 1):", "a number in [-1e+12, 1e+12]", "nan"},
      {[](auto* t) { t->covariances[4] = -kInfinite; },
       "covariances[1][0](0, 1):", "a number", "-inf"},
      {[](auto* t) { t->covariances[5] = 2e12f; },
       "covariances[1][0](1, 1):", "a number", "2e+12"},
  };
  for (const BadStats& bad : cases) {
    SCOPED_TRACE(bad.field);
    QueryStatsTable table = SmallStats();
    bad.change(&table);
    EXPECT_THAT(
        table.Validate(),
        StatusIs(kBadStats, AllOf(HasSubstr("query statistics: "),
                                  HasSubstr(bad.field), HasSubstr(bad.expected),
                                  HasSubstr(absl::StrCat("got ", bad.got)))));
  }
}

TEST(QueryStatsTableTest, ATableIsForOneShape) {
  const QueryStatsTable table = SmallStats();
  EXPECT_THAT(table.CheckShape(2, 1, 2), IsOk());
  EXPECT_THAT(table.CheckShape(2, 9, 64),
              StatusIs(kBadStats,
                       HasSubstr("shape: expected 2 layers of 9 query heads of "
                                 "64 elements, got 2 layers of 1 query heads "
                                 "of 2 elements")));
  EXPECT_THAT(table.CheckShape(1, 1, 2), StatusIs(kBadStats));
  EXPECT_THAT(table.CheckShape(2, 1, 4), StatusIs(kBadStats));
}

TEST(QueryStatsTableTest, TheFingerprintIsOfEverythingThatScoresDependOn) {
  const QueryStatsTable table = SmallStats();
  std::vector<QueryStatsTable> tables(4, table);
  std::swap(tables[1].num_layers, tables[1].num_q_heads);
  tables[2].means[1] = 1.0f;
  tables[3].covariances[4] = 0.25f;
  std::set<std::string> fingerprints;
  for (const QueryStatsTable& each : tables) {
    EXPECT_THAT(QueryStatsFingerprint(each), SizeIs(32));
    fingerprints.insert(QueryStatsFingerprint(each));
  }
  EXPECT_THAT(fingerprints, SizeIs(tables.size()));
  QueryStatsTable renamed = table;
  renamed.model = "another";
  renamed.num_queries = 5;
  EXPECT_EQ(QueryStatsFingerprint(renamed), QueryStatsFingerprint(table));
}

TEST(QueryStatsTableTest, LoadsFilesByName) {
  const TempFolder folder;
  const std::string path =
      folder.Write("loaded.qstats", EncodeQueryStats(SmallStats()));
  ASSERT_OK_AND_ASSIGN(
      const QueryStatsTables tables,
      LoadQueryStats("--query-stats", {absl::StrCat("chat=", path),
                                       absl::StrCat("code=", path)}));
  EXPECT_THAT(tables, SizeIs(2));
  EXPECT_EQ(*tables.at("chat"), SmallStats());
  folder.Write("loaded.qstats", "LUKVPHI1");
  EXPECT_THAT(
      LoadQueryStats("--query-stats", {absl::StrCat("chat=", path)}),
      StatusIs(kBadStats, HasSubstr(absl::StrCat("--query-stats: ", path,
                                                 ": query statistics: file"))));
}

}  // namespace
}  // namespace blockmgr
