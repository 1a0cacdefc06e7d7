// Budget tables and tables of query statistics for tests of those who use them.
#ifndef TESTS_TESTING_TEST_TABLES_H_
#define TESTS_TESTING_TEST_TABLES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/lukv_profile.h"
#include "blockmgr/eviction/query_stats_table.h"
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

// Queries that are normal around a random mean. Their covariance is that of
// sums of `head_dim` random directions.
inline QueryStatsTable RandomQueryStats(int32_t num_layers, int32_t num_q_heads,
                                        int32_t head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  // Portable: from -1 to 1.
  const auto draw = [&random] {
    return static_cast<double>(random() % 2001) / 1000.0 - 1.0;
  };
  QueryStatsTable table;
  table.num_layers = num_layers;
  table.num_q_heads = num_q_heads;
  table.head_dim = head_dim;
  table.num_queries = 1000;
  for (int32_t head = 0; head < num_layers * num_q_heads; ++head) {
    std::vector<std::vector<double>> directions(head_dim);
    for (auto& direction : directions) {
      for (int32_t i = 0; i < head_dim; ++i) direction.push_back(draw());
    }
    for (int32_t i = 0; i < head_dim; ++i) {
      table.means.push_back(static_cast<float>(draw()));
      for (int32_t j = i; j < head_dim; ++j) {
        double covariance = 0;
        for (const auto& direction : directions) {
          covariance += direction[i] * direction[j] / head_dim;
        }
        table.covariances.push_back(static_cast<float>(covariance));
      }
    }
  }
  return table;
}

// The table of an engine under the name "measured".
inline QueryStatsTables MeasuredQueryStats(int32_t num_layers,
                                           int32_t num_q_heads,
                                           int32_t head_dim, uint32_t seed) {
  return {{"measured", std::make_shared<const QueryStatsTable>(RandomQueryStats(
                           num_layers, num_q_heads, head_dim, seed))}};
}

// What an engine announces of its tables.
inline std::map<std::string, std::string> Fingerprints(
    const QueryStatsTables& tables) {
  std::map<std::string, std::string> fingerprints;
  for (const auto& [name, table] : tables) {
    fingerprints[name] = QueryStatsFingerprint(*table);
  }
  return fingerprints;
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_TEST_TABLES_H_
