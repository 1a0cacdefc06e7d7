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
// Apply has PlanChecker check a plan as a whole before it changes anything. So
// mistakes of the scheduler or of the wire are found here and not in a kernel.
//
// Thread-compatible. Cost: O(size of the plan). Rows keep their memory.
#ifndef ENGINE_TABLES_TABLES_H_
#define ENGINE_TABLES_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/region_layout.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables_state.h"

namespace blockmgr {

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
  absl::Status CheckOrder(const StepPlan& plan,
                          const EvictionOrder& order) const;
  // Checks whether a region that keeps `counts` entries, [num_layers,
  // num_heads], fits the order. No head keeps more entries than it has. No
  // shard has more pages than its page total, or than the destinations have.
  absl::Status CheckCounts(const EvictionOrder& order,
                           std::span<const int32_t> counts) const;
  using CoveredTail = blockmgr::CoveredTail;
  // Returns what the order covers.
  CoveredTail Covered(const EvictionOrder& order) const {
    return state_.Covered(order);
  }
  // Returns how many entries a head has below an order's cut. In a window group
  // this is an upper bound, because the tables do not know which entries of a
  // region have left the window.
  int32_t CountHeldBelow(const EvictionOrder& order, int32_t head_index) const {
    return state_.CountHeldBelow(order, head_index);
  }
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
  RegionId KeptName(SequenceSlot slot) const {
    return state_.CommittedOf(slot).name;
  }

  // Forgets every sequence and region.
  void Reset() { state_.Reset(); }

  const SequenceTable& row(SequenceSlot slot) const { return state_.row(slot); }
  const ModelLayout& layout() const { return state_.layout; }
  int32_t num_host_blocks() const {
    return static_cast<int32_t>(state_.host_holders.size());
  }
  // Returns the destinations of an order. REQUIRES: CheckOrder passed.
  static std::span<const BlockId> Destinations(const StepPlan& plan,
                                               const EvictionOrder& order) {
    return std::span(plan.destinations)
        .subspan(static_cast<size_t>(order.destination_begin),
                 static_cast<size_t>(order.num_destinations));
  }

 private:
  void Release(SequenceSlot slot);
  void Start(const StepPlan& plan, const SequenceStart& start);
  void Run(const StepPlan& plan, size_t i);
  // Remember a sequence that leaves for the host tier, and forget it.
  void Leave(const StepPlan& plan, const SwapOut& out);
  void ComeBack(const StepPlan& plan, const SequenceStart& start);
  // Forgets the blocks behind the first num_tokens tokens.
  void CutBlocks(int32_t num_tokens, SequenceTable* table) const;
  // Returns the page lists of an order's new region, or null if those of the
  // region now are not known.
  std::shared_ptr<const RegionLayout> LayOut(
      const StepPlan& plan, const EvictionOrder& order,
      std::span<const int32_t> counts) const;
  // Returns the entries that each shard keeps, [num_shards].
  std::vector<int64_t> ShardEntries(std::span<const int32_t> kept) const;

  TablesState state_;
  PlanNotes notes_;
};

}  // namespace blockmgr

#endif  // ENGINE_TABLES_TABLES_H_
