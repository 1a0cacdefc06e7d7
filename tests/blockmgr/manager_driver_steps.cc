// What happens to the steps of ManagerDriver: dispatch, acknowledgement, loss.

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/manager_driver.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

void ManagerDriver::Dispatch() {
  if (std::ssize(in_flight_) >= config_.max_steps_in_flight) return;
  step_.id = next_step_;
  next_step_ += Int(1, 2);
  std::vector<NaiveRun> runs;
  for (const Run& run : step_.runs) {
    if (IsStale(run.slot, run.incarnation)) continue;
    runs.push_back({run.slot, run.num_tokens});
  }
  model_.Execute(runs);
  returning_.clear();
  manager_.Dispatch(StepId{step_.id});
  model_.Dispatch(step_.id);
  in_flight_.push_back(std::exchange(step_, Step{}));
}

void ManagerDriver::Acknowledge() {
  if (in_flight_.empty()) return;
  Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  manager_.Acknowledge(StepId{step.id});
  model_.Acknowledge(step.id);
  // What one of these releases may be wished for by the next.
  model_.cache().Line();
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (IsStale(step.runs[i].slot, step.runs[i].incarnation)) continue;
    Settle(&step, i);
    model_.cache().Line();
  }
  for (const Ordered& order : step.orders) {
    if (IsStale(order.slot, order.incarnation)) continue;
    Conclude(order);
    model_.cache().Line();
  }
}

void ManagerDriver::Settle(Step* step, size_t i) {
  const Run run = step->runs[i];
  NaiveSequence& sequence = model_.at(run.slot);
  int32_t num_accepted = run.num_tokens;
  if (Chance(0.1)) num_accepted = Int(0, run.num_tokens);
  // What an order in flight is to evict is verified.
  if (sequence.CountOrdered() > sequence.num_settled + num_accepted) {
    num_accepted = run.num_tokens;
  }
  EXPECT_EQ(manager_.WillPublish(run.slot, num_accepted),
            model_.WillPublish(run.slot, num_accepted));
  if (manager_.WillPublish(run.slot, num_accepted)) {
    sequence.names.Extend(sequence.tokens, config_.layout.page_size);
  }
  manager_.Commit(run.slot, num_accepted, sequence.tokens, sequence.names);
  model_.Commit(run.slot, num_accepted);
  if (num_accepted == run.num_tokens) return;
  step->runs[i].num_tokens -= num_accepted;
  Rollback(run.slot, sequence.num_reserved - sequence.num_settled,
           std::span(step->runs).subspan(i));
  ++tally_->rejections;
}

void ManagerDriver::UndoOrder() {
  const uint64_t hash = manager_.StateHash();
  if (!OrderEviction()) return;
  const Ordered order = step_.orders.back();
  manager_.AbortEviction(order.slot, order.group);
  model_.AbortEviction(order.slot, order.group);
  step_.orders.pop_back();
  // With steps in flight the fresh blocks are fenced, as if they had seen them.
  if (cache_was_touched_ || model_.has_steps_in_flight()) return;
  EXPECT_EQ(manager_.StateHash(), hash);
  ++tally_->undone_orders;
}

void ManagerDriver::Close(SequenceSlot slot) {
  tally_->closed_in_flight += model_.has_steps_in_flight() ? 1 : 0;
  const NaiveSequence& sequence = model_.at(slot);
  if (config_.evicts_in_windows && !sequence.region().kept.empty() &&
      sequence.chain != 0) {
    // What was computed over its regions, too, is to be found again.
    const auto end = sequence.tokens.begin() + sequence.num_settled;
    compressed_.emplace_back(sequence.scope,
                             std::vector(sequence.tokens.begin(), end));
  }
  manager_.Close(slot);
  model_.Close(slot);
  incarnations_.erase(slot);
}

void ManagerDriver::ResetPrefixCache() {
  const int32_t before = model_.cache().CountBlocks();
  model_.cache().Reset();
  const CacheReset reset = manager_.ResetPrefixCache();
  EXPECT_EQ(reset.num_in_use, model_.cache().CountBlocks());
  EXPECT_EQ(reset.num_dropped, before - model_.cache().CountBlocks());
}

void ManagerDriver::LoseEngine() {
  if (!returning_.empty()) return;  // a step that is planned is dispatched
  while (!model_.sequences().empty()) Close(AnySlot());
  step_ = Step{};
  in_flight_.clear();
  manager_.LoseEngine();
  model_.LoseEngine();
  findable_.clear();  // the next engine never had any
  EXPECT_EQ(manager_.stats().free_blocks, config_.layout.num_blocks - 1);
  ++tally_->lost_engines;
}

void ManagerDriver::Finish() {
  while (!model_.sequences().empty()) Close(AnySlot());
  while (!in_flight_.empty()) Acknowledge();
  Check();
  const BlockManagerStats stats = manager_.stats();
  EXPECT_EQ(stats.free_blocks + stats.cached_blocks,
            config_.layout.num_blocks - 1);
  EXPECT_EQ(manager_.num_available(), config_.layout.num_blocks - 1);
  EXPECT_EQ(manager_.ResetPrefixCache().num_in_use, 0);
  manager_.CheckInvariants();
  EXPECT_EQ(manager_.stats().free_blocks, config_.layout.num_blocks - 1);
}

}  // namespace blockmgr
