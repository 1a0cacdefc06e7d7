#include "blockmgr/eviction/head_scores.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/budget_table.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

constexpr absl::StatusCode kBadTable = absl::StatusCode::kInvalidArgument;

TEST(HeadScoresTest, ReadsJson) {
  ASSERT_OK_AND_ASSIGN(const HeadScores table,
                       HeadScores::FromJson(R"({"num_layers": 2, "num_heads": 2,
                               "scores": [[1, 2.5], [0, 3e-1]]})"));
  EXPECT_EQ(table.num_layers, 2);
  EXPECT_EQ(table.num_heads, 2);
  EXPECT_THAT(table.scores, ElementsAre(1.0f, 2.5f, 0.0f, 0.3f));
}

TEST(HeadScoresTest, SumsQueryHeadsOfAGroup) {
  ASSERT_OK_AND_ASSIGN(const HeadScores table, HeadScores::FromJson(R"(
      {"num_layers":1,"num_heads":2,"scores":[[1,2,3,10,20,30]]})"));
  EXPECT_THAT(table.scores, ElementsAre(6.0f, 60.0f));
}

TEST(HeadScoresTest, NamesWhatIsWrong) {
  const auto error = [](const char* json) {
    return HeadScores::FromJson(json).status();
  };
  const auto says = [](const char* text) {
    return StatusIs(kBadTable, HasSubstr(text));
  };
  EXPECT_THAT(error(""), says("JSON"));
  EXPECT_THAT(error("{"), says("JSON"));
  EXPECT_THAT(error("[]"), says("a JSON object"));
  EXPECT_THAT(error(R"({"num_layers":{}})"), says("an object inside"));
  // A million of them take no time.
  std::string many = R"({"scores":[)";
  for (int i = 0; i < 1'000'000; ++i) many += "{},";
  EXPECT_THAT(error((many + "{}]}").c_str()), says("an object inside"));
  EXPECT_THAT(error("{}"), says("num_layers"));
  EXPECT_THAT(error(R"({"num_layers":"2"})"), says("got string"));
  EXPECT_THAT(error(R"({"num_layers":0})"), says("got 0"));
  EXPECT_THAT(error(R"({"num_layers":1e99})"), says("num_layers"));
  EXPECT_THAT(error(R"({"num_layers":18446744073709551615})"),
              says("num_layers"));
  EXPECT_THAT(error(R"({"num_layers":1})"), says("num_heads"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":1})"), says("scores"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":1,"scores":7})"),
              says("an array"));
  EXPECT_THAT(error(R"({"num_layers":2,"num_heads":1,"scores":[[1]]})"),
              says("2 rows"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":1,"scores":[1]})"),
              says("scores[0]"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":2,"scores":[[1,2,3]]})"),
              says("a multiple of 2"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":2,"scores":[[]]})"),
              says("a multiple of 2"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":1,"scores":[["a"]]})"),
              says("scores[0][0]"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":1,"scores":[[2,-1]]})"),
              says("scores[0][1]"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":1,"scores":[[1e300]]})"),
              says("finite"));
  EXPECT_THAT(error(R"({"num_layers":1,"num_heads":2,"scores":[[0,0]]})"),
              says("not 0"));
}

// The form of HeadKV's files, in any order of keys.
TEST(PublishedScoresTest, MeanOverTheProbesOfEachQueryHead) {
  ASSERT_OK_AND_ASSIGN(const HeadScores table, HeadScores::FromJson(R"(
      {"1-1": [4], "0-0": [0.5, 0.0, 1.0], "1-0": [0, 0], "0-1": [0.25, 0.75]}
      )"));
  EXPECT_EQ(table.num_layers, 2);
  EXPECT_EQ(table.num_heads, 2);
  EXPECT_TRUE(table.of_query_heads);
  EXPECT_THAT(table.scores, ElementsAre(0.5f, 0.5f, 0.0f, 4.0f));
}

// Layers of 10 and more follow those of 2, not their letters.
TEST(PublishedScoresTest, HeadsAreInTheOrderOfTheirNumbers) {
  std::string json = "{";
  for (int layer = 11; layer >= 0; --layer) {
    for (int head = 0; head < 12; ++head) {
      absl::StrAppend(&json, "\"", layer, "-", head, "\": [",
                      100 * layer + head, "],");
    }
  }
  json.back() = '}';
  ASSERT_OK_AND_ASSIGN(const HeadScores table, HeadScores::FromJson(json));
  EXPECT_EQ(table.num_layers, 12);
  EXPECT_EQ(table.num_heads, 12);
  for (size_t i = 0; i < table.scores.size(); ++i) {
    EXPECT_EQ(table.scores[i], static_cast<float>(100 * (i / 12) + i % 12));
  }
}

TEST(PublishedScoresTest, AModelSaysWhatAGroupIs) {
  const HeadScores table{.num_layers = 2,
                         .num_heads = 4,
                         .scores = {1, 3, 0, 8, 5, 5, 0, 0},
                         .of_query_heads = true};
  EXPECT_THAT(table.CheckShape({2, 4, 16}), IsOk());
  EXPECT_THAT(table.CheckShape({2, 2, 16}), IsOk());
  EXPECT_THAT(table.CheckShape({2, 1, 16}), IsOk());
  // Means, relative to the largest score, 8.
  EXPECT_THAT(table.OfKvHeads(2, 1.0), ElementsAre(0.25f, 0.5f, 0.625f, 0.0f));
  EXPECT_THAT(table.OfKvHeads(1, 1.0), ElementsAre(0.375f, 0.3125f));
  // Squares: of 1 and 3 the mean is 5, of 0 and 8 it is 32, of all four 18.5.
  EXPECT_THAT(table.OfKvHeads(2, 2.0),
              ElementsAre(FloatEq(std::sqrt(5.0f) / 8.0f),
                          FloatEq(std::sqrt(32.0f) / 8.0f), 0.625f, 0.0f));
  EXPECT_THAT(table.OfKvHeads(1, 0.0), ElementsAre(1.0f, 1.0f));
  for (const HeadShape& other :
       {HeadShape{2, 3, 16}, HeadShape{2, 8, 16}, HeadShape{4, 2, 16}}) {
    EXPECT_THAT(
        table.CheckShape(other),
        StatusIs(kBadTable, AllOf(HasSubstr("query heads in a multiple"),
                                  HasSubstr("got 2 of 4"))));
  }
  HeadScores of_kv_heads = table;
  of_kv_heads.of_query_heads = false;
  EXPECT_THAT(of_kv_heads.CheckShape({2, 4, 16}), IsOk());
  EXPECT_THAT(of_kv_heads.CheckShape({2, 2, 16}), StatusIs(kBadTable));
  EXPECT_EQ(of_kv_heads.OfKvHeads(4, 2.0), table.scores);
}

TEST(PublishedScoresTest, NoMeanIsTooSmallOrTooLarge) {
  for (const float score : {std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max()}) {
    const HeadScores table{.num_layers = 1,
                           .num_heads = 4,
                           .scores = {score, score, score, 0},
                           .of_query_heads = true};
    EXPECT_THAT(table.OfKvHeads(2, 1.0), ElementsAre(1.0f, 0.5f));
  }
}

TEST(PublishedScoresTest, NamesTheKeyThatIsWrong) {
  const auto says = [](const char* json, const char* text) {
    EXPECT_THAT(HeadScores::FromJson(json).status(),
                StatusIs(kBadTable, HasSubstr(text)))
        << json;
  };
  says(R"({"0-0": [1], "0-2": [1]})",
       "0-1: expected a list of scores, for there are 1 layers of 3 query "
       "heads, got nothing");
  says(R"({"1-0": [1]})", "0-0: expected a list of scores");
  says(R"({"0-0": [1], "0-1": [2], "0-0": [3]})",
       "keys: expected each once, got '0-0' twice");
  says(R"({"0-0": [1], "num_layers": 1})", "got 'num_layers'");
  for (const char* key : {"00-1", "-1-0", "0--1", "+0-1", "0-1 ", "0-", "-1",
                          "0-1-2", "a-b", "0-9999999999", "1e1-0"}) {
    says(absl::StrCat(R"({"0-0": [1], ")", key, R"(": [1]})").c_str(),
         "keys: expected LAYER-QUERYHEAD");
  }
  says(R"({"0-0": []})", "0-0: expected a list of scores, got an empty one");
  says(R"({"0-0": 7})", "0-0: expected a list of scores, got number");
  says(R"({"0-0": [0.5, "1"]})", "0-0[1]: expected a number, got string");
  says(R"({"0-0": [[1]]})", "0-0[0]: expected a number, got array");
  says(R"({"0-0": [null]})", "0-0[0]: expected a number, got null");
  says(R"({"0-0": [1, -0.5]})", "0-0[1]: expected a number >= 0, got -0.5");
  says(R"({"0-0": [1e300]})", "0-0: expected scores whose mean is a float32");
  says(R"({"0-0": [0], "0-1": [0, 0]})", "not 0");
  // Python writes such files, but they are no JSON.
  says(R"({"0-0": [NaN]})", "file: expected JSON, got parse error at line 1");
  says(R"({"0-0": [1e999]})", "file: expected JSON, got number overflow");
  says(R"({"heads": [1]})", "LAYER-QUERYHEAD such as 3-17, got neither");
}

// As many heads as two names claim are neither looked for nor made room for.
TEST(PublishedScoresTest, HugeNumbersCostNothing) {
  for (const char* key :
       {"65535-0", "0-65535", "300-300", "2147483647-2147483647"}) {
    EXPECT_THAT(HeadScores::FromJson(absl::StrCat("{\"", key, "\": [1]}")),
                StatusIs(kBadTable, HasSubstr("fewer than 65536 heads")))
        << key;
  }
}

std::string Int32Bytes(const std::vector<int32_t>& values) {
  std::string bytes;
  for (const int32_t value : values) {
    for (int shift = 0; shift < 32; shift += 8) {
      bytes.push_back(
          static_cast<char>(static_cast<uint32_t>(value) >> shift & 0xFF));
    }
  }
  return bytes;
}

// As the format's description has it.
std::string NpyOf(const std::string& shape, const std::string& data,
                  const std::string& type = "<i4",
                  const std::string& fortran_order = "False") {
  std::string header =
      absl::StrCat("{'descr': '", type, "', 'fortran_order': ", fortran_order,
                   ", 'shape': ", shape, ", }\n");
  std::string bytes("\x93NUMPY\1\0", 8);
  bytes.push_back(static_cast<char>(header.size()));
  bytes.push_back('\0');
  return absl::StrCat(bytes, header, data);
}

// 10 of 40 and 60 of 60 are shares of 0.25 and 1 of each prompt's; of 4 heads,
// 4 times the share is the part of the mean.
TEST(RetentionCountsTest, EveryPromptCountsTheSame) {
  for (const auto& [order, data] :
       {std::pair<std::string, std::vector<int32_t>>(
            "False", {10, 10, 20, 0, 0, 60, 0, 0}),
        {"True", {10, 0, 20, 0, 10, 60, 0, 0}}}) {
    ASSERT_OK_AND_ASSIGN(const HeadScores table,
                         HeadScores::FromRetentionCounts(NpyOf(
                             "(2, 2, 2)", Int32Bytes(data), "<i4", order)));
    EXPECT_EQ(table.num_layers, 2);
    EXPECT_EQ(table.num_heads, 2);
    EXPECT_FALSE(table.of_query_heads);
    EXPECT_THAT(table.scores, ElementsAre(FloatEq(0.5f), FloatEq(2.5f),
                                          FloatEq(1.0f), FloatEq(0.0f)));
  }
}

TEST(RetentionCountsTest, NamesTheDimensionThatIsWrong) {
  const auto says = [](const std::string& npy, const char* text) {
    EXPECT_THAT(HeadScores::FromRetentionCounts(npy).status(),
                StatusIs(kBadTable, AllOf(HasSubstr("retention counts: "),
                                          HasSubstr(text))));
  };
  says(NpyOf("(2, 2)", Int32Bytes({1, 1, 1, 1})),
       "shape: expected [prompts, layers, KV heads], got [2, 2]");
  says(NpyOf("(0, 2, 2)", ""), "prompts: expected at least 1, got 0");
  says(NpyOf("(2, 0, 2)", ""), "layers: expected at least 1, got 0");
  says(NpyOf("(2, 2, 0)", ""), "KV heads: expected at least 1, got 0");
  says(NpyOf("(1, 1, 2)", Int32Bytes({1, 1}), "<f4"),
       "descr: expected int32 or int64");
  says(NpyOf("(1, 1, 2)", Int32Bytes({1, 1}), "<u4"),
       "descr: expected float16");
  says(NpyOf("(2, 1, 2)", Int32Bytes({1, 1, 3, -4})),
       "[1, 0, 1]: expected at least 0, got -4");
  says(NpyOf("(2, 1, 2)", Int32Bytes({1, 1, 0, 0})),
       "[1]: expected a prompt of which some head kept something, got none");
  says(NpyOf("(1, 256, 256)", Int32Bytes(std::vector<int32_t>(65536, 1))),
       "layers * KV heads: expected fewer than 65536, got 256 * 256");
  says(NpyOf("(2, 1, 2)", Int32Bytes({1, 1, 3})), "expected 16 bytes of data");
  says(NpyOf("(1000000, 1000, 1000)", Int32Bytes({1})), "got 4");
  says(NpyOf("(1000000, 1000000, 1000000)", ""), "at most 2^40 values");
  says(NpyOf("(1, 1, 2)", Int32Bytes({1, 1})).substr(0, 30),
       "expected a header");
}

TEST(DecodeBudgetTableTest, TellsKindsApartByTheirContent) {
  ASSERT_OK_AND_ASSIGN(
      const BudgetTable rows,
      DecodeBudgetTable(
          R"( {"num_layers": 1, "num_heads": 2, "scores": [[1, 2]]})"));
  EXPECT_FALSE(std::get<HeadScores>(rows).of_query_heads);
  ASSERT_OK_AND_ASSIGN(const BudgetTable published,
                       DecodeBudgetTable(R"({"0-0": [1, 2], "0-1": [3]})"));
  EXPECT_TRUE(std::get<HeadScores>(published).of_query_heads);
  ASSERT_OK_AND_ASSIGN(
      const BudgetTable counts,
      DecodeBudgetTable(NpyOf("(1, 1, 2)", Int32Bytes({3, 1}))));
  EXPECT_THAT(std::get<HeadScores>(counts).scores, ElementsAre(1.5f, 0.5f));
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 1;
  profile.rho = {0.0f, 1.0f};
  profile.r = {0.0f, 1.0f};
  ASSERT_OK_AND_ASSIGN(const BudgetTable decoded,
                       DecodeBudgetTable(EncodeLuKvProfile(profile)));
  EXPECT_EQ(std::get<LuKvProfile>(decoded), profile);
  for (const char* other : {"", "text", "\x89PNG", "LUKVPHI"}) {
    EXPECT_THAT(DecodeBudgetTable(other),
                StatusIs(kBadTable, HasSubstr("begin as none of them")))
        << other;
  }
}

}  // namespace
}  // namespace blockmgr
