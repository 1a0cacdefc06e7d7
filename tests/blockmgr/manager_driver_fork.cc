// What ManagerDriver does with shared sequences.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/blockmgr/manager_driver.h"

namespace blockmgr {

void ManagerDriver::Fork() {
  if (model_.sequences().empty()) return;
  const SequenceSlot slot = AnySlot();
  const bool possible = model_.CanFork(slot) && manager_.num_open_slots() > 0;
  EXPECT_EQ(manager_.CanFork(slot), possible);
  if (!possible) return;
  const int32_t available = manager_.num_available();
  const SequenceSlot child = manager_.Fork(slot);
  EXPECT_EQ(manager_.num_available(), available);
  model_.Fork(slot, child);
  model_.CheckRegion(manager_, child);
  incarnations_[child] = next_incarnation_++;
  ++tally_->forks;
}

void ManagerDriver::CheckCopies(const std::vector<TokenDemand>& demands,
                                const std::vector<TokenDemand>& leavers,
                                const std::vector<CopyOnWrite>& copies) {
  ASSERT_EQ(copies.size(), leavers.size());
  const int32_t page_size = config_.layout.page_size;
  for (size_t i = 0; i < copies.size(); ++i) {
    const NaiveSequence& sequence = model_.at(leavers[i].slot);
    EXPECT_EQ(copies[i].slot, leavers[i].slot);
    EXPECT_EQ(copies[i].blocks.source, sequence.tail.back());
    EXPECT_EQ(copies[i].num_tokens, sequence.num_reserved % page_size);
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
                 model_.at(leaver.slot).tail.back() == sequence.tail.back();
        });
    tally_->last_holders += stays && shared ? 1 : 0;
  }
}

}  // namespace blockmgr
