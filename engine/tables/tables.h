// EngineTables: the tables that a host engine keeps of its sequences. They
// change only by the plans that are applied to them.
//
// There is one row (SequenceTable) per sequence slot. It has the known tokens,
// the number of computed tokens, and one GroupTable per layer group. A
// GroupTable has a region as plain data (cut, blocks, kept entries per head)
// and the block table of the positions from the cut on. A group attends to all
// tokens or to a window (ModelLayout), so it holds the pages from FirstPage on.
// Once the first step of a row has been applied, every group of the row keeps
//
//   region.cut <= num_computed <= tokens.size()
//   region.cut + blocks.size() * page_size >= num_computed
//
// and the left side of the second line is the same number in all groups.
//
// The engine announces drafts for the next run of a row. A plan that takes
// drafts on makes them tokens of the row, until RejectDrafts. Swapped-out
// sequences, and regions that an order has named, are remembered until they
// come back or a plan drops them.
//
// Apply checks a plan as a whole before it changes anything. So mistakes of the
// scheduler or of the wire are found here and not in a kernel.
//
// Thread-compatible. Cost: O(size of the plan). Rows keep their memory.
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

// TableRegion stands for the positions [0, cut) of one layer group. Without a
// region, cut is 0 and everything else is empty.
struct TableRegion {
  int32_t cut = 0;
  std::vector<BlockId> blocks;
  std::vector<int32_t> kept;           // entries, [num_layers, num_heads]
  std::vector<int64_t> shard_entries;  // sums of kept, [num_shards]
  // The page lists of the region, on its blocks that have pages. Null if they
  // are not known, because the number of blocks that came back from the host
  // does not fit.
  std::shared_ptr<const RegionLayout> layout = nullptr;
  // The tokens that the sequence had when the region was made. In a window
  // group, the region lacks entries that only earlier tokens attend to.
  int32_t length = 0;
};

// GroupTable is what a sequence has in one layer group.
//
//   position   0          cut                             num_computed
//              |  region  | block | block | block | block ..|
//
// In a group with a window, the blocks of pages that a start left out are null,
// and the blocks of pages before FirstPage of the computed tokens have no
// meaning.
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

// The row of a sequence slot. In a model of one group, a decode step reads and
// writes only its first two cache lines.
struct alignas(64) SequenceTable {
  bool in_use = false;
  int32_t query_window = 0;
  RequestId request{0};
  int32_t num_evictions = 0;  // evictions from group 0 since the start
  // The KV of positions [0, num_computed) is in the pool, except for what was
  // evicted.
  int32_t num_computed = 0;
  // The prompt and the outputs, by position.
  std::vector<int32_t> tokens;
  std::vector<int32_t> drafts;                // announced for the next run
  absl::InlinedVector<GroupTable, 1> groups;  // [num_groups]
};

// The largest number of sequences. Free slots are used again before new ones,
// so a plan with a higher slot is broken.
inline constexpr int32_t kMaxSequenceSlots = 1 << 20;

class EngineTables {
 public:
  // Slots are below `max_sequences`. REQUIRES: `layout` is valid,
  // num_host_blocks >= 0.
  EngineTables(const ModelLayout& layout, int32_t max_sequences,
               int32_t num_host_blocks = 0);

  // Applies everything of the plan but the eviction orders (see CheckOrder) to
  // the rows. Copying bytes is the caller's work. Afterwards the rows are as
  // they will be when the step has been computed. If something in the plan
  // contradicts the tables, InvalidArgument names it, and nothing changes.
  absl::Status Apply(const StepPlan& plan);

  // Adds the token that the step sampled for a slot. REQUIRES: the slot is in
  // use and all its known tokens are computed.
  void AddSampled(SequenceSlot slot, int32_t token);

  // Forgets the drafts of a run but the first num_accepted, and the blocks
  // wholly behind these. Call it after every run with drafts, before
  // AddSampled. REQUIRES: num_accepted <= num_drafts, which is the run's.
  void RejectDrafts(SequenceSlot slot, int32_t num_drafts,
                    int32_t num_accepted);
  // Announces drafts for the next run of the slot.
  void SetDrafts(SequenceSlot slot, std::span<const int32_t> drafts);

  // Checks whether an order of the plan applied last can be carried out: its
  // slot, cut, length, destinations and policy, and the shapes of external
  // scores and budgets.
  absl::Status CheckOrder(const StepPlan& plan, const EvictionOrder& order);
  // Checks whether a region that keeps `counts` entries, [num_layers,
  // num_heads], fits the order. No head keeps more entries than it has. No
  // shard has more pages than its page total, or than the destinations have.
  absl::Status CheckCounts(const EvictionOrder& order,
                           std::span<const int32_t> counts) const;
  // An order covers the region of its group, and the blocks of the
  // positions [begin, order.cut). In a window group, only pages and regions
  // that the next token attends to are covered.
  struct CoveredTail {
    const TableRegion* region = nullptr;  // null if there is none or it is past
    int32_t begin = 0;
    std::span<const BlockId> blocks;
  };
  CoveredTail Covered(const EvictionOrder& order) const;
  // Returns how many entries a head has below an order's cut. In a window group
  // this is an upper bound, because the tables do not know which entries of a
  // region have left the window.
  int32_t HeldBelow(const EvictionOrder& order, int32_t head_index) const;
  // Replaces positions [0, order.cut) by the new region. REQUIRES: CheckOrder
  // and CheckCounts passed.
  void Commit(const StepPlan& plan, const EvictionOrder& order,
              std::span<const int32_t> counts);
  // Returns the checksum of the page lists that the tables have derived for an
  // order, if they know the lists. REQUIRES: no other order of this group of
  // the sequence was committed since.
  std::optional<uint64_t> ChecksumOf(const EvictionOrder& order) const;
  // Returns the name (EvictionOrder::region) of a committed order of the slot
  // in the plan applied last, or kNoRegion. REQUIRES: the slot is in use.
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
  // Returns the destinations of an order. REQUIRES: CheckOrder passed.
  static std::span<const BlockId> Destinations(const StepPlan& plan,
                                               const EvictionOrder& order) {
    return std::span(plan.destinations)
        .subspan(static_cast<size_t>(order.destination_begin),
                 static_cast<size_t>(order.num_destinations));
  }

 private:
  // Notes of the check of a plan about one slot.
  struct Pending {
    uint64_t plan = 0;  // other fields are valid only if this is num_plans_
    bool released = false;
    bool scheduled = false;
    size_t run = 0;          // index into slots, if scheduled
    int32_t num_copied = 0;  // groups with a copy
    int32_t start = -1;      // index into starts
  };

  // The orders of the last plan that are carried out in one slot. A plan that
  // is refused leaves them.
  struct Committed {
    uint64_t step = 0;  // other fields are valid only if this is num_steps_
    int32_t next_group = 0;     // lowest group that may have the next order
    RegionId name = kNoRegion;  // EvictionOrder::region of group 0's order
  };

  // A sequence in the host tier.
  struct Swapped {
    std::vector<int32_t> tokens;
    // [num_groups]. `blocks` has one entry per block with pages of the region;
    // the ids have no meaning.
    std::vector<TableRegion> regions;
    // For one group after the other: the blocks of the region, then the pages
    // behind it.
    std::vector<HostBlockId> blocks;
    uint64_t leaves = 0;  // number of the check whose plan ends the swap
  };
  struct HostBlock {
    SwapId holder = kNoSwap;  // may have ended
    uint64_t taken = 0;       // number of the check whose plan copies to it
  };

  // GroupTransfers counts the transfers of a swap that belong to one group.
  struct GroupTransfers {
    int64_t num_region = 0;  // for blocks of the region
    int64_t num_pages = 0;   // for pages behind the region
  };

  // Plans (tables.cc).
  absl::Status CheckSlot(const char* field, SequenceSlot slot) const;
  absl::Status CheckShapes(const StepPlan& plan) const;
  absl::Status CheckStarts(const StepPlan& plan);
  absl::Status CheckStart(const StepPlan& plan,
                          const SequenceStart& start) const;
  // Checks that the tables know every region that the plan drops, and that the
  // plan drops none twice.
  absl::Status CheckDropped(const StepPlan& plan) const;
  absl::Status CheckScheduled(const StepPlan& plan, size_t i);
  // Checks the drafts of a run with `num_ready` announced ones.
  absl::Status CheckDrafts(const StepPlan& plan, size_t i,
                           size_t num_ready) const;
  bool InUse(SequenceSlot slot) const;
  // Returns the slot's entry for the current plan. Resets an entry of an older
  // plan.
  Pending& PendingOf(SequenceSlot slot);
  Committed& CommittedOf(SequenceSlot slot);
  void Release(SequenceSlot slot);
  void Start(const StepPlan& plan, const SequenceStart& start);
  void Run(const StepPlan& plan, size_t i);

  // Layer groups (tables_groups.cc).
  // Returns whether any token from position length - 1 on attends to the
  // region. To ask this for the next token, pass num_computed + 1.
  bool IsAttended(const TableRegion& region, int32_t group,
                  int32_t length) const {
    return region.cut > layout_.FirstPage(group, length) * layout_.page_size;
  }
  // Returns the least number of tokens after which a sequence can start with
  // the region. The region of a window group lacks entries that tokens before
  // region.length attend to.
  int32_t LeastTokens(const TableRegion& region, int32_t group) const {
    return layout_.kind_of(group) == GroupKind::kFull ? region.cut
                                                      : region.length;
  }
  // Returns how many pages behind the cut a group needs for `length` tokens.
  int32_t NumPages(int32_t group, int32_t length, int32_t cut) const {
    return CeilDiv(length, layout_.page_size) -
           std::max(cut / layout_.page_size, layout_.FirstPage(group, length));
  }
  // Returns the region that a start without a source takes, or null.
  const TableRegion* TakenRegion(const SequenceStart& start,
                                 int32_t group) const;
  // Checks that a run's blocks reach position `end`, that all groups reach the
  // same page, and that exactly the pages that a start leaves out are null.
  // `start` is the plan's start of the slot, or null.
  absl::Status CheckNewBlocks(const StepPlan& plan, size_t run,
                              const SequenceStart* start, int64_t end) const;
  // Returns the row's regions for a sequence that starts with its first
  // `length` tokens, [num_groups].
  std::vector<TableRegion> RegionsAt(const SequenceTable& table,
                                     int32_t length) const;
  // Forgets the blocks behind the first num_tokens tokens.
  void CutBlocks(int32_t num_tokens, SequenceTable* table) const;

  // Sources and copies (tables_source.cc).
  absl::Status CheckSource(const StepPlan& plan, const SequenceStart& start);
  // Checks that the source has everything that tokens behind its first
  // num_cached_tokens attend to.
  absl::Status CheckSourceGroups(const SequenceStart& start) const;
  absl::Status CheckCopies(const StepPlan& plan);
  // Checks a copy of the first rows of a cached block.
  absl::Status CheckPart(const StepPlan& plan, const SequenceStart& start,
                         const CopyOnWrite& copy);

  // Swaps (tables_swap.cc).
  absl::Status CheckDroppedSwaps(const StepPlan& plan);
  absl::Status CheckSwapOut(const StepPlan& plan, const SwapOut& out);
  // Return the blocks of a group that a swap copies: the blocks of the region
  // (some may have no pages, and the tables do not know which), and the blocks
  // of the pages behind the region.
  std::span<const BlockId> RegionOut(const SwapOut& out, int32_t group) const;
  std::span<const BlockId> PagesOut(const SwapOut& out, int32_t group) const;
  // Returns how many transfers belong to each group, [num_groups].
  absl::StatusOr<std::vector<GroupTransfers>> SplitSwapOut(
      const SwapOut& out, std::span<const BlockTransfer> transfers) const;
  absl::Status CheckSwapIn(const StepPlan& plan, const SequenceStart& start);
  absl::Status CheckTransfersIn(const StepPlan& plan,
                                const SequenceStart& start,
                                const Swapped& swapped) const;
  // Returns how many of the start's transfers belong to each group,
  // [num_groups]. The count of group 0's pages is what the other counts leave.
  // It may be negative if the plan is wrong.
  std::vector<GroupTransfers> SplitSwapIn(const SequenceStart& start,
                                          const Swapped& swapped) const;
  // Checks that the transfers of pages go to the new blocks of the start's run.
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
  // Returns the entries that each shard keeps, [num_shards].
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
  // Returns whether the last cached tokens are only a part of a cached block,
  // which a copy brings into a block of the sequence.
  bool IsPartlyCached(const SequenceStart& start) const {
    return start.source == kNoSequenceSlot && start.swap == kNoSwap &&
           start.num_cached_tokens % layout_.page_size != 0;
  }

  const ModelLayout layout_;
  const int32_t max_sequences_;
  std::vector<SequenceTable> rows_;   // by slot, up to the highest slot used
  std::vector<Pending> pending_;      // by slot
  std::vector<Committed> committed_;  // by slot
  // The regions kept under each name, [num_groups].
  absl::flat_hash_map<RegionId, std::vector<TableRegion>> regions_;
  absl::flat_hash_map<SwapId, Swapped> swapped_;
  std::vector<HostBlock> host_blocks_;
  uint64_t num_plans_ = 0;  // refused ones included
  uint64_t num_steps_ = 0;  // plans that were applied
  uint64_t num_swap_checks_ = 0;
};

}  // namespace blockmgr

#endif  // ENGINE_TABLES_TABLES_H_
