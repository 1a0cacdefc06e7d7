// EngineTables: what a host engine knows of its sequences, fed only by the
// deltas of step plans.
//
// There is one row per sequence slot: the tokens known, how many of them are
// computed, and one GroupTable per layer group. A GroupTable is a region as
// plain data (cut, blocks, kept entries per head) and the block table of the
// positions from the region's cut on. What a group attends to, all tokens or a
// window (ModelLayout), decides which of them mean something; no operation
// differs otherwise. Once the first step of a row in use has been applied,
// every group of the row keeps
//
//   region.cut <= num_computed <= tokens.size()
//   region.cut + blocks.size() * page_size >= num_computed
//
// and the left side of the second line is the same number in all groups.
//
// Drafts that the engine has announced for the next run of a row become tokens
// of the row with the plan that takes them on, until they are verified.
// Sequences that are swapped out, and regions that orders tell to keep by a
// name, are remembered until they come back or are dropped.
//
// A plan is checked as a whole before anything changes: the scheduler's
// mistakes and the wire's are found here, not by a kernel.
//
// Thread-compatible. Cost: O(what the plan carries); rows keep their memory.
#ifndef ENGINE_TABLES_TABLES_H_
#define ENGINE_TABLES_TABLES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/region_layout.h"
#include "blockmgr/step_plan.h"

namespace blockmgr {

// What is left of the positions [0, cut) in one layer group. Without a region,
// cut is 0 and everything else is empty.
struct TableRegion {
  int32_t cut = 0;
  std::vector<BlockId> blocks;
  std::vector<int32_t> kept;           // entries, [num_layers, num_heads]
  std::vector<int64_t> shard_entries;  // sums of kept, [num_shards]
  // The page lists of the region, on those of its blocks that have pages. Null
  // if they are not known, as too few or too many blocks came back from the
  // host.
  std::shared_ptr<const RegionLayout> layout = nullptr;
  // The tokens that the sequence had when the region was made. In a window
  // group, entries that the tokens behind do not attend to are gone.
  int32_t length = 0;
};

// What a sequence has in one layer group.
//
//   position   0          cut                             num_computed
//              |  region  | block | block | block | block ..|
//
// In a group with a window, blocks are null where a start left pages out, and
// blocks of pages before FirstPage of the computed tokens mean nothing.
struct GroupTable {
  std::vector<BlockId> blocks;  // of the positions from region.cut on
  TableRegion region;
  // Whether the last run attended to nothing of the region. This happens in
  // window groups only. A sequence that goes back after a loss may attend to
  // the region again.
  bool region_is_past = false;

  // Returns the region, or null if there is none or it is past.
  const TableRegion* attended_region() const {
    return region.cut == 0 || region_is_past ? nullptr : &region;
  }
};

// In a model of one group, what a decode step reads and writes is in the first
// two cache lines.
struct alignas(64) SequenceTable {
  bool in_use = false;
  int32_t query_window = 0;
  RequestId request{0};
  int32_t num_evictions = 0;  // from group 0, since the start
  // Positions [0, num_computed) have their KV in the pool, as far as kept.
  int32_t num_computed = 0;
  // Prompt and outputs, by position.
  std::vector<int32_t> tokens;
  std::vector<int32_t> drafts;                // announced for the next run
  absl::InlinedVector<GroupTable, 1> groups;  // [num_groups]
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
  // Afterwards the rows say what the step will have computed (num_computed, the
  // groups' blocks). InvalidArgument, with nothing changed, names what
  // contradicts the tables. Eviction orders are not looked at: see CheckOrder.
  absl::Status Apply(const StepPlan& plan);

  // Adds the token that the step sampled for a slot. REQUIRES: the slot is in
  // use and everything known is computed.
  void AddSampled(SequenceSlot slot, int32_t token);

  // After a run with drafts, before AddSampled: all of them but the first
  // num_accepted are forgotten, with the blocks behind.
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
  // What an order covers: the region of its group, and the blocks of the
  // positions [begin, order.cut). In a window group both count only as far as
  // the next token attends to them.
  struct CoveredTail {
    const TableRegion* region = nullptr;  // null if there is none or it is past
    int32_t begin = 0;
    std::span<const BlockId> blocks;
  };
  CoveredTail Covered(const EvictionOrder& order) const;
  // Returns how many entries a head has below an order's cut. In a window group
  // this is the most that it may have: the tables do not know which entries of
  // a region are still attended to.
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

  // What the host tier has of a sequence.
  struct Swapped {
    std::vector<int32_t> tokens;
    // Of each region, `blocks` are those with pages of it, and their ids are
    // void. [num_groups]
    std::vector<TableRegion> regions;
    // Of one group after the other: the region's blocks, the pages behind it.
    std::vector<HostBlockId> blocks;
    uint64_t leaves = 0;  // the check whose plan drops it or has it back
  };
  struct HostBlock {
    SwapId holder = kNoSwap;  // perhaps of the past
    uint64_t taken = 0;       // the check whose plan copies to it
  };

  // The number of transfers that a group has among those of a swap.
  struct GroupTransfers {
    int64_t num_region = 0;
    int64_t num_pages = 0;  // behind the region
  };

  // Plans (tables.cc).
  absl::Status CheckSlot(const char* field, SequenceSlot slot) const;
  absl::Status CheckShapes(const StepPlan& plan) const;
  absl::Status CheckStarts(const StepPlan& plan);
  absl::Status CheckStart(const StepPlan& plan,
                          const SequenceStart& start) const;
  // Checks that regions that the plan drops are kept ones, each named once.
  absl::Status CheckDropped(const StepPlan& plan) const;
  absl::Status CheckScheduled(const StepPlan& plan, size_t i);
  // Checks the drafts of a run with `num_ready` announced ones.
  absl::Status CheckDrafts(const StepPlan& plan, size_t i,
                           size_t num_ready) const;
  bool InUse(SequenceSlot slot) const;
  // Returns the slot's entry for the current plan, fresh if it has none yet.
  Pending& PendingOf(SequenceSlot slot);
  void Release(SequenceSlot slot);
  void Start(const StepPlan& plan, const SequenceStart& start);
  void Run(const StepPlan& plan, size_t i);

  // Layer groups (tables_groups.cc).
  // Returns whether what comes after the first `length` tokens, the last of
  // these included, attends to something of a region. For the next token alone,
  // `length` is one more than the tokens computed.
  bool IsAttended(const TableRegion& region, int32_t group,
                  int32_t length) const {
    return region.cut > layout_.FirstPage(group, length) * layout_.page_size;
  }
  // Returns the least number of tokens that a sequence with the region can go
  // on from. The region of a window group lacks what tokens before `length`
  // attend to.
  int32_t LeastTokens(const TableRegion& region, int32_t group) const {
    return layout_.kind_of(group) == GroupKind::kFull ? region.cut
                                                      : region.length;
  }
  // Returns how many pages of `length` tokens, behind a cut, a group needs.
  int32_t NumPages(int32_t group, int32_t length, int32_t cut) const {
    return CeilDiv(length, layout_.page_size) -
           std::max(cut / layout_.page_size, layout_.FirstPage(group, length));
  }
  // Returns the region that a start without a source takes, or null.
  const TableRegion* TakenRegion(const SequenceStart& start,
                                 int32_t group) const;
  // Checks that a run's blocks reach position `end`, that all groups reach the
  // same page, and that blocks are null just where a start leaves pages out.
  // `start` is the plan's start of the slot, or null.
  absl::Status CheckNewBlocks(const StepPlan& plan, size_t run,
                              const SequenceStart* start, int64_t end) const;
  // Returns the regions that sequences of the row's first `length` tokens may
  // start with.
  std::vector<TableRegion> RegionsAt(const SequenceTable& table,
                                     int32_t length) const;
  // Forgets the blocks behind the first num_tokens tokens.
  void CutBlocks(int32_t num_tokens, SequenceTable* table) const;

  // Sources and copies (tables_source.cc).
  absl::Status CheckSource(const StepPlan& plan, const SequenceStart& start);
  // Checks that the source has what sequences of its first num_cached_tokens
  // attend to.
  absl::Status CheckSourceGroups(const SequenceStart& start) const;
  absl::Status CheckCopies(const StepPlan& plan);
  // Checks a copy of the first rows of a cached block.
  absl::Status CheckPart(const StepPlan& plan, const SequenceStart& start,
                         const CopyOnWrite& copy);

  // Swaps (tables_swap.cc).
  absl::Status CheckDroppedSwaps(const StepPlan& plan);
  absl::Status CheckSwapOut(const StepPlan& plan, const SwapOut& out);
  // Return the blocks that a swap copies of a group: those of its region, of
  // which some may have no pages (the tables do not know which), and those of
  // the pages behind it.
  std::span<const BlockId> RegionOut(const SwapOut& out, int32_t group) const;
  std::span<const BlockId> PagesOut(const SwapOut& out, int32_t group) const;
  // Returns how many of the transfers each group has, [num_groups].
  absl::StatusOr<std::vector<GroupTransfers>> SplitSwapOut(
      const SwapOut& out, std::span<const BlockTransfer> transfers) const;
  absl::Status CheckSwapIn(const StepPlan& plan, const SequenceStart& start);
  absl::Status CheckTransfersIn(const StepPlan& plan,
                                const SequenceStart& start,
                                const Swapped& swapped) const;
  // Returns how many of the start's transfers each group has, [num_groups]. The
  // last pages of group 0 get what the others leave, which may be negative.
  std::vector<GroupTransfers> SplitSwapIn(const SequenceStart& start,
                                          const Swapped& swapped) const;
  // Checks that copies to pages go to the blocks of the start's run.
  absl::Status CheckPagesIn(const StepPlan& plan, const SequenceStart& start);
  void Leave(const StepPlan& plan, const SwapOut& out);
  void ComeBack(const StepPlan& plan, const SequenceStart& start,
                SequenceTable* table);

  // Orders (tables_orders.cc).
  absl::Status CheckDestinations(const StepPlan& plan,
                                 const EvictionOrder& order) const;
  absl::Status CheckWindowOrder(const EvictionOrder& order) const;

  // Page lists (tables_layout.cc).
  std::shared_ptr<const RegionLayout> LayOut(
      const StepPlan& plan, const EvictionOrder& order,
      std::span<const int32_t> counts) const;
  // Returns the page lists with every block replaced by another one, or null if
  // the numbers of blocks differ.
  static std::shared_ptr<const RegionLayout> OnBlocks(
      const std::shared_ptr<const RegionLayout>& layout,
      std::span<const BlockId> blocks);
  // Returns the sum of what each shard keeps.
  std::vector<int64_t> ShardEntries(std::span<const int32_t> kept) const;

  SequenceTable& table_of(SequenceSlot slot) {
    return rows_[static_cast<size_t>(Index(slot))];
  }
  GroupTable& group_of(SequenceSlot slot, int32_t group) {
    return table_of(slot).groups[static_cast<size_t>(group)];
  }
  const GroupTable& group_of(SequenceSlot slot, int32_t group) const {
    return row(slot).groups[static_cast<size_t>(group)];
  }
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

  const ModelLayout layout_;
  const int32_t max_sequences_;
  std::vector<SequenceTable> rows_;  // by slot; grows to the highest seen
  std::vector<Pending> pending_;     // by slot
  // Regions that are kept by a name, [num_groups].
  absl::flat_hash_map<RegionId, std::vector<TableRegion>> regions_;
  absl::flat_hash_map<SwapId, Swapped> swapped_;
  std::vector<HostBlock> host_blocks_;
  uint64_t num_plans_ = 0;
  uint64_t num_swap_checks_ = 0;
};

}  // namespace blockmgr

#endif  // ENGINE_TABLES_TABLES_H_
