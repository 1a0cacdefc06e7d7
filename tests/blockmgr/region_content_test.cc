#include "blockmgr/region_content.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using Tokens = std::vector<int32_t>;

class RegionContentTest : public testing::Test {
 protected:
  static std::shared_ptr<const RegionContent> Make(
      const Tokens& tokens, const std::string& history,
      std::shared_ptr<const RegionContent> before = nullptr,
      const BlockChain& chain = BlockChain()) {
    return RegionContent::Make(std::move(before), tokens, history, chain);
  }
  static bool Begins(const RegionContent& content, const Tokens& tokens,
                     absl::string_view history) {
    const BlockChain chain;
    EXPECT_TRUE(!content.Begins(tokens, &history, chain) ||
                content.Begins(tokens, nullptr, chain));
    return content.Begins(tokens, &history, chain);
  }
};

TEST_F(RegionContentTest, IsSharedByWhatGoesOnFromIt) {
  const auto first = Make({1, 2, 3, 4}, "a");
  const auto second = Make({1, 2, 3, 4, 5, 6}, "ab", first);
  EXPECT_EQ(second->before, first);
  EXPECT_EQ(second->tokens, (Tokens{5, 6}));
  EXPECT_EQ(second->history, "b");
  EXPECT_EQ(second->end(), 6);
  EXPECT_EQ(second->WholeHistory(), "ab");
  // Not the beginning of these.
  EXPECT_EQ(Make({1, 2, 3, 9, 5, 6}, "ab", first)->before, nullptr);
  EXPECT_EQ(Make({1, 2, 3, 4, 5, 6}, "bb", first)->before, nullptr);
  EXPECT_EQ(Make({1, 2}, "a", first)->before, nullptr);
  EXPECT_EQ(Make({1, 2, 3, 4, 5}, "", first)->before, nullptr);
}

TEST_F(RegionContentTest, BeginsWhatStartsWithAllOfIt) {
  const auto content = Make({1, 2, 3, 4, 5, 6}, "ab", Make({1, 2}, "a"));
  ASSERT_NE(content->before, nullptr);
  EXPECT_TRUE(Begins(*content, {1, 2, 3, 4, 5, 6}, "ab"));
  EXPECT_TRUE(Begins(*content, {1, 2, 3, 4, 5, 6, 7}, "abc"));
  EXPECT_FALSE(Begins(*content, {1, 2, 3, 4, 5}, "ab"));
  EXPECT_FALSE(Begins(*content, {9, 2, 3, 4, 5, 6}, "ab"));
  EXPECT_FALSE(Begins(*content, {1, 2, 3, 4, 5, 9}, "ab"));
  EXPECT_FALSE(Begins(*content, {1, 2, 3, 4, 5, 6}, "a"));
  EXPECT_FALSE(Begins(*content, {1, 2, 3, 4, 5, 6}, "bb"));
  EXPECT_FALSE(Begins(*content, {1, 2, 3, 4, 5, 6}, "aa"));
}

TEST_F(RegionContentTest, MediaAreCompared) {
  const auto chain = [](const char* hash) {
    return BlockChain(
        ContentScope{.media = {{.begin = 1, .length = 3, .hash = hash}}});
  };
  const Tokens tokens = {1, 2, 3, 4};
  const auto first = Make({1, 2}, "a", nullptr, chain("cat"));
  const auto content = Make(tokens, "a", first, chain("cat"));
  EXPECT_EQ(content->before, first);
  EXPECT_TRUE(content->Begins(tokens, nullptr, chain("cat")));
  EXPECT_FALSE(content->Begins(tokens, nullptr, chain("dog")));
  EXPECT_FALSE(content->Begins(tokens, nullptr, BlockChain()));
}

// A million of them, each on the one before.
TEST_F(RegionContentTest, IsFreedWithoutRecursion) {
  std::shared_ptr<const RegionContent> last;
  constexpr int32_t kNumParts = 1'000'000;
  for (int32_t i = 0; i < kNumParts; ++i) {
    auto next = std::make_shared<RegionContent>();
    next->begin = i;
    next->tokens = {i};
    next->history_begin = static_cast<size_t>(i);
    next->history = std::string(1, static_cast<char>('a' + i % 26));
    next->before = std::move(last);
    last = std::move(next);
  }
  EXPECT_EQ(last->end(), kNumParts);
  const std::string history = last->WholeHistory();
  ASSERT_EQ(history.size(), kNumParts);
  EXPECT_EQ(history.substr(0, 27), "abcdefghijklmnopqrstuvwxyza");
  const std::shared_ptr<const RegionContent> early = last->before->before;
  last.reset();  // frees two, the others are still in use
  EXPECT_EQ(early->end(), kNumParts - 2);
}

}  // namespace
}  // namespace blockmgr
