// TinyShard: one rank of the tiny engine.
//
// TinyShard keeps the KV heads of one shard in its own memory and the page
// lists of its regions. It attends with its query heads, and its backend
// scores, selects and moves the entries of its heads. Block ids and counts come
// from the tables, which all shards share. A shard does not know the pages of
// another shard. With one shard, TinyShard is the whole cache of the engine.
//
// Thread-compatible. Owns the backend and its part of the host tier, which has
// as many host blocks as the tables. Further memory: the kept queries,
// (query_window + max_drafts) * layers * q_width floats per sequence, and the
// positions of regions, 4 bytes per region slot.
#ifndef ENGINE_REFERENCE_TINY_SHARD_H_
#define ENGINE_REFERENCE_TINY_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/layer_groups.h"
#include "blockmgr/compaction.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/forward_pass.h"
#include "engine/reference/tiny_model.h"
#include "engine/reference/tiny_scoring.h"
#include "engine/tables/tables.h"
#include "kernels/backend.h"

namespace blockmgr {

// TinyBatch says where the rows of a step belong. It is borrowed for the step.
struct TinyBatch {
  // [num_groups][total tokens]
  std::span<const std::vector<int64_t>> slot_mappings;
  std::span<const int32_t> query_offsets;  // [scheduled + 1]

  size_t num_rows() const { return slot_mappings.front().size(); }
};

// TinySelection is what an eviction would keep of a shard's heads.
struct TinySelection {
  ScoredEntries scored;
  KeepSets keep;

  int32_t count(size_t head_index) const {
    return static_cast<int32_t>(keep.offsets[head_index + 1] -
                                keep.offsets[head_index]);
  }
};

class TinyShard {
 public:
  // The model and the tables are borrowed; all shards use the same ones.
  // REQUIRES: the backend's layout is tables->layout().ShardLayout().
  TinyShard(const LanguageModel* model, const EngineTables* tables,
            int32_t shard, std::unique_ptr<Backend> backend,
            int32_t max_drafts);

  // See TinyScoring::set_query_stats.
  void set_query_stats(const QueryStatsTables* tables) {
    scoring_.set_query_stats(tables);
  }
  // Forgets every sequence and region.
  void Reset();
  // Carry out a plan that the tables have applied. Leave comes first and does
  // the swap-outs; Start does the starts, drops and copies.
  void Leave(const StepPlan& plan);
  void Start(const StepPlan& plan);

  // Compute a step. Call BeginStep, then RunLayer for every layer of the model
  // in order, between the forward pass's Project and Finish. RunLayer stores
  // the new rows and fills the shard's columns of the pass's attention rows.
  void BeginStep(const StepPlan& plan, const TinyBatch& batch);
  void RunLayer(const StepPlan& plan, const TinyBatch& batch, int32_t layer,
                ForwardPass* forward);

  // CanDecode returns whether RunDecode can compute a step on a device: every
  // sequence has one token, no queries are summed up for scores, and no region
  // is under a window (tiny_shard_device.cc). PrepareDecode uploads the tables
  // of a step of num_rows rows, or returns ResourceExhausted, and appends to
  // `arguments` (DecodeStep::arguments). RunDecode then only launches kernels.
  bool CanDecode(const StepPlan& plan) const;
  absl::Status PrepareDecode(const StepPlan& plan, const TinyBatch& batch,
                             int32_t num_rows,
                             std::vector<uint64_t>* arguments);
  void RunDecode(int32_t layer, DevicePass* pass);
  // Returns how many of a sequence's last queries are kept for scores.
  int32_t CountKeptQueries(SequenceSlot slot) const {
    return sequence(slot).scoring.num_rows;
  }
  // Keeps the query of a position in all layers, [layers, q_width] in the
  // pool's elements. RunDecode keeps none.
  void KeepDecoded(SequenceSlot slot, int32_t position,
                   std::span<const std::byte> queries);

  // Returns what an order would keep. REQUIRES: the tables have checked it.
  absl::StatusOr<TinySelection> Select(const EvictionOrder& order);
  // Moves the kept entries, before the tables commit the order. Returns the
  // part of the layout's checksum that comes from this shard's heads.
  uint64_t Evict(const StepPlan& plan, const EvictionOrder& order,
                 const TinySelection& selection);

  // Overwrites these blocks with NaN.
  void Lose(std::span<const BlockId> blocks);
  void LoseHost(std::span<const HostBlockId> blocks);

 private:
  // An immutable region, which sequences may share.
  struct Region {
    RaggedRegion layout;
    std::vector<int32_t> positions;  // by slot of the region
    // The positions by slot of the region's pages, free slots included, as
    // attention reads them. Empty without a window.
    std::vector<int32_t> page_positions = {};
  };
  // One region per layer group, [num_groups]. A region is valid only if the
  // tables have one.
  using Regions = std::vector<std::shared_ptr<const Region>>;
  // The data of a sequence that the tables do not have.
  struct Sequence {
    Regions regions;
    ScoringState scoring;
  };
  // A sequence in the host tier.
  struct Swapped {
    Regions regions;
    absl::flat_hash_map<HostBlockId, BlockId> blocks;  // the old block of each
  };

  std::span<std::byte> host() { return {host_.get(), host_size_}; }
  // RunLayer for rows that are on the backend's device (tiny_shard_device.cc).
  void RunLayerOnDevice(const StepPlan& plan, const TinyBatch& batch,
                        int32_t layer, DevicePass* pass);
  // Copies the queries that the sequences' scores will need, and observes them.
  void ObserveOnDevice(const StepPlan& plan, const TinyBatch& batch,
                       const LayerPlace& place, DevicePass* pass);
  // Fills kv_ for a layer.
  void FindCaches(const StepPlan& plan, const LayerPlace& place);
  // Returns the cache of a scheduled sequence in a layer. If the block table
  // must be rewritten for this, the new table goes to `whole`.
  SequenceKv KvOf(SequenceSlot slot, const LayerPlace& place,
                  std::vector<BlockId>* whole) const;
  // Copies a swapped-out sequence back, and moves its regions to the blocks
  // that the tables have for them.
  void SwapIn(const StepPlan& plan, const SequenceStart& start);
  // Returns the entries that an order covers.
  CacheView CoveredBy(const EvictionOrder& order) const;
  // Returns Region::page_positions of a region.
  std::vector<int32_t> PagePositions(const Region& region) const;
  // Returns the part of a layout's checksum that comes from this shard's heads.
  uint64_t ChecksumOf(const RaggedRegion& region) const;
  // Returns the live entries of an order's group that the next token attends
  // to.
  EntryIndex EntriesOf(const EvictionOrder& order) const;
  KeepSets SelectIn(const EvictionOrder& order, const ScoredEntries& scored,
                    std::span<const int32_t> external);
  // Adds the queries of a layer slot of group 0 to the scoring states.
  void Observe(const StepPlan& plan, const TinyBatch& batch, int32_t layer,
               const float* queries, const float* raw_queries);
  // Keeps the queries of a layer in a window group. Nothing is accumulated for
  // window groups.
  void KeepQueries(const StepPlan& plan, const TinyBatch& batch,
                   const LayerPlace& place, const float* queries);
  // Returns the live entries of a sequence in group 0, those of this step
  // included.
  EntryIndex AllEntries(SequenceSlot slot) const;
  // Returns the shard's columns of `rows`, which have the columns of all shards
  // side by side. With one shard these are the rows themselves. Otherwise they
  // are copied to `own`.
  const float* Columns(std::span<const float> rows, size_t num_rows,
                       std::vector<float>* own) const;
  Sequence& sequence(SequenceSlot slot) {
    return sequences_[static_cast<size_t>(Index(slot))];
  }
  const Sequence& sequence(SequenceSlot slot) const {
    return sequences_[static_cast<size_t>(Index(slot))];
  }

  const LanguageModel& model_;
  const EngineTables& tables_;
  const int32_t shard_;
  const std::unique_ptr<Backend> backend_;
  const ModelLayout layout_;  // of the shard
  const float scale_;         // of attention logits
  TinyScoring scoring_;
  std::vector<Sequence> sequences_;  // by slot
  // Regions that other sequences may start with, by name.
  absl::flat_hash_map<RegionId, Regions> regions_;
  absl::flat_hash_map<SwapId, Swapped> swapped_;
  const size_t host_size_;
  // A host block that was never written costs no memory.
  const std::unique_ptr<std::byte[]> host_;

  // The current step. The vectors keep their memory.
  std::vector<SequenceKv> kv_;                      // [scheduled]
  std::vector<std::vector<BlockId>> whole_tables_;  // [scheduled]
  // [scheduled]. An element is empty if nothing is accumulated.
  std::vector<EntryIndex> entries_;
  // The shard's columns of the forward pass's rows.
  std::vector<float> queries_;
  std::vector<float> raw_queries_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> attention_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_SHARD_H_
