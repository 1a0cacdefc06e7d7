// DriverChecks: the part of ManagerDriver that compares the manager with the
// naive model.
#ifndef TESTS_BLOCKMGR_DRIVER_CHECKS_H_
#define TESTS_BLOCKMGR_DRIVER_CHECKS_H_

#include <cstdint>
#include <random>

#include "tests/blockmgr/driver_random.h"
#include "tests/blockmgr/driver_state.h"
#include "tests/testing/cache_reader.h"

namespace blockmgr {

class DriverChecks {
 public:
  DriverChecks(DriverState* state, DriverRandom* random)
      : state_(*state), random_(*random), reader_(layout_.page_size) {}

  void CheckAll();
  void CheckMatch(const PrefixMatch& match, const NaiveMatch& expected);
  // Compares what an eviction from each window group would cover.
  void CheckCoveredInWindows(SequenceSlot slot);

 private:
  void CheckCovered(SequenceSlot slot, int32_t group);
  // Reads some of what the prefix cache tells.
  void ReadPrefixCache();

  DriverState& state_;
  DriverRandom& random_;
  const ModelLayout& layout_ = state_.config.layout;
  BlockManager& manager_ = state_.manager;
  NaiveModel& model_ = state_.model;
  DriverTally& tally_ = state_.tally;
  CacheReader reader_;
  // The reader has its own numbers: what happens does not depend on it.
  std::mt19937_64 reader_random_;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_CHECKS_H_
