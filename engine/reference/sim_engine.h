// SimEngine: a host engine of a large model that computes nothing but time.
//
// Per step, with the sums over the scheduled sequences, n query tokens each:
//
//   flops  = 2 * num_params * sum(n)
//            + 4 * head_dim * group_size * sum(entries attended)
//   bytes  = num_params * weight_bytes + sum(entries live) * 2 * row_bytes
//   time   = max(flops / model.flops, bytes / model.bandwidth)
//            + step_overhead_s                                  [seconds]
//
// where a sequence's live entries, summed over layers and heads, are its
// region's kept entries plus num_layers * num_heads * (tail tokens after the
// step); they are read once a step whatever n is. Query j attends the region
// and the tail up to itself. (The roofline model: Williams, Waterman, Patterson
// 2009.) A step that schedules no tokens costs the overhead alone. Of several
// shards each is such a GPU, with its heads and its even part of the
// parameters, and a step takes as long as the slowest; what shards say to each
// other is part of step_overhead_s.
//
// An eviction divides the budget as the policy says (BudgetsByWeight). Where an
// engine would divide by scores, the simulated engine draws a lognormal weight
// per (layer, head) instead. The draw depends on the seed, the request and the
// number of evictions that the request has had since its start. Sampled tokens
// are a function of request and position. Drafts are right one by one with the
// model's draft_acceptance, and cost nothing to propose.
//
// Thread-compatible. Cost of a step: O(scheduled sequences + tokens of starts),
// plus O(num_layers * num_heads) per eviction.
#ifndef ENGINE_REFERENCE_SIM_ENGINE_H_
#define ENGINE_REFERENCE_SIM_ENGINE_H_

#include <cstdint>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables.h"

namespace blockmgr {

// What is simulated. Defaults: Llama-3.1-8B in bf16 on one H100 (80 GB), with
// the effective rates that a well tuned engine sees.
struct SimModel {
  // Far above anything there is, and low enough that no sum of step times is
  // infinite.
  static constexpr double kMaxParams = 1e18;
  static constexpr double kMaxPerSecond = 1e24;  // FLOP or bytes
  static constexpr double kMaxStepOverhead = 1e6;

  int32_t num_layers = 32;
  int32_t num_heads = 8;
  int32_t num_q_heads = 32;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  int32_t num_shards = 1;
  // As in ModelLayout: num_layers is of each group.
  int32_t window = 0;
  std::vector<int32_t> group_windows = {};
  double num_params = 8.03e9;
  int32_t weight_bytes = 2;   // per parameter
  double flops = 400e12;      // FLOP/s
  double bandwidth = 3.0e12;  // bytes/s
  double step_overhead_s = 0.0;
  double host_bandwidth = 50e9;  // bytes/s to host memory, or back
  // Sigma of the lognormal shares of the heads. 0.55 makes the largest of 256
  // heads keep about 4 times the mean where all share one total, and 3 times
  // where the 8 of each layer do; 0 makes all alike.
  double head_concentration = 0.55;
  // Drafts proposed after every sampled token, and how likely each is what the
  // model samples, as long as those before it are.
  int32_t num_drafts = 0;
  double draft_acceptance = 0.7;

  // Ranges of the fields that are not part of the layout: those of the flags
  // (sim_flags.h).
  absl::Status Validate() const;
};

// The layout of a bf16 pool of `num_blocks` blocks for `model`.
ModelLayout MakeLayout(const SimModel& model, int32_t num_blocks);

class SimEngine {
 public:
  // REQUIRES: `layout` and `model` are valid, num_host_blocks >= 0.
  SimEngine(const ModelLayout& layout, const SimModel& model, uint64_t seed,
            int32_t num_host_blocks = 0);

  // Executes a plan and returns how long that takes, in seconds.
  // REQUIRES: the plan fits the tables. TryRun reports a plan that does not.
  double Run(const StepPlan& plan, StepResult* result);
  // The same for plans from outside: an error, with nothing changed, for a plan
  // that contradicts the tables.
  absl::StatusOr<double> TryRun(const StepPlan& plan, StepResult* result);

  // Forgets every sequence, as after a new attachment.
  void Reset() { tables_.Reset(); }

  const EngineTables& tables() const { return tables_; }

 private:
  double StepSeconds(const StepPlan& plan) const;
  // Without the overhead.
  double ShardSeconds(const StepPlan& plan, int32_t shard) const;
  void Sample(const StepPlan& plan, StepResult* result);
  // The token of a request at a position.
  int32_t TokenAt(RequestId request, int32_t position) const;
  void ProposeDrafts(SequenceSlot slot);
  absl::Status Evict(const StepPlan& plan, const EvictionOrder& order,
                     std::vector<int32_t>* counts);
  // Kept entries per (layer, head). REQUIRES: the order was checked.
  std::vector<int32_t> DrawCounts(const EvictionOrder& order) const;
  // Of its draws.
  uint64_t KeyOf(const EvictionOrder& order) const;
  // The same of one shard's heads: fills their places in `counts`.
  void DrawShard(const EvictionOrder& order, int32_t shard,
                 std::vector<int32_t>* counts) const;

  const ModelLayout layout_;
  const SimModel model_;
  const uint64_t seed_;
  EngineTables tables_;
  std::vector<int32_t> drafts_;  // scratch
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_SIM_ENGINE_H_
