// What follows when the engine has lost blocks.

#include <algorithm>
#include <utility>

#include "tests/sim/ledger.h"

namespace blockmgr::sim {

void Ledger::SettleLoss(const std::vector<BlockId>& lost) {
  if (lost.empty()) return;
  const auto is_lost = [&lost](BlockId block) {
    return std::ranges::count(lost, block) > 0;
  };
  for (auto& [slot, table] : tables_) {
    const std::set<BlockId> blocks = table.Blocks();
    if (std::ranges::none_of(blocks, is_lost)) continue;
    const bool has_lost_region =
        std::ranges::any_of(table.groups, [&](const GroupBook& book) {
          return std::ranges::any_of(book.region.blocks, is_lost);
        });
    table.num_sound =
        has_lost_region ? 0
                        : std::min(table.num_settled, SoundBefore(table, lost));
    // Whatever is in flight for it counts for nothing.
    table.stay = next_stay_++;
    table.takes_more = true;
    ++report_->counts().cut_requests;
  }
  for (const BlockId block : lost) blocks_[Index(block)].content.clear();
  LoseRegions(is_lost);
}

void Ledger::TakeCuts(const BlockManager& manager) {
  if (!report_->ok()) return;
  std::vector<SequenceSlot> left;
  for (auto& [slot, table] : tables_) {
    if (!table.num_sound.has_value()) continue;
    const int32_t num_sound = *std::exchange(table.num_sound, std::nullopt);
    const SequenceCache& sequence = manager.sequence(slot);
    if (!sequence.open) {
      left.push_back(slot);
      continue;
    }
    const int32_t num_kept = sequence.num_settled;
    if (table.has_order() || num_kept < 1 || num_kept > num_sound ||
        num_kept < std::max(table.cut(), table.last_length()) ||
        !CanGoOn(table, num_kept)) {
      report_->Fail("slot ", Index(slot), " goes on from ", num_kept,
                    " tokens; it has ", num_sound, " left, cut ", table.cut(),
                    ", was compressed at ", table.last_length(),
                    ", under way: ", table.has_order());
      return;
    }
    CutTables(num_kept, &table);
    table.num_settled = num_kept;
    table.num_reserved = num_kept;
    table.restart_due = true;
    requests_.at(table.request).num_placeholders = 0;
    requests_.at(table.request).num_ready = 0;
  }
  for (const SequenceSlot slot : left) CloseTable(slot);
}

void Ledger::TakeRestart(const StepPlan& plan, const SequenceStart& start) {
  const auto found = tables_.find(start.slot);
  if (found == tables_.end() || found->second.request != start.request ||
      !found->second.restart_due || start.source != start.slot ||
      start.region != kNoRegion) {
    report_->Fail("request ", Index(start.request), " starts in slot ",
                  Index(start.slot), " from slot ", Index(start.source),
                  " and has lost nothing there");
    return;
  }
  Table& table = found->second;
  table.restart_due = false;
  CheckStartContent(plan, start, requests_.at(start.request));
  if (start.num_cached_tokens != table.num_reserved) {
    report_->Fail("request ", Index(start.request), " starts again after ",
                  start.num_cached_tokens, " tokens, ", table.num_reserved,
                  " are left");
  }
}

}  // namespace blockmgr::sim
