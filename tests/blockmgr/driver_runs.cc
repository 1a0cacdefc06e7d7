#include "tests/blockmgr/driver_runs.h"

#include <algorithm>
#include <deque>

#include <gtest/gtest.h>

namespace blockmgr {

bool DriverRuns::Reserve() {
  const std::vector<TokenDemand> demands = random_.Demands();
  int32_t needed = 0;
  for (const TokenDemand& demand : demands) {
    needed += model_.CountBlocksNeeded(demand.slot, demand.num_tokens);
  }
  const std::vector<TokenDemand> leavers = model_.Leavers(demands);
  const auto num_copies =
      layout_.num_groups() * static_cast<int32_t>(leavers.size());
  const BlockManagerStats before = manager_.stats();
  const bool fits = needed + num_copies <= manager_.num_available();
  const uint64_t hash = manager_.StateHash();
  std::vector<int64_t> offsets = {0};
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const bool done = manager_.Reserve(demands, &offsets, &blocks, &copies);
  EXPECT_EQ(done, fits);
  if (!done) {
    EXPECT_EQ(manager_.StateHash(), hash);
    EXPECT_EQ(offsets.size(), 1u);
    EXPECT_TRUE(blocks.empty());
    EXPECT_TRUE(copies.empty());
    ++tally_.refused_reservations;
    if (needed + num_copies == manager_.num_available() + 1) {
      ++tally_.reservations_less_one;
      tally_.copies_less_one += num_copies > 0 ? 1 : 0;
    }
    return false;
  }
  EXPECT_EQ(std::ssize(blocks), needed);
  CheckCopies(demands, leavers, copies);
  std::vector<BlockId> taken = blocks;
  for (const CopyOnWrite& copy : copies) {
    taken.push_back(copy.blocks.destination);
  }
  const int32_t reclaimed = model_.HandOut(taken, before.free_blocks);
  EXPECT_EQ(manager_.stats().reclaimed_blocks,
            before.reclaimed_blocks + static_cast<uint64_t>(reclaimed));
  tally_.reclaimed_blocks += reclaimed;
  has_reclaimed_ = reclaimed > 0;
  if (!taken.empty() && manager_.num_available() == 0) {
    ++tally_.last_reservations;
    tally_.last_reclaims += reclaimed > 0 ? 1 : 0;
  }
  for (const CopyOnWrite& copy : copies) model_.Leave(copy);
  for (size_t i = 0; i < demands.size(); ++i) {
    const auto [slot, num_tokens] = demands[i];
    NaiveSequence& sequence = model_.at(slot);
    EXPECT_EQ(offsets[i + 1] - offsets[i],
              model_.CountBlocksNeeded(slot, num_tokens));
    const int32_t missing = sequence.num_reserved + num_tokens -
                            static_cast<int32_t>(sequence.tokens.size());
    random_.AppendTokens(&sequence.tokens, missing);
    model_.Reserve(
        slot, num_tokens,
        std::span(blocks).subspan(offsets[i], offsets[i + 1] - offsets[i]));
    state_.step.runs.push_back(
        {slot, state_.incarnations.at(slot), num_tokens});
  }
  return true;
}

void DriverRuns::CheckCopies(const std::vector<TokenDemand>& demands,
                             const std::vector<TokenDemand>& leavers,
                             const std::vector<CopyOnWrite>& copies) {
  const auto num_groups = static_cast<size_t>(layout_.num_groups());
  ASSERT_EQ(copies.size(), leavers.size() * num_groups);
  const int32_t page_size = layout_.page_size;
  for (size_t i = 0; i < copies.size(); ++i) {
    const SequenceSlot slot = leavers[i / num_groups].slot;
    const auto group = static_cast<int32_t>(i % num_groups);
    const NaiveSequence& sequence = model_.at(slot);
    EXPECT_EQ(copies[i].slot, slot);
    EXPECT_EQ(copies[i].group, group);
    EXPECT_EQ(copies[i].blocks.source, sequence.groups[group].pages.back());
    EXPECT_EQ(copies[i].num_tokens, sequence.num_reserved % page_size);
    tally_.group_copies += group > 0 ? 1 : 0;
  }
  tally_.copies += std::ssize(copies);
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
    tally_.last_holders += stays && shared && !writes ? 1 : 0;
  }
}

void DriverRuns::UndoReserve() {
  const uint64_t hash = manager_.StateHash();
  const size_t num_runs = state_.step.runs.size();
  if (!Reserve()) return;
  while (state_.step.runs.size() > num_runs) {
    Abort(state_.step.runs.back());
    state_.step.runs.pop_back();
  }
  if (has_reclaimed_) return;
  EXPECT_EQ(manager_.StateHash(), hash);
  ++tally_.undone_reservations;
}

void DriverRuns::AbortRun() {
  if (state_.step.runs.empty()) return;
  const DriverRun run = state_.step.runs.back();
  if (!state_.IsStale(run.slot, run.incarnation)) {
    const NaiveSequence& sequence = model_.at(run.slot);
    const int32_t num_left = sequence.num_reserved - run.num_tokens;
    if (sequence.CountOrdered() > num_left) return;
    Abort(run);
  }
  state_.step.runs.pop_back();
}

void DriverRuns::Abort(const DriverRun& run) {
  const std::vector<BlockId> before = model_.at(run.slot).groups[0].pages;
  manager_.Abort(run.slot, run.num_tokens);
  model_.Withdraw(run.slot, run.num_tokens, false);
  const std::vector<BlockId>& after = model_.at(run.slot).groups[0].pages;
  const bool kept = std::equal(after.begin(), after.end(), before.begin());
  tally_.undone_copies += kept ? 0 : 1;
}

void DriverRuns::Settle(DriverStep* step, size_t i) {
  const DriverRun run = step->runs[i];
  NaiveSequence& sequence = model_.at(run.slot);
  int32_t num_accepted = run.num_tokens;
  if (random_.Chance(0.1)) num_accepted = random_.Int(0, run.num_tokens);
  // Tokens that an order in flight depends on are always accepted.
  if (sequence.CountOrdered() > sequence.num_settled + num_accepted) {
    num_accepted = run.num_tokens;
  }
  EXPECT_EQ(manager_.WillPublish(run.slot, num_accepted),
            model_.WillPublish(run.slot, num_accepted));
  if (manager_.WillPublish(run.slot, num_accepted)) {
    sequence.names.Extend(sequence.tokens, layout_.page_size);
  }
  manager_.Commit(run.slot, num_accepted, sequence.tokens, sequence.names);
  model_.Commit(run.slot, num_accepted);
  if (num_accepted == run.num_tokens) return;
  step->runs[i].num_tokens -= num_accepted;
  Rollback(run.slot, sequence.num_reserved - sequence.num_settled,
           std::span(step->runs).subspan(i));
  ++tally_.rejections;
}

void DriverRuns::RollbackSome(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t first = std::max(sequence.num_settled, sequence.CountOrdered());
  if (first > sequence.num_reserved) return;
  Rollback(slot, random_.Int(0, sequence.num_reserved - first), {});
}

void DriverRuns::Rollback(SequenceSlot slot, int32_t num_tokens,
                          std::span<DriverRun> acknowledged) {
  int32_t left = num_tokens;
  const auto trim = [&](std::span<DriverRun> runs) {
    for (size_t i = runs.size(); i-- > 0;) {
      DriverRun& run = runs[i];
      if (run.slot != slot || state_.IsStale(slot, run.incarnation)) continue;
      const int32_t count = std::min(left, run.num_tokens);
      tally_.voided_runs += count > 0 ? 1 : 0;
      run.num_tokens -= count;
      left -= count;
    }
  };
  trim(state_.step.runs);
  std::deque<DriverStep>& steps = state_.in_flight;
  for (size_t i = steps.size(); i-- > 0;) trim(steps[i].runs);
  trim(acknowledged);
  EXPECT_EQ(left, 0);
  manager_.Rollback(slot, num_tokens);
  model_.Withdraw(slot, num_tokens, true);
  state_.Forget(slot);
}

}  // namespace blockmgr
