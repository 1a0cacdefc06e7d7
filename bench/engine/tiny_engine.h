// TinyEngine: executes step plans with a TinyModel over a paged backend.
//
// The whole of a host engine's duty in small: it keeps the tables, computes
// prefill chunks and decodes mixed in one flat batch, decodes greedily (the
// lowest index wins a tie), and carries out evictions: score, select, check the
// counts, lay the region out, move, switch tables. Asked to, it proposes drafts
// by prompt lookup and verifies those that plans take on. What it computes for
// a sequence depends on the sequence's tokens and evictions alone, bit for bit:
// neither on the batch, nor on how the prompt was cut into chunks, nor on
// drafts.
//
// Thread-compatible. Owns the backend; memory beyond it: tables, the kept
// queries ((query_window + max_drafts) * layers * q_width floats per sequence)
// and, per region slot, 4 bytes of position.
#ifndef BENCH_ENGINE_TINY_ENGINE_H_
#define BENCH_ENGINE_TINY_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include "bench/engine/tables.h"
#include "bench/engine/tiny_model.h"
#include "bench/engine/tiny_scoring.h"
#include "blockmgr/compaction.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/step_plan.h"
#include "kernels/backend.h"

namespace blockmgr {

// What tests see of a run. Any function may be empty.
struct TinyObserver {
  // A sequence starts; the tables know it.
  std::function<void(const SequenceStart& start)> on_start = {};
  // Logits after the token at `position`, for every sampled token.
  std::function<void(SequenceSlot slot, int32_t position,
                     std::span<const float> logits)>
      on_logits = {};
  // An eviction about to be carried out: its candidates, what the policy read
  // of them, and what is kept.
  std::function<void(const EvictionOrder& order, const ScoredEntries& scored,
                     const KeepSets& keep)>
      on_eviction = {};
};

// Asked after every step: blocks whose memory is to lose its content. Sequences
// that hold one are not observed until they are released or start again.
using TinyFault = std::function<std::vector<BlockId>(const StepPlan& plan)>;

class TinyEngine {
 public:
  // max_drafts: that are proposed after a sampled token; 0: none.
  // REQUIRES: the backend's layout is the model's (see MakeLayout).
  TinyEngine(std::shared_ptr<const TinyModel> model,
             std::unique_ptr<Backend> backend, int32_t max_sequences,
             int32_t max_drafts = 0);

  // Executes a plan. InvalidArgument, with nothing changed, for a plan that
  // contradicts the tables. A bad eviction order is no error of the step: its
  // outcome says why, and the old table still holds.
  absl::Status Run(const StepPlan& plan, StepResult* result);

  // Forgets every sequence, as after a new attachment.
  void Reset();

  void set_observer(TinyObserver observer) { observer_ = std::move(observer); }
  void set_fault(TinyFault fault) { fault_ = std::move(fault); }
  const EngineTables& tables() const { return tables_; }
  const TinyModel& model() const { return *model_; }

 private:
  // Immutable: sequences, and those to come, may share it.
  struct Region {
    RaggedRegion layout;
    std::vector<int32_t> positions;  // by slot of the region
  };
  // What the tables do not know of a sequence.
  struct Sequence {
    std::shared_ptr<const Region> region;  // null: none
    ScoringState scoring;

    const RaggedRegion* layout() const {
      return region == nullptr ? nullptr : &region->layout;
    }
  };

  void StartSequences(const StepPlan& plan);
  // Flattens the plan's tokens into tokens_, positions_, ... below.
  void LayOutBatch(const StepPlan& plan);
  void RunLayer(const StepPlan& plan, int32_t layer);
  // Shows the layer's queries to what scores will be made of.
  void Observe(const StepPlan& plan, int32_t layer);
  // Live entries of a sequence, those of this step included.
  EntryIndex AllEntries(SequenceSlot slot);
  void Sample(const StepPlan& plan, StepResult* result);
  // The likeliest token after a row of the batch.
  int32_t SampleAfter(SequenceSlot slot, size_t row);

  // Losses (tiny_losses.cc).
  // What the plan writes anew is not lost any more, what it copies may be.
  void ForgetLosses(const StepPlan& plan, StepResult* result);
  void Lose(std::span<const BlockId> blocks, StepResult* result);
  bool IsDamaged(SequenceSlot slot) const;

  absl::Status Evict(const StepPlan& plan, const EvictionOrder& order,
                     std::vector<int32_t>* counts);
  Sequence& sequence(SequenceSlot slot) {
    return sequences_[static_cast<size_t>(Index(slot))];
  }

  const std::shared_ptr<const TinyModel> model_;
  const std::unique_ptr<Backend> backend_;
  const ModelLayout layout_;
  const float scale_;  // 1 / sqrt(head_dim)
  const int32_t max_drafts_;
  TinyForward forward_;
  TinyScoring scoring_;
  EngineTables tables_;
  std::vector<Sequence> sequences_;  // by slot
  // Kept for sequences to come.
  absl::flat_hash_map<RegionId, std::shared_ptr<const Region>> regions_;
  absl::flat_hash_set<BlockId> lost_;
  TinyObserver observer_;
  TinyFault fault_;

  // The batch of the current step, kept for its memory.
  std::vector<int32_t> tokens_;         // [total tokens]
  std::vector<int32_t> positions_;      // [total tokens]
  std::vector<int64_t> slot_mapping_;   // [total tokens]
  std::vector<int32_t> query_offsets_;  // [scheduled + 1]
  std::vector<SequenceKv> kv_;          // [scheduled]
  // [scheduled]; empty where nothing is accumulated
  std::vector<EntryIndex> entries_;
};

}  // namespace blockmgr

#endif  // BENCH_ENGINE_TINY_ENGINE_H_
