// Budget tables for tests of those who use them.
#ifndef TESTS_TESTING_TEST_TABLES_H_
#define TESTS_TESTING_TEST_TABLES_H_

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/lukv_profile.h"
#include "scheduler/request.h"

namespace blockmgr {

// A few heads matter much, most a little, some not at all.
inline HeadScores SkewedScores(const ModelLayout& layout, uint32_t seed) {
  std::mt19937 random(seed);
  HeadScores table{.num_layers = layout.num_layers,
                   .num_heads = layout.num_heads,
                   .scores = {}};
  for (int32_t i = 0; i < layout.num_layers * layout.num_heads; ++i) {
    const auto draw = static_cast<float>(random() % 9);
    table.scores.push_back(draw < 2.0f ? 0.0f : draw * draw * draw);
  }
  table.scores.front() += 1.0f;
  return table;
}

// Heads of a pair lose as much more and less than the mean.
inline LuKvProfile PairedProfile(const ModelLayout& layout, uint32_t seed) {
  std::mt19937 random(seed);
  const int32_t num_heads = layout.num_layers * layout.num_heads;
  LuKvProfile profile;
  profile.num_layers = layout.num_layers;
  profile.num_heads = layout.num_heads;
  profile.calibration_length = 1000;
  std::vector<float> slants(num_heads, 0.0f);
  for (int32_t head = 0; head + 1 < num_heads; head += 2) {
    slants[head] = static_cast<float>(random() % 100) / 100.0f;
    slants[head + 1] = -slants[head];
  }
  for (int32_t i = 0; i <= 20; ++i) {
    const float rho = static_cast<float>(i) / 20.0f;
    profile.rho.push_back(rho);
    for (const float slant : slants) {
      profile.r.push_back(rho + slant * rho * (1.0f - rho));
    }
  }
  return profile;
}

// Gives an eviction a table, and a policy that needs it.
inline void UseTable(BudgetTable table, RequestEviction* eviction) {
  const bool is_profile = std::holds_alternative<LuKvProfile>(table);
  eviction->policy.budget.kind =
      is_profile ? BudgetKind::kLuKv : BudgetKind::kHeadKv;
  eviction->policy.budget.profile = "measured";
  eviction->table = std::make_shared<const BudgetTable>(std::move(table));
}

// One of both kinds.
inline BudgetTable SkewedTable(const ModelLayout& layout, uint32_t seed) {
  if (seed % 2 == 0) return SkewedScores(layout, seed);
  return PairedProfile(layout, seed);
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_TEST_TABLES_H_
