// SimEngine: a host engine of a large model that computes nothing but time.
//
// Per step, with the sums over the scheduled sequences, n query tokens each:
//
//   products:   flops = 2 * (layer_params * sum(n)
//                            + output_params * sum(tokens sampled from))
//               bytes = (layer_params + output_params) * weight_bytes
//   attention:  flops = 4 * head_dim * group_size * sum(entries attended)
//               bytes = sum(entries live) * 2 * row_bytes
//   time = max(flops / model.flops, bytes / model.bandwidth)  of products
//          + max(flops / model.attention_flops, bytes /
//                model.attention_bandwidth)                   of attention
//          + step_overhead_s                                    [seconds]
//
// Each of the two is a roofline (Williams, Waterman, Patterson 2009). They add
// up, because a layer's products wait for its attention, and the other way
// round. A token is sampled from if logits are computed for it: the last token
// of a run that samples, and its drafts. A step without such tokens does not
// read the output layer. The live entries of a sequence, summed over layers and
// heads, are its region's kept entries plus num_layers * num_heads * (tail
// tokens after the step). A step reads them once, for any n. A query attends to
// the region and to the tail up to itself. A step that schedules no tokens
// costs the overhead alone.
//
// Each of several shards is such a GPU, with its heads and an even part of the
// parameters. A step takes as long as its slowest shard. Communication between
// shards is part of step_overhead_s.
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

// SimModel is the simulated model and GPU. The defaults are Llama-3.1-8B in
// bf16 on one H100 (80 GB), with the effective rates of a well tuned engine.
struct SimModel {
  // Limits far above any hardware, and low enough that no sum of step times is
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
  // See ModelLayout. With group_windows, every group has num_layers layers.
  int32_t window = 0;
  std::vector<int32_t> group_windows = {};
  // The parameters that every token is multiplied by, and those of the output
  // layer, which makes logits. A table of embeddings that is not the output
  // layer counts as neither, because only a row of it is read for a token.
  double layer_params = 6.98e9;
  double output_params = 0.525e9;
  int32_t weight_bytes = 2;  // per parameter
  // The rates of the products, and those of attention: FLOP/s and bytes/s.
  double flops = 400e12;
  double bandwidth = 3.0e12;
  double attention_flops = 400e12;
  double attention_bandwidth = 3.0e12;
  double step_overhead_s = 0.0;
  double host_bandwidth = 50e9;  // bytes/s to host memory, or back
  // The sigma of the lognormal weights of the heads. With 0.55, the largest of
  // 256 heads keeps about 4 times the mean if all heads share one budget, and
  // 3 times if the 8 heads of each layer share one. With 0, all heads keep the
  // same.
  double head_concentration = 0.55;
  // The number of drafts proposed after every sampled token, and the
  // probability that a draft is accepted if all drafts before it are.
  int32_t num_drafts = 0;
  double draft_acceptance = 0.7;

  // Checks the ranges of the fields that are not part of the layout. The flags
  // have the same ranges (sim_flags.h).
  absl::Status Validate() const;
};

// Returns the layout of a bf16 pool of `num_blocks` blocks for `model`.
ModelLayout MakeLayout(const SimModel& model, int32_t num_blocks);

class SimEngine {
 public:
  // REQUIRES: `layout` and `model` are valid, num_host_blocks >= 0.
  SimEngine(const ModelLayout& layout, const SimModel& model, uint64_t seed,
            int32_t num_host_blocks = 0);

  // Executes a plan and returns how long that takes, in seconds.
  // REQUIRES: the plan fits the tables. TryRun reports a plan that does not.
  double Run(const StepPlan& plan, StepResult* result);
  // Executes a plan from outside. If the plan contradicts the tables, returns
  // an error and changes nothing.
  absl::StatusOr<double> TryRun(const StepPlan& plan, StepResult* result);

  // Forgets every sequence, as after a new attachment.
  void Reset() { tables_.Reset(); }

  const EngineTables& tables() const { return tables_; }

 private:
  double StepSeconds(const StepPlan& plan) const;
  // Returns the time of the products with parameters, in one shard.
  double ProductSeconds(const StepPlan& plan) const;
  // Returns the time of the attention of one shard's heads.
  double AttentionSeconds(const StepPlan& plan, int32_t shard) const;
  void Sample(const StepPlan& plan, StepResult* result);
  // Returns the token of a request at a position.
  int32_t TokenAt(RequestId request, int32_t position) const;
  void ProposeDrafts(SequenceSlot slot);
  absl::Status Evict(const StepPlan& plan, const EvictionOrder& order,
                     std::vector<int32_t>* counts);
  // Draws the kept entries, [num_layers, num_heads]. REQUIRES: the order was
  // checked.
  std::vector<int32_t> DrawCounts(const EvictionOrder& order) const;
  // Returns the key of the order's random draws.
  uint64_t KeyOf(const EvictionOrder& order) const;
  // Draws the kept entries of one shard's heads into `counts`.
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
