#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/budget_table.h"

namespace blockmgr {
namespace {

using ::testing::SizeIs;

TEST(TableFingerprintTest, IsOfEverythingThatBudgetsDependOn) {
  const HeadScores scores{
      .num_layers = 1, .num_heads = 4, .scores = {1.0f, 2.0f, 3.0f, 4.0f}};
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r = {0.0f, 0.0f, 0.4f, 0.6f, 1.0f, 1.0f};
  std::vector<BudgetTable> tables = {scores, profile};
  HeadScores turned = scores;
  std::swap(turned.num_layers, turned.num_heads);
  tables.emplace_back(turned);
  HeadScores changed = scores;
  changed.scores[2] = 3.5f;
  tables.emplace_back(changed);
  LuKvProfile steeper = profile;
  steeper.r[2] = 0.3f;
  tables.emplace_back(steeper);
  LuKvProfile moved = profile;
  moved.rho[1] = 0.6f;
  tables.emplace_back(moved);
  // The same numbers, divided differently between rho and r.
  LuKvProfile shifted = profile;
  shifted.rho.push_back(shifted.r.front());
  shifted.r.erase(shifted.r.begin());
  tables.emplace_back(shifted);
  std::set<std::string> names;
  for (const BudgetTable& table : tables) {
    names.insert(TableFingerprint(table));
    EXPECT_EQ(TableFingerprint(table), TableFingerprint(BudgetTable(table)));
  }
  EXPECT_THAT(names, SizeIs(tables.size()));
  // What it was measured with decides nothing.
  LuKvProfile renamed = profile;
  renamed.model = "another";
  EXPECT_EQ(TableFingerprint(renamed), TableFingerprint(profile));
}

}  // namespace
}  // namespace blockmgr
