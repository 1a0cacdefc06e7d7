// Matches compared with a comparison of every token at every place.
#include "engine/tokenizer/special_tokens.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "tests/testing/random.h"

namespace blockmgr {
namespace {

struct Found {
  size_t position;
  std::string text;
  int32_t token;
  bool operator==(const Found&) const = default;
};

std::optional<Found> Find(const std::vector<SpecialToken>& tokens,
                          absl::string_view text, size_t from) {
  const auto match = SpecialTokens(tokens).Find(text, from);
  if (!match.has_value()) return std::nullopt;
  return Found{match->position,
               std::string(text.substr(match->position, match->length)),
               match->token};
}

std::optional<Found> FindByComparison(const std::vector<SpecialToken>& tokens,
                                      absl::string_view text, size_t from) {
  for (size_t i = from; i < text.size(); ++i) {
    const SpecialToken* longest = nullptr;
    for (const SpecialToken& token : tokens) {
      if (!token.text.empty() && absl::StartsWith(text.substr(i), token.text) &&
          (longest == nullptr || token.text.size() >= longest->text.size())) {
        longest = &token;
      }
    }
    if (longest != nullptr) return Found{i, longest->text, longest->token};
  }
  return std::nullopt;
}

TEST(SpecialTokensTest, FindsTheLongestAtTheLeftmostPlace) {
  const std::vector<SpecialToken> tokens = {
      {"<a", 1}, {"<a>", 2}, {"<a><b>", 3}, {"b>", 4}, {"\xFF", 5}};
  EXPECT_EQ(Find(tokens, "x<a><b>", 0), (Found{1, "<a><b>", 3}));
  EXPECT_EQ(Find(tokens, "x<a><", 0), (Found{1, "<a>", 2}));
  EXPECT_EQ(Find(tokens, "x<a", 0), (Found{1, "<a", 1}));
  EXPECT_EQ(Find(tokens, "x<a><b>", 2), (Found{5, "b>", 4}));
  EXPECT_EQ(Find(tokens, "x\xFF", 0), (Found{1, "\xFF", 5}));
  EXPECT_EQ(Find(tokens, "<b", 0), std::nullopt);
  EXPECT_EQ(Find(tokens, "", 0), std::nullopt);
  EXPECT_EQ(Find({}, "<a>", 0), std::nullopt);
}

TEST(SpecialTokensTest, AgreesWithAComparisonAtEveryPlace) {
  Rng rng(1);
  const auto random_text = [&rng](int32_t min, int32_t max) {
    std::string text;
    for (int32_t length = RandomInt(rng, min, max); length > 0; --length) {
      text.push_back("ab\x00\xFF"[RandomInt(rng, 0, 3)]);
    }
    return text;
  };
  for (int i = 0; i < 3000; ++i) {
    std::vector<SpecialToken> tokens(
        static_cast<size_t>(RandomInt(rng, 0, 12)));
    for (SpecialToken& token : tokens) {
      token = {random_text(0, 5), RandomInt(rng, 0, 99)};
    }
    const std::string text = random_text(0, 20);
    const auto from = static_cast<size_t>(
        RandomInt(rng, 0, static_cast<int32_t>(text.size())));
    ASSERT_EQ(Find(tokens, text, from), FindByComparison(tokens, text, from))
        << "case " << i;
  }
}

}  // namespace
}  // namespace blockmgr
