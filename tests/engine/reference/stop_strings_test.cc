#include "engine/reference/stop_strings.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/random.h"

namespace blockmgr {
namespace {

using ::testing::Optional;

TEST(StopStringsTest, AMatchMaySpanTokensAndEndWithinOne) {
  const TokenTexts texts = {"Hel", "lo w", "orld", ""};
  const std::vector<std::string> stop = {"low", "o wo"};
  EXPECT_EQ(FindStop(texts, {}, 0, stop), std::nullopt);
  EXPECT_EQ(FindStop(texts, {{0}}, 1, stop), std::nullopt);
  EXPECT_THAT(FindStop(texts, {{0, 1}}, 2, stop), Optional(1));
  // Control tokens have no text, and are no place where a match ends.
  EXPECT_THAT(FindStop(texts, {{0, 1, 3, 3}}, 2, stop), Optional(1));
  EXPECT_EQ(FindStop(texts, {{0, 1, 2}}, 3, stop), std::nullopt);
  // What ended before is not found again.
  EXPECT_EQ(FindStop(texts, {{0, 1, 2}}, 0, stop), std::nullopt);
}

TEST(StopStringsTest, BytesAreComparedAndUnknownTokensHaveNone) {
  // The two bytes of one character.
  const TokenTexts texts = {"\xC3", "\xA9", "x"};
  EXPECT_EQ(FindStop(texts, {}, 0, {{"\xC3\xA9"}}), std::nullopt);
  EXPECT_THAT(FindStop(texts, {{0}}, 1, {{"\xC3\xA9"}}), Optional(0));
  EXPECT_THAT(FindStop(texts, {{2, 0}}, 1, {{"x\xC3\xA9"}}), Optional(0));
  EXPECT_EQ(FindStop(texts, {{0}}, 3, {{"\xC3"}}), std::nullopt);
  EXPECT_EQ(FindStop(texts, {{0}}, -1, {{"\xC3"}}), std::nullopt);
  EXPECT_THAT(FindStop(texts, {{3, -1}}, 2, {{"x"}}), Optional(0));
  EXPECT_EQ(FindStop({}, {{0}}, 0, {{"x"}}), std::nullopt);
  EXPECT_EQ(FindStop(texts, {{0}}, 2, {}), std::nullopt);
}

TEST(StopStringsTest, TheFirstOfTheListIsTold) {
  const TokenTexts texts = {"ab", "cd"};
  EXPECT_THAT(FindStop(texts, {{0}}, 1, {{"d", "abcd", "c"}}), Optional(0));
  EXPECT_THAT(FindStop(texts, {{0}}, 1, {{"bcd", "c"}}), Optional(0));
}

// The text of all outputs is made, and every place is looked at.
TEST(StopStringsTest, FindsWhatASearchOfAllTheTextFinds) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  const auto random_text = [&rng](int32_t most) {
    std::string text;
    for (int32_t i = RandomInt(rng, 0, most); i > 0; --i) {
      text += RandomChance(rng, 0.5) ? 'a' : 'b';
    }
    return text;
  };
  int32_t num_found = 0;
  for (int32_t round = 0; round < 2000; ++round) {
    TokenTexts texts;
    for (int32_t i = 0; i < 6; ++i) texts.push_back(random_text(3));
    std::vector<std::string> stop;
    for (int32_t i = RandomInt(rng, 1, 3); i > 0; --i) {
      stop.push_back(random_text(7) + "a");
    }
    std::vector<int32_t> outputs;
    std::string text;
    for (int32_t i = 0; i < 12; ++i) {
      const int32_t token = RandomInt(rng, 0, 5);
      const std::string& last = texts[static_cast<size_t>(token)];
      std::optional<int32_t> expected;
      for (size_t s = 0; s < stop.size() && !expected.has_value(); ++s) {
        const std::string all = text + last;
        for (size_t end = text.size() + 1; end <= all.size(); ++end) {
          if (all.substr(0, end).ends_with(stop[s])) {
            expected = static_cast<int32_t>(s);
          }
        }
      }
      num_found += expected.has_value() ? 1 : 0;
      ASSERT_EQ(FindStop(texts, outputs, token, stop), expected);
      text += last;
      outputs.push_back(token);
    }
  }
  EXPECT_GT(num_found, 1000);
}

}  // namespace
}  // namespace blockmgr
