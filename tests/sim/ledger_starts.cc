#include "tests/sim/ledger_starts.h"

#include <algorithm>
#include <string>

#include "tests/sim/ledger_swaps.h"

namespace blockmgr::sim {
namespace {

// Checks the tokens and the info of a start.
void CheckContent(const StepPlan& plan, const SequenceStart& start,
                  const LedgerRequest& served, const LedgerBooks& books) {
  if (start.num_tokens != std::ssize(served.tokens) ||
      !std::equal(served.tokens.begin(), served.tokens.end(),
                  plan.start_tokens.begin() + start.token_begin)) {
    books.Fail("request ", Index(start.request),
               " starts with other tokens than it has");
  }
  const Request& request = served.request;
  if (start.info == nullptr || start.info->id != request.id ||
      start.info->num_prompt_tokens != served.num_prompt() ||
      start.info->lora != request.scope.lora ||
      start.info->media != request.scope.media ||
      start.info->engine_data != request.engine_data) {
    books.Fail("request ", Index(start.request),
               " starts with what another one was submitted with");
  }
}

// Checks how many tokens of a start are cached.
void CheckCached(const StepPlan& plan, const SequenceStart& start,
                 const LedgerBooks& books) {
  const bool has_part = start.source == kNoSequenceSlot &&
                        start.swap == kNoSwap &&
                        start.num_cached_tokens % books.layout.page_size != 0;
  if (start.num_cached_tokens >= start.num_tokens ||
      (has_part &&
       (!books.options.reuse_partial_blocks || books.layout.has_windows() ||
        std::ranges::count(plan.copies, start.slot, &CopyOnWrite::slot) ==
            0))) {
    books.Fail("a prefix hit of ", start.num_cached_tokens, " of ",
               start.num_tokens, " tokens");
  }
}

// Takes the restart of a sequence that has lost blocks.
void TakeRestart(const StepPlan& plan, const SequenceStart& start,
                 LedgerBooks* books) {
  const auto found = books->tables.find(start.slot);
  if (found == books->tables.end() || found->second.request != start.request ||
      !found->second.restart_due || start.source != start.slot ||
      start.region != kNoRegion) {
    books->Fail("request ", Index(start.request), " starts in slot ",
                Index(start.slot), " from slot ", Index(start.source),
                " and has lost nothing there");
    return;
  }
  LedgerTable& table = found->second;
  table.restart_due = false;
  CheckContent(plan, start, books->requests.at(start.request), *books);
  if (start.num_cached_tokens != table.num_reserved) {
    books->Fail("request ", Index(start.request), " starts again after ",
                start.num_cached_tokens, " tokens, ", table.num_reserved,
                " are left");
  }
}

// Takes the table of the source and the evictions of the parent.
void TakeFork(const SequenceStart& start, LedgerRequest* served,
              LedgerTable* table, LedgerBooks* books) {
  const auto found = books->tables.find(start.source);
  if (found == books->tables.end() || found->second.restart_due ||
      found->second.has_order() || start.region != kNoRegion) {
    books->Fail("request ", Index(start.request), " starts on slot ",
                Index(start.source), ", whose table is not to be had");
    return;
  }
  const LedgerTable& source = found->second;
  const LedgerRequest& parent = books->requests.at(source.request);
  const int32_t num_shared = start.num_cached_tokens;
  if (parent.request.id != served->request.fork_of ||
      ScopeOf(parent.request.scope, num_shared) !=
          ScopeOf(served->request.scope, num_shared) ||
      num_shared < std::max({1, source.cut(), source.last_length()}) ||
      num_shared > source.num_settled || !books->CanGoOn(source, num_shared) ||
      !std::equal(parent.tokens.begin(), parent.tokens.begin() + num_shared,
                  served->tokens.begin())) {
    books->Fail("request ", Index(start.request), ", a fork of '",
                served->request.fork_of, "', starts with ", num_shared,
                " tokens of '", parent.request.id, "', which has settled ",
                source.num_settled, " and was compressed at ",
                source.last_length());
    return;
  }
  table->groups = source.groups;
  for (GroupBook& book : table->groups) {
    books->rules.CutBack(num_shared, &book);
  }
  table->contexts = source.contexts;
  served->issued = parent.issued;
  served->kept_less |= parent.kept_less;
  served->refused_at = std::min(served->refused_at, parent.refused_at);
  const auto num_both =
      std::min(std::ssize(served->issued), std::ssize(served->recorded));
  if (!std::equal(served->issued.begin(), served->issued.begin() + num_both,
                  served->recorded.begin())) {
    books->Fail("request ", Index(start.request),
                " starts on a table of other evictions than its own");
  }
  if (std::ssize(served->issued) > num_both) served->recorded = served->issued;
  ++books->counts().forks;
  books->counts().region_forks += table->cut() > 0 ? 1 : 0;
  const bool has_window_region =
      std::any_of(source.groups.begin() + 1, source.groups.end(),
                  [](const GroupBook& book) { return book.region.cut > 0; });
  books->counts().window_region_forks += has_window_region ? 1 : 0;
}

// Takes the region that the request starts with, and its evictions.
void TakeRegion(const SequenceStart& start, LedgerRequest* served,
                LedgerTable* table, LedgerBooks* books) {
  const auto found = books->regions.find(start.region);
  if (found == books->regions.end()) {
    books->Fail("request ", Index(start.request), " starts on region ",
                Index(start.region), ", which is not there");
    return;
  }
  const LedgerRegion& region = found->second;
  const auto num_tokens = static_cast<int32_t>(region.tokens.size());
  const std::string scope = ScopeOf(served->request.scope, num_tokens);
  if (ScopeOf(region.scope, num_tokens) != scope ||
      region.plan != PlanOf(*served) || start.num_cached_tokens < num_tokens ||
      !std::equal(region.tokens.begin(), region.tokens.end(),
                  served->tokens.begin())) {
    books->Fail("request ", Index(start.request), " of '", scope,
                "' starts on region ", Index(start.region),
                " of other tokens, evictions or scope");
    return;
  }
  for (int32_t group = 0; group < books->layout.num_groups(); ++group) {
    // A request that comes back from the host tier brings the regions of other
    // groups.
    if (group > 0 && start.swap != kNoSwap) break;
    const BookRegion& kept = region.regions[group];
    if (!books->rules.IsInWindow(kept, group, start.num_cached_tokens)) {
      continue;
    }
    if (region.gone.contains(group)) {
      books->Fail("request ", Index(start.request), " starts on region ",
                  Index(start.region), " with ", start.num_cached_tokens,
                  " tokens, whose region of group ", group, " is gone");
      return;
    }
    table->groups[group].region = kept;
    books->counts().window_region_hits += group > 0 ? 1 : 0;
  }
  table->contexts = region.contexts;
  served->issued = region.evictions;
  if (served->issued.size() > served->recorded.size()) {
    const size_t before = served->recorded.size();
    if (!std::equal(served->recorded.begin(), served->recorded.end(),
                    served->issued.begin())) {
      books->Fail("request ", Index(start.request), " starts on a region of ",
                  "other evictions than its first ", before);
    }
    served->recorded = served->issued;
  }
  ++books->counts().region_hits;
  const bool by_table = served->request.eviction.table != nullptr;
  books->counts().table_hits += by_table ? 1 : 0;
}

}  // namespace

void TakeStart(const StepPlan& plan, const SequenceStart& start,
               LedgerBooks* books) {
  if (start.source == start.slot) return TakeRestart(plan, start, books);
  const auto found = books->requests.find(start.request);
  if (found == books->requests.end() || !found->second.live ||
      found->second.slot != kNoSequenceSlot ||
      books->tables.contains(start.slot)) {
    books->Fail("request ", Index(start.request), " starts in slot ",
                Index(start.slot), ": not waiting, or not free");
    return;
  }
  LedgerRequest& served = found->second;
  CheckContent(plan, start, served, *books);
  CheckCached(plan, start, *books);
  served.slot = start.slot;
  served.issued.clear();
  if (served.num_cached < 0) served.num_cached = start.num_cached_tokens;
  books->counts().cached_tokens += start.num_cached_tokens;
  LedgerTable& table = books->tables[start.slot];
  table.request = start.request;
  table.stay = books->next_stay++;
  table.num_reserved = start.num_cached_tokens;
  table.num_settled = start.num_cached_tokens;
  table.groups.resize(books->layout.num_groups());
  table.has_scores = start.scorer_state != ScorerState::kNone;
  const bool is_fork = start.source != kNoSequenceSlot;
  if (is_fork) TakeFork(start, &served, &table, books);
  if (start.region != kNoRegion) TakeRegion(start, &served, &table, books);
  if (is_fork || !books->ok()) return;
  const bool has_media =
      ScopeOf(served.request.scope, start.num_cached_tokens) !=
      ScopeOf(served.request.scope, 0);
  books->counts().media_hits += has_media && start.swap == kNoSwap ? 1 : 0;
  for (LedgerGroup& group : table.groups) {
    group.num_shared = start.num_cached_tokens / books->layout.page_size;
  }
  if (start.swap != kNoSwap) {
    TakeSwapIn(plan, start, &served, &table, books);
    books->counts().region_swap_ins += table.cut() > 0 ? 1 : 0;
  }
  for (const auto& [id, swap] : books->swaps) {
    if (swap.table.request == start.request) {
      books->Fail("request ", Index(start.request), " starts without swap ",
                  Index(id), ", which is not dropped");
    }
  }
}

}  // namespace blockmgr::sim
