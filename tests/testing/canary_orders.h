// CanaryOrders: what an eviction order may ask of a CanaryEngine, and which
// entries the engine keeps.
//
// A check or a choice changes nothing: CanaryEngine carries the order out. An
// engine keeps random entries within the page total of the order. Its choice
// follows from the tokens and from the evictions before.
//
// Thread-compatible.
#ifndef TESTS_TESTING_CANARY_ORDERS_H_
#define TESTS_TESTING_CANARY_ORDERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables.h"
#include "tests/testing/canary_memory.h"
#include "tests/testing/canary_options.h"
#include "tests/testing/canary_sequences.h"

namespace blockmgr {

class CanaryOrders {
 public:
  // Borrows everything.
  CanaryOrders(const CanaryOptions& options, const EngineTables& tables,
               const CanarySequences& sequences, const CanaryMemory& memory)
      : options_(options),
        tables_(tables),
        layout_(tables.layout()),
        sequences_(sequences),
        memory_(memory) {}

  // Checks an order of a plan that the tables have applied. `in_flight` are the
  // steps that were in flight when the plan was issued.
  absl::Status Check(const StepPlan& plan, std::span<const StepId> in_flight,
                     const EvictionOrder& order) const;
  // Returns whether the order is one of those refused at random.
  bool IsRefused(const EvictionOrder& order) const;
  // Returns which of the entries below the order's cut every head keeps.
  KeepSets ChooseSurvivors(const EvictionOrder& order,
                           const EntryIndex& entries) const;
  // Checks that no page of a region serves a head of another shard.
  absl::Status CheckShards(const RaggedRegion& region) const;

 private:
  // Checks the page totals and the number of destinations of an order that has
  // `num_below` blocks to keep entries of.
  absl::Status CheckTotals(const EvictionOrder& order, int64_t num_below) const;
  // Returns the pages that each shard may have by the order's policy.
  std::vector<int64_t> PageTotals(const EvictionOrder& order) const;

  const CanaryOptions& options_;
  const EngineTables& tables_;
  const ModelLayout& layout_;
  const CanarySequences& sequences_;
  const CanaryMemory& memory_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_ORDERS_H_
