// DriverSwaps: the part of ManagerDriver that moves sequences to the host tier
// and back.
#ifndef TESTS_BLOCKMGR_DRIVER_SWAPS_H_
#define TESTS_BLOCKMGR_DRIVER_SWAPS_H_

#include <cstdint>

#include "tests/blockmgr/driver_checks.h"
#include "tests/blockmgr/driver_random.h"
#include "tests/blockmgr/driver_sequences.h"
#include "tests/blockmgr/driver_state.h"

namespace blockmgr {

class DriverSwaps {
 public:
  DriverSwaps(DriverState* state, DriverRandom* random, DriverChecks* checks,
              DriverSequences* sequences)
      : state_(*state),
        random_(*random),
        checks_(*checks),
        sequences_(*sequences) {}

  // Makes one random operation on the host tier.
  void Operate();

 private:
  // Whether the sequence has published its region, and has settled tokens
  // behind it.
  static bool IsPublished(const NaiveSequence& sequence);
  SequenceSlot SlotToSwapOut();
  void SwapOut(SequenceSlot slot);
  void SwapIn(SwapId swap);
  // Finds what the cache has of the first max_tokens of a swapped sequence. It
  // must have been computed over the same region.
  void MatchPastOf(SwapId swap, const NaiveSequence& sequence,
                   int32_t max_tokens, PrefixMatch* match,
                   NaiveMatch* expected);
  void LoseHostBlocks();

  DriverState& state_;
  DriverRandom& random_;
  DriverChecks& checks_;
  DriverSequences& sequences_;
  BlockManager& manager_ = state_.manager;
  NaiveModel& model_ = state_.model;
  DriverTally& tally_ = state_.tally;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_SWAPS_H_
