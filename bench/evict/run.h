// The results of `blockmgr-evict run`, as text and as files.
#ifndef BENCH_EVICT_RUN_H_
#define BENCH_EVICT_RUN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/evict/policy_runner.h"
#include "bench/evict/tensors.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// One run and what it was asked.
struct RunReport {
  std::string policy;  // canonical text
  EvictionTarget target;
  bool external = false;  // budgets of the caller's; the target is not read
  int32_t block = 0;      // 0: all at once
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t length = 0;
  int32_t page_size = 0;
  int64_t row_bytes = 0;  // of one K or V; 0: unknown, scores alone were given
  PolicyRun run;

  int64_t num_entries() const {
    return int64_t{num_layers} * num_heads * length;
  }
  int64_t num_kept() const {
    return static_cast<int64_t>(run.keep.ranks.size());
  }
  // The bytes of K and V, in whole pages.
  int64_t kept_bytes() const;
  int64_t full_bytes() const;
  std::span<const int32_t> Budgets(int32_t layer) const;
};

// A table: per layer the smallest, median and largest budget and their sum.
std::string FormatRun(const RunReport& report);

// Returns the report with all kept positions: {"policy", "keep_ratio",
// "keep_tokens" or "external_budgets", "num_kept", .., "budgets":
// [layer][head], "positions": [layer][head][rank]}.
nlohmann::ordered_json RunJson(const RunReport& report);

// Kept positions as [num_layers, num_heads, largest budget], ascending, filled
// up with -1; `shape` is set to these sizes.
std::vector<int32_t> PaddedPositions(const RunReport& report,
                                     std::vector<int64_t>* shape);

}  // namespace blockmgr

#endif  // BENCH_EVICT_RUN_H_
