// CanaryEngine: a fake engine that is told only StepPlans, and notices when any
// of them makes it read or write the wrong place.
//
// EngineTables read the plans, as in every engine, and refuse those that
// contradict themselves or what came before. The canary follows contents.
// Instead of K and V every slot of every page holds a tag: what was written
// there (a hash of all tokens up to the position, and of the evictions before
// it was computed), for which layer, head and position, and by whom. Every step
// writes the tags of its new tokens and reads the tags of all positions that
// its sequences should still have. Use after free, aliasing, a block handed out
// before the steps in flight are over, a prefix hit on the wrong content, a
// region that manager and engine lay out differently: all end as a tag that is
// not the one expected, or as one of the checks on blocks below. With several
// shards, no page may serve a head of another. A layer group with a window
// reads no more than its queries attend to; what its tables name before that is
// taken to be somebody else's.
//
// Plans may be queued and executed late, in order: what Execute has not
// answered yet is in flight. An eviction keeps random entries within its page
// total. Sampled tokens depend on the tokens before them alone, so any schedule
// must produce the tokens of a request run alone.
//
// An error says what was expected and what came; the engine is useless after.
// Thread-compatible. Cost of a step: O(entries of the scheduled sequences).
#ifndef TESTS_TESTING_CANARY_ENGINE_H_
#define TESTS_TESTING_CANARY_ENGINE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/region_layout.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables.h"

namespace blockmgr {

struct CanaryOptions {
  uint64_t seed = 1;
  int32_t vocabulary = 1000;
  // Whether a recomputed sequence keeps the entries it kept before. Real
  // engines do; the bookkeeping must survive one that does not.
  bool same_choice_on_replay = true;
  // Whether heads keep all that an order leaves them, in order of their choice:
  // regions as large as promised. Else one compression in three does.
  bool keeps_all = false;
  // Of so many eviction orders one is refused; 0: none.
  int32_t refuse_one_in = 0;
  int32_t num_host_blocks = 0;
  // Drafts that it has ready after a sampled token at most, and how often a
  // draft is drawn at random instead of right.
  int32_t max_drafts = 0;
  int32_t wrong_draft_one_in = 4;
};

// An eviction that was carried out.
struct CanaryEviction {
  int32_t length = 0;
  int32_t cut = 0;
  friend bool operator==(const CanaryEviction&,
                         const CanaryEviction&) = default;
};

class CanaryEngine {
 public:
  CanaryEngine(const ModelLayout& layout, int32_t max_sequences,
               const CanaryOptions& options);

  // Accepts a plan for later. Errors: no sequence runs, or the id is too low.
  absl::Status Enqueue(const StepPlan& plan);
  int32_t num_queued() const { return static_cast<int32_t>(queue_.size()); }
  // The oldest plan. REQUIRES: num_queued() > 0.
  const StepPlan& next() const { return queue_.front().plan; }
  // Executes the oldest plan. REQUIRES: num_queued() > 0.
  absl::StatusOr<StepResult> Execute();
  // From now on every eviction is refused, or none but those of options.
  void RefuseOrders(bool refuse) { refuses_all_ = refuse; }
  // The step executed next reports these blocks as lost: their tags are. Who
  // holds one is not believed from then on, and what it samples is wrong, until
  // it is released or starts again.
  void LoseBlocks(const std::vector<BlockId>& blocks);
  // The step executed next does not copy to these host blocks what it should,
  // nor did those before, and says so.
  void LoseHostBlocks(const std::vector<HostBlockId>& blocks);
  // Whether the sequence holds a block whose content is lost.
  bool IsDamaged(SequenceSlot slot) const;
  // Loses all memory, tables and plans, like a new engine.
  void Restart();

  bool is_open(SequenceSlot slot) const { return contents_of(slot).open; }
  // What plans have made of the sequence. REQUIRES: is_open(slot).
  const SequenceTable& row(SequenceSlot slot) const {
    return tables_.row(slot);
  }
  // The sequence's evictions, its past's included, in order.
  const std::vector<CanaryEviction>& evictions(SequenceSlot slot) const {
    return contents_of(slot).evictions;
  }
  // Positions of the entries of a group's region, head after head.
  const std::vector<int32_t>& positions(SequenceSlot slot,
                                        int32_t group) const {
    return contents_of(slot).positions[group];
  }
  // The evictions that made a region. REQUIRES: an executed order told to keep
  // it, and no executed plan to drop it.
  const std::vector<CanaryEviction>& evictions(RegionId id) const {
    return regions_.at(id).contents.evictions;
  }
  // What a request that runs alone outputs. Of `sampling`, stop strings and
  // min_tokens count.
  std::vector<int32_t> OutputsAlone(
      std::span<const int32_t> prompt, int32_t max_tokens,
      std::span<const int32_t> stop_token_ids,
      const std::optional<SamplingParams>& sampling = std::nullopt) const;
  // The text of a token, for stop strings: two letters.
  static std::string TextOf(int32_t token);
  // The first stop string that ends in the text of the last of `outputs`. All
  // of their text is looked at.
  static std::optional<int32_t> StopAfter(
      const std::optional<SamplingParams>& sampling,
      std::span<const int32_t> outputs);

 private:
  struct Tag {
    uint64_t content = 0;
    uint64_t incarnation = 0;
    RequestId request{0};
    StepId step{0};  // that computed it
    int32_t position = -1;
    int32_t head_index = -1;
    int32_t group = -1;  // of layers
  };
  // What the slots of a sequence must hold.
  struct Contents {
    bool open = false;
    uint64_t incarnation = 0;  // unique for every start of a sequence
    int32_t num_cached = 0;
    std::vector<uint64_t> chain;    // hash of the tokens up to each position
    std::vector<uint64_t> content;  // what each computed position must hold
    std::vector<StepId> steps;      // that computed it; 0: another's, cached
    uint64_t history = 0;           // of the evictions so far
    std::vector<CanaryEviction> evictions;
    std::vector<std::vector<int32_t>> positions;  // in regions, by group
    int32_t first_query = 0;                      // of the last run
    // It has computed with lost content: what follows from that stays wrong,
    // even if the window has left it behind.
    bool is_tainted = false;

    int32_t length() const { return static_cast<int32_t>(content.size()); }
  };
  // What orders told to keep by one name.
  struct Region {
    Contents contents;            // of the sequence that it was made of
    std::vector<BlockId> blocks;  // of group 0
  };
  struct Queued {
    StepPlan plan;
    std::vector<StepId> in_flight;  // when it was issued
  };
  // What a group of a sequence has from a position on.
  struct View {
    std::optional<RaggedRegion> region;
    std::span<const BlockId> tail;
    int32_t tail_begin = 0;

    CacheView cache() const {
      return {.region = region.has_value() ? &*region : nullptr,
              .tail_blocks = tail,
              .tail_begin = tail_begin};
    }
  };

  static uint64_t Extend(uint64_t hash, uint64_t value);
  template <typename... Parts>
  static absl::Status Wrong(const Parts&... parts) {
    return absl::InternalError(absl::StrCat(parts...));
  }
  // What tables refuse is wrong.
  static absl::Status Right(const absl::Status& status) {
    return status.ok() ? status : Wrong(status.message());
  }
  Contents& contents_of(SequenceSlot slot) { return contents_[Index(slot)]; }
  const Contents& contents_of(SequenceSlot slot) const {
    return contents_[Index(slot)];
  }

  // Steps (canary_engine.cc).
  absl::Status Compute(const StepPlan& plan, StepResult* result);
  absl::Status ComputeRun(const StepPlan& plan, size_t run,
                          std::span<const int32_t> holders);
  // The chain follows the tokens that the tables know.
  void ExtendChain(SequenceSlot slot);
  // What was not accepted is forgotten, with the blocks behind it.
  void Verify(const StepPlan& plan, size_t run, StepResult* result);
  void ProposeDrafts(SequenceSlot slot);
  // The tags of the position computed last.
  absl::Status Write(SequenceSlot slot, int32_t group, int32_t position,
                     std::span<const int32_t> holders);
  absl::Status ReadAll(SequenceSlot slot) const;
  absl::Status CheckTag(SequenceSlot slot, int32_t group, int32_t head_index,
                        int32_t position, SlotIndex place) const;
  int32_t SampleAfter(uint64_t chain) const;
  // The stop string of the slot's request that ends in its first `length`
  // tokens.
  std::optional<int32_t> StopAt(SequenceSlot slot, size_t length) const;
  // Slots of a block, of all heads, in order.
  std::vector<SlotIndex> SlotsOf(BlockId block) const;

  // Blocks and starts (canary_blocks.cc).
  // The first position that the token after `length`, or the last run, attends
  // to.
  int32_t FirstAttended(int32_t group, int32_t length) const;
  int32_t FirstRead(SequenceSlot slot, int32_t group) const;
  // The region of a group, if one of its positions from `first` on may be in
  // it; else null.
  const RegionLayout* RegionFrom(SequenceSlot slot, int32_t group,
                                 int32_t first) const;
  View ViewOf(SequenceSlot slot, int32_t group, int32_t first,
              int32_t end) const;
  // Blocks of all groups: those that going on takes, or those that the last run
  // has read or written.
  std::vector<BlockId> BlocksFrom(SequenceSlot slot,
                                  const std::vector<int32_t>& first) const;
  std::vector<BlockId> LiveBlocks(SequenceSlot slot) const;
  std::vector<BlockId> ReadBlocks(SequenceSlot slot) const;
  std::vector<int32_t> CountHolders() const;
  // What the last run of a sequence has touched.
  void Touch(SequenceSlot slot, StepId step);
  absl::Status CheckFresh(const Queued& queued, BlockId block) const;
  // Nobody else has the blocks that the plan hands out, and what was lost of
  // them is of no interest any more.
  absl::Status CheckNewBlocks(const Queued& queued);
  absl::Status Start(const SequenceStart& start);
  // The first `length` tokens are those of `past`, and so is what is computed.
  absl::Status GoOn(const Contents& past, int32_t length,
                    const SequenceStart& start);
  // What goes to the host tier, before anything else; what comes back, and
  // copies on write.
  absl::Status CopyOut(const Queued& queued, StepResult* result);
  void CopyIn(const StepPlan& plan, StepResult* result);
  void CopyTags(const BlockTransfer& transfer, bool to_host);
  void CarryOutLosses(StepResult* result);

  // Orders (canary_orders.cc).
  absl::Status CheckOrder(const Queued& queued, const EvictionOrder& order);
  absl::Status CheckTotals(const EvictionOrder& order, int64_t num_below) const;
  absl::Status CarryOut(const StepPlan& plan, const EvictionOrder& order,
                        EvictionOutcome* outcome);
  // The entries that an order may keep.
  View ViewBelow(const EvictionOrder& order) const;
  KeepSets ChooseSurvivors(const EntryIndex& entries,
                           const EvictionOrder& order) const;
  // In an order, and with groups put together, that must not matter.
  void Move(CompactionMoves moves, uint64_t seed);
  bool IsRefused(const EvictionOrder& order) const;
  // Of a (layer, head), counted out by hand.
  int32_t ShardOf(int32_t head_index) const;
  // The pages that each shard may have by the order's policy.
  std::vector<int64_t> PageTotals(const EvictionOrder& order) const;
  absl::Status CheckShards(const RaggedRegion& region) const;

  const ModelLayout layout_;
  const CanaryOptions options_;
  EngineTables tables_;
  std::vector<Contents> contents_;                         // by slot
  std::vector<std::shared_ptr<const RequestInfo>> infos_;  // by slot
  absl::flat_hash_map<RegionId, Region> regions_;          // kept
  absl::flat_hash_map<SwapId, Contents> swaps_;
  std::vector<Tag> memory_;  // by SlotIndex
  std::deque<Queued> queue_;
  // Blocks that executed steps have touched, by step.
  absl::flat_hash_map<StepId, absl::flat_hash_set<BlockId>> touched_;
  std::vector<std::vector<Tag>> host_memory_;  // by host block
  absl::flat_hash_map<StepId, absl::flat_hash_set<HostBlockId>> touched_host_;
  std::vector<HostBlockId> host_losses_;        // to be reported
  absl::flat_hash_set<HostBlockId> lost_host_;  // and not written since
  std::vector<BlockId> losses_;                 // to be reported
  absl::flat_hash_set<BlockId> lost_;  // and not written by a step since
  uint64_t next_incarnation_ = 1;
  bool refuses_all_ = false;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_ENGINE_H_
