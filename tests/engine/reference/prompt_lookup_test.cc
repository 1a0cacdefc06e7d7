#include "engine/reference/prompt_lookup.h"

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Drafts(const std::vector<int32_t>& tokens,
                            int32_t max_drafts) {
  const std::span<const int32_t> drafts = LookUpDrafts(tokens, max_drafts);
  return {drafts.begin(), drafts.end()};
}

TEST(PromptLookupTest, GoesOnAsBefore) {
  EXPECT_THAT(Drafts({1, 2, 3, 4, 5, 1, 2, 3}, 2), ElementsAre(4, 5));
  EXPECT_THAT(Drafts({1, 2, 3, 4, 5, 1, 2, 3}, 9), ElementsAre(4, 5, 1, 2, 3));
}

TEST(PromptLookupTest, TheLongestMatchCountsThenTheLast) {
  EXPECT_THAT(Drafts({1, 2, 3, 7, 9, 3, 8, 1, 2, 3}, 1), ElementsAre(7));
  EXPECT_THAT(Drafts({3, 7, 3, 8, 3, 9, 3}, 1), ElementsAre(9));
}

TEST(PromptLookupTest, AMatchMayOverlapTheEnd) {
  EXPECT_THAT(Drafts({5, 5, 5, 5}, 3), ElementsAre(5));
  EXPECT_THAT(Drafts({5, 5}, 3), ElementsAre(5));
}

TEST(PromptLookupTest, NothingForWhatIsNew) {
  EXPECT_THAT(Drafts({}, 3), IsEmpty());
  EXPECT_THAT(Drafts({1}, 3), IsEmpty());
  EXPECT_THAT(Drafts({1, 2, 3}, 3), IsEmpty());
  EXPECT_THAT(Drafts({1, 1}, 0), IsEmpty());
}

// The definition, tried at every place: `end` is behind the earlier occurrence.
std::vector<int32_t> Naive(const std::vector<int32_t>& tokens, size_t most) {
  const size_t size = tokens.size();
  for (size_t n = 3; n > 0; --n) {
    for (size_t end = size; end-- > 0;) {
      bool matches = end >= n;
      for (size_t i = 1; i <= n && matches; ++i) {
        matches = tokens[end - i] == tokens[size - i];
      }
      if (!matches) continue;
      std::vector<int32_t> drafts;
      for (size_t i = end; i < size && i < end + most; ++i) {
        drafts.push_back(tokens[i]);
      }
      return drafts;
    }
  }
  return {};
}

TEST(PromptLookupTest, AgreesWithTheDefinition) {
  std::mt19937_64 random(1);
  for (int32_t i = 0; i < 5000; ++i) {
    std::vector<int32_t> tokens(random() % 20);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    const auto most = static_cast<int32_t>(random() % 5);
    ASSERT_EQ(Drafts(tokens, most), Naive(tokens, static_cast<size_t>(most)))
        << ::testing::PrintToString(tokens) << " " << most;
  }
}

}  // namespace
}  // namespace blockmgr
