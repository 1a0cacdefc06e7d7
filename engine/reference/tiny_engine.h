// TinyEngine: executes step plans with a LanguageModel over a paged backend.
//
// TinyEngine does everything that a host engine must do, in small. It keeps the
// tables, and computes prefill chunks and decodes in one flat batch. A Sampler
// chooses the tokens. An eviction is: score, select, check the counts, lay the
// region out, move, switch tables. If asked to, TinyEngine proposes drafts by
// prompt lookup and verifies the drafts that plans take on. A layer reads and
// writes the blocks of its layer group, and every group has its own evictions.
//
// The results of a sequence depend on its tokens and evictions only, bit for
// bit, if the backends keep the promise of Backend. They do not depend on the
// batch, on the chunks of the prompt, on drafts, or on whether survivors were
// copied to fresh blocks or moved in place. There is one exception: with a
// region in a window the last bits depend on the chunks, because a chunk that
// begins before the region is past has the region's rows in its list.
//
// The KV heads are split among shards (tensor parallelism). Each shard has the
// memory of its heads, and divides an eviction's budget among them. Block ids,
// tables and the work on rows are common. If one shard refuses an order, no
// shard carries it out.
//
// Thread-compatible. Owns the shards, their backends and the host tier.
#ifndef ENGINE_REFERENCE_TINY_ENGINE_H_
#define ENGINE_REFERENCE_TINY_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/device_graphs.h"
#include "engine/reference/forward_pass.h"
#include "engine/reference/query_history.h"
#include "engine/reference/sampler.h"
#include "engine/reference/step_times.h"
#include "engine/reference/stop_strings.h"
#include "engine/reference/tiny_model.h"
#include "engine/reference/tiny_scoring.h"
#include "engine/reference/tiny_shard.h"
#include "engine/tables/tables.h"
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

// TinyObserver lets tests and measurements observe a run. Any function may be
// empty.
struct TinyObserver {
  // Called when a sequence has started in the tables.
  std::function<void(const SequenceStart& start)> on_start = {};
  // Called for every sampled token, and for every position that wants_logits
  // asks for, with the logits after the token at `position`.
  std::function<void(SequenceSlot slot, int32_t position,
                     std::span<const float> logits)>
      on_logits = {};
  // Returns whether on_logits is called for a position that nothing is sampled
  // after, as in a prompt. The logits cost one row of a product.
  std::function<bool(SequenceSlot slot, int32_t position)> wants_logits = {};
  // Called for every shard before an eviction is carried out, with the
  // candidates of the shard's heads, their scores, and the kept entries.
  std::function<void(const EvictionOrder& order, int32_t shard,
                     const ScoredEntries& scored, const KeepSets& keep)>
      on_eviction = {};
};

// Functions that inject losses in tests. They are called after every step and
// return the blocks, or host blocks, that lose their content. A sequence that
// holds a lost block is not observed until it is released or starts again.
using TinyFault = std::function<std::vector<BlockId>(const StepPlan& plan)>;
using TinyHostFault =
    std::function<std::vector<HostBlockId>(const StepPlan& plan)>;

struct TinyEngineOptions {
  int32_t max_sequences = 0;    // slots are below this
  int32_t num_host_blocks = 0;  // for sequences that are swapped out
  int32_t max_drafts = 0;       // most drafts proposed after a sampled token
  int32_t num_threads = 1;      // of the matrix products
  // The tables that expected_attention(stats=NAME) reads. REQUIRES: they are
  // for a model of this shape.
  QueryStatsTables query_stats = {};
  // For stop strings. Empty: the engine finds none.
  TokenTexts token_texts = {};
  // Whether decode steps on a device are captured in graphs and replayed. The
  // results are the same, but for what the forward pass says of other rows.
  bool captures_graphs = true;
};

class TinyEngine {
 public:
  // Takes one backend per shard (see CreateCpuShards). REQUIRES: `layout` is
  // the model's (MakeLayout), except for num_shards. The layout of each backend
  // is layout.ShardLayout(). `forward` computes what works on rows, on the
  // backends' device if it is on a device. Null stands for the CPU.
  TinyEngine(std::shared_ptr<const LanguageModel> model,
             const ModelLayout& layout,
             std::vector<std::unique_ptr<Backend>> backends,
             const TinyEngineOptions& options,
             std::unique_ptr<ForwardPass> forward = nullptr);

  // Executes a plan. If the plan contradicts the tables, returns
  // InvalidArgument and changes nothing. A bad eviction order does not fail the
  // step: its outcome says why, and the old table still holds.
  absl::Status Run(const StepPlan& plan, StepResult* result);

  // Forgets every sequence, as after a new attachment.
  void Reset();

  void set_observer(TinyObserver observer) { observer_ = std::move(observer); }
  void set_fault(TinyFault fault) { fault_ = std::move(fault); }
  void set_host_fault(TinyHostFault fault) { host_fault_ = std::move(fault); }
  const EngineTables& tables() const { return tables_; }
  const LanguageModel& model() const { return *model_; }
  const QueryStatsTables& query_stats() const { return query_stats_; }
  // Returns the times of steps on a device. Steps that begin before the device
  // is idle, do not wait for it, or load or capture kernels are left out.
  const StepTimes& step_times() const { return step_times_; }
  const DeviceGraphs& graphs() const { return graphs_; }
  // Returns why decode steps run layer by layer since the last Reset, or OK:
  // the device has had no room for what they keep.
  const absl::Status& decode_error() const { return decode_error_; }

 private:
  void StartSequences(const StepPlan& plan);
  // Flattens the plan's tokens into tokens_, positions_, ... below.
  void LayOutBatch(const StepPlan& plan);
  void RunLayers(const StepPlan& plan, const TinyBatch& batch);

  // Decode steps on a device (tiny_decode.cc).
  bool CanDecode(const StepPlan& plan) const;
  // Computes a step, logits included, in which every sequence has one token.
  // Returns false if this is another step, which RunLayers must compute.
  bool RunDecode(const StepPlan& plan, const TinyBatch& batch);
  // Uploads what a decode step of num_rows rows reads, and makes room. Returns
  // ResourceExhausted if the device has none.
  absl::Status PrepareDecode(const StepPlan& plan, const TinyBatch& batch,
                             int32_t num_rows);
  // Moves the queries of a sequence that scores may read from the history of
  // decode steps to the shards.
  void TakeQueries(SequenceSlot slot);
  // Returns whether shards keep the query of a row.
  bool KeepsQuery(const QueryHistory::Row& row) const;
  void KeepQuery(const QueryHistory::Row& row, int32_t shard,
                 std::span<const std::byte> queries);
  void NoteTime(const StepPlan& plan,
                std::chrono::steady_clock::time_point begin);

  // Sampling (tiny_sampling.cc).
  // Returns what the start of the slot's sequence has said, or null.
  const RequestInfo* InfoOf(SequenceSlot slot) const;
  void NoteInfos(const StepPlan& plan);
  void Sample(const StepPlan& plan, StepResult* result);
  // Computes the logits after every row that is sampled, in one product.
  void ComputeLogits(const StepPlan& plan);
  // Has a device draw what it can after the rows of ComputeLogits: fills
  // drawn_.
  void DrawOnDevice(const StepPlan& plan);
  // Returns the stop string of a request that ends in `token`, the output
  // behind `tokens`.
  std::optional<int32_t> StopAfter(const RequestInfo* info,
                                   std::span<const int32_t> tokens,
                                   int32_t token) const;
  // Samples for one run, and adds rows if the request asks for them.
  void SampleRun(const StepPlan& plan, size_t run, TokenLogProbs* rows,
                 StepResult* result);
  // Adds rows for the prompt's tokens behind the positions of a run, if the
  // request asks for them.
  void AddPromptLogProbs(const StepPlan& plan, size_t run, TokenLogProbs* rows);
  // Shows the observer the logits of a run that it wants and that nothing is
  // sampled from.
  void ShowLogits(const StepPlan& plan, size_t run);
  // Returns `rows`, ready for rows with num_top tokens, or null if no rows are
  // asked for.
  TokenLogProbs* RowsFor(const std::optional<int32_t>& num_top,
                         TokenLogProbs* rows) const;
  // Returns the token after a row of the batch. Adds its row to `logprobs`,
  // unless that is null.
  int32_t SampleAfter(SequenceSlot slot, size_t row, TokenLogProbs* logprobs);

  // Swap (tiny_swap.cc).
  void SwapOutSequences(const StepPlan& plan, StepResult* result);
  // Reports the blocks that came back from lost host blocks.
  void NoteSwapIns(const StepPlan& plan, StepResult* result);
  void LoseHostBlocks(std::span<const HostBlockId> blocks, StepResult* result);

  // Losses (tiny_losses.cc).
  // Updates lost_ for a plan: blocks that it writes anew are not lost any more,
  // copies of lost blocks are lost.
  void ForgetLosses(const StepPlan& plan, StepResult* result);
  void Lose(std::span<const BlockId> blocks, StepResult* result);
  // Marks the blocks that the step computed from lost blocks as lost. In a
  // model with windows, the lost blocks may leave the window before the blocks
  // computed from them.
  void SpreadLosses(const StepPlan& plan);
  // Returns whether queries from position length - 1 on attend to a lost block.
  bool IsLostTo(const SequenceTable& table, int32_t length) const;
  bool IsDamaged(SequenceSlot slot) const;

  absl::Status Evict(const StepPlan& plan, const EvictionOrder& order,
                     EvictionOutcome* outcome);

  const std::shared_ptr<const LanguageModel> model_;
  const ModelLayout layout_;
  const int32_t max_drafts_;
  const QueryStatsTables query_stats_;
  const TokenTexts token_texts_;
  ThreadPool threads_;
  Sampler sampler_;
  EngineTables tables_;
  std::deque<TinyShard> shards_;  // they borrow model and tables
  // After the shards, whose backends may own its device.
  std::unique_ptr<ForwardPass> forward_;
  DeviceGraphs graphs_;
  std::optional<QueryHistory> history_;  // on a device
  absl::Status decode_error_;            // since the last Reset
  StepTimes step_times_;
  // Whether the last step has waited for the device.
  bool device_is_idle_ = true;
  std::vector<std::shared_ptr<const RequestInfo>> infos_;  // by slot
  absl::flat_hash_set<BlockId> lost_;
  absl::flat_hash_set<HostBlockId> lost_host_;
  TinyObserver observer_;
  TinyFault fault_;
  TinyHostFault host_fault_;

  // The batch of the current step. The vectors keep their memory.
  std::vector<int32_t> tokens_;     // [total tokens]
  std::vector<int32_t> positions_;  // [total tokens]
  // [num_groups][total tokens]
  std::vector<std::vector<int64_t>> slot_mappings_;
  std::vector<int32_t> query_offsets_;  // [scheduled + 1]
  int32_t decode_rows_ = 0;  // of RunDecode; 0 if it has returned false
  bool is_steady_ = true;    // false: the step was the first, or captured
  std::vector<uint64_t> graph_arguments_;
  std::vector<QueryHistory::Row> history_rows_;  // empty: none keeps queries
  std::vector<size_t> logit_rows_;
  // The token that a device has drawn after each of logit_rows_; -1 if the host
  // must. Empty without a device.
  std::vector<int32_t> drawn_;
  std::vector<RowDraw> draws_;
  std::vector<LogitEdit> edits_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_ENGINE_H_
