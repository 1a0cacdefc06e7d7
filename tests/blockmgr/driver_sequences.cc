#include "tests/blockmgr/driver_sequences.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {

void DriverSequences::Open() {
  const int32_t page_size = layout_.page_size;
  NaiveSequence sequence = random_.Sequence();
  const std::vector<int32_t>& prompt = sequence.tokens;
  const auto num_prompt = static_cast<int32_t>(prompt.size());
  const int32_t max_tokens =
      random_.Chance(0.5) ? num_prompt : random_.Int(-1, num_prompt);
  const std::string plan = random_.Chance(0.8) ? "p" : "q";
  const std::string history = random_.History();
  const int32_t slack =
      random_.Chance(0.5) ? num_prompt : random_.Int(-2, 4 * page_size);
  const auto limit = [&](int32_t length) {
    return std::min(num_prompt, length + slack);
  };
  const RegionQuery query = {.plan = plan,
                             .history = history,
                             .any_history = random_.Chance(0.5),
                             .max_tokens_over = limit};
  const bool has_windows = layout_.has_windows();
  const RegionQuery* asked =
      random_.Chance(has_windows ? 0.5 : 0.7) ? &query : nullptr;
  PrefixMatch match = manager_.Match(sequence.names, prompt, max_tokens, asked);
  NaiveMatch expected =
      model_.cache().Match(sequence.scope, prompt, max_tokens, asked);
  if (random_.Chance(0.5)) {
    const int32_t part_limit =
        match.cached == nullptr ? max_tokens : limit(match.length());
    manager_.MatchPart(sequence.names, prompt, part_limit, &match);
    model_.cache().MatchPart(sequence.scope, prompt, part_limit, &expected);
    if (random_.Chance(0.1)) {
      match.DropPart(page_size);
      expected.DropPart(page_size);
    }
  }
  checks_.CheckMatch(match, expected);
  EXPECT_EQ(manager_.num_open_slots(),
            state_.config.max_sequences - std::ssize(model_.sequences()));
  if (manager_.num_open_slots() == 0) return;
  const BlockManagerStats before = manager_.stats();
  const int32_t available = manager_.num_available();
  const SequenceSlot slot = manager_.Open(sequence.names, match);
  // Matched blocks that only the cache held are used now.
  const int32_t woken = before.cached_blocks - manager_.stats().cached_blocks;
  const int32_t num_reclaimable =
      match.cost.num_reclaimable + (match.cost.part_is_reclaimable ? 1 : 0);
  EXPECT_EQ(available - manager_.num_available(), num_reclaimable);
  tally_.matched_blocks += std::ssize(match.blocks);
  tally_.matched_parts += match.has_part ? 1 : 0;
  tally_.matched_waiting_blocks += woken - num_reclaimable;
  model_.Open(slot, std::move(sequence), expected);
  const int32_t num_part = match.has_part ? 1 : 0;
  EXPECT_EQ(manager_.CountBlocks(slot), match.CountBlocks() + num_part);
  model_.CheckRegions(manager_, slot);
  if (match.cached != nullptr) {
    ++tally_.matched_regions;
    EXPECT_TRUE(state_.findable.contains(match.cached->record().id));
  }
  state_.Renew(slot);
}

void DriverSequences::Fork() {
  if (model_.sequences().empty()) return;
  SequenceSlot slot = random_.AnySlot();
  for (const auto& [other, sequence] : model_.sequences()) {
    // Such a sequence and its fork publish the same region of a window.
    if (!state_.HasMovingRegion(sequence) || random_.Chance(0.5)) continue;
    slot = other;
  }
  const bool possible = model_.CanFork(slot) && manager_.num_open_slots() > 0;
  EXPECT_EQ(manager_.CanFork(slot), possible);
  const NaiveSequence& parent = model_.at(slot);
  const int32_t least = std::max(parent.cut(), 1);
  if (!possible || parent.num_settled < least) return;
  const int32_t num_tokens =
      random_.Chance(0.5) ? RandomBack(slot, least) : parent.num_settled;
  ForkAt(slot, num_tokens);
  if (manager_.num_open_slots() == 0 || !random_.Chance(0.2)) return;
  // The second fork and the first one share a block that neither of them
  // wrote.
  ForkAt(slot, num_tokens);
  Close(slot);
}

void DriverSequences::ForkAt(SequenceSlot slot, int32_t num_tokens) {
  const NaiveSequence& parent = model_.at(slot);
  const int32_t available = manager_.num_available();
  const PrefixMatch match = manager_.MatchFork(slot, num_tokens);
  EXPECT_EQ(match.num_tokens, num_tokens);
  EXPECT_EQ(match.cut(), parent.cut());
  EXPECT_EQ(match.CountBlocks(), model_.CountFullBlocks(slot, num_tokens));
  tally_.part_forks += num_tokens < parent.num_settled ? 1 : 0;
  const SequenceSlot child = manager_.Open(parent.names, match);
  model_.Fork(slot, child, num_tokens);
  EXPECT_EQ(manager_.num_available(), available);
  model_.CheckRegions(manager_, child);
  checks_.CheckCoveredInWindows(child);
  state_.Renew(child);
  ++tally_.forks;
}

int32_t DriverSequences::RandomBack(SequenceSlot slot, int32_t least) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t num_settled = sequence.num_settled;
  int32_t num_tokens = random_.Int(least, num_settled);
  if (!layout_.has_windows()) {
    EXPECT_TRUE(manager_.CanGoBack(slot, num_tokens));
    return num_tokens;
  }
  if (random_.Chance(0.7)) {
    const int32_t most = layout_.page_size + 1;
    num_tokens = random_.Int(std::max(least, num_settled - most), num_settled);
    // Regions are published at the end of a page.
    const int32_t end = num_tokens - num_tokens % layout_.page_size;
    if (end >= least && random_.Chance(0.5)) num_tokens = end;
  }
  const bool possible = model_.CanGoBack(slot, num_tokens);
  EXPECT_EQ(manager_.CanGoBack(slot, num_tokens), possible);
  if (!possible) {
    ++tally_.refused_backs;
    num_tokens = std::max(least, num_settled - 1);
    if (!model_.CanGoBack(slot, num_tokens)) return num_settled;
  }
  bool has_gap = false;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    has_gap |= layout_.FirstPage(group, num_tokens) <
               layout_.FirstPage(group, num_settled);
  }
  tally_.backs_with_gap += has_gap ? 1 : 0;
  return num_tokens;
}

void DriverSequences::CutBack(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  if (sequence.has_pending()) return;
  int32_t num_tokens = 0;
  if (random_.Chance(0.8) && sequence.num_settled >= sequence.cut()) {
    num_tokens = RandomBack(slot, sequence.cut());
  }
  manager_.CutBack(slot, num_tokens);
  model_.CutBack(slot, num_tokens);
  model_.CheckRegions(manager_, slot);
  state_.Forget(slot);
  state_.Renew(slot);
  ++tally_.cut_backs;
}

void DriverSequences::LoseBlocks() {
  std::set<BlockId> lost;
  const int32_t count = random_.Int(1, 2);
  for (int32_t i = 0; i < count; ++i) {
    lost.insert(BlockId{random_.Int(1, layout_.num_blocks - 1)});
  }
  const std::vector<BlockId> idle = model_.cache().IdleLinkedBlocks();
  if (!idle.empty() && random_.Chance(0.5)) {
    const auto last = static_cast<int32_t>(idle.size()) - 1;
    lost = {idle[static_cast<size_t>(random_.Int(0, last))]};
  }
  std::vector<BlockId> reported(lost.begin(), lost.end());
  if (random_.Chance(0.1)) {
    const uint64_t hash = manager_.StateHash();
    reported.push_back(random_.Chance(0.5) ? kNullBlock
                                           : BlockId{layout_.num_blocks});
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
    state_.Forget(slot);
    state_.Renew(slot);
    const bool had_region = std::ranges::count(compressed, slot) > 0;
    tally_.emptied_by_loss += had_region && num_tokens == 0 ? 1 : 0;
  }
  EXPECT_EQ(report->sequences, expected);
  tally_.cut_by_loss += std::ssize(left);
  tally_.entries_lost += report->dropped_blocks;
}

void DriverSequences::CloseAny() {
  const SequenceSlot slot = random_.AnySlot();
  // A sequence with a region in a window mostly stays open, so that it is
  // compressed again.
  if (state_.HasMovingRegion(model_.at(slot)) && random_.Chance(0.8)) return;
  Close(slot);
}

void DriverSequences::Close(SequenceSlot slot) {
  tally_.closed_in_flight += model_.has_steps_in_flight() ? 1 : 0;
  const NaiveSequence& sequence = model_.at(slot);
  if (state_.config.evicts_in_windows && !sequence.region().kept.empty() &&
      sequence.chain != 0) {
    // A later prompt finds the blocks that were computed over its regions.
    state_.Remember(sequence, sequence.num_settled);
  }
  manager_.Close(slot);
  model_.Close(slot);
  state_.incarnations.erase(slot);
}

void DriverSequences::CloseAll() {
  while (!model_.sequences().empty()) Close(random_.AnySlot());
}

}  // namespace blockmgr
