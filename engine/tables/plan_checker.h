// PlanChecker: whether a plan fits the tables.
//
// A check reads the tables through a const TablesState and changes nothing but
// its notes, so a plan that is refused leaves no trace. A checker is for one
// plan. The notes belong to its caller, who keeps their memory for the next
// one. Cost: O(size of the plan). A decode step allocates nothing.
//
// Thread-compatible.
#ifndef ENGINE_TABLES_PLAN_CHECKER_H_
#define ENGINE_TABLES_PLAN_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables_state.h"

namespace blockmgr {

// Returns the error of a field of the plan that is about a slot.
template <typename... Parts>
absl::Status InvalidSlot(const char* field, SequenceSlot slot,
                         const Parts&... parts) {
  return Invalid(field, " of slot ", Index(slot), ": ", parts...);
}

class PlanChecker {
 public:
  // Borrows everything.
  PlanChecker(const TablesState& state, const StepPlan& plan, PlanNotes* notes)
      : state_(state), layout_(state.layout), plan_(plan), notes_(*notes) {}

  // Checks everything of the plan but the eviction orders. Call it once.
  absl::Status Check();

 private:
  absl::Status CheckShapes() const;
  absl::Status CheckReleased();
  // Checks that the tables know every region that the plan drops, and that the
  // plan drops none twice.
  absl::Status CheckDroppedRegions() const;
  absl::Status CheckScheduled(size_t run);
  // Checks the drafts of a run with `num_ready` announced ones.
  absl::Status CheckDrafts(size_t run, size_t num_ready) const;
  // Checks that a run's blocks reach position `end`, that all groups reach the
  // same page, and that exactly the pages that a start leaves out are null.
  // `start` is the plan's start of the slot, or null.
  absl::Status CheckNewBlocks(size_t run, const SequenceStart* start,
                              int64_t end) const;
  // Returns the first position of a run's new blocks in the group.
  int64_t NewBegin(size_t run, const SequenceStart* start, int32_t group) const;

  // Starts and copies (plan_checker_starts.cc).
  absl::Status CheckStarts();
  absl::Status CheckStart(const SequenceStart& start) const;
  absl::Status CheckSource(const SequenceStart& start);
  // Checks that the source has everything that tokens behind its first
  // num_cached_tokens attend to.
  absl::Status CheckSourceGroups(const SequenceStart& start) const;
  // Checks that the runs of starts have what is cached.
  absl::Status CheckCached();
  absl::Status CheckCopies();
  // Checks a copy of the first rows of a cached block.
  absl::Status CheckPart(const SequenceStart& start, const CopyOnWrite& copy);
  // Checks that a start on a part of a cached block has a copy of it.
  absl::Status CheckPartsAreCopied();
  // Returns whether the last cached tokens are only a part of a cached block,
  // which a copy brings into a block of the sequence.
  bool IsPartlyCached(const SequenceStart& start) const {
    return start.source == kNoSequenceSlot && start.swap == kNoSwap &&
           start.num_cached_tokens % layout_.page_size != 0;
  }

  // Swaps (plan_checker_swap.cc).
  absl::Status CheckDroppedSwaps();
  absl::Status CheckSwapOut(const SwapOut& out);
  // Checks that the host blocks of a swap-out are free.
  absl::Status CheckHostBlocks(SwapId swap,
                               std::span<const BlockTransfer> transfers);
  absl::Status CheckSwapIn(const SequenceStart& start);
  absl::Status CheckTransfersIn(const SequenceStart& start) const;
  // Checks that the transfers of pages go to the new blocks of the start's run.
  absl::Status CheckPagesIn(const SequenceStart& start);

  const TablesState& state_;
  const ModelLayout& layout_;
  const StepPlan& plan_;
  PlanNotes& notes_;
};

}  // namespace blockmgr

#endif  // ENGINE_TABLES_PLAN_CHECKER_H_
