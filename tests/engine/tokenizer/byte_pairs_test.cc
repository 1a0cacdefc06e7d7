// Small merges by hand; tokenizer_test compares random ones with a search.
#include "engine/tokenizer/byte_pairs.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Merge(const std::vector<PairRule>& rules,
                           const std::vector<int32_t>& word) {
  BytePairs::Scratch scratch;
  std::vector<int32_t> tokens;
  BytePairs(rules).Merge(word, &scratch, &tokens);
  return tokens;
}

TEST(BytePairsTest, AppliesTheLowestRankFirst) {
  // As in the header: l o w e r.
  const std::vector<PairRule> rules = {
      {'l', 'o', 1}, {1, 'w', 2}, {'e', 'r', 3}};
  EXPECT_THAT(Merge(rules, {'l', 'o', 'w', 'e', 'r'}), ElementsAre(2, 3));
  // "ow" would come first if places counted before ranks.
  EXPECT_THAT(Merge({{'o', 'w', 4}, {'l', 'o', 1}}, {'l', 'o', 'w'}),
              ElementsAre('l', 4));
}

TEST(BytePairsTest, AppliesARuleAtItsLeftmostPlaceFirst) {
  EXPECT_THAT(Merge({{7, 7, 8}}, {7, 7, 7}), ElementsAre(8, 7));
}

TEST(BytePairsTest, TakesAWordWithoutPairsAsItIs) {
  EXPECT_THAT(Merge({{1, 2, 3}}, {}), IsEmpty());
  EXPECT_THAT(Merge({{1, 2, 3}}, {1}), ElementsAre(1));
  EXPECT_THAT(Merge({{1, 2, 3}}, {2, 1}), ElementsAre(2, 1));
  EXPECT_THAT(Merge({}, {1, 2}), ElementsAre(1, 2));
}

TEST(BytePairsTest, AppendsAndUsesTheScratchAgain) {
  const BytePairs pairs(std::vector<PairRule>{{1, 2, 3}});
  BytePairs::Scratch scratch;
  std::vector<int32_t> tokens = {9};
  pairs.Merge(std::vector<int32_t>{1, 2, 1, 2}, &scratch, &tokens);
  pairs.Merge(std::vector<int32_t>{1, 1}, &scratch, &tokens);
  EXPECT_THAT(tokens, ElementsAre(9, 3, 3, 1, 1));
}

// With a search of the word for each merge this would take hours.
TEST(BytePairsTest, MergesALongRunOfOneLetter) {
  const std::vector<PairRule> rules = {{'a', 'a', 2}, {2, 2, 4}, {4, 4, 8}};
  const std::vector<int32_t> word((1 << 20) + 3, 'a');
  std::vector<int32_t> expected(1 << 17, 8);
  expected.push_back(2);
  expected.push_back('a');
  EXPECT_EQ(Merge(rules, word), expected);
}

}  // namespace
}  // namespace blockmgr
