// TinyShard: one rank of the tiny engine.
//
// It has the KV heads of one shard in a memory of its own, knows which of its
// pages the regions of its sequences have, attends with its query heads, and
// has its backend score, select and move the entries of its heads.
// It hears of block ids and counts from the tables that all shards share, and
// never of another shard's pages. With one shard it is all of the engine's
// cache.
//
// Thread-compatible. Owns the backend, and its part of the host tier (as many
// host blocks as the tables have); memory beyond: the kept queries
// ((query_window + max_drafts) * layers * q_width of its heads, floats per
// sequence) and, per region slot, 4 bytes of position.
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
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/tiny_model.h"
#include "engine/reference/tiny_scoring.h"
#include "engine/tables/tables.h"
#include "kernels/backend.h"

namespace blockmgr {

// Where the rows of a step belong. Borrowed for the step.
struct TinyBatch {
  // By layer group. [num_groups][total tokens]
  std::span<const std::vector<int64_t>> slot_mappings;
  std::span<const int32_t> query_offsets;  // [scheduled + 1]

  size_t num_rows() const { return slot_mappings.front().size(); }
};

// What an eviction would keep of a shard's heads.
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
  // The model and the tables, of all shards, are borrowed. REQUIRES: the
  // backend's layout is tables->layout().ShardLayout().
  TinyShard(const TinyModel* model, const EngineTables* tables, int32_t shard,
            std::unique_ptr<Backend> backend, int32_t max_drafts);

  // Forgets every sequence and region.
  void Reset();
  // Of a plan that the tables have applied: first what is swapped out, then its
  // starts, drops and copies.
  void Leave(const StepPlan& plan);
  void Start(const StepPlan& plan);

  // A step: BeginStep, then every layer of the model in order, between the
  // forward pass's Project and Finish: stores the new rows, and fills the
  // shard's columns of forward->attention().
  void BeginStep(const StepPlan& plan, const TinyBatch& batch);
  void RunLayer(const StepPlan& plan, const TinyBatch& batch, int32_t layer,
                TinyForward* forward);

  // What an order that the tables have checked would keep; changes nothing.
  absl::StatusOr<TinySelection> Select(const EvictionOrder& order);
  // Moves what is kept, before the tables commit the order. Returns what the
  // shard's heads add to the checksum of the layout.
  uint64_t Evict(const StepPlan& plan, const EvictionOrder& order,
                 const TinySelection& selection);

  // Overwrites these blocks with NaN.
  void Lose(std::span<const BlockId> blocks);
  void LoseHost(std::span<const HostBlockId> blocks);

 private:
  // Immutable: sequences, and those to come, may share it.
  struct Region {
    RaggedRegion layout;
    std::vector<int32_t> positions;  // by slot of the region
    // The same with all slots of its pages, as attention has them. Empty
    // without a window.
    std::vector<int32_t> page_positions = {};
  };
  // One region per layer group. A region means something where the tables have
  // one. [num_groups]
  using Regions = std::vector<std::shared_ptr<const Region>>;
  // What the tables do not know of a sequence.
  struct Sequence {
    Regions regions;
    ScoringState scoring;
  };
  // A sequence in the host tier.
  struct Swapped {
    Regions regions;
    absl::flat_hash_map<HostBlockId, BlockId> blocks;  // where they were
  };

  // Returns the cache of a scheduled sequence in a layer. A table that must be
  // written anew for it goes to `whole`.
  SequenceKv KvOf(SequenceSlot slot, const LayerPlace& place,
                  std::vector<BlockId>* whole) const;
  // Copies it back, and has its regions on the blocks that the tables say.
  void SwapIn(const StepPlan& plan, const SequenceStart& start);
  // Returns what an order covers.
  CacheView CoveredBy(const EvictionOrder& order) const;
  // Returns the positions of a region with all slots of its pages.
  std::vector<int32_t> PagePositions(const Region& region) const;
  // Returns the part of a layout's checksum that comes from this shard's heads.
  uint64_t ChecksumOf(const RaggedRegion& region) const;
  // Returns the live entries of an order's group that the next token attends
  // to.
  EntryIndex EntriesOf(const EvictionOrder& order) const;
  KeepSets SelectIn(const EvictionOrder& order, const ScoredEntries& scored,
                    std::span<const int32_t> external);
  // Shows the queries of a slot of group 0 to what scores will be made of.
  void Observe(const StepPlan& plan, const TinyBatch& batch, int32_t layer,
               const float* queries, const float* raw_queries);
  // The same of a window group, of which no sums are made.
  void KeepQueries(const StepPlan& plan, const TinyBatch& batch,
                   const LayerPlace& place, const float* queries);
  // Returns the live entries of a sequence in group 0, those of this step
  // included.
  EntryIndex AllEntries(SequenceSlot slot) const;
  // The shard's columns of rows that have those of all shards side by side:
  // the rows themselves if there is one shard, else copied to `own`.
  const float* Columns(std::span<const float> rows, size_t num_rows,
                       std::vector<float>* own) const;
  Sequence& sequence(SequenceSlot slot) {
    return sequences_[static_cast<size_t>(Index(slot))];
  }
  const Sequence& sequence(SequenceSlot slot) const {
    return sequences_[static_cast<size_t>(Index(slot))];
  }

  const TinyModel& model_;
  const EngineTables& tables_;
  const int32_t shard_;
  const std::unique_ptr<Backend> backend_;
  const ModelLayout layout_;  // of the shard
  const float scale_;         // 1 / sqrt(head_dim)
  TinyScoring scoring_;
  std::vector<Sequence> sequences_;  // by slot
  // Kept for sequences to come.
  absl::flat_hash_map<RegionId, Regions> regions_;
  absl::flat_hash_map<SwapId, Swapped> swapped_;
  std::vector<std::byte> host_;

  // Of the current step, kept for its memory.
  std::vector<SequenceKv> kv_;                      // [scheduled]
  std::vector<std::vector<BlockId>> whole_tables_;  // [scheduled]
  // [scheduled]; empty where nothing is accumulated
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
