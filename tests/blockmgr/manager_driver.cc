#include "tests/blockmgr/manager_driver.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {

ManagerDriver::ManagerDriver(const DriverConfig& config,
                             std::mt19937_64& random, DriverTally* tally)
    : state_(config, tally), random_(&random, &state_) {
  EXPECT_TRUE(config.layout.Validate().ok());
}

void ManagerDriver::Operate(double grow) {
  ++state_.tally.num_ops;
  if (random_.Chance(0.15)) {
    Dispatch();
  } else if (state_.config.num_host_blocks > 0 && random_.Chance(0.2)) {
    swaps_.Operate();
  } else if (random_.Chance(grow)) {
    Grow();
  } else {
    Shrink();
  }
  if (random_.Chance(0.05)) {
    state_.now_ms += random_.Int(0, 10);
    model_.cache().Line();
    manager_.SetTime(state_.now_ms);
    model_.cache().SetTime(state_.now_ms);
  }
  model_.cache().Line();
}

void ManagerDriver::Grow() {
  const int32_t kind = random_.Int(0, 10);
  if (kind == 10) {
    sequences_.Fork();
  } else if (kind < 3) {
    sequences_.Open();
  } else if (kind < 7) {
    runs_.Reserve();
  } else if (kind < 9) {
    if (state_.config.evicts_in_windows && random_.Chance(0.5)) {
      orders_.OrderInAllGroups();
    } else {
      orders_.OrderAny();
    }
  } else {
    random_.Chance(0.5) ? runs_.UndoReserve() : orders_.UndoOrder();
  }
}

void ManagerDriver::Shrink() {
  const bool has_windows = state_.config.layout.has_windows();
  const int32_t kind = has_windows && random_.Chance(0.05)
                           ? random_.Int(0, 39)
                           : random_.Int(0, 999);
  if (kind < 20) {
    if (!model_.sequences().empty()) runs_.RollbackSome(random_.AnySlot());
  } else if (kind < 30) {
    if (!model_.sequences().empty()) sequences_.CutBack(random_.AnySlot());
  } else if (kind < 40) {
    sequences_.LoseBlocks();
  } else if (kind < 600) {
    Acknowledge();
  } else if (kind < 750) {
    runs_.AbortRun();
  } else if (kind < 994) {
    if (!model_.sequences().empty()) sequences_.CloseAny();
  } else if (kind < 998) {
    ResetPrefixCache();
  } else {
    LoseEngine();
  }
}

void ManagerDriver::Dispatch() {
  if (std::ssize(state_.in_flight) >= state_.config.max_steps_in_flight) return;
  state_.step.id = next_step_;
  next_step_ += random_.Int(1, 2);
  std::vector<NaiveRun> runs;
  for (const DriverRun& run : state_.step.runs) {
    if (state_.IsStale(run.slot, run.incarnation)) continue;
    runs.push_back({run.slot, run.num_tokens});
  }
  model_.Execute(runs);
  state_.returning.clear();
  manager_.Dispatch(StepId{state_.step.id});
  model_.Dispatch(state_.step.id);
  state_.in_flight.push_back(std::exchange(state_.step, DriverStep{}));
}

void ManagerDriver::Acknowledge() {
  if (state_.in_flight.empty()) return;
  DriverStep step = std::move(state_.in_flight.front());
  state_.in_flight.pop_front();
  manager_.Acknowledge(StepId{step.id});
  model_.Acknowledge(step.id);
  // Each run or order may reclaim what the one before it has released. So the
  // line is kept up to date between them.
  model_.cache().Line();
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (state_.IsStale(step.runs[i].slot, step.runs[i].incarnation)) continue;
    runs_.Settle(&step, i);
    model_.cache().Line();
  }
  for (const DriverOrder& order : step.orders) {
    if (state_.IsStale(order.slot, order.incarnation)) continue;
    orders_.Conclude(order);
    model_.cache().Line();
  }
}

void ManagerDriver::ResetPrefixCache() {
  const int32_t before = model_.cache().CountBlocks();
  model_.cache().Reset();
  const CacheReset reset = manager_.ResetPrefixCache();
  EXPECT_EQ(reset.num_in_use, model_.cache().CountBlocks());
  EXPECT_EQ(reset.num_dropped, before - model_.cache().CountBlocks());
}

void ManagerDriver::LoseEngine() {
  // A sequence that comes back is part of a step that must be dispatched.
  if (!state_.returning.empty()) return;
  sequences_.CloseAll();
  state_.step = DriverStep{};
  state_.in_flight.clear();
  manager_.LoseEngine();
  model_.LoseEngine();
  state_.findable.clear();  // the next engine has no region yet
  EXPECT_EQ(manager_.stats().free_blocks, state_.config.layout.num_blocks - 1);
  ++state_.tally.lost_engines;
}

void ManagerDriver::Finish() {
  sequences_.CloseAll();
  while (!state_.in_flight.empty()) Acknowledge();
  Check();
  const BlockManagerStats stats = manager_.stats();
  EXPECT_EQ(stats.free_blocks + stats.cached_blocks,
            state_.config.layout.num_blocks - 1);
  EXPECT_EQ(manager_.num_available(), state_.config.layout.num_blocks - 1);
  EXPECT_EQ(manager_.ResetPrefixCache().num_in_use, 0);
  manager_.CheckInvariants();
  EXPECT_EQ(manager_.stats().free_blocks, state_.config.layout.num_blocks - 1);
}

}  // namespace blockmgr
