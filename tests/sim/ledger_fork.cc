// Starts on the tables of others, and copies on write.

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "tests/sim/ledger.h"

namespace blockmgr::sim {

void Ledger::TakeFork(const SequenceStart& start, Served* served,
                      Table* table) {
  const auto found = tables_.find(start.source);
  if (found == tables_.end() || found->second.restart_due ||
      found->second.pending.has_value() || start.region != kNoRegion) {
    report_->Fail("request ", Index(start.request), " starts on slot ",
                  Index(start.source), ", whose table is not to be had");
    return;
  }
  const Table& source = found->second;
  const Served& parent = requests_.at(source.request);
  const int32_t num_shared = start.num_cached_tokens;
  if (parent.request.id != served->request.fork_of ||
      parent.request.scope.tenant != served->request.scope.tenant ||
      num_shared < std::max({1, source.cut, source.last_length}) ||
      num_shared > source.num_settled ||
      !std::equal(parent.tokens.begin(), parent.tokens.begin() + num_shared,
                  served->tokens.begin())) {
    report_->Fail("request ", Index(start.request), ", a fork of '",
                  served->request.fork_of, "', starts with ", num_shared,
                  " tokens of '", parent.request.id, "', which has settled ",
                  source.num_settled, " and was compressed at ",
                  source.last_length);
    return;
  }
  table->tail.assign(source.tail.begin(),
                     source.tail.begin() +
                         CeilDiv(num_shared - source.cut, layout_.page_size));
  table->cut = source.cut;
  table->kept = source.kept;
  table->region_pages = source.region_pages;
  table->region_blocks = source.region_blocks;
  table->last_length = source.last_length;
  table->context = source.context;
  table->tail_context = source.tail_context;
  served->issued = parent.issued;
  served->kept_less |= parent.kept_less;
  const auto num_both =
      std::min(std::ssize(served->issued), std::ssize(served->recorded));
  if (!std::equal(served->issued.begin(), served->issued.begin() + num_both,
                  served->recorded.begin())) {
    report_->Fail("request ", Index(start.request),
                  " starts on a table of other evictions than its own");
  }
  if (std::ssize(served->issued) > num_both) served->recorded = served->issued;
  ++report_->counts().forks;
}

void Ledger::TakeCopies(const StepPlan& plan) {
  for (const CopyOnWrite& copy : plan.copies) {
    const auto found = tables_.find(copy.slot);
    if (found != tables_.end() && found->second.tail.empty()) {
      TakePart(plan, copy, found->second);
      continue;
    }
    if (found == tables_.end()) {
      report_->Fail("slot ", Index(copy.slot), " copies and has no tail");
      return;
    }
    Table& table = found->second;
    const auto [source, destination] = copy.blocks;
    const int32_t num_rows =
        (table.num_reserved - table.cut) % layout_.page_size;
    if (table.tail.back() != source || copy.num_tokens != num_rows ||
        num_rows == 0 || CountHolders(source) < 2) {
      report_->Fail("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                    " tokens of block ", Index(source), " with ",
                    CountHolders(source), " holders; its last block ",
                    Index(table.tail.back()), " has ", num_rows);
      return;
    }
    CheckFresh(destination);
    table.tail.back() = destination;
    // Read by this very step.
    blocks_[Index(source)].fence = Index(plan.id);
  }
}

void Ledger::TakePart(const StepPlan& plan, const CopyOnWrite& copy,
                      const Table& table) {
  const auto [source, destination] = copy.blocks;
  const int32_t num_rows = table.num_reserved % layout_.page_size;
  const int32_t index = (table.num_reserved - table.cut) / layout_.page_size;
  const auto run = std::ranges::find(plan.slots, copy.slot);
  if (run == plan.slots.end() || num_rows == 0 || copy.num_tokens != num_rows) {
    report_->Fail("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                  " tokens, expected ", num_rows, ", and runs");
    return;
  }
  const int64_t place = plan.block_offsets[run - plan.slots.begin()] + index;
  if (plan.blocks[place] != destination) {
    report_->Fail("slot ", Index(copy.slot), " copies to block ",
                  Index(destination), " and goes on in ",
                  Index(plan.blocks[place]));
    return;
  }
  CheckHit(table, index, source, table.num_reserved);
  // Read by this very step.
  blocks_[Index(source)].fence = Index(plan.id);
  ++report_->counts().parts;
}

}  // namespace blockmgr::sim
