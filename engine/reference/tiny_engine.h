// TinyEngine: executes step plans with a TinyModel over a paged backend.
//
// The whole of a host engine's duty in small: it keeps the tables, computes
// prefill chunks and decodes mixed in one flat batch, decodes greedily (the
// lowest index wins a tie), and carries out evictions: score, select, check the
// counts, lay the region out, move, switch tables. Asked to, it proposes drafts
// by prompt lookup and verifies those that plans take on. What it computes for
// a sequence depends on the sequence's tokens and evictions alone, bit for bit:
// neither on the batch, nor on how the prompt was cut into chunks, nor on
// drafts, nor on whether survivors were copied to fresh blocks or moved in
// place (as far as the backends hold to what Backend says of bits). With a
// region in a window the last bits do depend on the chunks: the rows of the
// region are in the list of a chunk that begins before it is past. A layer
// reads and writes the blocks of its layer group, and every group has its
// evictions.
//
// The KV heads are split among shards (tensor parallelism): each computes with
// its heads in a memory of its own and allocates an eviction's budgets among
// them; block ids, tables and all work on rows are common. An order that any
// shard refuses is carried out by none.
//
// Thread-compatible. Owns the shards, their backends and the host tier.
#ifndef ENGINE_REFERENCE_TINY_ENGINE_H_
#define ENGINE_REFERENCE_TINY_ENGINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include "blockmgr/eviction/select.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/tiny_model.h"
#include "engine/reference/tiny_scoring.h"
#include "engine/reference/tiny_shard.h"
#include "engine/tables/tables.h"
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
  // An eviction about to be carried out, shard by shard: its candidates, what
  // the policy read of them, and what is kept, all of the shard's heads.
  std::function<void(const EvictionOrder& order, int32_t shard,
                     const ScoredEntries& scored, const KeepSets& keep)>
      on_eviction = {};
};

// Asked after every step: blocks whose memory is to lose its content. Sequences
// that hold one are not observed until they are released or start again.
using TinyFault = std::function<std::vector<BlockId>(const StepPlan& plan)>;
// The same of host blocks.
using TinyHostFault =
    std::function<std::vector<HostBlockId>(const StepPlan& plan)>;

struct TinyEngineOptions {
  int32_t max_sequences = 0;    // slots are below it
  int32_t num_host_blocks = 0;  // for sequences that are swapped out
  int32_t max_drafts = 0;       // proposed after a sampled token; 0: none
};

class TinyEngine {
 public:
  // One backend per shard (see CreateCpuShards). REQUIRES: `layout` is the
  // model's (see MakeLayout), but for num_shards; the backends' are its
  // ShardLayout().
  TinyEngine(std::shared_ptr<const TinyModel> model, const ModelLayout& layout,
             std::vector<std::unique_ptr<Backend>> backends,
             const TinyEngineOptions& options);

  // Executes a plan. InvalidArgument, with nothing changed, for a plan that
  // contradicts the tables. A bad eviction order is no error of the step: its
  // outcome says why, and the old table still holds.
  absl::Status Run(const StepPlan& plan, StepResult* result);

  // Forgets every sequence, as after a new attachment.
  void Reset();

  void set_observer(TinyObserver observer) { observer_ = std::move(observer); }
  void set_fault(TinyFault fault) { fault_ = std::move(fault); }
  void set_host_fault(TinyHostFault fault) { host_fault_ = std::move(fault); }
  const EngineTables& tables() const { return tables_; }
  const TinyModel& model() const { return *model_; }

 private:
  void StartSequences(const StepPlan& plan);
  // Flattens the plan's tokens into tokens_, positions_, ... below.
  void LayOutBatch(const StepPlan& plan);
  void Sample(const StepPlan& plan, StepResult* result);
  // The likeliest token after a row of the batch.
  int32_t SampleAfter(SequenceSlot slot, size_t row);

  // Swap (tiny_swap.cc).
  void SwapOutSequences(const StepPlan& plan, StepResult* result);
  // Which of the blocks that came back have lost content.
  void NoteSwapIns(const StepPlan& plan, StepResult* result);
  void LoseHostBlocks(std::span<const HostBlockId> blocks, StepResult* result);

  // Losses (tiny_losses.cc).
  // What the plan writes anew is not lost any more, what it copies may be.
  void ForgetLosses(const StepPlan& plan, StepResult* result);
  void Lose(std::span<const BlockId> blocks, StepResult* result);
  // What is computed from lost blocks is lost as well: in a model with windows
  // they fall out of sight, and what came of them does not.
  void SpreadLosses(const StepPlan& plan);
  // Whether what queries from position `length` - 1 on attend to is lost.
  bool IsLostTo(const SequenceTable& table, int32_t length) const;
  bool IsDamaged(SequenceSlot slot) const;

  absl::Status Evict(const StepPlan& plan, const EvictionOrder& order,
                     EvictionOutcome* outcome);

  const std::shared_ptr<const TinyModel> model_;
  const ModelLayout layout_;
  const int32_t max_drafts_;
  TinyForward forward_;
  EngineTables tables_;
  std::deque<TinyShard> shards_;  // they borrow model and tables
  absl::flat_hash_set<BlockId> lost_;
  absl::flat_hash_set<HostBlockId> lost_host_;
  TinyObserver observer_;
  TinyFault fault_;
  TinyHostFault host_fault_;

  // The batch of the current step, kept for its memory.
  std::vector<int32_t> tokens_;     // [total tokens]
  std::vector<int32_t> positions_;  // [total tokens]
  // [num_groups][total tokens]
  std::vector<std::vector<int64_t>> slot_mappings_;
  std::vector<int32_t> query_offsets_;  // [scheduled + 1]
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_ENGINE_H_
