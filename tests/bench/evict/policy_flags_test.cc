#include "bench/evict/policy_flags.h"

#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

LuKvProfile Profile() {
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.calibration_length = 100;
  profile.num_queries = 1;
  profile.scorer = "keydiff";
  profile.model = "none";
  profile.rho = {0.0f, 1.0f};
  profile.r = {0.0f, 0.0f, 1.0f, 1.0f};
  return profile;
}

constexpr char kScores[] =
    R"({"num_layers": 1, "num_heads": 2, "scores": [[1.0, 3.0]]})";

TEST(PolicyFlagsTest, ParsesFlagsInOrder) {
  CLI::App app;
  PolicyFlags flags;
  AddPolicyFlags(app, &flags);
  app.parse(
      "--policy \"snapkv(window=16,kernel=5) | adakv\" --policy knorm "
      "--page-size 8 --dtype float16");
  EXPECT_THAT(
      flags.policies,
      ::testing::ElementsAre("snapkv(window=16,kernel=5) | adakv", "knorm"));
  EXPECT_EQ(flags.page_size, 8);
  ASSERT_OK_AND_ASSIGN(const PolicyList list, ReadPolicies(flags));
  ASSERT_EQ(list.policies.size(), 2u);
  EXPECT_EQ(list.policies[0].policy.scorer.window, 16);
  EXPECT_EQ(list.policies[1].policy.scorer.kind, ScorerKind::kKnorm);
  EXPECT_EQ(list.policies[1].name, FormatParityPolicy(list.policies[1].policy));
  EXPECT_EQ(list.policies[0].options.page_size, 8);
  EXPECT_EQ(list.policies[0].options.dtype, DType::kFloat16);
  EXPECT_EQ(list.policies[0].options.table, nullptr);
}

TEST(PolicyFlagsTest, WantsAPolicyAndGoodValues) {
  for (const char* line :
       {"", "--policy knorm --page-size 0", "--policy knorm --dtype float64"}) {
    CLI::App app;
    PolicyFlags flags;
    AddPolicyFlags(app, &flags);
    EXPECT_THROW(app.parse(line), CLI::ParseError) << line;
  }
}

TEST(PolicyFlagsTest, ErrorsNameTheFlag) {
  PolicyFlags flags;
  flags.policies = {"snapkv", "snapkv(window=x)"};
  EXPECT_THAT(ReadPolicies(flags),
              IsInvalid("--policy 'snapkv(window=x)': snapkv: ", "window"));
  flags.policies = {"knorm | external"};
  EXPECT_THAT(ReadPolicies(flags),
              IsInvalid("--budgets: expected a file", "'knorm | external'"));
  flags.policies = {"knorm"};
  flags.tables = {"/nowhere/at/all"};
  EXPECT_THAT(ReadPolicies(flags).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--table: expected a readable file, got "
                                 "'/nowhere/at/all'")));
}

TEST(PolicyFlagsTest, GivesEachPolicyTheTableOfItsKind) {
  const TempFolder folder;
  const std::string profile =
      folder.Write("profile", EncodeLuKvProfile(Profile()));
  const std::string scores = folder.Write("scores", kScores);
  PolicyFlags flags;
  flags.policies = {"knorm | lukv(profile=p)", "knorm | headkv(profile=p)",
                    "knorm"};
  flags.tables = {scores, profile};
  ASSERT_OK_AND_ASSIGN(const PolicyList list, ReadPolicies(flags));
  ASSERT_NE(list.policies[0].options.table, nullptr);
  ASSERT_NE(list.policies[1].options.table, nullptr);
  EXPECT_TRUE(
      std::holds_alternative<LuKvProfile>(*list.policies[0].options.table));
  EXPECT_TRUE(
      std::holds_alternative<HeadScores>(*list.policies[1].options.table));
  EXPECT_EQ(list.policies[2].options.table, nullptr);
}

TEST(PolicyFlagsTest, GivesExpectedAttentionTheQueryStatistics) {
  const TempFolder folder;
  const QueryStatsTable table = RandomQueryStats(1, 2, 4, 1);
  PolicyFlags flags;
  flags.policies = {"expected_attention(stats=p)", "expected_attention"};
  EXPECT_THAT(
      ReadPolicies(flags),
      IsInvalid("--table: expected exactly one file of query statistics",
                "got 0"));
  flags.tables = {folder.Write("stats", EncodeQueryStats(table))};
  ASSERT_OK_AND_ASSIGN(const PolicyList list, ReadPolicies(flags));
  ASSERT_NE(list.policies[0].options.query_stats, nullptr);
  EXPECT_EQ(*list.policies[0].options.query_stats, table);
  EXPECT_EQ(list.policies[1].options.query_stats, nullptr);
  flags.policies = {"expected_attention"};
  EXPECT_THAT(ReadPolicies(flags),
              IsInvalid("--table: expected a policy with", "got none"));
}

TEST(PolicyFlagsTest, ReadsTablesAsTheyArePublished) {
  const TempFolder folder;
  PolicyFlags flags;
  flags.policies = {"knorm | headkv(profile=p)"};
  flags.tables = {folder.Write("heads.json", R"({"0-0": [1, 0], "0-1": [3]})")};
  ASSERT_OK_AND_ASSIGN(const PolicyList published, ReadPolicies(flags));
  EXPECT_TRUE(std::get<HeadScores>(*published.policies[0].options.table)
                  .of_query_heads);
  const std::vector<int32_t> counts = {1, 3, 30, 10};
  flags.tables = {folder.File("counts.npy")};
  ASSERT_THAT(
      WriteNpyInts(flags.tables[0], std::vector<int64_t>{2, 1, 2}, counts),
      IsOk());
  ASSERT_OK_AND_ASSIGN(const PolicyList counted, ReadPolicies(flags));
  EXPECT_THAT(std::get<HeadScores>(*counted.policies[0].options.table).scores,
              ::testing::ElementsAre(1.0f, 1.0f));
  ASSERT_THAT(WriteNpy(flags.tables[0], {{1, 1, 2}, {1, 2}}), IsOk());
  EXPECT_THAT(ReadPolicies(flags),
              IsInvalid(flags.tables[0], "--import-kvpress"));
}

TEST(PolicyFlagsTest, RefusesMissingOrAmbiguousTables) {
  const TempFolder folder;
  const std::string scores = folder.Write("scores", kScores);
  PolicyFlags flags;
  flags.policies = {"knorm | lukv(profile=p)"};
  flags.tables = {scores};
  EXPECT_THAT(ReadPolicies(flags), IsInvalid("--table", "got 0"));
  flags.policies = {"knorm | headkv(profile=p)"};
  flags.tables = {scores, scores};
  EXPECT_THAT(ReadPolicies(flags), IsInvalid("--table", "got 2"));
}

TEST(PolicyFlagsTest, RefusesTablesThatNobodyReads) {
  const TempFolder folder;
  PolicyFlags flags;
  flags.policies = {"knorm", "knorm | headkv(profile=p)"};
  flags.tables = {folder.Write("scores", kScores),
                  folder.Write("profile", EncodeLuKvProfile(Profile()))};
  EXPECT_THAT(ReadPolicies(flags), IsInvalid("--table", "lukv"));
  flags.policies[1] = "knorm | lukv(profile=p)";
  EXPECT_THAT(ReadPolicies(flags), IsInvalid("--table", "headkv"));
}

TEST(PolicyFlagsTest, RefusesBrokenTables) {
  PolicyFlags flags;
  flags.policies = {"knorm"};
  const TempFolder folder;
  for (const std::string& bytes :
       {EncodeLuKvProfile(Profile()).substr(0, 20), std::string("{")}) {
    flags.tables = {folder.Write("broken", bytes)};
    EXPECT_THAT(ReadPolicies(flags).status().ToString(),
                HasSubstr(flags.tables[0]));
  }
}

TEST(PolicyFlagsTest, ReadsBudgetsForExternalOnes) {
  const TempFolder folder;
  PolicyFlags flags;
  flags.policies = {"knorm | external"};
  flags.budgets = folder.File("b.npy");
  const auto read = [&](std::vector<int64_t> shape, std::vector<float> values) {
    EXPECT_THAT(WriteNpy(flags.budgets, {std::move(shape), std::move(values)}),
                IsOk());
    return ReadPolicies(flags);
  };
  ASSERT_OK_AND_ASSIGN(const PolicyList list, read({1, 3}, {4, 0, 1e12f}));
  EXPECT_THAT(list.policies[0].options.budgets_shape,
              ::testing::ElementsAre(1, 3));
  EXPECT_THAT(list.policies[0].options.budgets,
              ::testing::ElementsAre(4, 0, ::testing::Gt(1 << 20)));
  EXPECT_THAT(read({3}, {4, 0, 1}),
              IsInvalid(flags.budgets, "[layers, KV heads], got [3]"));
  for (const float bad : {-1.0f, 0.5f, std::nanf("")}) {
    EXPECT_THAT(read({1, 1}, {bad}),
                IsInvalid(flags.budgets, "whole numbers of at least 0"));
  }
  EXPECT_THAT(read({1, 3}, {0, 0, 0}),
              IsInvalid(flags.budgets, "one above 0, got none"));
  flags.policies = {"knorm"};
  EXPECT_THAT(read({1, 1}, {4}),
              IsInvalid("--budgets: expected a policy", "got none"));
}

TEST(PolicyFlagsTest, ParseTargetIsExactAndNamesItsFlag) {
  ASSERT_OK_AND_ASSIGN(const EvictionTarget target,
                       ParseTarget("--keep-ratio", "0.29"));
  EXPECT_EQ(target.TokensPerHead(100), 29);
  EXPECT_THAT(ParseTarget("--keep-ratios", "1.5"),
              IsInvalid("--keep-ratios: expected a decimal", "1.5"));
}

}  // namespace
}  // namespace blockmgr
