// DriverRandom: the random choices of ManagerDriver. A choice reads the state
// and draws numbers. It changes nothing else.
#ifndef TESTS_BLOCKMGR_DRIVER_RANDOM_H_
#define TESTS_BLOCKMGR_DRIVER_RANDOM_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/blockmgr/driver_state.h"

namespace blockmgr {

class DriverRandom {
 public:
  DriverRandom(std::mt19937_64* numbers, const DriverState* state)
      : numbers_(*numbers), state_(*state) {}

  int32_t Int(int32_t low, int32_t high);
  bool Chance(double probability);

  // Returns an open sequence. REQUIRES: there is one.
  SequenceSlot AnySlot();
  // As AnySlot, and prefers a sequence whose next region can be published.
  SequenceSlot SlotToCompress();

  // Returns a sequence that is not open yet. It has a prompt, a scope, wishes
  // and names.
  NaiveSequence Sequence();
  void AppendTokens(std::vector<int32_t>* tokens, int32_t count);
  // Returns the name of an eviction history.
  std::string History();
  // Returns what some sequences shall reserve in the step being planned.
  std::vector<TokenDemand> Demands();

  // Returns the cut of an eviction. The group's last cut, or an earlier one,
  // means that nothing can be evicted.
  int32_t Cut(const NaiveSequence& sequence, int32_t group);
  // Returns how many pages each shard may keep of what an order covers.
  int64_t PageTotal(SequenceSlot slot, int32_t group, const BookOrder& order);
  // Returns legal counts of kept entries for the pending order of a group.
  std::vector<int32_t> Counts(SequenceSlot slot, int32_t group);

 private:
  std::vector<RetentionRange> Wishes();
  // Whether an eviction of all but one page can be published. Always false
  // without windows, where publications are frequent enough.
  bool IsReady(const NaiveSequence& sequence) const;

  std::mt19937_64& numbers_;
  const DriverState& state_;
  const ModelLayout& layout_ = state_.config.layout;
  const NaiveModel& model_ = state_.model;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_RANDOM_H_
