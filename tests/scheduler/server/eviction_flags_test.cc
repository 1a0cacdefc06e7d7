#include "scheduler/server/eviction_flags.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "blockmgr/base/status_macros.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::StartsWith;

// What a command line asks for, or the complaint about it.
absl::StatusOr<RequestEviction> Resolve(std::vector<std::string> arguments) {
  CLI::App app;
  EvictionFlags flags;
  AddEvictionFlags(&app, &flags);
  BM_RETURN_IF_ERROR(ParseFlags(&app, std::move(arguments)));
  return ResolveEviction(flags);
}

TEST(EvictionFlagsTest, KeepRatioAloneMeansTheDefaultPolicyAfterThePrompt) {
  ASSERT_OK_AND_ASSIGN(const RequestEviction eviction,
                       Resolve({"--keep-ratio", "0.2"}));
  EXPECT_EQ(eviction.mode, EvictionMode::kAfterPrefill);
  EXPECT_EQ(eviction.policy.scorer.kind, ScorerKind::kKeyDiff);
  EXPECT_EQ(eviction.policy.budget.kind, BudgetKind::kAdaKv);
  EXPECT_EQ(eviction.target.kind, EvictionTarget::Kind::kRatio);
  EXPECT_EQ(eviction.target.ratio, (KeepRatio{2, 10}));
  EXPECT_FALSE(eviction.share_prefix);
}

TEST(EvictionFlagsTest, WindowsAreEvictedFromOnRequest) {
  ASSERT_OK_AND_ASSIGN(RequestEviction eviction,
                       Resolve({"--keep-ratio", "0.2"}));
  EXPECT_FALSE(eviction.target.evicts_in_windows());
  ASSERT_OK_AND_ASSIGN(
      eviction, Resolve({"--keep-tokens", "9", "--window-keep-ratio", "0.3"}));
  EXPECT_EQ(eviction.target.window_keep_ratio, (KeepRatio{3, 10}));
  EXPECT_EQ(eviction.target.tokens, 9);
  EXPECT_THAT(Resolve({"--window-keep-ratio", "0.3"}),
              IsInvalid("window-keep-ratio: needs --keep-ratio"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.2", "--window-keep-ratio", "3"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("window-keep-ratio: expected a decimal")));
}

TEST(EvictionFlagsTest, ErrorsNameTheFlagOnce) {
  EXPECT_THAT(Resolve({"--keep-ratio", "2"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("keep-ratio: expected a decimal")));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.2", "--eviction", "none"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("eviction: unknown scorer 'none'")));
}

TEST(EvictionFlagsTest, NothingMeansNoEviction) {
  ASSERT_OK_AND_ASSIGN(const RequestEviction eviction, Resolve({}));
  EXPECT_EQ(eviction.mode, EvictionMode::kNone);
}

TEST(EvictionFlagsTest, ModesAndTheirIntervals) {
  const auto resolve = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--keep-tokens", "64", "--eviction",
                               "streaming | uniform | topk"});
    return Resolve(std::move(more));
  };
  ASSERT_OK_AND_ASSIGN(RequestEviction eviction,
                       resolve({"--compress-every", "32"}));
  EXPECT_EQ(eviction.mode, EvictionMode::kEveryChunk);
  EXPECT_EQ(eviction.compress_every, 32);
  EXPECT_EQ(eviction.policy.scorer.kind, ScorerKind::kStreaming);
  EXPECT_EQ(eviction.target.kind, EvictionTarget::Kind::kTokens);
  EXPECT_EQ(eviction.target.tokens, 64);
  ASSERT_OK_AND_ASSIGN(eviction, resolve({"--eviction-mode", "decode",
                                          "--compress-every", "16"}));
  EXPECT_EQ(eviction.mode, EvictionMode::kDecode);
  EXPECT_EQ(eviction.compress_every, 16);
  ASSERT_OK_AND_ASSIGN(eviction, resolve({"--eviction-mode", "pressure"}));
  EXPECT_EQ(eviction.mode, EvictionMode::kPressure);
  ASSERT_OK_AND_ASSIGN(eviction, resolve({"--eviction-mode", "after-prefill",
                                          "--share-compressed-prefixes",
                                          "--share-multiple", "512"}));
  EXPECT_EQ(eviction.mode, EvictionMode::kAfterPrefill);
  EXPECT_TRUE(eviction.share_prefix);
  EXPECT_EQ(eviction.share_multiple, 512);
}

TEST(EvictionFlagsTest, ErrorsNameTheFlag) {
  const auto error = [](const char* part) { return IsInvalid(part); };
  EXPECT_THAT(Resolve({"--eviction", "snapkv | adakv | topk"}),
              error("eviction: needs --keep-ratio or --keep-tokens"));
  EXPECT_THAT(Resolve({"--eviction-mode", "pressure"}),
              error("eviction-mode: needs --keep-ratio"));
  EXPECT_THAT(Resolve({"--compress-every", "32"}),
              error("compress-every: needs --keep-ratio"));
  EXPECT_THAT(Resolve({"--share-compressed-prefixes"}),
              error("share-compressed-prefixes: needs --keep-ratio"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.2", "--share-multiple", "512"}),
              error("share-multiple: needs --share-compressed-prefixes"));
  EXPECT_THAT(Resolve({"--keep-ratio", "1.5"}),
              error("keep-ratio: expected a decimal"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.5", "--keep-tokens", "5"}),
              error("keep-tokens: expected either"));
  EXPECT_THAT(Resolve({"--keep-tokens", "0"}), error("--keep-tokens"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.5", "--eviction", "nonsense"}),
              error("eviction: unknown scorer 'nonsense'"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.5", "--eviction",
                       "external | uniform | topk"}),
              error("external"));
  EXPECT_THAT(
      Resolve({"--keep-ratio", "0.5", "--eviction",
               "snapkv | adakv | topk | round(token) | parity(released)"}),
      error("expected no parity(..), which is for tensors (blockmgr-evict)"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.5", "--eviction-mode", "sometimes"}),
              error("--eviction-mode"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.5", "--eviction-mode", "decode"}),
              error("decode needs --compress-every"));
  EXPECT_THAT(Resolve({"--keep-ratio", "0.5", "--eviction-mode", "pressure",
                       "--compress-every", "16"}),
              error("compress-every: has no meaning"));
}

TEST(EvictionFlagsTest, EveryModeHasAName) {
  EXPECT_EQ(EnumName(EvictionMode::kNone), "none");
  EXPECT_EQ(EnumName(EvictionMode::kAfterPrefill), "after-prefill");
  EXPECT_EQ(EnumName(EvictionMode::kEveryChunk), "every-chunk");
  EXPECT_EQ(EnumName(EvictionMode::kDecode), "decode");
  EXPECT_EQ(EnumName(EvictionMode::kPressure), "pressure");
}

}  // namespace
}  // namespace blockmgr
