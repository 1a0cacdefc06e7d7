#include "tests/blockmgr/driver_swaps.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {

void DriverSwaps::Operate() {
  std::vector<SwapId> swaps = model_.host().Swaps();
  for (const SwapId swap : swaps) {
    const NaiveSequence& sequence = model_.host().at(swap).sequence;
    if (!IsPublished(sequence) || random_.Chance(0.5)) continue;
    swaps = {swap};
    break;
  }
  const int32_t kind = random_.Int(0, 9);
  if (kind < 4) {
    if (!model_.sequences().empty()) SwapOut(SlotToSwapOut());
  } else if (kind == 9) {
    LoseHostBlocks();
  } else if (!swaps.empty()) {
    const auto last = static_cast<int32_t>(swaps.size()) - 1;
    const SwapId swap = swaps[static_cast<size_t>(random_.Int(0, last))];
    if (kind < 8) return SwapIn(swap);
    manager_.DropSwapped(swap);
    model_.host().Drop(swap);
    ++tally_.dropped_swaps;
  }
}

bool DriverSwaps::IsPublished(const NaiveSequence& sequence) {
  return sequence.context.find('/') != std::string::npos &&
         sequence.num_settled > sequence.region().length;
}

SequenceSlot DriverSwaps::SlotToSwapOut() {
  const SequenceSlot any = random_.AnySlot();
  // The best choice is a sequence whose region may still be cached when the
  // sequence comes back.
  for (const auto& [slot, sequence] : model_.sequences()) {
    const bool ends_in_part =
        sequence.num_settled % state_.config.layout.page_size != 0;
    if (IsPublished(sequence) && ends_in_part) return slot;
  }
  return any;
}

void DriverSwaps::SwapOut(SequenceSlot slot) {
  const NaiveSequence& sequence = model_.at(slot);
  if (sequence.num_settled == 0 || sequence.has_pending() ||
      model_.has_copies() || state_.returning.contains(slot)) {
    return;
  }
  const std::optional<int32_t> needed = model_.CountHostBlocksNeeded(slot);
  // No block is needed if all was evicted. Nothing is swapped out then.
  const bool fits =
      needed.has_value() && *needed > 0 && *needed <= model_.host().CountFree();
  const uint64_t hash = manager_.StateHash();
  std::vector<BlockTransfer> transfers;
  const SwapId swap = manager_.SwapOut(slot, &transfers);
  EXPECT_EQ(swap != kNoSwap, fits);
  if (swap == kNoSwap) {
    EXPECT_TRUE(transfers.empty());
    EXPECT_EQ(manager_.StateHash(), hash);
    (needed.has_value() ? tally_.refused_swap_outs : tally_.stuck_swap_outs) +=
        1;
    tally_.swap_outs_less_one +=
        needed == model_.host().CountFree() + 1 ? 1 : 0;
    return;
  }
  ++tally_.swap_outs;
  tally_.last_swap_outs += needed == model_.host().CountFree() ? 1 : 0;
  tally_.region_outs += sequence.region().kept.empty() ? 0 : 1;
  model_.SwapOut(slot, swap, transfers);
  sequences_.Close(slot);
}

void DriverSwaps::MatchPastOf(SwapId swap, const NaiveSequence& sequence,
                              int32_t max_tokens, PrefixMatch* match,
                              NaiveMatch* expected) {
  // A region was published as plan/history/length.
  const std::vector<std::string> name = absl::StrSplit(sequence.context, '/');
  const auto limit = [&](int32_t) { return max_tokens; };
  const std::string history = name.size() == 3 ? name[1] : "";
  const RegionQuery query = {.plan = name[0],
                             .history = history,
                             .any_history = false,
                             .max_tokens_over = limit};
  const RegionQuery* asked = name.size() == 3 ? &query : nullptr;
  *expected =
      model_.cache().Match(sequence.scope, sequence.tokens, max_tokens, asked);
  if (expected->region != 0 && !model_.HasPastOf(swap, *expected)) {
    // The region has the same length, but another history has made it.
    asked = nullptr;
    *expected = model_.cache().Match(sequence.scope, sequence.tokens,
                                     max_tokens, asked);
  }
  *match = manager_.Match(sequence.names, sequence.tokens, max_tokens, asked);
  if (!random_.Chance(0.3)) return;
  manager_.MatchPart(sequence.names, sequence.tokens, max_tokens, match);
  model_.cache().MatchPart(sequence.scope, sequence.tokens, max_tokens,
                           expected);
}

void DriverSwaps::SwapIn(SwapId swap) {
  NaiveSequence sequence = model_.host().at(swap).sequence;
  int32_t least = std::max(sequence.cut(), 1);
  for (const GroupBook& book : sequence.groups) {
    least = std::max(least, book.region.length);
  }
  if (sequence.num_settled < least) return;
  int32_t num_tokens = sequence.num_settled;
  if (random_.Chance(0.4)) num_tokens = random_.Int(least, num_tokens);
  sequence.names.Extend(sequence.tokens, state_.config.layout.page_size);
  PrefixMatch match;
  NaiveMatch expected;
  MatchPastOf(swap, sequence, num_tokens, &match, &expected);
  const bool is_needless = match.num_tokens >= num_tokens;
  manager_.MatchSwapped(swap, num_tokens, sequence.region().length, &match);
  model_.MatchSwapped(swap, num_tokens, &expected);
  checks_.CheckMatch(match, expected);
  EXPECT_EQ(match.swap, expected.swap);
  EXPECT_EQ(match.CountIns(), std::ssize(expected.ins));
  EXPECT_EQ(match.CountTaken(),
            expected.num_reclaimable + std::ssize(expected.ins));
  if (match.swap == kNoSwap) {
    (is_needless ? tally_.needless_ins : tally_.stuck_ins) += 1;
    return;
  }
  const int32_t available = manager_.num_available();
  if (manager_.num_open_slots() == 0 || match.CountTaken() > available) {
    tally_.refused_ins += match.CountTaken() > available ? 1 : 0;
    return;
  }
  const int32_t num_free = manager_.stats().free_blocks;
  const SequenceSlot slot = manager_.Open(sequence.names, match);
  std::vector<BlockTransfer> transfers;
  manager_.SwapIn(slot, match, &transfers);
  EXPECT_EQ(available - manager_.num_available(), match.CountTaken());
  model_.SwapIn(slot, expected, transfers, num_free);
  model_.CheckRegions(manager_, slot);
  state_.Renew(slot);
  state_.returning.insert(slot);
  ++tally_.swap_ins;
  tally_.shortened_ins += num_tokens < sequence.num_settled ? 1 : 0;
  tally_.region_ins += match.num_region_ins() > 0 ? 1 : 0;
  tally_.window_region_ins += match.cost.num_window_region_blocks > 0 ? 1 : 0;
  tally_.ins_behind_cache += match.blocks.empty() ? 0 : 1;
  tally_.ins_behind_region += match.cached == nullptr ? 0 : 1;
}

void DriverSwaps::LoseHostBlocks() {
  // A sequence that comes back holds host blocks until the step is dispatched.
  if (!state_.returning.empty()) return;
  std::set<HostBlockId> lost;
  for (int32_t i = random_.Int(1, 2); i > 0; --i) {
    lost.insert(HostBlockId{random_.Int(0, state_.config.num_host_blocks - 1)});
  }
  std::vector<HostBlockId> reported(lost.begin(), lost.end());
  if (random_.Chance(0.1)) {
    const uint64_t hash = manager_.StateHash();
    reported.push_back(
        HostBlockId{random_.Chance(0.5) ? -1 : state_.config.num_host_blocks});
    EXPECT_THAT(manager_.LoseHostBlocks(reported),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(manager_.StateHash(), hash);
    return;
  }
  const absl::StatusOr<std::vector<SwapId>> losers =
      manager_.LoseHostBlocks(reported);
  ASSERT_OK(losers);
  EXPECT_EQ(*losers, model_.host().LoseBlocks(lost));
  tally_.lost_swaps += std::ssize(*losers);
}

}  // namespace blockmgr
