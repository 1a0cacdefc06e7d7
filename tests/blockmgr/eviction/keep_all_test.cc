// A target of all there is evicts nothing, wherever pages end: for everything
// that says how much is kept, crossed with everything that rounds it.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;

constexpr HeadShape kKeepAllShape{
    .num_layers = 3, .num_heads = 2, .page_size = 16};
constexpr int64_t kKeepAllHeads = 6;

// Most are no multiple of the page.
constexpr int32_t kKeepAllCuts[] = {1,  2,  7,  15,  16,  17,
                                    31, 33, 48, 100, 200, 231};

EvictionTarget KeepAllTokens(int32_t tokens) {
  return {.kind = EvictionTarget::Kind::kTokens, .ratio = {}, .tokens = tokens};
}

// Unequal, so that what is shared out by it is.
BudgetTable KeepAllTable(BudgetKind kind) {
  if (kind == BudgetKind::kHeadKv) {
    return HeadScores{3, 2, {1.0f, 5.0f, 0.0f, 90.0f, 2.0f, 2.0f}};
  }
  LuKvProfile profile;
  profile.num_layers = 3;
  profile.num_heads = 2;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r = {0.0f,  0.0f,  0.0f, 0.0f, 0.0f,  0.0f,   // nothing
               0.25f, 0.75f, 0.5f, 0.5f, 0.25f, 0.75f,  // half
               1.0f,  1.0f,  1.0f, 1.0f, 1.0f,  1.0f};
  return profile;
}

// Heads of `share` of the positions below the cut, of random scores.
struct KeepAllContent {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> positions;
  std::vector<float> scores;
  std::vector<float> value_norms;

  KeepAllContent(int32_t cut, double share, uint32_t seed) {
    std::mt19937 random(seed);
    for (int64_t head = 0; head < kKeepAllHeads; ++head) {
      for (int32_t position = 0; position < cut; ++position) {
        if (random() >= share * 4294967296.0) continue;
        positions.push_back(position);
        scores.push_back(static_cast<float>(random() % 1000) *
                         static_cast<float>(1 + head));
        value_norms.push_back(static_cast<float>(random() % 8));
      }
      offsets.push_back(static_cast<int64_t>(positions.size()));
    }
  }
  EntriesView view() const {
    return {.offsets = offsets,
            .positions = positions,
            .scores = scores,
            .value_norms = value_norms,
            .products = {}};
  }
};

class KeepAllTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(policy_, ParsePolicy(GetParam()));
  }

  // What manager and engine are told before they know what heads hold.
  void ExpectRoomForAll(const EvictionTarget& target,
                        const EvictionRange& range,
                        std::vector<int32_t>* budgets) const {
    const int64_t all =
        kKeepAllHeads *
        ((range.cut + kKeepAllShape.page_size - 1) / kKeepAllShape.page_size);
    if (policy_.budget.kind == BudgetKind::kExternal) {
      // The caller's, who may ask for more than there is.
      budgets->assign(kKeepAllHeads,
                      target.kind == EvictionTarget::Kind::kTokens
                          ? target.tokens
                          : range.cut);
    }
    if (policy_.needs_table()) {
      const BudgetTable table = KeepAllTable(policy_.budget.kind);
      ASSERT_THAT(CheckTable(policy_, kKeepAllShape, table), IsOk());
      *budgets = TableBudgets(policy_, target, kKeepAllShape, range, table);
      EXPECT_THAT(*budgets, Each(range.cut));
    }
    EXPECT_EQ(budgets->empty()
                  ? PageTotal(policy_, target, kKeepAllShape, range)
                  : PageTotalExternal(*budgets, policy_, kKeepAllShape, range),
              all);
  }

  EvictionPolicy policy_;
};

TEST_P(KeepAllTest, EveryHeadKeepsWhatItHolds) {
  for (const int32_t cut : kKeepAllCuts) {
    for (const int32_t behind : {0, 1, 40}) {
      for (const double share : {1.0, 0.6}) {
        const EvictionRange range{.cut = cut, .length = cut + behind};
        const KeepAllContent content(cut, share, static_cast<uint32_t>(cut));
        for (const EvictionTarget& target :
             {EvictionTarget(), KeepAllTokens(cut), KeepAllTokens(cut + 1),
              KeepAllTokens(5000)}) {
          SCOPED_TRACE(absl::StrCat("cut ", cut, " length ", range.length,
                                    " share ", share, " tokens ",
                                    target.tokens));
          std::vector<int32_t> budgets;
          ExpectRoomForAll(target, range, &budgets);
          const KeepSets kept = SelectEntries(policy_, target, kKeepAllShape,
                                              range, content.view(), budgets);
          EXPECT_EQ(kept.offsets, content.offsets);
          const std::vector<int32_t> own = AllocateBudgets(
              policy_, target, kKeepAllShape, range, content.view(), budgets);
          ASSERT_EQ(std::ssize(own), kKeepAllHeads);
          for (size_t head = 0; head < own.size(); ++head) {
            EXPECT_EQ(own[head],
                      content.offsets[head + 1] - content.offsets[head]);
          }
        }
      }
    }
  }
}

// Every allocator, by both roundings, with both selectors where a policy may
// have them.
constexpr const char* kKeepAllPolicies[] = {
    "knorm | uniform",
    "knorm | uniform | critical",
    "snapkv | uniform",
    "streaming | uniform | protect(recent=20)",
    "knorm | pyramid",
    "knorm | pyramid(formula=kvpress)",
    "knorm | pyramid(formula=factory,beta=3) | critical",
    "snapkv | adakv | critical",
    "knorm | adakv(alpha=0)",
    "knorm | adakv(mode=floor,alpha=0.3)",
    "snapkv | ada_pyramid",
    "knorm | ada_pyramid(alpha=0.7) | critical(first=0.9)",
    "knorm | headkv(profile=t)",
    "snapkv | headkv(profile=t,share=1,temp=2) | critical",
    "knorm | lukv(profile=t)",
    "snapkv | lukv(profile=t) | protect(sinks=4,recent=1)",
    "knorm | global",
    "snapkv | global | critical",
    "knorm | external",
    "snapkv | external | critical",
    "knorm | uniform | round(token)",
    "knorm | uniform | critical | round(token)",
    "snapkv | uniform | round(token)",
    "streaming | uniform | protect(recent=20) | round(token)",
    "knorm | pyramid | round(token)",
    "knorm | pyramid(formula=kvpress) | round(token)",
    "knorm | pyramid(formula=factory,beta=3) | critical | round(token)",
    "snapkv | adakv | critical | round(token)",
    "knorm | adakv(alpha=0) | round(token)",
    "knorm | adakv(mode=floor,alpha=0.3) | round(token)",
    "snapkv | ada_pyramid | round(token)",
    "knorm | headkv(profile=t) | round(token)",
    "snapkv | headkv(profile=t,share=1) | critical | round(token)",
    "knorm | lukv(profile=t) | round(token)",
    "knorm | global | round(token)",
    "snapkv | global | critical | round(token)",
    "knorm | external | round(token)",
};

INSTANTIATE_TEST_SUITE_P(All, KeepAllTest, testing::ValuesIn(kKeepAllPolicies));

}  // namespace
}  // namespace blockmgr
