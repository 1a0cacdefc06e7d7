// What happens to the steps of ManagerDriver: dispatch, acknowledgement, loss.

#include <algorithm>
#include <utility>

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
  manager_.Dispatch(StepId{step_.id});
  model_.Dispatch(step_.id);
  in_flight_.push_back(std::exchange(step_, Step{}));
}

void ManagerDriver::Acknowledge() {
  if (in_flight_.empty()) return;
  const Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  manager_.Acknowledge(StepId{step.id});
  model_.Acknowledge(step.id);
  for (const Run& run : step.runs) {
    if (!IsStale(run.slot, run.incarnation)) Settle(run);
  }
  for (const Order& order : step.orders) {
    if (!IsStale(order.slot, order.incarnation)) Conclude(order);
  }
}

void ManagerDriver::Settle(const Run& run) {
  NaiveSequence& sequence = model_.at(run.slot);
  EXPECT_EQ(manager_.WillPublish(run.slot, run.num_tokens),
            model_.WillPublish(run.slot, run.num_tokens));
  if (manager_.WillPublish(run.slot, run.num_tokens)) {
    ExtendBlockKeys(sequence.tokens, config_.layout.page_size, &sequence.keys);
  }
  manager_.Commit(run.slot, run.num_tokens, sequence.tokens, sequence.keys);
  model_.Commit(run.slot, run.num_tokens);
}

std::vector<int32_t> ManagerDriver::RandomCounts(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t num_heads = config_.layout.pages_per_block();
  const int32_t page_size = config_.layout.page_size;
  auto pages_left = static_cast<int32_t>(sequence.pending->page_total);
  std::vector<int32_t> counts(num_heads, 0);
  std::vector<int32_t> order(num_heads);
  for (int32_t i = 0; i < num_heads; ++i) order[i] = i;
  std::ranges::shuffle(order, random_);
  const bool greedy = Chance(0.5);
  for (const int32_t i : order) {
    const int32_t held = sequence.pending->cut - sequence.cut +
                         (sequence.kept.empty() ? 0 : sequence.kept[i]);
    const int32_t most = std::min(held, pages_left * page_size);
    counts[i] = greedy && Chance(0.7) ? most : Int(0, most);
    pages_left -= CeilDiv(counts[i], page_size);
  }
  return counts;
}

void ManagerDriver::CheckIllegalCounts(SequenceSlot slot,
                                       std::vector<int32_t> counts) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t i = Int(0, static_cast<int32_t>(counts.size()) - 1);
  const int32_t held = sequence.pending->cut - sequence.cut +
                       (sequence.kept.empty() ? 0 : sequence.kept[i]);
  counts[i] = Chance(0.5) ? held + 1 : -1;
  const uint64_t hash = manager_.StateHash();
  EXPECT_THAT(manager_.ValidateCounts(slot, counts),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(manager_.StateHash(), hash);
}

void ManagerDriver::Conclude(const Order& order) {
  const SequenceSlot slot = order.slot;
  const NaiveSequence::Order& pending = *model_.at(slot).pending;
  const bool has_own = !pending.own.empty();
  const bool has_fresh = !pending.fresh.empty();
  const bool again = !model_.at(slot).kept.empty();
  const std::vector<int32_t> counts = RandomCounts(slot);
  EXPECT_OK(manager_.ValidateCounts(slot, counts));
  if (Chance(0.1)) CheckIllegalCounts(slot, counts);
  if (Chance(0.2)) {
    manager_.AbortEviction(slot);
    model_.AbortEviction(slot);
    ++tally_->refused_evictions;
    return;
  }
  const EvictionReceipt receipt = manager_.CommitEviction(slot, counts);
  const EvictionReceipt expected = model_.CommitEviction(slot, counts);
  EXPECT_EQ(receipt.evicted_entries, expected.evicted_entries);
  EXPECT_EQ(receipt.freed_blocks, expected.freed_blocks);
  model_.CheckRegion(manager_, slot);
  tally_->repeated_evictions += again ? 1 : 0;
  (has_own && has_fresh ? tally_->mixed_evictions
   : has_own            ? tally_->in_place_evictions
                        : tally_->copying_evictions) += 1;
}

void ManagerDriver::ResetPrefixCache() {
  model_.ResetPrefixCache();
  EXPECT_EQ(manager_.ResetPrefixCache(), model_.num_cached_entries() == 0);
}

void ManagerDriver::LoseEngine() {
  while (!model_.sequences().empty()) Close(AnySlot());
  step_ = Step{};
  in_flight_.clear();
  manager_.LoseEngine();
  model_.LoseEngine();
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
  EXPECT_TRUE(manager_.ResetPrefixCache());
  manager_.CheckInvariants();
  EXPECT_EQ(manager_.stats().free_blocks, config_.layout.num_blocks - 1);
}

}  // namespace blockmgr
