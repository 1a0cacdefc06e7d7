// Starts on the tables of others, and copies on write.

#include <algorithm>

#include "tests/sim/ledger.h"

namespace blockmgr::sim {

void Ledger::TakeFork(const SequenceStart& start, Served* served,
                      Table* table) {
  const auto found = tables_.find(start.source);
  if (found == tables_.end() || found->second.restart_due ||
      found->second.has_order() || start.region != kNoRegion) {
    report_->Fail("request ", Index(start.request), " starts on slot ",
                  Index(start.source), ", whose table is not to be had");
    return;
  }
  const Table& source = found->second;
  const Served& parent = requests_.at(source.request);
  const int32_t num_shared = start.num_cached_tokens;
  if (parent.request.id != served->request.fork_of ||
      ScopeOf(parent.request.scope, num_shared) !=
          ScopeOf(served->request.scope, num_shared) ||
      num_shared < std::max({1, source.cut(), source.last_length()}) ||
      num_shared > source.num_settled || !CanGoOn(source, num_shared) ||
      !std::equal(parent.tokens.begin(), parent.tokens.begin() + num_shared,
                  served->tokens.begin())) {
    report_->Fail("request ", Index(start.request), ", a fork of '",
                  served->request.fork_of, "', starts with ", num_shared,
                  " tokens of '", parent.request.id, "', which has settled ",
                  source.num_settled, " and was compressed at ",
                  source.last_length());
    return;
  }
  table->groups = source.groups;
  for (GroupBook& book : table->groups) rules_.CutBack(num_shared, &book);
  table->contexts = source.contexts;
  served->issued = parent.issued;
  served->kept_less |= parent.kept_less;
  served->refused_at = std::min(served->refused_at, parent.refused_at);
  const auto num_both =
      std::min(std::ssize(served->issued), std::ssize(served->recorded));
  if (!std::equal(served->issued.begin(), served->issued.begin() + num_both,
                  served->recorded.begin())) {
    report_->Fail("request ", Index(start.request),
                  " starts on a table of other evictions than its own");
  }
  if (std::ssize(served->issued) > num_both) served->recorded = served->issued;
  ++report_->counts().forks;
  report_->counts().region_forks += table->cut() > 0 ? 1 : 0;
  const bool has_window_region =
      std::any_of(source.groups.begin() + 1, source.groups.end(),
                  [](const GroupBook& book) { return book.region.cut > 0; });
  report_->counts().window_region_forks += has_window_region ? 1 : 0;
}

void Ledger::NoteInherited(const std::string& parent) {
  for (auto& [id, served] : requests_) {
    if (!served.live || !served.is_plain || served.request.fork_of != parent) {
      continue;
    }
    served.is_plain = false;
    NoteInherited(served.request.id);
  }
}

void Ledger::TakeCopies(const StepPlan& plan) {
  for (const CopyOnWrite& copy : plan.copies) {
    const auto found = tables_.find(copy.slot);
    const auto num_copies =
        std::ranges::count(plan.copies, copy.slot, &CopyOnWrite::slot);
    if (found == tables_.end() || copy.group < 0 ||
        copy.group >= layout_.num_groups() ||
        num_copies != layout_.num_groups()) {
      report_->Fail("slot ", Index(copy.slot), " makes ", num_copies,
                    " copies, one in group ", copy.group, " of ",
                    layout_.num_groups());
      return;
    }
    Table& table = found->second;
    std::vector<BlockId>& own = table.groups[copy.group].pages;
    if (own.empty()) {
      TakePart(plan, copy, table);
      continue;
    }
    const auto [source, destination] = copy.blocks;
    const int32_t num_rows = table.num_reserved % layout_.page_size;
    if (own.back() != source || copy.num_tokens != num_rows || num_rows == 0 ||
        CountHolders(source) < 2) {
      report_->Fail("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                    " tokens of block ", Index(source), " with ",
                    CountHolders(source), " holders; its last block ",
                    Index(own.back()), " has ", num_rows);
      return;
    }
    CheckFresh(destination);
    own.back() = destination;
    // Read by this very step.
    blocks_[Index(source)].fence = Index(plan.id);
  }
}

void Ledger::TakePart(const StepPlan& plan, const CopyOnWrite& copy,
                      const Table& table) {
  const auto [source, destination] = copy.blocks;
  const int32_t num_rows = table.num_reserved % layout_.page_size;
  const int32_t index = (table.num_reserved - table.cut()) / layout_.page_size;
  const auto run = std::ranges::find(plan.slots, copy.slot);
  if (run == plan.slots.end() || num_rows == 0 || layout_.has_windows() ||
      copy.num_tokens != num_rows) {
    report_->Fail("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                  " tokens, expected ", num_rows, ", and runs");
    return;
  }
  const BlockId own = NewBlocks(plan, run - plan.slots.begin(), 0)[index];
  if (own != destination) {
    report_->Fail("slot ", Index(copy.slot), " copies to block ",
                  Index(destination), " and goes on in ", Index(own));
    return;
  }
  CheckHit(table, 0, table.cut() + index * layout_.page_size, source,
           table.num_reserved);
  // Read by this very step.
  blocks_[Index(source)].fence = Index(plan.id);
  ++report_->counts().parts;
}

}  // namespace blockmgr::sim
