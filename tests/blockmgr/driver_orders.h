// DriverOrders: the part of ManagerDriver that orders evictions, and commits or
// refuses them.
#ifndef TESTS_BLOCKMGR_DRIVER_ORDERS_H_
#define TESTS_BLOCKMGR_DRIVER_ORDERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "tests/blockmgr/driver_checks.h"
#include "tests/blockmgr/driver_random.h"
#include "tests/blockmgr/driver_state.h"

namespace blockmgr {

class DriverOrders {
 public:
  DriverOrders(DriverState* state, DriverRandom* random, DriverChecks* checks)
      : state_(*state), random_(*random), checks_(*checks) {}

  // Orders an eviction from some sequence. Returns whether that was done.
  bool OrderAny();
  // Orders evictions from all groups of a sequence, so that their regions can
  // be published together.
  void OrderInAllGroups();
  // Orders an eviction, and aborts it: nothing may have changed.
  void UndoOrder();
  // Commits or refuses an order of an acknowledged step.
  void Conclude(const DriverOrder& order);

 private:
  bool Order(SequenceSlot slot, int32_t group);
  // Reserves destinations for an order, and tells the model.
  bool Place(SequenceSlot slot, int32_t group, BookOrder order,
             int64_t page_total, std::span<const int64_t> told);
  void Commit(const DriverOrder& order, const std::vector<int32_t>& counts);
  void Refuse(const DriverOrder& order);
  void CheckIllegalCounts(SequenceSlot slot, int32_t group,
                          std::vector<int32_t> counts);
  // Makes a shard keep all that it holds. Returns whether that is more than the
  // order allows.
  bool ExceedTotal(SequenceSlot slot, int32_t group, int32_t shard,
                   std::vector<int32_t>* counts) const;

  DriverState& state_;
  DriverRandom& random_;
  DriverChecks& checks_;
  const ModelLayout& layout_ = state_.config.layout;
  BlockManager& manager_ = state_.manager;
  NaiveModel& model_ = state_.model;
  DriverTally& tally_ = state_.tally;
  bool cache_was_touched_ = false;  // by the last Place that was done
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_ORDERS_H_
