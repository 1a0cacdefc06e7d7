#include "bench/evict/golden_methods.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::SizeIs;

class GoldenMethodsTest : public ::testing::Test {
 protected:
  void ExpectRefused(const std::string& text, const std::string& why) {
    EXPECT_THAT(ReadGoldenMethods(folder_.Write("methods.txt", text)),
                IsInvalid("methods.txt", why));
  }
  TempFolder folder_;
};

TEST_F(GoldenMethodsTest, ReadsWhatFollowsAMethod) {
  const std::string path = folder_.Write("methods.txt", R"(# all of them
method a/b
policy snapkv(window={window}) | uniform  # a remark
evicted {ratio}
past {window}

method c
  policy keydiff
  tokens {k}
  blocks 16
)");
  ASSERT_OK_AND_ASSIGN(const auto methods, ReadGoldenMethods(path));
  ASSERT_THAT(methods, SizeIs(2));
  EXPECT_EQ(methods.at("a/b").policy, "snapkv(window={window}) | uniform");
  EXPECT_EQ(methods.at("a/b").evicted, "{ratio}");
  EXPECT_EQ(methods.at("a/b").past, "{window}");
  EXPECT_EQ(methods.at("c").tokens, "{k}");
  EXPECT_EQ(methods.at("c").blocks, "16");
}

TEST_F(GoldenMethodsTest, NamesTheLineThatDoesNotFit) {
  ExpectRefused("policy keydiff\n", ":1: expected method, got 'policy'");
  ExpectRefused("method a\npolicy\n", ":2: expected a word and its value");
  ExpectRefused("method a\npolicies keydiff\n", ":2: expected policy, evicted");
  ExpectRefused("method a\npolicy tova\npolicy tova\n", ":3: expected policy");
  ExpectRefused("method a\npolicy tova\ntokens 1\nmethod a\n",
                ":4: expected every method once, got 'a'");
  ExpectRefused("method a\npolicy tova\n", "method a: expected policy, and");
  ExpectRefused("method a\npolicy tova\ntokens 1\nevicted 0.5\n",
                "either evicted or tokens");
  EXPECT_THAT(ReadGoldenMethods(folder_.File("none")),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(ResolveGoldenMethodTest, FillsInTheNumbersOfTheCase) {
  GoldenCase golden;
  golden.integers = {{"window", 12}, {"k", 30}, {"block", 8}};
  golden.numbers = {{"alpha", 0.35}, {"ratio", 0.8}};
  GoldenMethod method;
  method.policy =
      "snapkv(window={window}) | adakv(alpha={alpha}) | topk | round(token)";
  method.evicted = "{ratio}";
  method.past = "{window}";
  ASSERT_OK_AND_ASSIGN(const GoldenRun run,
                       ResolveGoldenMethod(method, golden));
  EXPECT_EQ(run.policy.scorer.window, 12);
  EXPECT_EQ(run.policy.budget.alpha, 0.35);
  EXPECT_EQ(run.target.kind, EvictionTarget::Kind::kRatio);
  EXPECT_EQ(run.target.ratio.ToString(), "0.2");
  EXPECT_EQ(run.past, 12);
  EXPECT_EQ(run.block, 0);

  method.evicted = "";
  method.tokens = "{k}";
  method.blocks = "{block}";
  ASSERT_OK_AND_ASSIGN(const GoldenRun blocks,
                       ResolveGoldenMethod(method, golden));
  EXPECT_EQ(blocks.target.kind, EvictionTarget::Kind::kTokens);
  EXPECT_EQ(blocks.target.tokens, 30);
  EXPECT_EQ(blocks.block, 8);
}

TEST(ResolveGoldenMethodTest, NamesTheKeyThatIsMissing) {
  GoldenMethod method;
  method.policy = "snapkv(window={window})";
  method.tokens = "3";
  EXPECT_THAT(ResolveGoldenMethod(method, GoldenCase()),
              IsInvalid("policy: expected a case with 'window'"));
  method.policy = "snapkv(windows=3)";
  EXPECT_THAT(ResolveGoldenMethod(method, GoldenCase()),
              IsInvalid("unknown key 'windows'"));
  method.policy = "tova";
  method.tokens = "-1";
  EXPECT_THAT(ResolveGoldenMethod(method, GoldenCase()),
              IsInvalid("tokens: expected a number of at least 0"));
}

}  // namespace
}  // namespace blockmgr
