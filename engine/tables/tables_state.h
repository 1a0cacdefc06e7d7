// TablesState: everything that EngineTables knows between two plans.
//
// PlanChecker and CheckEvictionOrder look at a const TablesState. So a check
// cannot change a row, a region or a swap. EngineTables alone changes the
// state, by plans and orders that have passed their checks.
//
// The kind and window of a layer group (ModelLayout) decide which pages and
// regions it needs. Only two things belong to group 0 as the first group:
//
//   its regions  say after how many tokens a sequence can start with the
//                regions of all groups under one name (PlanChecker::CheckStart)
//   its pages    may be in cached blocks when a sequence comes back from the
//                host, so their number is what the transfers of the other
//                groups leave (SplitSwapIn)
#ifndef ENGINE_TABLES_TABLES_STATE_H_
#define ENGINE_TABLES_TABLES_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>

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
  std::vector<BlockId> blocks;  // the blocks from position region.cut on
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

// An order covers the region of its group, and the blocks of the positions
// [begin, order.cut). In a window group, only pages and regions that the next
// token attends to are covered.
struct CoveredTail {
  // Null if the group has no region, or if the window has passed the region.
  const TableRegion* region = nullptr;
  int32_t begin = 0;
  std::span<const BlockId> blocks;
};

struct TablesState {
  // The orders of the last plan that are carried out in one slot. A plan that
  // is refused leaves them.
  struct Committed {
    uint64_t step = 0;       // other fields are valid only if this is num_steps
    int32_t next_group = 0;  // lowest group that may have the next order
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
  };

  TablesState(const ModelLayout& model, int32_t num_slots,
              int32_t num_host_blocks)
      : layout(model),
        max_sequences(num_slots),
        host_holders(static_cast<size_t>(num_host_blocks), kNoSwap) {}

  // Forgets every sequence and region.
  void Reset();

  // Checks the slot that the field has.
  absl::Status CheckSlot(const char* field, SequenceSlot slot) const {
    const bool is_slot = Index(slot) >= 0 && Index(slot) < max_sequences;
    return is_slot ? absl::OkStatus() : NoSlot(field, slot);
  }
  // Returns the error of a field that has no slot.
  absl::Status NoSlot(const char* field, SequenceSlot slot) const;
  bool IsBlock(BlockId block) const {
    return block != kNullBlock && Index(block) > 0 &&
           Index(block) < layout.num_blocks;
  }
  bool IsInUse(SequenceSlot slot) const {
    return Index(slot) < static_cast<int64_t>(rows.size()) && row(slot).in_use;
  }
  SequenceTable& row(SequenceSlot slot) {
    return rows[static_cast<size_t>(Index(slot))];
  }
  const SequenceTable& row(SequenceSlot slot) const {
    return rows[static_cast<size_t>(Index(slot))];
  }
  const GroupTable& group_of(SequenceSlot slot, int32_t group) const {
    return row(slot).groups[static_cast<size_t>(group)];
  }
  // Returns what was committed in the slot since the last plan.
  Committed CommittedOf(SequenceSlot slot) const;

  // Returns whether any token from position length - 1 on attends to the
  // region. To ask this for the next token, pass num_computed + 1.
  bool IsAttended(const TableRegion& region, int32_t group,
                  int32_t length) const {
    return region.cut > layout.FirstPage(group, length) * layout.page_size;
  }
  // Returns the least number of tokens after which a sequence can start with
  // the region. The region of a window group lacks entries that tokens before
  // region.length attend to.
  int32_t LeastTokens(const TableRegion& region, int32_t group) const {
    return layout.kind_of(group) == GroupKind::kFull ? region.cut
                                                     : region.length;
  }
  // Returns how many pages behind the cut a group needs for `length` tokens.
  int32_t CountPages(int32_t group, int32_t length, int32_t cut) const {
    return CeilDiv(length, layout.page_size) -
           std::max(cut / layout.page_size, layout.FirstPage(group, length));
  }
  // Returns the regions of the row that a sequence of its first `length` tokens
  // attends to, [num_groups].
  std::vector<TableRegion> RegionsAt(const SequenceTable& table,
                                     int32_t length) const;
  // Returns the region that start.region names in the group, or null. To a
  // sequence from the host the name gives regions of full groups only, because
  // those of window groups come back with it. REQUIRES: the name is kept.
  const TableRegion* NamedRegion(const SequenceStart& start,
                                 int32_t group) const;
  // Returns the region that a start without a source takes, or null. REQUIRES:
  // what the start names is kept, or is in the host tier.
  const TableRegion* TakenRegion(const SequenceStart& start,
                                 int32_t group) const;
  // See EngineTables.
  CoveredTail Covered(const EvictionOrder& order) const;
  int32_t CountHeldBelow(const EvictionOrder& order, int32_t head_index) const;

  const ModelLayout layout;
  const int32_t max_sequences;
  // Indexed by slot, up to the highest slot that was used.
  std::vector<SequenceTable> rows;
  // Indexed by slot, up to the highest slot that had an order.
  std::vector<Committed> committed;
  // The regions kept under each name, [num_groups].
  absl::flat_hash_map<RegionId, std::vector<TableRegion>> regions;
  absl::flat_hash_map<SwapId, Swapped> swapped;
  // The swap that used each host block last. This swap may have ended.
  std::vector<SwapId> host_holders;
  uint64_t num_steps = 0;  // plans that were applied
};

// PlanNotes is the scratch of PlanChecker. Only its memory outlives a check.
struct PlanNotes {
  struct Slot {
    uint64_t plan = 0;  // other fields are valid only if this is num_plans
    bool released = false;
    bool scheduled = false;
    size_t run = 0;          // index into slots, if scheduled
    int32_t num_copied = 0;  // groups with a copy
    int32_t start = -1;      // index into starts
  };

  // Returns the notes about the slot. The next call may move them.
  Slot& Of(SequenceSlot slot) {
    const auto index = static_cast<size_t>(Index(slot));
    if (index >= slots.size()) slots.resize(index + 1);
    Slot& notes = slots[index];
    if (notes.plan != num_plans) notes = {.plan = num_plans};
    return notes;
  }

  uint64_t num_plans = 0;  // refused ones included
  // Indexed by slot, up to the highest slot of all plans.
  std::vector<Slot> slots;
  absl::flat_hash_set<SwapId> ended;  // swaps that this plan ends
  // The blocks that swap-outs of this plan take.
  absl::flat_hash_set<HostBlockId> taken;
};

}  // namespace blockmgr

#endif  // ENGINE_TABLES_TABLES_STATE_H_
