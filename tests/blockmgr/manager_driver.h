// ManagerDriver: random transactions on a BlockManager, in the order in which a
// scheduler makes them, and the same transactions on a NaiveModel. Everything
// is compared after each.
//
// A step collects reservations and eviction orders. It is dispatched, and some
// steps later it is acknowledged: its tokens are settled, its evictions
// committed or refused. Sequences may be closed meanwhile, whatever is in
// flight.
//
// Parts of the driver share a DriverState. DriverSequences, DriverRuns,
// DriverOrders and DriverSwaps make the transactions, DriverRandom chooses, and
// DriverChecks compares.
#ifndef TESTS_BLOCKMGR_MANAGER_DRIVER_H_
#define TESTS_BLOCKMGR_MANAGER_DRIVER_H_

#include <cstdint>
#include <random>

#include "tests/blockmgr/driver_checks.h"
#include "tests/blockmgr/driver_config.h"
#include "tests/blockmgr/driver_orders.h"
#include "tests/blockmgr/driver_random.h"
#include "tests/blockmgr/driver_runs.h"
#include "tests/blockmgr/driver_sequences.h"
#include "tests/blockmgr/driver_state.h"
#include "tests/blockmgr/driver_swaps.h"

namespace blockmgr {

class ManagerDriver {
 public:
  ManagerDriver(const DriverConfig& config, std::mt19937_64& random,
                DriverTally* tally);

  // Makes one random operation. It grows with the probability `grow`.
  void Operate(double grow);
  // Compares everything.
  void Check() { checks_.CheckAll(); }
  // Closes and acknowledges everything: nothing may have leaked.
  void Finish();

 private:
  void Grow();
  void Shrink();
  void Dispatch();
  void Acknowledge();
  void ResetPrefixCache();
  void LoseEngine();

  DriverState state_;
  BlockManager& manager_ = state_.manager;
  NaiveModel& model_ = state_.model;
  DriverRandom random_;
  DriverChecks checks_{&state_, &random_};
  DriverSequences sequences_{&state_, &random_, &checks_};
  DriverRuns runs_{&state_, &random_};
  DriverOrders orders_{&state_, &random_, &checks_};
  DriverSwaps swaps_{&state_, &random_, &checks_, &sequences_};
  uint64_t next_step_ = 1;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_MANAGER_DRIVER_H_
