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
  model_.Line();
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (IsStale(step.runs[i].slot, step.runs[i].incarnation)) continue;
    Settle(&step, i);
    model_.Line();
  }
  for (const Ordered& order : step.orders) {
    if (IsStale(order.slot, order.incarnation)) continue;
    order.group == 0 ? Conclude(order) : ConcludeInWindow(order);
    model_.Line();
  }
}

void ManagerDriver::Settle(Step* step, size_t i) {
  const Run run = step->runs[i];
  NaiveSequence& sequence = model_.at(run.slot);
  int32_t num_accepted = run.num_tokens;
  if (Chance(0.1)) num_accepted = Int(0, run.num_tokens);
  // What an order in flight is to evict is verified.
  if (sequence.num_ordered() > sequence.num_settled + num_accepted) {
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

int32_t ManagerDriver::ShardOf(int32_t head_index) const {
  const ModelLayout& layout = config_.layout;
  return NaiveShardOf({layout.num_layers, layout.num_heads, layout.num_shards},
                      head_index % layout.num_heads);
}

std::vector<int32_t> ManagerDriver::RandomCounts(SequenceSlot slot,
                                                 int32_t group) {
  const BookOrder& order = *model_.at(slot).groups[group].pending;
  const std::vector<int32_t> held = model_.EntriesCovered(slot, group);
  const int32_t num_heads = config_.layout.pages_per_block();
  const int32_t page_size = config_.layout.page_size;
  std::vector<int64_t> pages_left = order.page_totals;
  std::vector<int32_t> counts(num_heads, 0);
  std::vector<int32_t> heads(num_heads);
  for (int32_t i = 0; i < num_heads; ++i) heads[i] = i;
  std::ranges::shuffle(heads, random_);
  const bool greedy = Chance(0.5);
  for (const int32_t i : heads) {
    int64_t& left = pages_left[ShardOf(i)];
    const auto most =
        static_cast<int32_t>(std::min<int64_t>(held[i], left * page_size));
    counts[i] = greedy && Chance(0.7) ? most : Int(0, most);
    left -= CeilDiv(counts[i], page_size);
  }
  return counts;
}

void ManagerDriver::CheckIllegalCounts(SequenceSlot slot,
                                       std::vector<int32_t> counts) {
  const int32_t i = Int(0, static_cast<int32_t>(counts.size()) - 1);
  const int32_t held = model_.EntriesCovered(slot, 0)[i];
  // Of all shards' pages, one too many of one of them.
  const int32_t shard = ShardOf(i);
  const int64_t total = model_.at(slot).groups[0].pending->page_totals[shard];
  const bool exceeds = Chance(0.5) && ExceedTotal(slot, shard, &counts);
  if (!exceeds) counts[i] = Chance(0.5) ? held + 1 : -1;
  const uint64_t hash = manager_.StateHash();
  const absl::Status refused = manager_.ValidateCounts(slot, 0, counts);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument));
  if (exceeds && config_.layout.num_shards > 1) {
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr(absl::StrCat(
                    "at most ", total, " pages in shard ", shard, ", got")));
    ++tally_->refused_shards;
  }
  EXPECT_EQ(manager_.StateHash(), hash);
}

bool ManagerDriver::ExceedTotal(SequenceSlot slot, int32_t shard,
                                std::vector<int32_t>* counts) const {
  const std::vector<int32_t> held = model_.EntriesCovered(slot, 0);
  int64_t num_pages = 0;
  for (int32_t i = 0; i < std::ssize(*counts); ++i) {
    if (ShardOf(i) != shard) continue;
    (*counts)[i] = held[i];
    num_pages += CeilDiv((*counts)[i], config_.layout.page_size);
  }
  return num_pages > model_.at(slot).groups[0].pending->page_totals[shard];
}

void ManagerDriver::Conclude(const Ordered& order) {
  const SequenceSlot slot = order.slot;
  const BookOrder pending = *model_.at(slot).groups[0].pending;
  const bool has_own = !pending.own.empty();
  const bool has_fresh = pending.destinations.size() > pending.own.size();
  const bool again = !model_.at(slot).region().kept.empty();
  const std::vector<int32_t> counts = RandomCounts(slot, 0);
  EXPECT_OK(manager_.ValidateCounts(slot, 0, counts));
  if (Chance(0.4)) CheckIllegalCounts(slot, counts);
  if (Chance(0.2)) {
    manager_.AbortEviction(slot, 0);
    model_.AbortEviction(slot, 0);
    ++tally_->refused_evictions;
    return;
  }
  NaiveSequence& sequence = model_.at(slot);
  sequence.names.Extend(sequence.tokens, config_.layout.page_size);
  RegionPublication publication;
  publication.name = {
      .plan = Chance(config_.layout.has_windows() ? 0.9 : 0.8) ? "p" : "q",
      .history = RandomHistory(),
      .length = pending.cut + config_.layout.page_size};
  publication.chain = &sequence.names;
  publication.tokens = sequence.tokens;
  const bool publishes = Chance(config_.layout.has_windows() ? 0.8 : 0.6);
  const RegionId region = manager_.sequence(slot).first().pending->region;
  const EvictionReceipt receipt = manager_.CommitEviction(
      slot, 0, counts, publishes ? &publication : nullptr);
  EXPECT_EQ(manager_.sequence(slot).first().region->id, region);
  if (receipt.cached) {
    EXPECT_TRUE(findable_.insert(region).second);
  }
  const EvictionReceipt expected = model_.CommitEviction(
      slot, 0, counts, publishes ? &publication.name : nullptr);
  EXPECT_EQ(receipt.published, expected.published);
  EXPECT_EQ(receipt.cached, expected.cached);
  if (receipt.published) {
    ++tally_->published_regions;
    tally_->equal_regions += receipt.cached ? 0 : 1;
    const auto end = sequence.tokens.begin() + publication.name.length;
    compressed_.emplace_back(sequence.scope,
                             std::vector(sequence.tokens.begin(), end));
  }
  EXPECT_EQ(receipt.evicted_entries, expected.evicted_entries);
  EXPECT_EQ(receipt.freed_blocks, expected.freed_blocks);
  model_.CheckRegions(manager_, slot);
  tally_->repeated_evictions += again ? 1 : 0;
  (has_own && has_fresh ? tally_->mixed_evictions
   : has_own            ? tally_->in_place_evictions
                        : tally_->copying_evictions) += 1;
}

void ManagerDriver::ResetPrefixCache() {
  const int32_t before = model_.num_cached_blocks();
  model_.ResetPrefixCache();
  const CacheReset reset = manager_.ResetPrefixCache();
  EXPECT_EQ(reset.num_in_use, model_.num_cached_blocks());
  EXPECT_EQ(reset.num_dropped, before - model_.num_cached_blocks());
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
