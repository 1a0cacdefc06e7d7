// Merges compared with a search of the whole word for each merge.
#include "engine/tokenizer/byte_pairs.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/random.h"

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

// Of two rules with the same pair, only the latter is looked at.
std::vector<int32_t> MergeBySearch(const std::vector<PairRule>& rules,
                                   std::vector<int32_t> word) {
  const auto hidden = [&](size_t rank) {
    for (size_t i = rank + 1; i < rules.size(); ++i) {
      if (rules[i].left == rules[rank].left &&
          rules[i].right == rules[rank].right) {
        return true;
      }
    }
    return false;
  };
  for (size_t rank = 0; rank < rules.size(); ++rank) {
    if (hidden(rank)) continue;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      if (word[i] == rules[rank].left && word[i + 1] == rules[rank].right) {
        word[i] = rules[rank].merged;
        word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
        return MergeBySearch(rules, std::move(word));
      }
    }
  }
  return word;
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

TEST(BytePairsTest, AgreesWithASearchForEachMerge) {
  Rng rng(1);
  for (int i = 0; i < 3000; ++i) {
    // Rules may be of the same pair, and may make a token that is older than
    // they are.
    const int32_t num_tokens = RandomInt(rng, 1, 12);
    std::vector<PairRule> rules(static_cast<size_t>(RandomInt(rng, 0, 20)));
    for (PairRule& rule : rules) {
      rule = {.left = RandomInt(rng, 0, num_tokens),
              .right = RandomInt(rng, 0, num_tokens),
              .merged = RandomInt(rng, 0, num_tokens)};
    }
    std::vector<int32_t> word(static_cast<size_t>(RandomInt(rng, 0, 30)));
    for (int32_t& token : word) token = RandomInt(rng, 0, num_tokens);
    ASSERT_EQ(Merge(rules, word), MergeBySearch(rules, word)) << "case " << i;
  }
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
