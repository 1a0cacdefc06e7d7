// DriverSequences: the part of ManagerDriver that opens, forks, cuts back and
// closes sequences.
#ifndef TESTS_BLOCKMGR_DRIVER_SEQUENCES_H_
#define TESTS_BLOCKMGR_DRIVER_SEQUENCES_H_

#include <cstdint>

#include "tests/blockmgr/driver_checks.h"
#include "tests/blockmgr/driver_random.h"
#include "tests/blockmgr/driver_state.h"

namespace blockmgr {

class DriverSequences {
 public:
  DriverSequences(DriverState* state, DriverRandom* random,
                  DriverChecks* checks)
      : state_(*state), random_(*random), checks_(*checks) {}

  void Open();
  void Fork();
  void CutBack(SequenceSlot slot);
  // Loses the contents of some blocks.
  void LoseBlocks();
  // REQUIRES: there is a sequence.
  void CloseAny();
  void Close(SequenceSlot slot);
  void CloseAll();

 private:
  void ForkAt(SequenceSlot slot, int32_t num_tokens);
  // Returns a number of settled tokens, at least `least`, that the sequence can
  // go back to. Checks whether it can.
  int32_t RandomBack(SequenceSlot slot, int32_t least);

  DriverState& state_;
  DriverRandom& random_;
  DriverChecks& checks_;
  const ModelLayout& layout_ = state_.config.layout;
  BlockManager& manager_ = state_.manager;
  NaiveModel& model_ = state_.model;
  DriverTally& tally_ = state_.tally;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_SEQUENCES_H_
