#include "blockmgr/eviction/policy.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(PolicyTest, ValidatesOnlyWhatThePolicyUses) {
  EvictionPolicy policy;
  policy.scorer.kind = ScorerKind::kExternal;
  policy.scorer.kernel = 4;
  policy.budget.alpha = NAN;
  policy.selector.first = 2.0;
  EXPECT_OK(policy.Validate());
  policy.scorer.kind = ScorerKind::kSnapKv;
  EXPECT_THAT(policy.Validate(), StatusIs(absl::StatusCode::kInvalidArgument));
}

// As they may come from the wire.
TEST(PolicyTest, RejectsValuesThatNoNameHas) {
  const auto expect_bad = [](auto change, absl::string_view where) {
    EvictionPolicy policy;
    change(policy);
    EXPECT_THAT(policy.Validate(),
                IsInvalid(std::string(where), "known", "got 99"));
  };
  expect_bad([](auto& p) { p.scorer.kind = ScorerKind{99}; }, "scorer");
  expect_bad([](auto& p) { p.budget.kind = BudgetKind{99}; }, "budget");
  expect_bad([](auto& p) { p.selector.kind = SelectorKind{99}; }, "selector");
  expect_bad([](auto& p) { p.scorer.pool = PoolKind{99}; }, "snapkv: pool");
}

EvictionPolicy Parsed(absl::string_view text) { return *ParsePolicy(text); }

TEST(PolicyTest, SaysWhatScorersReadAndProtect) {
  EXPECT_EQ(Parsed("snapkv(window=9)").query_window(), 9);
  EXPECT_EQ(Parsed("tova").query_window(), 1);
  EXPECT_EQ(Parsed("h2o(obs_window=256)").query_window(), 256);
  EXPECT_EQ(Parsed("h2o").query_window(), 0);
  EXPECT_EQ(Parsed("keydiff").query_window(), 0);

  EXPECT_EQ(Parsed("snapkv").scorer_state(), ScorerState::kNone);
  EXPECT_EQ(Parsed("h2o").scorer_state(), ScorerState::kAttentionSums);
  EXPECT_EQ(Parsed("h2o(obs_window=1)").scorer_state(), ScorerState::kNone);
  EXPECT_EQ(Parsed("expected_attention").scorer_state(),
            ScorerState::kQueryStatistics);
  EXPECT_EQ(Parsed("expected_attention(stats=x)").scorer_state(),
            ScorerState::kNone);

  EXPECT_EQ(Parsed("snapkv(window=9)").protected_recent(), 9);
  EXPECT_EQ(Parsed("snapkv|protect(recent=0)").protected_recent(), 0);
  EXPECT_EQ(Parsed("tova").protected_recent(), 1);
  EXPECT_EQ(Parsed("h2o(recent=5,obs_window=8)").protected_recent(), 5);
  EXPECT_EQ(Parsed("random").protected_recent(), 0);
  EXPECT_EQ(Parsed("snapkv").protected_sinks(), 0);
  EXPECT_EQ(Parsed("streaming").protected_sinks(), 4);
  EXPECT_EQ(Parsed("expected_attention(n_sink=3)").protected_sinks(), 3);
  EXPECT_EQ(Parsed("streaming(sinks=2)|protect(sinks=5)").protected_sinks(), 5);
  EXPECT_EQ(Parsed("dropkv(window=9)").protected_recent(), 9);

  EXPECT_TRUE(Parsed("external").has_external_scores());
  EXPECT_FALSE(Parsed("knorm|external").has_external_scores());
  EXPECT_TRUE(Parsed("tova|lukv(profile=x)").needs_table());
  EXPECT_TRUE(Parsed("tova|headkv(profile=x)").needs_table());
  EXPECT_FALSE(Parsed("tova|external").needs_table());
  EXPECT_TRUE(Parsed("expected_attention(stats=x)").needs_query_stats());
  EXPECT_FALSE(Parsed("expected_attention(stats=x)").needs_table());
  EXPECT_FALSE(Parsed("expected_attention").needs_query_stats());
  // A field that the scorer does not use.
  EvictionPolicy keydiff = Parsed("keydiff");
  keydiff.scorer.stats = "x";
  EXPECT_FALSE(keydiff.needs_query_stats());
}

TEST(PolicyTest, SaysWhatATableMayBeCalled) {
  EXPECT_TRUE(IsTableName("Llama-3.1_8b"));
  EXPECT_TRUE(IsTableName(std::string(64, 'n')));
  EXPECT_FALSE(IsTableName(std::string(65, 'n')));
  for (const char* name : {"", "a b", "a/b", "a=b", "\xc3\xa4"}) {
    EXPECT_FALSE(IsTableName(name)) << name;
  }
}

TEST(EvictionTargetTest, CountsTokensPerHead) {
  EvictionTarget target;
  target.ratio = {2, 10};
  EXPECT_EQ(target.TokensPerHead(100), 20);
  EXPECT_EQ(target.TokensPerHead(99), 19);
  EXPECT_EQ(target.TokensPerHead(4), 1);  // a ratio keeps at least one
  target.ratio = {29, 100};
  EXPECT_EQ(target.TokensPerHead(100), 29);  // not 28.999999999999996
  target.kind = EvictionTarget::Kind::kTokens;
  target.tokens = 64;
  EXPECT_EQ(target.TokensPerHead(100), 64);
  EXPECT_EQ(target.TokensPerHead(48), 48);
}

TEST(EvictionTargetTest, RejectsNoTokensAndBadRatios) {
  EvictionTarget target;
  EXPECT_OK(target.Validate());
  for (const KeepRatio ratio :
       {KeepRatio{0, 10}, KeepRatio{11, 10}, KeepRatio{1, 10'000'000'000},
        KeepRatio{1, 0}}) {
    target.ratio = ratio;
    EXPECT_THAT(target.Validate(), IsInvalid("target: ratio"));
  }
  target.kind = EvictionTarget::Kind::kTokens;
  EXPECT_THAT(target.Validate(),
              IsInvalid("target: tokens: expected at least 1, got 0"));
  target.tokens = 1;
  EXPECT_OK(target.Validate());
}

TEST(PolicyTest, PercentagesAreOfWhatTheTargetKeeps) {
  EvictionTarget target;
  target.ratio = *KeepRatio::Parse("0.3");
  EvictionPolicy policy = Parsed("keydiff|protect(sinks=4,recent=10%)");
  ResolveRecent(target, 1000, &policy);
  EXPECT_EQ(policy, Parsed("keydiff|protect(sinks=4,recent=30)"));
  // A number is what it is.
  ResolveRecent(target, 500, &policy);
  EXPECT_EQ(policy.protected_recent(), 30);
  // Rounded down.
  target.kind = EvictionTarget::Kind::kTokens;
  target.tokens = 19;
  policy = Parsed("snapkv|protect(recent=10%)");
  ResolveRecent(target, 500, &policy);
  EXPECT_EQ(policy.protected_recent(), 1);
}

}  // namespace
}  // namespace blockmgr
