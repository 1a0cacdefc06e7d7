// The text form, and which policies are those of a published program.
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/parity_policy.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(ParityPolicyTextTest, TakesParityAmongTheStagesOfTheLibrary) {
  const std::pair<const char*, const char*> forms[] = {
      {"snapkv", "snapkv | uniform | topk"},
      {"tova|critical|parity(none)", "tova | uniform | critical"},
      {"random|critical| parity ( kvpress ) |round(token)",
       "random | uniform | critical | round(token) | parity(kvpress)"},
      {"snapkv | adakv | round(token)|parity(released)",
       "snapkv | adakv | topk | round(token) | parity(released)"},
  };
  for (const auto& [text, canonical] : forms) {
    ASSERT_OK_AND_ASSIGN(const ParityPolicy policy, ParseParityPolicy(text));
    EXPECT_EQ(FormatParityPolicy(policy), canonical);
  }
  ASSERT_OK_AND_ASSIGN(
      const ParityPolicy policy,
      ParseParityPolicy("snapkv(window=9) | round(token) | parity(kvpress)"));
  EXPECT_EQ(policy.scorer.window, 9);
  EXPECT_EQ(policy.parity, Parity::kKvPress);
}

TEST(ParityPolicyTextTest, ErrorsNameWhatWasExpectedAndGot) {
  for (const char* stage : {"parity", "parity()", "parity(token)",
                            "parity(kvpress", "parity(kvpress,released)"}) {
    EXPECT_THAT(
        ParseParityPolicy(absl::StrCat("snapkv | round(token) | ", stage)),
        IsInvalid(absl::StrCat(
            "expected, once, parity(word) of one of none, kvpress, "
            "released, got '",
            stage, "'")));
  }
  EXPECT_THAT(ParseParityPolicy("snapkv | parity(none) | parity(none)"),
              IsInvalid("once"));
  EXPECT_THAT(ParseParityPolicy("parity(none)"), IsInvalid("expected a stage"));
}

TEST(CheckParityTest, AcceptsEverythingWithoutParity) {
  EXPECT_THAT(
      CheckParity(*ParseParityPolicy("knorm | global | critical(norm=l2)")),
      IsOk());
}

TEST(CheckParityTest, AcceptsEveryPublishedProgram) {
  for (const char* text :
       {"keydiff | uniform | critical | round(token) | parity(kvpress)",
        "streaming | uniform | topk | round(token) | parity(kvpress)",
        "keydiff | adakv(mode=floor) | critical | round(token) | "
        "parity(kvpress)",
        "snapkv | pyramid(formula=kvpress) | topk | round(token) | "
        "parity(kvpress)",
        "expected_attention | lukv(profile=x) | topk | round(token) | "
        "parity(kvpress)",
        "snapkv | adakv | critical | round(token) | parity(released)",
        "snapkv | pyramid | critical | round(token) | parity(released)",
        "snapkv | pyramid(formula=factory) | topk | round(token) | "
        "parity(released)",
        "snapkv | ada_pyramid | critical | round(token) | parity(released)",
        "knorm | headkv(profile=x) | topk | round(token) | parity(released)",
        "h2o | lukv(profile=x) | topk | round(token) | parity(released)"}) {
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const ParityPolicy policy, ParseParityPolicy(text));
    EXPECT_THAT(CheckParity(policy), IsOk());
    ASSERT_OK_AND_ASSIGN(const ParityPolicy back,
                         ParseParityPolicy(FormatParityPolicy(policy)));
    EXPECT_EQ(back, policy);
  }
}

struct Refused {
  const char* policy;
  const char* why;
};
constexpr Refused kRefused[] = {
    {"snapkv | uniform | parity(kvpress)",
     "parity(kvpress): rounding: expected round(token), got round(page)"},
    {"keydiff | adakv | topk | round(token) | parity(kvpress)",
     "budget: expected one of uniform, pyramid(formula=kvpress), "
     "adakv(mode=floor), lukv, got adakv(mode=blend)"},
    {"keydiff | global | topk | round(token) | parity(kvpress)", "got global"},
    {"snapkv | adakv(mode=floor) | topk | round(token) | parity(released)",
     "budget: expected one of pyramid(formula=adakv), "
     "pyramid(formula=factory), adakv(mode=blend), "
     "ada_pyramid(formula=adakv), headkv, lukv, got adakv(mode=floor)"},
    {"snapkv | pyramid | topk | round(token) | parity(kvpress)",
     "got pyramid(formula=adakv)"},
    {"snapkv | ada_pyramid | topk | round(token) | parity(kvpress)",
     "got ada_pyramid(formula=adakv)"},
    {"snapkv | headkv(profile=x) | topk | round(token) | parity(kvpress)",
     "got headkv"},
    {"snapkv | pyramid(formula=kvpress) | topk | round(token) | "
     "parity(released)",
     "got pyramid(formula=kvpress)"},
    {"snapkv | ada_pyramid(formula=factory) | topk | round(token) | "
     "parity(released)",
     "got ada_pyramid(formula=factory)"},
    {"snapkv | uniform | topk | round(token) | parity(released)",
     "got uniform"},
    {"tova | pyramid(formula=kvpress) | topk | round(token) | "
     "parity(kvpress)",
     "scorer: expected snapkv, got tova"},
    {"snapkv | pyramid(formula=kvpress) | critical | round(token) | "
     "parity(kvpress)",
     "selector of pyramid: expected topk, got critical"},
    {"knorm | lukv(profile=x) | critical | round(token) | parity(kvpress)",
     "selector of lukv: expected topk, got critical"},
    {"snapkv | headkv(profile=x) | critical | round(token) | "
     "parity(released)",
     "selector of headkv: expected topk, got critical"},
    {"streaming | headkv(profile=x) | topk | round(token) | "
     "parity(released)",
     "streaming: expected uniform and topk under parity(kvpress), got "
     "headkv and topk"},
    {"h2o(recent=4) | lukv(profile=x) | topk | round(token) | "
     "parity(released)",
     "h2o: recent: expected 0, got 4"},
    {"keydiff | adakv | topk | round(token) | parity(released)",
     "scorer: expected snapkv, got keydiff"},
    {"snapkv | uniform | critical(norm=l2) | round(token) | parity(kvpress)",
     "critical: norm: expected l1, got l2"},
    {"snapkv | uniform | critical(gqa_product=true) | round(token) | "
     "parity(kvpress)",
     "critical: gqa_product: expected false"},
    {"streaming | adakv(mode=floor) | topk | round(token) | parity(kvpress)",
     "expected uniform and topk under parity(kvpress), got adakv and topk"},
    {"h2o(recent=4) | uniform | topk | round(token) | parity(kvpress)",
     "h2o: recent: expected 0, got 4"},
    {"keydiff | uniform | topk | protect(sinks=4) | round(token) | "
     "parity(kvpress)",
     "protect: expected none"},
};

TEST(CheckParityTest, RefusesWhatNobodyPublished) {
  for (const Refused& refused : kRefused) {
    SCOPED_TRACE(refused.policy);
    EXPECT_THAT(ParseParityPolicy(refused.policy), IsInvalid(refused.why));
  }
}

}  // namespace
}  // namespace blockmgr
