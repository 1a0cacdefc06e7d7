#include "tests/sim/ledger_outcomes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/sim/ledger_effects.h"

namespace blockmgr::sim {
namespace {

// Returns whether the request may be computed without any eviction.
bool FitsWhole(const Request& request, const LedgerBooks& books) {
  const int32_t most = books.PeaksOf(request, request.eviction.target).most;
  const int32_t quota = books.options.tenant_limits.max_blocks;
  return most <= books.layout.num_blocks - 1 && (quota == 0 || most <= quota);
}

// Notes that an eviction of the parent was recorded. Its forks that have not
// started, and their forks, will have the same eviction.
void NoteInherited(const std::string& parent, LedgerBooks* books) {
  for (auto& [id, served] : books->requests) {
    if (!served.live || !served.is_plain || served.request.fork_of != parent) {
      continue;
    }
    served.is_plain = false;
    NoteInherited(served.request.id, books);
  }
}

// Keeps the region of the table for later starts.
void KeepRegion(RegionId id, const LedgerTable& table,
                const LedgerRequest& served, LedgerBooks* books) {
  // Nobody can start with a region without blocks.
  if (table.groups[0].region.blocks.empty()) {
    books->lost_regions.insert(id);
    return;
  }
  LedgerRegion& region = books->regions[id];
  region.scope = served.request.scope;
  region.plan = PlanOf(served);
  region.tokens.assign(served.tokens.begin(),
                       served.tokens.begin() + table.last_length());
  region.contexts = table.contexts;
  for (const GroupBook& book : table.groups) {
    region.regions.push_back(book.region);
  }
  region.evictions = served.issued;
}

// Releases the fresh blocks of the table's orders.
void AbortOrders(LedgerTable* table, LedgerBooks* books) {
  for (GroupBook& book : table->groups) {
    if (!book.pending.has_value()) continue;
    for (const BlockId block : book.pending->Fresh()) books->Release(block);
    book.pending.reset();
  }
}

// Counts an eviction that is carried out. A new one is not recorded yet.
void CountEviction(const LedgerRequest& served, const EvictionEffect& effect,
                   const LedgerBooks& books) {
  RunCounts& counts = books.counts();
  ++counts.evictions;
  const Request& request = served.request;
  const bool is_orphan =
      !request.fork_of.empty() && !books.names.contains(request.fork_of);
  counts.orphan_evictions += is_orphan ? 1 : 0;
  const bool is_new = served.issued.size() > served.recorded.size();
  const bool is_squeeze = is_new && effect.command == 0 &&
                          request.eviction.mode == EvictionMode::kPressure;
  counts.squeezes += is_squeeze ? 1 : 0;
  const bool in_windows = request.eviction.target.evicts_in_windows();
  counts.window_squeezes += is_squeeze && in_windows ? 1 : 0;
}

void CheckReceipt(const EvictionEffect& effect, const BookReceipt& receipt,
                  const std::vector<int32_t>& counts,
                  const LedgerBooks& books) {
  if (effect.evicted_entries == receipt.evicted_entries &&
      effect.freed_blocks == receipt.freed_blocks &&
      effect.freed_bytes == receipt.freed_blocks * books.layout.block_bytes() &&
      effect.kept_entries == counts) {
    return;
  }
  books.Fail("request ", Index(effect.request), ": ", effect.evicted_entries,
             " entries evicted (expected ", receipt.evicted_entries, "), ",
             effect.freed_blocks, " blocks freed (expected ",
             receipt.freed_blocks, ")");
}

// Returns the effect that tells what became of the eviction that the engine has
// answered, or null. Other effects are of commands that were aborted or had
// nothing to evict.
const EvictionEffect* FindEffect(const Effects& effects, RequestId request) {
  const EvictionEffect* found = nullptr;
  for (const EvictionEffect& effect : effects.evictions) {
    const bool is_futile = effect.status.ok() && effect.evicted_entries == 0 &&
                           effect.freed_blocks == 0;
    if (effect.request == request && !is_futile &&
        !absl::IsAborted(effect.status)) {
      found = &effect;
    }
  }
  return found;
}

// Commits the orders of all groups, and returns the sum of the receipts.
BookReceipt Commit(const RunOutcomes& answer, LedgerTable* table,
                   LedgerBooks* books) {
  BookReceipt receipt;
  std::vector<BlockId> gone;
  for (size_t i = 0; i < answer.orders.size(); ++i) {
    const int32_t group = answer.orders[i].group;
    const BookReceipt more = books->rules.Commit(
        group, answer.outcomes[i].counts, &table->groups[group], &gone);
    receipt.evicted_entries += more.evicted_entries;
    receipt.freed_blocks += more.freed_blocks;
    books->counts().window_evictions += group > 0 ? 1 : 0;
  }
  for (const BlockId block : gone) books->Release(block);
  return receipt;
}

// Takes the regions that the orders have made.
void TakeRegions(const RunOutcomes& answer, const EvictionEffect& effect,
                 LedgerTable* table, LedgerBooks* books) {
  LedgerRequest& served = books->requests.at(answer.run.request);
  const std::vector<int32_t>& counts = answer.outcomes.front().counts;
  const RegionId region = answer.orders.front().region;
  const int32_t length = served.issued.back().length;
  served.kept_less |=
      served.request.eviction.mode > EvictionMode::kAfterPrefill &&
      books->rules.PagesByShard(counts) !=
          table->groups[0].pending->page_totals;
  const BookReceipt receipt = Commit(answer, table, books);
  CheckReceipt(effect, receipt, counts, *books);
  table->takes_more |= effect.command != 0;
  // An eviction whose region is not shared is no other request's context.
  const std::string before =
      table->contexts.empty() ? "" : table->contexts.back().second;
  const std::string by =
      region == kNoRegion
          ? absl::StrCat("of request ", Index(answer.run.request))
          : PlanOf(served);
  table->contexts.emplace_back(length,
                               absl::StrCat(before, by, " at ", length, ";"));
  if (region != kNoRegion) KeepRegion(region, *table, served, books);
  CountEviction(served, effect, *books);
  if (served.issued.size() == served.recorded.size() + 1) {
    served.recorded.push_back(served.issued.back());
    NoteInherited(served.request.id, books);
  }
}

// Forgets the last eviction of the request. Returns whether it was new: an
// eviction that is replayed has a record.
bool ForgetIssued(LedgerRequest* request) {
  request->issued.pop_back();
  const int64_t index = std::ssize(request->issued);
  if (index >= std::ssize(request->recorded)) return true;
  request->recorded.erase(request->recorded.begin() + index);
  // The request has more entries than before. A later eviction that had nothing
  // to free before may free some now.
  request->kept_less = true;
  return false;
}

// Ends the request if the effects say so, and checks whether they may.
void TakeRefusedEnd(const RunOutcomes& answer, bool is_extra, int32_t length,
                    LedgerBooks* books) {
  const LedgerRequest& served = books->requests.at(answer.run.request);
  const Request& request = served.request;
  // A request without evictions to come needs its whole peak.
  const bool is_whole = request.eviction.mode == EvictionMode::kAfterPrefill &&
                        served.recorded.empty() && request.fork_of.empty();
  const LedgerPeaks peaks = books->PeaksOf(request, request.eviction.target);
  const bool must_end =
      !is_extra && is_whole && peaks.least > books->layout.num_blocks - 1;
  const bool may_end = !is_extra && !FitsWhole(request, *books);
  const FinishEffect* const finish =
      FindFinish(answer.effects, answer.run.request);
  if (finish == nullptr ? must_end : !may_end) {
    books->Fail("request ", Index(answer.run.request),
                ", refused its eviction at ", length,
                ", ended: ", finish != nullptr, ", must: ", must_end,
                ", may: ", may_end);
    return;
  }
  if (finish != nullptr) {
    ++books->counts().refused_ends;
    TakeEnd(*finish, FinishReason::kFailed, books);
  } else if (std::ranges::any_of(answer.outcomes, &EvictionOutcome::ok)) {
    // Entries have moved already, so the request begins anew.
    books->CloseTable(answer.run.slot);
  }
}

// Takes the refusal of at least one order.
void TakeRefusal(const RunOutcomes& answer, const EvictionEffect& effect,
                 LedgerTable* table, LedgerBooks* books) {
  LedgerRequest& served = books->requests.at(answer.run.request);
  ++books->counts().refused_evictions;
  AbortOrders(table, books);
  const int32_t length = served.issued.back().length;
  const bool is_new = ForgetIssued(&served);
  // No blocks were promised to a request because of a command or a squeeze. An
  // eviction that is new to a fork may be its parent's.
  const bool is_extra =
      effect.command != 0 ||
      (is_new && served.request.fork_of.empty() &&
       served.request.eviction.mode == EvictionMode::kPressure);
  if (!is_extra) {
    books->was_refused = true;
    served.refused.insert(length);
    served.refused_at = std::min(served.refused_at, length);
    table->takes_more = true;
    table->may_leave = books->options.tenant_limits.max_blocks > 0;
  }
  TakeRefusedEnd(answer, is_extra, length, books);
}

}  // namespace

void TakeOutcomes(const RunOutcomes& outcomes, LedgerBooks* books) {
  LedgerTable* const table = books->Find(outcomes.run);
  // The engine evicts from all groups, or the eviction is refused.
  const bool ok = std::ranges::all_of(outcomes.outcomes, &EvictionOutcome::ok);
  const RegionId region = outcomes.orders.front().region;
  if (region != kNoRegion && outcomes.outcomes.front().ok &&
      (table == nullptr || !ok)) {
    // The engine has made a region that nobody can start with.
    books->lost_regions.insert(region);
  }
  if (table == nullptr) return;
  const EvictionEffect* const effect =
      FindEffect(outcomes.effects, outcomes.run.request);
  if (effect == nullptr || effect->status.ok() != ok ||
      effect->cut != table->groups[0].pending->cut) {
    books->Fail("request ", Index(outcomes.run.request),
                ": its eviction was answered and nobody said so");
    return;
  }
  if (ok) {
    TakeRegions(outcomes, *effect, table, books);
  } else {
    TakeRefusal(outcomes, *effect, table, books);
  }
}

}  // namespace blockmgr::sim
