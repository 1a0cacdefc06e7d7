// CanaryEngine: a fake engine that is told only StepPlans, and notices when any
// of them makes it read or write the wrong place.
//
// Instead of K and V every slot of every page holds a tag: what was written
// there (a hash of all tokens up to the position, and of the evictions before
// it was computed), for which layer, head and position, and by whom. Every step
// writes the tags of its new tokens and reads the tags of all positions that
// its sequences should still have. Use after free, aliasing, a block handed out
// before the steps in flight are over, a prefix hit on the wrong content, a
// region that manager and engine lay out differently: all end as a tag that is
// not the one expected, or as one of the checks on tables below. With several
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
#include <optional>
#include <span>
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
#include "blockmgr/step_plan.h"

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

// A region of a layer group with a window. Its entries are read as long as
// their positions are in the window.
struct CanaryWindowRegion {
  RaggedRegion layout;
  std::vector<int32_t> positions;
};

// What the engine knows of one sequence slot.
struct CanaryTable {
  bool open = false;
  RequestId request{0};
  uint64_t incarnation = 0;  // unique for every start of a sequence
  int32_t query_window = 0;
  int32_t num_cached = 0;
  // Blocks of others that its tail, and each of `windows`, starts with, pages
  // left out included.
  int32_t num_shared = 0;
  int32_t num_shared_windows = 0;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> chain;    // hash of the tokens up to each position
  std::vector<uint64_t> content;  // what each computed position must hold
  std::vector<StepId> steps;      // that computed it; 0: another's, cached
  uint64_t history = 0;           // of the evictions so far
  std::vector<CanaryEviction> evictions;
  std::optional<RaggedRegion> region;
  std::vector<int32_t> region_positions;
  std::vector<BlockId> tail;
  // Of the window groups; null below the cut of a region.
  std::vector<std::vector<BlockId>> windows;
  std::vector<std::optional<CanaryWindowRegion>> window_regions;
  int32_t first_query = 0;  // of the last run
  // It has computed with lost content: what follows from that stays wrong, even
  // if the window has left it behind.
  bool is_tainted = false;
  std::vector<int32_t> drafts;  // ready for the next run

  int32_t length() const { return static_cast<int32_t>(content.size()); }
  int32_t cut() const { return region.has_value() ? region->cut() : 0; }
};

// What a sequence had when it was swapped out.
struct CanarySwap {
  CanaryTable table;  // its blocks are void
  std::vector<HostBlockId> blocks;
};

// What orders told to keep by one name, with all that it stands for.
struct CanaryRegion {
  // Of group 0, and of the window groups that had one.
  RaggedRegion layout;
  std::vector<int32_t> positions;
  std::vector<std::optional<CanaryWindowRegion>> window_regions;
  std::vector<uint64_t> content;  // of the positions when they were made
  uint64_t chain = 0;             // hash of the tokens, then
  uint64_t history = 0;
  std::vector<CanaryEviction> evictions;
};

class CanaryEngine {
 public:
  CanaryEngine(const ModelLayout& layout, int32_t max_sequences,
               const CanaryOptions& options);

  // Accepts a plan for later. Errors: malformed arrays.
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
  // Whether it holds a block whose content is lost.
  bool IsDamaged(const CanaryTable& table) const;
  // Loses all memory, tables and plans, like a new engine.
  void Restart();

  const CanaryTable& table(SequenceSlot slot) const {
    return tables_[Index(slot)];
  }
  // REQUIRES: an executed order told to keep it, and no executed plan to drop
  // it.
  const CanaryRegion& region(RegionId id) const { return regions_.at(id); }
  // What a request that runs alone outputs.
  std::vector<int32_t> OutputsAlone(
      std::span<const int32_t> prompt, int32_t max_tokens,
      std::span<const int32_t> stop_token_ids) const;

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
  struct Queued {
    StepPlan plan;
    std::vector<StepId> in_flight;  // when it was issued
  };

  static uint64_t Extend(uint64_t hash, uint64_t value);
  template <typename... Parts>
  static absl::Status Wrong(const Parts&... parts) {
    return absl::InternalError(absl::StrCat(parts...));
  }

  // Swaps (canary_swaps.cc).
  absl::Status ApplySwapOuts(const Queued& queued, StepResult* result);
  absl::Status ApplySwapOut(const Queued& queued, const SwapOut& out,
                            StepResult* result);
  // That what was swapped out is the beginning of the table.
  absl::Status CheckReturn(const SequenceStart& start,
                           const CanaryTable& table) const;
  // Starts with what comes back.
  absl::Status StartFromHost(const Queued& queued, const SequenceStart& start,
                             StepResult* result, CanaryTable* table);
  // A host block of a swap: of a page, or of the region of a group.
  struct HostPlace {
    int64_t place = 0;
    int32_t region_group = -1;  // -1: of a page
  };
  // Those of what the first `length` tokens get back, but the region, if they
  // have one, and the first pages of the tail.
  std::vector<HostPlace> PlacesInHost(const CanaryTable& was, bool has_region,
                                      int32_t length, int64_t num_cached) const;
  // The regions on the blocks, by group, that they come back to.
  void ReturnRegions(const CanaryTable& was,
                     const std::vector<std::vector<BlockId>>& blocks,
                     CanaryTable* table) const;
  void CopyTags(const BlockTransfer& transfer, bool to_host);
  absl::Status CheckFreshHost(const Queued& queued, HostBlockId block) const;
  void CarryOutHostLosses(StepResult* result);

  // Tables (canary_tables.cc).
  absl::Status ApplyStarts(const Queued& queued, StepResult* result);
  absl::Status ApplyStart(const Queued& queued, const SequenceStart& start,
                          StepResult* result);
  absl::Status StartOnRegion(const SequenceStart& start, CanaryTable* table);
  // Starts with what `source`, a table before this plan, has of the tokens.
  absl::Status StartFrom(const CanaryTable& source, const SequenceStart& start,
                         CanaryTable* table);
  absl::Status ApplyCopies(const Queued& queued, StepResult* result);
  // Adds a run's blocks to the table of a group.
  absl::Status AddBlocks(const Queued& queued, size_t run, int32_t group,
                         std::vector<int32_t>* holders);
  // The first block of a run that is not cached, where its sequence starts in
  // the cache; the null block without one.
  BlockId NextOwnBlock(const StepPlan& plan, const CanaryTable& table,
                       SequenceSlot slot) const;
  absl::Status ApplyBlocks(const Queued& queued);
  void CarryOutLosses(StepResult* result);
  absl::Status CheckFresh(const Queued& queued, BlockId block) const;
  absl::Status Compute(const StepPlan& plan, StepResult* result);
  // Drafts (canary_drafts.cc).
  // The run's drafts become tokens, to be computed.
  absl::Status TakeDrafts(const StepPlan& plan, size_t run);
  // What was not accepted is forgotten, with the blocks behind it.
  void Verify(const StepPlan& plan, size_t run, StepResult* result);
  void ProposeDrafts(CanaryTable* table) const;
  // The tags of the position computed last.
  absl::Status Write(const CanaryTable& table, int32_t group, int32_t position,
                     std::span<const int32_t> holders);
  absl::Status ReadAll(const CanaryTable& table) const;
  absl::Status CheckTag(const CanaryTable& table, int32_t group,
                        int32_t head_index, int32_t position,
                        SlotIndex slot) const;
  // Layer groups (canary_windows.cc).
  absl::Status ReadWindow(const CanaryTable& table, int32_t group) const;
  static std::vector<BlockId>& BlocksOf(CanaryTable* table, int32_t group);
  static const std::vector<BlockId>& BlocksOf(const CanaryTable& table,
                                              int32_t group);
  std::span<const BlockId> NewBlocks(const StepPlan& plan, size_t run,
                                     int32_t group) const;
  // Blocks of the table of a group: those that going on takes, and those that
  // its last run has read or written.
  std::span<const BlockId> LiveBlocks(const CanaryTable& table,
                                      int32_t group) const;
  std::span<const BlockId> ReadBlocks(const CanaryTable& table,
                                      int32_t group) const;
  // The first position that the last run has read.
  int32_t FirstRead(const CanaryTable& table, int32_t group) const;
  // The pages that a group has of `length` tokens, in order.
  std::vector<BlockId> PagesOf(const CanaryTable& table, int32_t group,
                               int32_t length) const;
  // Their regions (canary_window_regions.cc). The region of a group, if one of
  // its positions from `first` on may be in it; else null.
  static const CanaryWindowRegion* RegionFrom(const CanaryTable& table,
                                              int32_t group, int32_t first);
  // The cut of the region that goes into the host tier with `length` tokens,
  // where the last of them counts, too; 0: none does.
  int32_t SwappedCut(const CanaryTable& table, int32_t group,
                     int32_t length) const;
  // The first position that the token after `length` attends to.
  int32_t FirstAttended(int32_t group, int32_t length) const;
  // What an order covers: what the next token attends to, below the cut.
  absl::Status CheckCut(const CanaryTable& table,
                        const EvictionOrder& order) const;
  CacheView ViewBelow(const CanaryTable& table,
                      const EvictionOrder& order) const;
  EntryIndex EntriesBelow(const CanaryTable& table,
                          const EvictionOrder& order) const;
  // Keeps what an order that has been carried out has made: by a name of its
  // own, or, in a window group, with what an order before it made.
  absl::Status Keep(const StepPlan& plan, const EvictionOrder& order);
  // Removes those that have nothing of what `length` tokens need.
  void LeavePastRegions(
      int32_t length,
      std::vector<std::optional<CanaryWindowRegion>>* regions) const;
  // Puts a region in its place.
  void Replace(const EvictionOrder& order, RaggedRegion next,
               std::vector<int32_t> positions, CanaryTable* table) const;
  absl::Status ReadRegion(const CanaryTable& table, int32_t group) const;
  // What the last run of a table has touched.
  void Touch(const CanaryTable& table, StepId step);
  // Leaves what the first `length` tokens need. REQUIRES: it is there.
  void CutTables(int32_t length, CanaryTable* table) const;
  absl::Status CheckSourceWindows(const CanaryTable& source,
                                  const SequenceStart& start) const;
  absl::Status CheckOrder(const Queued& queued, const EvictionOrder& order,
                          std::span<const BlockId> destinations) const;
  absl::Status CarryOut(const StepPlan& plan, const EvictionOrder& order,
                        EvictionOutcome* outcome);
  KeepSets ChooseSurvivors(const CanaryTable& table, const EntryIndex& entries,
                           const EvictionOrder& order) const;
  // In an order, and with groups put together, that must not matter.
  void Move(CompactionMoves moves, uint64_t seed);
  bool IsRefused(const EvictionOrder& order) const;
  // Of a (layer, head), counted out by hand.
  int32_t ShardOf(int32_t head_index) const;
  // The pages that each shard may have by the order's policy.
  std::vector<int64_t> PageTotals(const EvictionOrder& order) const;
  absl::Status CheckShards(const RaggedRegion& region) const;
  std::vector<int32_t> CountHolders() const;
  int32_t SampleAfter(uint64_t chain) const;

  const ModelLayout layout_;
  const CanaryOptions options_;
  std::vector<CanaryTable> tables_;
  absl::flat_hash_map<RegionId, CanaryRegion> regions_;  // kept
  std::vector<Tag> memory_;                              // by SlotIndex
  std::deque<Queued> queue_;
  // Blocks that executed steps have touched, by step.
  absl::flat_hash_map<StepId, absl::flat_hash_set<BlockId>> touched_;
  absl::flat_hash_map<SwapId, CanarySwap> swaps_;
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
