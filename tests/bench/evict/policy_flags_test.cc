#include "bench/evict/policy_flags.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

auto Refuses(const std::string& a, const std::string& b) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(a), HasSubstr(b)));
}

// A file for one test.
class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    std::string name =
        (std::filesystem::temp_directory_path() / "blockmgr-table-XXXXXX")
            .string();
    const int handle = mkstemp(name.data());
    EXPECT_GE(handle, 0);
    std::ofstream(name, std::ios::binary) << content;
    path_ = name;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

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
      "--page-size 8 --dtype bfloat16");
  EXPECT_THAT(
      flags.policies,
      ::testing::ElementsAre("snapkv(window=16,kernel=5) | adakv", "knorm"));
  EXPECT_EQ(flags.page_size, 8);
  ASSERT_OK_AND_ASSIGN(const PolicyList list, ReadPolicies(flags));
  ASSERT_EQ(list.policies.size(), 2u);
  EXPECT_EQ(list.policies[0].policy.scorer.window, 16);
  EXPECT_EQ(list.policies[1].policy.scorer.kind, ScorerKind::kKnorm);
  EXPECT_EQ(list.policies[1].name, FormatPolicy(list.policies[1].policy));
  EXPECT_EQ(list.policies[0].options.page_size, 8);
  EXPECT_EQ(list.policies[0].options.dtype, DType::kBFloat16);
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
  EXPECT_THAT(ReadPolicies(flags).status(),
              Refuses("--policy 'snapkv(window=x)': ", "window"));
  flags.policies = {"knorm | external"};
  EXPECT_THAT(ReadPolicies(flags).status(), Refuses("--policy", "external"));
  flags.policies = {"knorm"};
  flags.tables = {"/nowhere/at/all"};
  EXPECT_THAT(ReadPolicies(flags).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--table: expected a readable file, got "
                                 "'/nowhere/at/all'")));
}

TEST(PolicyFlagsTest, GivesEachPolicyTheTableOfItsKind) {
  const TempFile profile(EncodeLuKvProfile(Profile()));
  const TempFile scores(kScores);
  PolicyFlags flags;
  flags.policies = {"knorm | lukv(profile=p)", "knorm | headkv(profile=p)",
                    "knorm"};
  flags.tables = {scores.path(), profile.path()};
  ASSERT_OK_AND_ASSIGN(const PolicyList list, ReadPolicies(flags));
  ASSERT_NE(list.policies[0].options.table, nullptr);
  ASSERT_NE(list.policies[1].options.table, nullptr);
  EXPECT_TRUE(
      std::holds_alternative<LuKvProfile>(*list.policies[0].options.table));
  EXPECT_TRUE(
      std::holds_alternative<HeadScores>(*list.policies[1].options.table));
  EXPECT_EQ(list.policies[2].options.table, nullptr);
}

TEST(PolicyFlagsTest, RefusesMissingOrAmbiguousTables) {
  const TempFile scores(kScores);
  PolicyFlags flags;
  flags.policies = {"knorm | lukv(profile=p)"};
  flags.tables = {scores.path()};
  EXPECT_THAT(ReadPolicies(flags).status(), Refuses("--table", "got 0"));
  flags.policies = {"knorm | headkv(profile=p)"};
  flags.tables = {scores.path(), scores.path()};
  EXPECT_THAT(ReadPolicies(flags).status(), Refuses("--table", "got 2"));
}

TEST(PolicyFlagsTest, RefusesBrokenTables) {
  PolicyFlags flags;
  flags.policies = {"knorm"};
  const TempFile broken(EncodeLuKvProfile(Profile()).substr(0, 20));
  flags.tables = {broken.path()};
  EXPECT_THAT(ReadPolicies(flags).status().ToString(),
              HasSubstr(broken.path()));
  const TempFile text("{");
  flags.tables = {text.path()};
  EXPECT_THAT(ReadPolicies(flags).status().ToString(), HasSubstr(text.path()));
}

TEST(PolicyFlagsTest, ParseTargetIsExactAndNamesItsFlag) {
  ASSERT_OK_AND_ASSIGN(const EvictionTarget target,
                       ParseTarget("--keep-ratio", "0.29"));
  EXPECT_EQ(target.TokensPerHead(100), 29);
  EXPECT_THAT(ParseTarget("--keep-ratios", "1.5").status(),
              Refuses("--keep-ratios: ", "1.5"));
}

}  // namespace
}  // namespace blockmgr
