// EngineTables: what a host engine knows of its sequences, fed only by the
// deltas of step plans.
//
// One row per sequence slot: the region as plain data (cut, blocks, kept
// entries per head), the tail's block table, the tokens known and how many of
// them are computed. Always, for a row in use,
//
//   cut <= num_computed <= tokens.size()
//   num_computed - cut <= tail_blocks.size() * page_size
//   cut / page_size + tail_blocks.size() == window_blocks[group].size()
//   window_regions[group].cut < num_computed
//
// once its first step has been applied. Drafts that the engine has announced
// for the next run of a row are tokens of it from a plan that takes them on
// until they are verified. Regions that orders tell to keep, of all layer
// groups by one name, and sequences that are swapped out, are remembered until
// they are dropped, or come back.
// A plan is checked as a whole before anything changes: the scheduler's
// mistakes and the wire's are found here, not by a kernel.
//
// Thread-compatible. Cost: O(what the plan carries); rows keep their memory.
#ifndef ENGINE_TABLES_TABLES_H_
#define ENGINE_TABLES_TABLES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/region_layout.h"
#include "blockmgr/step_plan.h"

namespace blockmgr {

// What is left of the positions below a cut, in one layer group.
struct TableRegion {
  int32_t cut = 0;
  std::vector<BlockId> blocks;
  std::vector<int32_t> kept;  // entries, [num_layers, num_heads]
  // Its page lists, on those of the blocks that have pages. Null: not known,
  // as too few or too many blocks came back from the host.
  std::shared_ptr<const RegionLayout> layout = nullptr;
  // Tokens of the sequence when it was made; what these do not attend to, in a
  // window group, is gone.
  int32_t length = 0;
  // Of a window group: whether the run before had nothing of it left.
  bool is_past = false;
};

struct SequenceTable {
  bool in_use = false;
  RequestId request{0};
  int32_t query_window = 0;
  // Prompt and outputs, by position.
  std::vector<int32_t> tokens;
  // Positions [0, num_computed) have their KV in the pool, as far as kept.
  int32_t num_computed = 0;
  // The region stands for [0, cut); all empty or 0 without one.
  int32_t cut = 0;
  std::vector<BlockId> region_blocks;
  std::vector<int32_t> kept;  // entries, [num_layers, num_heads]
  // The page lists of the region, as in TableRegion.
  std::shared_ptr<const RegionLayout> region_layout = nullptr;
  int64_t region_entries = 0;          // sum of kept
  std::vector<int64_t> shard_entries;  // of it, each shard's, [num_shards]
  // Positions from cut on, page_size to a block. In a model with a window, null
  // where a start left pages out.
  std::vector<BlockId> tail_blocks;
  // Of each window group, from position 0 on; null as above. Pages before
  // FirstPage of what is computed mean nothing. [num_window_groups]
  std::vector<std::vector<BlockId>> window_blocks;
  // The last region of each; below its cut the table means nothing.
  // [num_window_groups]
  std::vector<TableRegion> window_regions;
  int32_t num_evictions = 0;  // since the start
  // Announced for the next run.
  std::vector<int32_t> drafts;

  int32_t tail_length() const { return num_computed - cut; }
  // Of a window group, while something of it is attended to; else null. A
  // sequence that goes back after a loss may have it again.
  const TableRegion* window_region(int32_t group) const {
    const TableRegion& region = window_regions[static_cast<size_t>(group - 1)];
    return region.cut == 0 || region.is_past ? nullptr : &region;
  }
};

// Slots are handed out densely; one above this is a broken plan.
inline constexpr int32_t kMaxSequenceSlots = 1 << 20;

class EngineTables {
 public:
  // Slots are below `max_sequences`. REQUIRES: `layout` is valid,
  // num_host_blocks >= 0.
  EngineTables(const ModelLayout& layout, int32_t max_sequences,
               int32_t num_host_blocks = 0);

  // Applies dropped_swaps, swap_outs, released, starts, copies, new blocks and
  // the scheduled tokens: the rows' part of them, bytes are the caller's.
  // Afterwards the rows say what the step will have computed (num_computed,
  // tail_blocks). InvalidArgument, with nothing changed, names what contradicts
  // the tables. Eviction orders are not looked at: see CheckOrder.
  absl::Status Apply(const StepPlan& plan);

  // Adds the token that the step sampled for a slot. REQUIRES: the slot is in
  // use and everything known is computed.
  void AddSampled(SequenceSlot slot, int32_t token);

  // After a run with drafts, before AddSampled: all of them but the first
  // num_accepted are forgotten, with the tail blocks behind.
  // REQUIRES: num_accepted is at most the run's num_drafts.
  void RejectDrafts(SequenceSlot slot, int32_t num_drafts,
                    int32_t num_accepted);
  // Announces drafts for the next run. They hold until then.
  void SetDrafts(SequenceSlot slot, std::span<const int32_t> drafts);

  // Whether an order of the plan applied last can be carried out: its slot,
  // cut, length, destinations, policy and the shapes of external scores and
  // budgets.
  absl::Status CheckOrder(const StepPlan& plan, const EvictionOrder& order);
  // Whether a region that keeps `counts` entries per (layer, head) fits the
  // order: no more than the entries there are, and in every shard at most its
  // page total and no more pages than the destinations have.
  absl::Status CheckCounts(const EvictionOrder& order,
                           std::span<const int32_t> counts) const;
  // Positions that an order covers in blocks: behind its group's region, and of
  // a window group only those of whole pages that the next token attends to.
  struct CoveredTail {
    const TableRegion* region = nullptr;  // null: none, or it is past
    int32_t begin = 0;
    int32_t end = 0;  // the cut
  };
  CoveredTail CoveredInWindow(const EvictionOrder& order) const;
  // Entries that a head has below an order's cut, or, in a window group, at
  // most: what is left of a region there, the tables do not know.
  int32_t HeldBelow(const EvictionOrder& order, int32_t head_index) const;
  // Puts the region in place of positions [0, order.cut).
  // REQUIRES: both checks passed.
  void Commit(const StepPlan& plan, const EvictionOrder& order,
              std::span<const int32_t> counts);
  // The checksum of the page lists that the tables have derived for an order,
  // if they know them. REQUIRES: it was committed last.
  std::optional<uint64_t> ChecksumOf(const EvictionOrder& order) const;
  // The name by which an order of the plan applied last has told to keep the
  // slot's regions, once it is committed; else kNoRegion. REQUIRES: the slot is
  // in use.
  RegionId KeptName(SequenceSlot slot) const;

  // Forgets every sequence and region.
  void Reset();

  const SequenceTable& row(SequenceSlot slot) const {
    return rows_[static_cast<size_t>(Index(slot))];
  }
  const ModelLayout& layout() const { return layout_; }
  int32_t num_host_blocks() const {
    return static_cast<int32_t>(host_blocks_.size());
  }
  // The destinations of an order. REQUIRES: CheckOrder passed.
  static std::span<const BlockId> Destinations(const StepPlan& plan,
                                               const EvictionOrder& order) {
    return std::span(plan.destinations)
        .subspan(static_cast<size_t>(order.destination_begin),
                 static_cast<size_t>(order.num_destinations));
  }

 private:
  // What the plan being checked has said about a slot so far.
  struct Pending {
    uint64_t plan = 0;  // the rest is void unless this is num_plans_
    bool released = false;
    bool scheduled = false;
    size_t run = 0;             // index into slots, if scheduled
    int32_t next_group = 0;     // of which it may be evicted from
    RegionId name = kNoRegion;  // of its regions, as orders tell to keep them
    int32_t num_copied = 0;     // groups
    int32_t start = -1;         // index into starts
  };

  // What one name stands for.
  struct KeptRegions {
    TableRegion region;
    // Of every window group; cut 0: none. [num_window_groups]
    std::vector<TableRegion> window_regions;
  };

  absl::Status CheckSlot(const char* field, SequenceSlot slot) const;
  absl::Status CheckShapes(const StepPlan& plan) const;
  // What the host tier has of a sequence.
  struct Swapped {
    std::vector<int32_t> tokens;
    int32_t cut = 0;
    std::vector<int32_t> kept;
    std::shared_ptr<const RegionLayout> region_layout = nullptr;
    size_t num_region_blocks = 0;  // those with pages of it
    // Of every window group; `blocks`: those with pages of it, void.
    std::vector<TableRegion> window_regions;
    std::vector<HostBlockId> blocks;
    uint64_t leaves = 0;  // the check whose plan drops it or has it back
  };
  struct HostBlock {
    SwapId holder = kNoSwap;  // perhaps of the past
    uint64_t taken = 0;       // the check whose plan copies to it
  };

  // Swaps (tables_swap.cc).
  absl::Status CheckDroppedSwaps(const StepPlan& plan);
  absl::Status CheckSwapOut(const StepPlan& plan, const SwapOut& out);
  absl::Status CheckSwapIn(const StepPlan& plan, const SequenceStart& start);
  absl::Status CheckTransfersIn(const StepPlan& plan,
                                const SequenceStart& start,
                                const Swapped& swapped) const;
  // Where Swapped::blocks has what comes back of the first num_cached tokens,
  // behind the region of group 0: pages of the tail, then regions and pages of
  // the window groups.
  std::vector<size_t> PlacesInHost(const Swapped& swapped,
                                   int32_t num_cached) const;
  // Blocks of the regions and pages of all window groups that come back.
  int64_t NumWindowIns(const Swapped& swapped, int32_t num_cached) const;
  // That copies to its tail go to the blocks of its run.
  absl::Status CheckSwappedTail(const StepPlan& plan,
                                const SequenceStart& start);
  // The blocks that the region comes back to. REQUIRES: it does.
  std::vector<BlockId> RegionOf(const StepPlan& plan,
                                const SequenceStart& start) const;
  void Leave(const StepPlan& plan, const SwapOut& out);
  void ComeBack(const StepPlan& plan, const SequenceStart& start,
                SequenceTable* table);

  // Window groups (tables_windows.cc).
  absl::Status CheckWindowArrays(const StepPlan& plan) const;
  // That a run's tables reach `num_pages` pages in every window group, and that
  // its new blocks are null just where a start leaves pages out.
  absl::Status CheckWindows(const StepPlan& plan, size_t run,
                            int64_t num_pages);
  // That a source has what sequences of its first num_tokens tokens attend to.
  absl::Status CheckSourceWindows(const SequenceStart& start) const;
  // What a swap copies of a group behind its region; and the blocks of that, of
  // which some may have no pages of it: which, the tables do not know.
  std::span<const BlockId> PagesOut(const SwapOut& out, int32_t group) const;
  std::vector<BlockId> RegionOut(const SwapOut& out, int32_t group) const;
  // How many of these copies are of each group's region, if they are those of
  // regions and pages, group by group.
  absl::StatusOr<std::vector<size_t>> SplitSwapOut(
      const SwapOut& out, std::span<const BlockTransfer> transfers) const;
  // That copies to window groups, the start's transfers from `first` on, go to
  // the blocks of its run.
  absl::Status CheckWindowsIn(const StepPlan& plan, const SequenceStart& start,
                              int64_t first);
  // What a run adds to the table of a group.
  std::span<const BlockId> NewBlocks(const StepPlan& plan, size_t run,
                                     int32_t group) const;
  // The block that a group has for the same tokens as the tail its block number
  // `num_tail_blocks`, from 1 on.
  BlockId LastBlock(const SequenceTable& table, int32_t group,
                    int64_t num_tail_blocks) const;
  // Pages that a group has of `length` tokens from position `cut` on.
  int32_t NumPages(int32_t group, int32_t length, int32_t cut = 0) const {
    return CeilDiv(length, layout_.page_size) -
           std::max(cut / layout_.page_size, layout_.FirstPage(group, length));
  }
  // Those of all window groups, behind their regions.
  int32_t NumWindowPages(std::span<const TableRegion> regions,
                         int32_t length) const;
  void AddWindows(const StepPlan& plan, size_t run, SequenceTable* table) const;
  // Leaves the pages of the first num_tokens tokens.
  void CutWindows(int32_t num_tokens, SequenceTable* table) const;

  // Page lists (tables_layout.cc).
  std::shared_ptr<const RegionLayout> LayOut(
      const StepPlan& plan, const EvictionOrder& order,
      std::span<const int32_t> counts) const;
  // Returns the page lists with every block replaced by another one, or null if
  // the numbers of blocks differ.
  static std::shared_ptr<const RegionLayout> OnBlocks(
      const std::shared_ptr<const RegionLayout>& layout,
      std::span<const BlockId> blocks);

  // Regions of window groups (tables_windows.cc).
  // Whether something of it is attended to after `length` tokens.
  bool IsInWindow(const TableRegion& region, int32_t group,
                  int32_t length) const {
    return region.cut >
           layout_.FirstPage(group, length + 1) * layout_.page_size;
  }
  // The cut of the region that goes with `length` tokens into the host tier, or
  // to a start with so many cached, where the last of them counts, too; 0:
  // none.
  int32_t SwappedCut(std::span<const TableRegion> regions, int32_t group,
                     int32_t length) const;
  // Of all window groups those that a start without a source takes, as far as
  // SwappedCut says so; or empty.
  std::span<const TableRegion> RegionsFor(const SequenceStart& start) const;
  // The same, without those that do not go with `length` tokens.
  std::vector<TableRegion> RegionsWith(std::span<const TableRegion> regions,
                                       int32_t length) const;
  void NotePastRegions(SequenceTable* table) const;
  absl::Status CheckWindowOrder(const EvictionOrder& order) const;
  void CommitInWindow(const StepPlan& plan, const EvictionOrder& order,
                      std::span<const int32_t> counts);

  absl::Status CheckStarts(const StepPlan& plan);
  absl::Status CheckStart(const StepPlan& plan,
                          const SequenceStart& start) const;
  // Of a start with a source.
  absl::Status CheckSource(const StepPlan& plan, const SequenceStart& start);
  absl::Status CheckCopies(const StepPlan& plan);
  // A copy of the first rows of a cached block.
  absl::Status CheckPart(const StepPlan& plan, const SequenceStart& start,
                         const CopyOnWrite& copy);
  // Regions that the plan drops are kept ones, and each is named once.
  absl::Status CheckDropped(const StepPlan& plan) const;
  absl::Status CheckScheduled(const StepPlan& plan, size_t i);
  // The drafts of a run with `num_ready` announced ones.
  absl::Status CheckDrafts(const StepPlan& plan, size_t i,
                           size_t num_ready) const;
  absl::Status CheckDestinations(const StepPlan& plan,
                                 const EvictionOrder& order) const;
  bool InUse(SequenceSlot slot) const;
  // The slot's entry for the current plan, fresh if it has none yet.
  Pending& PendingOf(SequenceSlot slot);
  void Release(SequenceSlot slot);
  void Start(const StepPlan& plan, const SequenceStart& start);
  void SetKept(std::span<const int32_t> kept, SequenceTable* table) const;
  bool IsBlock(BlockId block) const {
    return block != kNullBlock && Index(block) > 0 &&
           Index(block) < layout_.num_blocks;
  }
  // Whether the last cached tokens are the first rows of a cached block, to be
  // copied.
  bool IsPartlyCached(const SequenceStart& start) const {
    return start.source == kNoSequenceSlot && start.swap == kNoSwap &&
           start.num_cached_tokens % layout_.page_size != 0;
  }
  // Tail blocks that the cached tokens of a start with a source are in.
  int32_t SourceBlocks(const SequenceStart& start) const {
    return CeilDiv(start.num_cached_tokens - row(start.source).cut,
                   layout_.page_size);
  }

  const ModelLayout layout_;
  const int32_t max_sequences_;
  std::vector<SequenceTable> rows_;  // by slot; grows to the highest seen
  std::vector<Pending> pending_;     // by slot
  absl::flat_hash_map<RegionId, KeptRegions> regions_;
  absl::flat_hash_map<SwapId, Swapped> swapped_;
  std::vector<HostBlock> host_blocks_;
  uint64_t num_plans_ = 0;
  uint64_t num_swap_checks_ = 0;
};

}  // namespace blockmgr

#endif  // ENGINE_TABLES_TABLES_H_
