#include "blockmgr/eviction/policy.h"

#include <cmath>
#include <random>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PolicyTest, ParsesEveryStageAndKey) {
  ASSERT_OK_AND_ASSIGN(
      const EvictionPolicy policy,
      ParsePolicy(" snapkv ( window = 64 , pool=avg,kernel=5,order=kvpress,"
                  "group=max) | adakv(alpha=0.5)|topk | "
                  "round(token)|protect(sinks=4, recent=0) "));
  EXPECT_EQ(policy.scorer.kind, ScorerKind::kSnapKv);
  EXPECT_EQ(policy.scorer.window, 64);
  EXPECT_EQ(policy.scorer.pool, PoolKind::kAvg);
  EXPECT_EQ(policy.scorer.kernel, 5);
  EXPECT_EQ(policy.scorer.order, PoolOrder::kKvPress);
  EXPECT_EQ(policy.scorer.group, GroupReduce::kMax);
  EXPECT_EQ(policy.budget.kind, BudgetKind::kAdaKv);
  EXPECT_EQ(policy.budget.alpha, 0.5);
  EXPECT_EQ(policy.selector.kind, SelectorKind::kTopK);
  EXPECT_EQ(policy.protect.sinks, 4);
  EXPECT_EQ(policy.protect.recent, 0);
  EXPECT_EQ(policy.rounding, Rounding::kToken);
}

TEST(PolicyTest, LeavesOutStagesByDefault) {
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy("snapkv"));
  EXPECT_EQ(policy, EvictionPolicy());
}

TEST(PolicyTest, ReadsExternalByItsPlace) {
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy,
                       ParsePolicy("external | external"));
  EXPECT_EQ(policy.scorer.kind, ScorerKind::kExternal);
  EXPECT_EQ(policy.budget.kind, BudgetKind::kExternal);
}

TEST(PolicyTest, FormatsCanonically) {
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy,
                       ParsePolicy("snapkv(kernel=7,window=16)|adakv(alpha=0.3)"
                                   "|protect(recent=-1,sinks=2)|round(page)"));
  EXPECT_EQ(FormatPolicy(policy),
            "snapkv(window=16) | adakv(alpha=0.3) | topk | protect(sinks=2)");
  EXPECT_EQ(FormatPolicy(EvictionPolicy()), "snapkv | uniform | topk");
}

struct BadText {
  const char* text;
  const char* where;  // stage and key, or what is wrong
  const char* expected;
  const char* got;
};

TEST(PolicyTest, ErrorsNameStageKeyExpectedAndGot) {
  const BadText bad_texts[] = {
      {"", "expected a stage", "snapkv(window=32)", "got ''"},
      {"h2o", "unknown scorer 'h2o'", "snapkv, streaming, external", "h2o"},
      {"adakv", "unknown scorer", "snapkv, streaming, external", "adakv"},
      {"snapkv | magic", "unknown stage", "uniform, adakv, external", "magic"},
      {"snapkv | topk | adakv", "out of order", "scorer | budget", "adakv"},
      {"snapkv | uniform | adakv", "out of order", "each once", "adakv"},
      {"snapkv | topk | topk", "out of order", "each once", "topk"},
      {"snapkv | round(page) | topk", "out of order", "options", "topk"},
      {"snapkv | round(page) | protect | round(page)", "out of order",
       "each once", "round"},
      {"snapkv | streaming", "out of order", "one scorer", "streaming"},
      {"snapkv(windw=3)", "snapkv: unknown key", "window, pool", "windw"},
      {"external(window=3)", "external: unknown key", "no keys", "window"},
      {"snapkv | uniform(alpha=1)", "uniform: unknown key", "no keys", "alpha"},
      {"snapkv(window=1,window=2)", "snapkv", "twice", "window"},
      {"snapkv(window=x)", "snapkv: window", "integer", "'x'"},
      {"snapkv(window=4294967296)", "snapkv: window", "32-bit", "4294967296"},
      {"snapkv(window=0)", "snapkv: window", "at least 1", "got 0"},
      {"snapkv(window)", "snapkv", "key=value", "'window'"},
      {"snapkv(=3)", "snapkv", "key=value", "'=3'"},
      {"snapkv(window=3,)", "snapkv", "key=value", "''"},
      {"snapkv(window=3", "snapkv", "')'", "snapkv(window=3"},
      {"snapkv(pool=sum)", "snapkv: pool", "max, avg", "'sum'"},
      {"snapkv(kernel=4)", "snapkv: kernel", "odd", "got 4"},
      {"snapkv(kernel=-1)", "snapkv: kernel", "odd", "got -1"},
      {"snapkv(kernel=1025)", "snapkv: kernel", "1023", "got 1025"},
      {"snapkv(order=x)", "snapkv: order", "adakv, kvpress", "'x'"},
      {"snapkv(group=x)", "snapkv: group", "mean, max", "'x'"},
      {"streaming(sinks=-1)", "streaming: sinks", "at least 0", "got -1"},
      {"snapkv|adakv(alpha=1.5)", "adakv: alpha", "[0, 1]", "got 1.5"},
      {"snapkv|adakv(alpha=nan)", "adakv: alpha", "[0, 1]", "got nan"},
      {"snapkv|adakv(alpha=a)", "adakv: alpha", "number", "'a'"},
      {"snapkv|protect(sinks=-1)", "protect: sinks", "at least 0", "got -1"},
      {"snapkv|protect(recent=-2)", "protect: recent", "at least -1", "-2"},
      {"snapkv|round", "round", "page, token", "''"},
      {"snapkv|round(half)", "round", "page, token", "'half'"},
      {"snapkv|round(page,token)", "round", "page, token", "page,token"},
      {"snapkv|round(page=1)", "round", "page, token", "page=1"},
      {"snapkv||topk", "expected a stage", "snapkv(window=32)", "got ''"},
      {"snapkv | topk trailing", "unknown stage", "topk", "topk trailing"},
  };
  for (const BadText& bad : bad_texts) {
    EXPECT_THAT(ParsePolicy(bad.text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(bad.where), HasSubstr(bad.expected),
                               HasSubstr(bad.got))))
        << bad.text;
  }
}

TEST(PolicyTest, RejectsOverlongText) {
  EXPECT_THAT(ParsePolicy(absl::StrCat("snapkv", std::string(5000, ' '))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5006")));
}

TEST(PolicyTest, ValidatesOnlyWhatThePolicyUses) {
  EvictionPolicy policy;
  policy.scorer.kind = ScorerKind::kExternal;
  policy.scorer.kernel = 4;
  policy.budget.alpha = NAN;
  EXPECT_OK(policy.Validate());
  policy.scorer.kind = ScorerKind::kSnapKv;
  EXPECT_THAT(policy.Validate(), StatusIs(absl::StatusCode::kInvalidArgument));
}

EvictionPolicy RandomPolicy(std::mt19937_64& random) {
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint64_t>(n));
  };
  EvictionPolicy policy;
  policy.scorer.kind = static_cast<ScorerKind>(below(3));
  if (policy.scorer.kind == ScorerKind::kSnapKv) {
    policy.scorer.window = 1 + below(1 << 30);
    policy.scorer.pool = static_cast<PoolKind>(below(2));
    policy.scorer.kernel = 1 + 2 * below(512);
    policy.scorer.order = static_cast<PoolOrder>(below(2));
    policy.scorer.group = static_cast<GroupReduce>(below(2));
  } else if (policy.scorer.kind == ScorerKind::kStreaming) {
    policy.scorer.sinks = below(1 << 30);
  }
  policy.budget.kind = static_cast<BudgetKind>(below(3));
  if (policy.budget.kind == BudgetKind::kAdaKv) {
    policy.budget.alpha = std::ldexp(static_cast<double>(random() >> 11), -53);
  }
  policy.protect.sinks = below(3);
  policy.protect.recent = below(3) - 1;
  policy.rounding = static_cast<Rounding>(below(2));
  return policy;
}

TEST(PolicyTest, ReadsBackEveryPolicyItWrites) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const EvictionPolicy policy = RandomPolicy(random);
    const std::string text = FormatPolicy(policy);
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy again, ParsePolicy(text));
    ASSERT_EQ(again, policy) << text;
    ASSERT_EQ(FormatPolicy(again), text);
  }
}

TEST(PolicyTest, ReadsBackOrRejectsMutatedTexts) {
  std::mt19937_64 random(2);
  constexpr absl::string_view kAlphabet = "()|,= -.0123456789abcdeikprstuvw";
  for (int i = 0; i < 20'000; ++i) {
    std::string text = FormatPolicy(RandomPolicy(random));
    for (uint64_t edits = random() % 4; edits > 0 && !text.empty(); --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1);
      } else {
        text[at] = kAlphabet[random() % kAlphabet.size()];
      }
    }
    const auto policy = ParsePolicy(text);
    if (!policy.ok()) {
      ASSERT_THAT(policy, StatusIs(absl::StatusCode::kInvalidArgument));
      continue;
    }
    ASSERT_OK(policy->Validate());
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy again,
                         ParsePolicy(FormatPolicy(*policy)));
    ASSERT_EQ(again, *policy) << text;
  }
}

TEST(EvictionTargetTest, CountsTokensPerHead) {
  EvictionTarget target;
  target.ratio = {2, 10};
  EXPECT_EQ(target.TokensPerHead(100), 20);
  EXPECT_EQ(target.TokensPerHead(99), 19);
  EXPECT_EQ(target.TokensPerHead(4), 1);  // a ratio keeps at least one
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
    EXPECT_THAT(target.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("target: ratio")));
  }
  target.kind = EvictionTarget::Kind::kTokens;
  EXPECT_THAT(
      target.Validate(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("target: tokens: expected at least 1, got 0")));
  target.tokens = 1;
  EXPECT_OK(target.Validate());
}

}  // namespace
}  // namespace blockmgr
