// What ManagerDriver does with shared sequences.

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_driver.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

void ManagerDriver::Fork() {
  if (model_.sequences().empty()) return;
  SequenceSlot slot = AnySlot();
  for (const auto& [other, sequence] : model_.sequences()) {
    // A fork of such a sequence publishes the same region of a window.
    if (!HasMovingRegion(sequence) || Chance(0.5)) continue;
    slot = other;
  }
  const bool possible = model_.CanFork(slot) && manager_.num_open_slots() > 0;
  EXPECT_EQ(manager_.CanFork(slot), possible);
  const NaiveSequence& parent = model_.at(slot);
  const int32_t least = std::max(parent.cut(), 1);
  if (!possible || parent.num_settled < least) return;
  const int32_t num_tokens =
      Chance(0.5) ? RandomBack(slot, least) : parent.num_settled;
  ForkAt(slot, num_tokens);
  if (manager_.num_open_slots() == 0 || !Chance(0.2)) return;
  // Two forks share a block that neither of them wrote.
  ForkAt(slot, num_tokens);
  Close(slot);
}

void ManagerDriver::ForkAt(SequenceSlot slot, int32_t num_tokens) {
  const NaiveSequence& parent = model_.at(slot);
  const int32_t available = manager_.num_available();
  const PrefixMatch match = manager_.MatchFork(slot, num_tokens);
  EXPECT_EQ(match.num_tokens, num_tokens);
  EXPECT_EQ(match.cut(), parent.cut());
  EXPECT_EQ(match.CountBlocks(), model_.CountFullBlocks(slot, num_tokens));
  tally_->part_forks += num_tokens < parent.num_settled ? 1 : 0;
  const SequenceSlot child = manager_.Open(parent.names, match);
  model_.Fork(slot, child, num_tokens);
  EXPECT_EQ(manager_.num_available(), available);
  model_.CheckRegions(manager_, child);
  CheckCoveredInWindows(child);
  incarnations_[child] = next_incarnation_++;
  ++tally_->forks;
}

void ManagerDriver::CheckCopies(const std::vector<TokenDemand>& demands,
                                const std::vector<TokenDemand>& leavers,
                                const std::vector<CopyOnWrite>& copies) {
  const auto num_groups = static_cast<size_t>(config_.layout.num_groups());
  ASSERT_EQ(copies.size(), leavers.size() * num_groups);
  const int32_t page_size = config_.layout.page_size;
  for (size_t i = 0; i < copies.size(); ++i) {
    const SequenceSlot slot = leavers[i / num_groups].slot;
    const auto group = static_cast<int32_t>(i % num_groups);
    const NaiveSequence& sequence = model_.at(slot);
    EXPECT_EQ(copies[i].slot, slot);
    EXPECT_EQ(copies[i].group, group);
    EXPECT_EQ(copies[i].blocks.source, sequence.groups[group].pages.back());
    EXPECT_EQ(copies[i].num_tokens, sequence.num_reserved % page_size);
    tally_->group_copies += group > 0 ? 1 : 0;
  }
  tally_->copies += std::ssize(copies);
  for (const TokenDemand& demand : demands) {
    const NaiveSequence& sequence = model_.at(demand.slot);
    if (demand.num_tokens == 0 || sequence.num_reserved % page_size == 0) {
      continue;
    }
    const bool stays =
        std::ranges::count(leavers, demand.slot, &TokenDemand::slot) == 0;
    const bool shared =
        std::ranges::any_of(leavers, [&](const TokenDemand& leaver) {
          return leaver.slot != demand.slot &&
                 model_.at(leaver.slot).groups[0].pages.back() ==
                     sequence.groups[0].pages.back();
        });
    const bool writes =
        model_.IsWriter(demand.slot, sequence.groups[0].pages.back());
    tally_->last_holders += stays && shared && !writes ? 1 : 0;
  }
}

void ManagerDriver::RollbackSome(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t first = std::max(sequence.num_settled, sequence.CountOrdered());
  if (first > sequence.num_reserved) return;
  Rollback(slot, Int(0, sequence.num_reserved - first), {});
}

void ManagerDriver::Rollback(SequenceSlot slot, int32_t num_tokens,
                             std::span<Run> acknowledged) {
  int32_t left = num_tokens;
  const auto trim = [&](std::span<Run> runs) {
    for (size_t i = runs.size(); i-- > 0;) {
      if (runs[i].slot != slot || IsStale(slot, runs[i].incarnation)) continue;
      const int32_t count = std::min(left, runs[i].num_tokens);
      tally_->voided_runs += count > 0 ? 1 : 0;
      runs[i].num_tokens -= count;
      left -= count;
    }
  };
  trim(step_.runs);
  for (size_t i = in_flight_.size(); i-- > 0;) trim(in_flight_[i].runs);
  trim(acknowledged);
  EXPECT_EQ(left, 0);
  manager_.Rollback(slot, num_tokens);
  model_.Withdraw(slot, num_tokens, true);
  Forget(slot);
}

void ManagerDriver::CutBack(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  if (sequence.has_pending()) return;
  int32_t num_tokens = 0;
  if (Chance(0.8) && sequence.num_settled >= sequence.cut()) {
    num_tokens = RandomBack(slot, sequence.cut());
  }
  manager_.CutBack(slot, num_tokens);
  model_.CutBack(slot, num_tokens);
  model_.CheckRegions(manager_, slot);
  Forget(slot);
  incarnations_[slot] = next_incarnation_++;
  ++tally_->cut_backs;
}

int32_t ManagerDriver::RandomBack(SequenceSlot slot, int32_t least) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t num_settled = sequence.num_settled;
  int32_t num_tokens = Int(least, num_settled);
  if (!config_.layout.has_windows()) {
    EXPECT_TRUE(manager_.CanGoBack(slot, num_tokens));
    return num_tokens;
  }
  if (Chance(0.7)) {
    const int32_t most = config_.layout.page_size + 1;
    num_tokens = Int(std::max(least, num_settled - most), num_settled);
    // Regions are published at the end of a page.
    const int32_t end = num_tokens - num_tokens % config_.layout.page_size;
    if (end >= least && Chance(0.5)) num_tokens = end;
  }
  const bool possible = model_.CanGoBack(slot, num_tokens);
  EXPECT_EQ(manager_.CanGoBack(slot, num_tokens), possible);
  if (!possible) {
    ++tally_->refused_backs;
    num_tokens = std::max(least, num_settled - 1);
    if (!model_.CanGoBack(slot, num_tokens)) return num_settled;
  }
  bool has_gap = false;
  for (int32_t group = 0; group < config_.layout.num_groups(); ++group) {
    has_gap |= config_.layout.FirstPage(group, num_tokens) <
               config_.layout.FirstPage(group, num_settled);
  }
  tally_->backs_with_gap += has_gap ? 1 : 0;
  return num_tokens;
}

void ManagerDriver::LoseBlocks() {
  std::set<BlockId> lost;
  const int32_t count = Int(1, 2);
  for (int32_t i = 0; i < count; ++i) {
    lost.insert(BlockId{Int(1, config_.layout.num_blocks - 1)});
  }
  const std::vector<BlockId> idle = model_.cache().IdleLinkedBlocks();
  if (!idle.empty() && Chance(0.5)) {
    const auto last = static_cast<int32_t>(idle.size()) - 1;
    lost = {idle[static_cast<size_t>(Int(0, last))]};
  }
  std::vector<BlockId> reported(lost.begin(), lost.end());
  if (Chance(0.1)) {
    const uint64_t hash = manager_.StateHash();
    reported.push_back(Chance(0.5) ? kNullBlock
                                   : BlockId{config_.layout.num_blocks});
    EXPECT_THAT(manager_.LoseBlocks(reported),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(manager_.StateHash(), hash);
    return;
  }
  const int32_t num_cached = model_.cache().CountBlocks();
  std::vector<SequenceSlot> compressed;
  for (const auto& [slot, sequence] : model_.sequences()) {
    if (!sequence.region().kept.empty()) compressed.push_back(slot);
  }
  const absl::StatusOr<LossReport> report = manager_.LoseBlocks(reported);
  ASSERT_OK(report);
  const std::map<SequenceSlot, int32_t> left = model_.LoseBlocks(lost);
  EXPECT_EQ(report->dropped_blocks, num_cached - model_.cache().CountBlocks());
  std::vector<CutSequence> expected;
  for (const auto& [slot, num_tokens] : left) {
    expected.push_back({slot, num_tokens});
    model_.CheckRegions(manager_, slot);
    Forget(slot);
    incarnations_[slot] = next_incarnation_++;
    const bool had_region = std::ranges::count(compressed, slot) > 0;
    tally_->emptied_by_loss += had_region && num_tokens == 0 ? 1 : 0;
  }
  EXPECT_EQ(report->sequences, expected);
  tally_->cut_by_loss += std::ssize(left);
  tally_->entries_lost += report->dropped_blocks;
}

void ManagerDriver::Forget(SequenceSlot slot) {
  NaiveSequence& sequence = model_.at(slot);
  sequence.tokens.resize(sequence.num_reserved);
  sequence.names =
      BlockChain({.tenant = sequence.scope == 0 ? "one" : "other"});
  sequence.names.SetRetention(sequence.wishes);
  sequence.names.Extend(sequence.tokens, config_.layout.page_size);
}

}  // namespace blockmgr
