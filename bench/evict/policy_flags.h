// The flags by which the subcommands that compare policies take them.
#ifndef BENCH_EVICT_POLICY_FLAGS_H_
#define BENCH_EVICT_POLICY_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "bench/evict/parity_policy.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/tensors.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/query_stats_table.h"

namespace blockmgr {

struct PolicyFlags {
  std::vector<std::string> policies;  // --policy, repeated
  std::vector<std::string> tables;    // --table, repeated
  std::string budgets;                // --budgets
  int32_t page_size = 16;             // --page-size
  std::string dtype = "float32";      // --dtype
};

void AddPolicyFlags(CLI::App& app, PolicyFlags* flags);

// A policy and what it needs beside tensors, ready to run.
struct NamedPolicy {
  std::string name;  // its canonical text
  ParityPolicy policy;
  PolicyRunOptions options;  // tables are borrowed from PolicyList
};

struct PolicyList {
  std::vector<BudgetTable> tables;
  std::vector<QueryStatsTable> query_stats;
  std::vector<NamedPolicy> policies;

  // Returns whether no policy reads how much to keep.
  bool all_external() const;
};

// Parses policies and reads tables; a policy that names a table gets the only
// one of its kind, one with external budgets those of --budgets. Errors
// name the flag, expected and got.
absl::StatusOr<PolicyList> ReadPolicies(const PolicyFlags& flags);

// "0.2" -> what is kept. The error names `flag`.
absl::StatusOr<EvictionTarget> ParseTarget(const std::string& flag,
                                           const std::string& keep_ratio);

// Returns the target of --keep-ratio, 0.2 unless it is given. Errs if it is
// given though all budgets are external.
absl::StatusOr<EvictionTarget> ResolveKeepRatio(
    const std::optional<std::string>& keep_ratio, const PolicyList& list);

// Returns "keep ratio 0.2", or "external budgets" of an empty ratio.
std::string KeepText(const std::string& keep_ratio);

}  // namespace blockmgr

#endif  // BENCH_EVICT_POLICY_FLAGS_H_
