// What a plan may do.

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "tests/sim/ledger.h"

namespace blockmgr::sim {
void Ledger::OnPlan(const StepPlan& plan) {
  if (!report_->ok()) return;
  if (Index(plan.id) <= dispatched_ ||
      std::ssize(in_flight_) >= options_.max_steps_in_flight) {
    report_->Fail("step ", Index(plan.id), " after ", dispatched_, " with ",
                  in_flight_.size(), " in flight");
    return;
  }
  CheckBlockArrays(plan);
  if (!report_->ok()) return;
  TakeDroppedSwaps(plan);
  for (const SwapOut& out : plan.swap_outs) {
    if (report_->ok()) TakeSwapOut(plan, out);
  }
  TakeReleased(plan);
  CheckNobodyAwaits();
  for (const SequenceStart& start : plan.starts) {
    if (start.source == start.slot) {
      TakeRestart(plan, start);
    } else {
      TakeStart(plan, start);
    }
  }
  for (const auto& [slot, table] : tables_) {
    if (table.restart_due) {
      report_->Fail("slot ", Index(slot), " has lost blocks and goes on");
    }
  }
  TakeDropped(plan);
  TakeReturning();
  TakeCopies(plan);
  if (!report_->ok()) return;
  Step step{.id = plan.id, .runs = {}, .orders = {}};
  for (size_t i = 0; i < plan.slots.size(); ++i) TakeRun(plan, i, &step);
  for (const EvictionOrder& order : plan.evictions) {
    if (report_->ok()) TakeOrder(plan, order, &step);
  }
  if (!report_->ok()) return;
  if (plan.total_tokens() > options_.max_num_batched_tokens ||
      std::ssize(tables_) > options_.max_num_seqs) {
    report_->Fail("step ", Index(plan.id), ": ", plan.total_tokens(),
                  " tokens, ", tables_.size(), " sequences");
  }
  CheckScorerStates(plan);
  if (replays_) CheckReplay(plan);
  CheckQuotas();
  commanded_.clear();
  report_->counts().deep_steps += in_flight_.size() >= 3 ? 1 : 0;
  dispatched_ = Index(plan.id);
  in_flight_.push_back(std::move(step));
}

void Ledger::TakeReleased(const StepPlan& plan) {
  for (const SequenceSlot slot : plan.released) {
    const auto table = tables_.find(slot);
    if (table != tables_.end()) {
      Served& served = requests_.at(table->second.request);
      ++served.num_preemptions;
      ++report_->counts().preemptions;
      CheckPromise(served);
      CloseTable(slot);
    }
    if (unannounced_.erase(slot) == 0) {
      report_->Fail("slot ", Index(slot), " is released and was not in use");
    }
  }
  if (!unannounced_.empty()) {
    report_->Fail(unannounced_.size(), " released slots are kept back");
  }
}

void Ledger::CheckStartContent(const StepPlan& plan, const SequenceStart& start,
                               const Served& served) {
  if (start.num_tokens != std::ssize(served.tokens) ||
      !std::equal(served.tokens.begin(), served.tokens.end(),
                  plan.start_tokens.begin() + start.token_begin)) {
    report_->Fail("request ", Index(start.request),
                  " starts with other tokens than it has");
  }
  const Request& request = served.request;
  if (start.info == nullptr || start.info->id != request.id ||
      start.info->num_prompt_tokens != served.num_prompt() ||
      start.info->lora != request.scope.lora ||
      start.info->media != request.scope.media ||
      start.info->engine_data != request.engine_data) {
    report_->Fail("request ", Index(start.request),
                  " starts with what another one was submitted with");
  }
}

void Ledger::TakeStart(const StepPlan& plan, const SequenceStart& start) {
  const auto found = requests_.find(start.request);
  if (found == requests_.end() || !found->second.live ||
      found->second.slot != kNoSequenceSlot || tables_.contains(start.slot)) {
    report_->Fail("request ", Index(start.request), " starts in slot ",
                  Index(start.slot), ": not waiting, or not free");
    return;
  }
  Served& served = found->second;
  CheckStartContent(plan, start, served);
  const bool is_fork = start.source != kNoSequenceSlot;
  const bool has_part = !is_fork && start.swap == kNoSwap &&
                        start.num_cached_tokens % layout_.page_size != 0;
  if (start.num_cached_tokens >= start.num_tokens ||
      (has_part && (!options_.reuse_partial_blocks || layout_.has_windows() ||
                    std::ranges::count(plan.copies, start.slot,
                                       &CopyOnWrite::slot) == 0))) {
    report_->Fail("a prefix hit of ", start.num_cached_tokens, " of ",
                  start.num_tokens, " tokens");
  }
  served.slot = start.slot;
  served.issued.clear();
  if (served.num_cached < 0) served.num_cached = start.num_cached_tokens;
  report_->counts().cached_tokens += start.num_cached_tokens;
  Table& table = tables_[start.slot];
  table.request = start.request;
  table.stay = next_stay_++;
  table.num_reserved = start.num_cached_tokens;
  table.num_settled = start.num_cached_tokens;
  table.groups.resize(layout_.num_groups());
  table.has_scores = start.scorer_state != ScorerState::kNone;
  if (is_fork) TakeFork(start, &served, &table);
  if (start.region != kNoRegion) TakeRegion(start, &served, &table);
  if (is_fork || !report_->ok()) return;
  const bool has_media =
      ScopeOf(served.request.scope, start.num_cached_tokens) !=
      ScopeOf(served.request.scope, 0);
  report_->counts().media_hits += has_media && start.swap == kNoSwap ? 1 : 0;
  for (Group& group : table.groups) {
    group.num_shared = start.num_cached_tokens / layout_.page_size;
  }
  if (start.swap != kNoSwap) {
    TakeSwapIn(plan, start, &served, &table);
    report_->counts().region_swap_ins += table.cut() > 0 ? 1 : 0;
  }
  for (const auto& [id, swap] : swaps_) {
    if (swap.table.request == start.request) {
      report_->Fail("request ", Index(start.request), " starts without swap ",
                    Index(id), ", which is not dropped");
    }
  }
}

void Ledger::TakeRegion(const SequenceStart& start, Served* served,
                        Table* table) {
  const auto found = regions_.find(start.region);
  if (found == regions_.end()) {
    report_->Fail("request ", Index(start.request), " starts on region ",
                  Index(start.region), ", which is not there");
    return;
  }
  const Region& region = found->second;
  const std::vector<int32_t>& tokens = served->tokens;
  const auto num_tokens = static_cast<int32_t>(region.tokens.size());
  const std::string scope = ScopeOf(served->request.scope, num_tokens);
  if (ScopeOf(region.scope, num_tokens) != scope ||
      region.plan != PlanOf(*served) || start.num_cached_tokens < num_tokens ||
      !std::equal(region.tokens.begin(), region.tokens.end(), tokens.begin())) {
    report_->Fail("request ", Index(start.request), " of '", scope,
                  "' starts on region ", Index(start.region),
                  " of other tokens, evictions or scope");
    return;
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    // A request that comes back from the host tier brings the regions of other
    // groups.
    if (group > 0 && start.swap != kNoSwap) break;
    const BookRegion& kept = region.regions[group];
    if (!rules_.IsInWindow(kept, group, start.num_cached_tokens)) continue;
    if (region.gone.contains(group)) {
      report_->Fail("request ", Index(start.request), " starts on region ",
                    Index(start.region), " with ", start.num_cached_tokens,
                    " tokens, whose region of group ", group, " is gone");
      return;
    }
    table->groups[group].region = kept;
    report_->counts().window_region_hits += group > 0 ? 1 : 0;
  }
  table->contexts = region.contexts;
  served->issued = region.evictions;
  if (served->issued.size() > served->recorded.size()) {
    const size_t before = served->recorded.size();
    if (!std::equal(served->recorded.begin(), served->recorded.end(),
                    served->issued.begin())) {
      report_->Fail("request ", Index(start.request), " starts on a region of ",
                    "other evictions than its first ", before);
    }
    served->recorded = served->issued;
  }
  ++report_->counts().region_hits;
  const bool by_table = served->request.eviction.table != nullptr;
  report_->counts().table_hits += by_table ? 1 : 0;
}

void Ledger::TakeDropped(const StepPlan& plan) {
  for (const RegionId region : plan.dropped_regions) {
    if (regions_.erase(region) + lost_regions_.erase(region) != 1) {
      report_->Fail("region ", Index(region), " is dropped and was not kept");
    }
  }
  if (!lost_regions_.empty()) {
    report_->Fail(lost_regions_.size(), " lost regions are not dropped");
  }
}

void Ledger::CheckFresh(BlockId block) {
  if (Index(block) <= 0 || Index(block) >= layout_.num_blocks) {
    report_->Fail("block ", Index(block), " is handed out");
    return;
  }
  const uint64_t fence = blocks_[Index(block)].fence;
  const int32_t num_holders = CountHolders(block);
  if (num_holders > 0 || fence > acknowledged_) {
    report_->Fail("block ", Index(block), " is handed out with ", num_holders,
                  " holders, released while step ", fence,
                  " was in flight; answered so far: ", acknowledged_);
  }
  blocks_[Index(block)] = Block{};
  OverwriteRegions(block);
}

void Ledger::CheckHit(const Table& table, int32_t group, int32_t begin,
                      BlockId block, int32_t num_tokens) {
  const Served& served = requests_.at(table.request);
  const std::vector<int32_t>& tokens = served.tokens;
  const std::vector<int32_t>& content = blocks_[Index(block)].content;
  const int32_t end = begin + layout_.page_size;
  const std::string context = ContextAt(table, begin).value_or("of several");
  const std::string scope = ScopeOf(served.request.scope, num_tokens);
  const std::string has = ScopeOf(blocks_[Index(block)].scope, num_tokens);
  if (has != scope) {
    report_->Fail("request ", Index(table.request), " of '", scope,
                  "' hits block ", Index(block), " of '", has, "'");
  }
  if (blocks_[Index(block)].context != context) {
    report_->Fail("request ", Index(table.request), " hits block ",
                  Index(block), " computed after '",
                  blocks_[Index(block)].context, "', expected '", context, "'");
  }
  if (blocks_[Index(block)].group != group || std::ssize(content) != end ||
      num_tokens > std::ssize(tokens) ||
      !std::equal(content.begin(), content.begin() + num_tokens,
                  tokens.begin())) {
    report_->Fail("request ", Index(table.request), " hits block ",
                  Index(block), ", which does not hold its first ", num_tokens,
                  " tokens for group ", group);
  }
}

void Ledger::TakeBlocks(const StepPlan& plan, size_t index, int32_t group,
                        Table* table) {
  std::vector<BlockId>& own = table->groups[group].pages;
  const int32_t page_size = layout_.page_size;
  // A table that goes on has some.
  const bool is_new = own.empty();
  const int32_t num_in_region = table->groups[group].region.cut / page_size;
  // Plans name blocks from the cut on.
  if (is_new) own.assign(num_in_region, kNullBlock);
  const int32_t num_hit = is_new ? table->groups[group].num_shared : 0;
  for (const BlockId block : NewBlocks(plan, index, group)) {
    const auto place = static_cast<int32_t>(own.size());
    const int32_t begin = place * page_size;
    if (is_new && rules_.IsOut(group, place, table->num_reserved)) {
      if (block != kNullBlock) {
        report_->Fail("request ", Index(table->request), " starts with page ",
                      place, " of group ", group, ", which is left behind");
      }
    } else if (place < num_hit) {
      CheckHit(*table, group, begin, block, begin + page_size);
    } else {
      CheckFresh(block);
    }
    if (!report_->ok()) return;
    own.push_back(block);
  }
  const int32_t end = plan.positions[index] + plan.num_tokens[index];
  if (std::ssize(own) != CeilDiv(end, page_size)) {
    report_->Fail("request ", Index(table->request), ": ", own.size(),
                  " pages of group ", group, " for ", end, " tokens");
  }
}

void Ledger::TakeRun(const StepPlan& plan, size_t index, Step* step) {
  if (!report_->ok()) return;
  const SequenceSlot slot = plan.slots[index];
  const auto found = tables_.find(slot);
  if (found == tables_.end()) {
    report_->Fail("slot ", Index(slot), " runs and holds no sequence");
    return;
  }
  Table& table = found->second;
  Served& served = requests_.at(table.request);
  const int32_t num_tokens = plan.num_tokens[index];
  const int32_t end = table.num_reserved + num_tokens;
  const int32_t num_drafts =
      plan.num_drafts.empty() ? 0 : plan.num_drafts[index];
  CheckDrafts(table, num_drafts, end);
  const int32_t num_known =
      static_cast<int32_t>(served.tokens.size()) + served.num_placeholders;
  if (plan.positions[index] != table.num_reserved || num_tokens <= 0 ||
      end - num_drafts > num_known ||
      end > served.num_prompt() + served.request.max_tokens - 1) {
    report_->Fail("request ", Index(table.request), " computes [",
                  plan.positions[index], ", ", end, ") and has ",
                  table.num_reserved, " of ", num_known);
    return;
  }
  if (options_.long_prefill_token_threshold > 0 &&
      num_tokens - num_drafts > options_.long_prefill_token_threshold) {
    report_->Fail("a chunk of ", num_tokens, " tokens");
  }
  const bool samples = end - num_drafts == num_known &&
                       served.num_outputs() + served.num_placeholders <
                           served.request.max_tokens;
  if ((plan.samples[index] != 0) != samples) {
    report_->Fail("request ", Index(table.request), " at ", end, " of ",
                  num_known, ": samples ", int{plan.samples[index]});
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (report_->ok()) TakeBlocks(plan, index, group, &table);
  }
  table.num_reserved = end;
  served.num_placeholders += samples ? 1 + num_drafts : 0;
  step->runs.push_back({.slot = slot,
                        .stay = table.stay,
                        .request = table.request,
                        .num_tokens = num_tokens,
                        .num_drafts = num_drafts,
                        .samples = samples});
}

void Ledger::TakeOrder(const StepPlan& plan, const EvictionOrder& order,
                       Step* step) {
  const auto run = std::ranges::find(step->runs, order.slot, &Step::Run::slot);
  if (run == step->runs.end() || order.group >= layout_.num_groups()) {
    report_->Fail("an eviction of slot ", Index(order.slot), " from group ",
                  order.group, ", which does not run");
    return;
  }
  CheckOrder(order, *run, *step);
  if (!report_->ok()) return;
  Table& table = tables_.at(order.slot);
  GroupBook& book = table.groups[order.group];
  if (book.pending.has_value() || order.length != table.num_reserved ||
      order.cut % layout_.page_size != 0 || order.cut <= book.region.cut ||
      order.cut >= order.length) {
    report_->Fail("an eviction of [0, ", order.cut, ") at ", order.length,
                  " of ", table.num_reserved, " tokens, group ", order.group,
                  ", cut ", book.region.cut);
    return;
  }
  book.pending = TakeDestinations(
      plan, order,
      rules_.CoveredBy(book, order.group, order.cut, order.length).Blocks());
  if (!book.pending.has_value()) return;
  step->orders.push_back({.run = static_cast<size_t>(run - step->runs.begin()),
                          .group = order.group,
                          .region = order.region});
  if (order.group > 0) return;
  requests_.at(table.request)
      .issued.push_back({.length = order.length, .cut = order.cut});
}

void Ledger::CheckOrder(const EvictionOrder& order, const Step::Run& run,
                        const Step& step) {
  if (run.num_drafts > 0) report_->Fail("an eviction in a run with drafts");
  if (layout_.window > 0) report_->Fail("an eviction from a window");
  const bool is_next = !step.orders.empty() &&
                       step.runs[step.orders.back().run].slot == order.slot;
  if (is_next ? order.group <= step.orders.back().group : order.group != 0) {
    report_->Fail("an eviction of slot ", Index(order.slot), " from group ",
                  order.group, " follows none of a group before");
    return;
  }
  const Served& served = requests_.at(run.request);
  if (served.refused.contains(order.length)) {
    report_->Fail("an eviction at ", order.length, " of request ",
                  Index(run.request), " is ordered again and was refused");
    return;
  }
  CheckRegionOrder(served, order);
  if (order.group == 0) return CheckBudgets(served, order);
  // They are of one eviction.
  const EvictionTarget& target = served.request.eviction.target;
  const BookOrder& first = *tables_.at(order.slot).groups[0].pending;
  const bool is_wanted = target.evicts_in_windows() &&
                         order.target.kind == EvictionTarget::Kind::kRatio &&
                         order.target.ratio == target.window_keep_ratio;
  if (!is_wanted || order.cut != first.cut || order.length != first.length ||
      rules_.FirstPage(order.group, order.length + 1) >=
          order.cut / layout_.page_size) {
    report_->Fail("an eviction from group ", order.group, " of [0, ", order.cut,
                  ") at ", order.length, ", wanted: ", is_wanted,
                  "; group 0: [0, ", first.cut, ")");
  }
}

std::optional<BookOrder> Ledger::TakeDestinations(
    const StepPlan& plan, const EvictionOrder& order,
    const std::vector<BlockId>& below) {
  BookOrder taken{.cut = order.cut,
                  .length = order.length,
                  .page_totals = order.shard_page_totals,
                  .destinations = {},
                  .own = {}};
  if (taken.page_totals.empty()) {
    taken.page_totals.assign(layout_.num_shards, order.page_total);
  }
  if (std::ssize(taken.page_totals) != layout_.num_shards ||
      std::ranges::max(taken.page_totals) != order.page_total) {
    report_->Fail("an eviction with ", taken.page_totals.size(),
                  " page totals, the most of them not ", order.page_total);
    return std::nullopt;
  }
  // Every shard has the same blocks, and its own pages of them.
  const int32_t shard_pages = layout_.pages_per_block() / layout_.num_shards;
  if (order.num_destinations !=
          CeilDiv<int64_t>(order.page_total, shard_pages) ||
      order.num_destinations >= std::ssize(below)) {
    report_->Fail("an eviction from ", below.size(), " to ",
                  order.num_destinations, " blocks for ", order.page_total,
                  " pages, group ", order.group);
  }
  for (int32_t i = 0; i < order.num_destinations; ++i) {
    const BlockId block = plan.destinations[order.destination_begin + i];
    if (std::ranges::count(taken.destinations, block) > 0) {
      report_->Fail("block ", Index(block), " is a destination twice");
    }
    taken.destinations.push_back(block);
    if (std::ranges::count(below, block) == 0) {
      CheckFresh(block);
      continue;
    }
    taken.own.push_back(block);
    blocks_[Index(block)].content.clear();
    OverwriteRegions(block);
    if (CountHolders(block) != 1) {
      report_->Fail("shared block ", Index(block), " is a destination");
    }
  }
  return taken;
}

void Ledger::CheckRegionOrder(const Served& served,
                              const EvictionOrder& order) {
  // The request's own evictions are of its prompt, or its parent's.
  const bool is_own = order.length <= served.num_own;
  // A fork may have what its parent has.
  const bool is_behind = order.length > served.refused_at ||
                         (was_refused_ && !served.request.fork_of.empty() &&
                          order.region == kNoRegion);
  // Regions of other groups have no name of their own.
  const bool shares = order.group == 0 && is_own && !is_behind &&
                      options_.enable_prefix_caching &&
                      served.request.eviction.share_prefix;
  if (shares != (order.region != kNoRegion) ||
      regions_.contains(order.region)) {
    report_->Fail("request ", served.request.id, ", fork of '",
                  served.request.fork_of, "': an eviction at ", order.length,
                  " makes region ", Index(order.region), ", shared: ", shares,
                  ", own tokens ", served.num_own, ", refused at ",
                  served.refused_at);
  }
  if (shares && order.cut + layout_.page_size != order.length) {
    report_->Fail("a shared eviction of [0, ", order.cut, ") at ",
                  order.length);
  }
}

void Ledger::CheckReplay(const StepPlan& plan) {
  for (const SequenceSlot slot : plan.slots) {
    const Table& table = tables_.at(slot);
    const Served& served = requests_.at(table.request);
    if (served.kept_less) continue;
    const int64_t num_issued = std::ssize(served.issued);
    const int64_t num_both = std::min(num_issued, std::ssize(served.recorded));
    if (!std::equal(served.issued.begin(), served.issued.begin() + num_both,
                    served.recorded.begin())) {
      report_->Fail("request ", Index(table.request),
                    " is compressed otherwise than before");
    }
    if (num_issued < std::ssize(served.recorded) &&
        served.recorded[num_issued].length <= table.num_reserved) {
      report_->Fail("request ", Index(table.request), ": the eviction at ",
                    served.recorded[num_issued].length, " is not replayed");
    }
  }
}

}  // namespace blockmgr::sim
