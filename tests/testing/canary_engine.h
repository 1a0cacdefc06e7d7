// CanaryEngine: a fake engine that is told only StepPlans, and notices when any
// of them makes it read or write the wrong place.
//
// EngineTables read the plans, as in every engine, and refuse those that
// contradict themselves or what came before. The canary follows contents:
//
//   CanarySequences  what every position of a sequence must hold
//   CanaryMemory     what every slot holds: a tag instead of K and V
//   CanaryOrders     what an eviction order may ask, and what it keeps
//
// Every step writes the tags of its new tokens and reads the tags of all
// positions that its sequences should still have. A tag that is not the
// expected one, or one of the checks on blocks below, shows each of these bugs:
//
//   - a use after free, and aliasing
//   - a block that is handed out before the steps in flight are over
//   - a prefix hit on the wrong content
//   - a region that manager and engine lay out differently
//   - with several shards, a page that serves a head of another shard
//
// Plans may be queued and executed late, in order. A plan that Execute has not
// answered yet is in flight. Sampled tokens depend on the tokens before them
// alone, so any schedule must produce the tokens of a request run alone.
//
// An error says what was expected and what came. The engine is useless after.
// Thread-compatible. Cost of a step: O(entries of the scheduled sequences).
#ifndef TESTS_TESTING_CANARY_ENGINE_H_
#define TESTS_TESTING_CANARY_ENGINE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables.h"
#include "tests/testing/canary_memory.h"
#include "tests/testing/canary_options.h"
#include "tests/testing/canary_orders.h"
#include "tests/testing/canary_sequences.h"

namespace blockmgr {

class CanaryEngine {
 public:
  CanaryEngine(const ModelLayout& layout, int32_t max_sequences,
               const CanaryOptions& options);
  CanaryEngine(const CanaryEngine&) = delete;
  CanaryEngine& operator=(const CanaryEngine&) = delete;

  // Accepts a plan for later. Errors: no sequence runs, or the id is too low.
  absl::Status Enqueue(const StepPlan& plan);
  int32_t num_queued() const { return static_cast<int32_t>(queue_.size()); }
  // Returns the oldest plan. REQUIRES: num_queued() > 0.
  const StepPlan& next() const { return queue_.front().plan; }
  // Executes the oldest plan. REQUIRES: num_queued() > 0.
  absl::StatusOr<StepResult> Execute();
  // From now on the engine refuses every eviction, or only those that the
  // options say.
  void RefuseOrders(bool refuse) { refuses_all_ = refuse; }
  // The step executed next reports these blocks as lost, and loses their tags.
  // From then on nobody believes a sequence that holds one of them, and what it
  // samples is wrong, until it is released or starts again.
  void LoseBlocks(const std::vector<BlockId>& blocks) {
    memory_.LoseBlocks(blocks);
  }
  // The step executed next does not copy to these host blocks what it should,
  // nor did those before, and says so.
  void LoseHostBlocks(const std::vector<HostBlockId>& blocks) {
    memory_.LoseHostBlocks(blocks);
  }
  // Returns whether the sequence holds a block whose content is lost.
  bool IsDamaged(SequenceSlot slot) const;
  // Loses all memory, tables and plans, like a new engine.
  void Restart();

  bool is_open(SequenceSlot slot) const {
    return sequences_.contents(slot).is_open;
  }
  // Returns what plans have made of the sequence. REQUIRES: is_open(slot).
  const SequenceTable& row(SequenceSlot slot) const {
    return tables_.row(slot);
  }
  // Returns the sequence's evictions, its past's included, in order.
  const std::vector<CanaryEviction>& evictions(SequenceSlot slot) const {
    return sequences_.contents(slot).evictions;
  }
  // Returns the positions of the entries of a group's region, head after head.
  const std::vector<int32_t>& positions(SequenceSlot slot,
                                        int32_t group) const {
    return sequences_.contents(slot).positions[group];
  }
  // Returns the evictions that made a region. REQUIRES: an executed order told
  // to keep it, and no executed plan to drop it.
  const std::vector<CanaryEviction>& evictions(RegionId id) const {
    return sequences_.evictions(id);
  }
  // Returns what a request that runs alone outputs. Stop strings and min_tokens
  // are all that counts of `sampling`.
  std::vector<int32_t> OutputsAlone(
      std::span<const int32_t> prompt, int32_t max_tokens,
      std::span<const int32_t> stop_token_ids,
      const std::optional<SamplingParams>& sampling = std::nullopt) const;
  // Returns the text of a token, for stop strings: two letters.
  static std::string TextOf(int32_t token);
  // Returns the first stop string that ends in the text of the last of
  // `outputs`. All of their text is looked at.
  static std::optional<int32_t> StopAfter(
      const std::optional<SamplingParams>& sampling,
      std::span<const int32_t> outputs);

 private:
  struct Queued {
    StepPlan plan;
    std::vector<StepId> in_flight;  // when it was issued
  };

  // Checks that nobody else has the blocks that a plan hands out. Their old
  // losses do not matter any more.
  absl::Status CheckNewBlocks(const Queued& queued);
  absl::Status Compute(const StepPlan& plan, StepResult* result);
  absl::Status ComputeRun(const StepPlan& plan, size_t run,
                          std::span<const int32_t> holders);
  // Writes the tags of the position computed last.
  absl::Status Write(SequenceSlot slot, int32_t group, int32_t position,
                     std::span<const int32_t> holders);
  absl::Status ReadAll(SequenceSlot slot) const;
  absl::Status CheckTag(SequenceSlot slot, int32_t group, int32_t head_index,
                        int32_t position, SlotIndex place) const;
  int32_t SampleAfter(uint64_t chain) const;
  // Returns the stop string of the slot's request that ends in its first
  // `length` tokens.
  std::optional<int32_t> StopAt(SequenceSlot slot, size_t length) const;
  // Forgets the drafts that were not accepted, and the blocks behind the
  // accepted ones.
  void Verify(const StepPlan& plan, size_t run, StepResult* result);
  void ProposeDrafts(SequenceSlot slot);
  absl::Status CarryOut(const StepPlan& plan, const EvictionOrder& order,
                        EvictionOutcome* outcome);

  const ModelLayout layout_;
  const CanaryOptions options_;
  EngineTables tables_;
  CanarySequences sequences_;
  CanaryMemory memory_;
  const CanaryOrders orders_;
  std::deque<Queued> queue_;
  bool refuses_all_ = false;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_ENGINE_H_
