// DriverRuns: the part of ManagerDriver that reserves tokens, settles them and
// rolls them back.
#ifndef TESTS_BLOCKMGR_DRIVER_RUNS_H_
#define TESTS_BLOCKMGR_DRIVER_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/blockmgr/driver_random.h"
#include "tests/blockmgr/driver_state.h"

namespace blockmgr {

class DriverRuns {
 public:
  DriverRuns(DriverState* state, DriverRandom* random)
      : state_(*state), random_(*random) {}

  // Reserves tokens for some sequences. Returns whether that was done.
  bool Reserve();
  // Reserves, and aborts the new runs: nothing may have changed.
  void UndoReserve();
  // Aborts the last run of the step being planned, if no order needs its
  // tokens.
  void AbortRun();
  // Commits run number i of an acknowledged step, or only some of its tokens.
  void Settle(DriverStep* step, size_t i);
  // Rolls back some of the last positions, whatever step they are in.
  void RollbackSome(SequenceSlot slot);

 private:
  // Compares the copies that Reserve has named for shared blocks.
  void CheckCopies(const std::vector<TokenDemand>& demands,
                   const std::vector<TokenDemand>& leavers,
                   const std::vector<CopyOnWrite>& copies);
  void Abort(const DriverRun& run);
  // Rolls back the last num_tokens positions. They are in runs that are in
  // flight or planned, or in `acknowledged`, which is not settled yet.
  void Rollback(SequenceSlot slot, int32_t num_tokens,
                std::span<DriverRun> acknowledged);

  DriverState& state_;
  DriverRandom& random_;
  const ModelLayout& layout_ = state_.config.layout;
  BlockManager& manager_ = state_.manager;
  NaiveModel& model_ = state_.model;
  DriverTally& tally_ = state_.tally;
  bool has_reclaimed_ = false;  // the last Reserve that was done
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_RUNS_H_
