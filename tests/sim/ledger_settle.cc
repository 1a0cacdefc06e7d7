// What an answer must bring about.

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/sim/ledger.h"

namespace blockmgr::sim {
namespace {

// Of one request: traces of healthy vLLM servers show up to 4 (inference-sim
// issue 963); twice that is thrashing.
constexpr int32_t kMaxPreemptions = 8;

}  // namespace

Ledger::Table* Ledger::Find(const Step::Run& run) {
  const auto found = tables_.find(run.slot);
  if (found == tables_.end() || found->second.stay != run.stay) return nullptr;
  return &found->second;
}

bool Ledger::CountsAreValid(const Table& table, int32_t group,
                            const std::vector<int32_t>& counts) const {
  if (std::ssize(counts) != layout_.pages_per_block()) return false;
  const GroupBook& book = table.groups[group];
  const std::vector<int32_t> held = rules_.EntriesCovered(book, group);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || counts[i] > held[i]) return false;
  }
  const std::vector<int64_t> num_pages = rules_.PagesByShard(counts);
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    if (num_pages[shard] > book.pending->page_totals[shard]) return false;
  }
  return true;
}

bool Ledger::IsValid(const StepResult& result) const {
  if (in_flight_.empty() || result.id != in_flight_.front().id) return false;
  const Step& step = in_flight_.front();
  if (result.sampled.size() != step.runs.size() ||
      result.evictions.size() != step.orders.size()) {
    return false;
  }
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (step.runs[i].samples != (result.sampled[i] >= 0)) return false;
  }
  if (!DraftsAreValid(step, result)) return false;
  for (const BlockId block : result.lost_blocks) {
    if (Index(block) < 1 || Index(block) >= layout_.num_blocks) return false;
  }
  for (const HostBlockId block : result.lost_host_blocks) {
    if (Index(block) < 0 || Index(block) >= options_.engine.num_host_blocks) {
      return false;
    }
  }
  for (size_t i = 0; i < step.orders.size(); ++i) {
    const Step::Run& run = step.runs[step.orders[i].run];
    const auto found = tables_.find(run.slot);
    const bool stale = found == tables_.end() || found->second.stay != run.stay;
    if (stale || !result.evictions[i].ok) continue;
    if (!CountsAreValid(found->second, step.orders[i].group,
                        result.evictions[i].counts) ||
        !ChecksumIsValid(found->second, step.orders[i].group,
                         result.evictions[i])) {
      return false;
    }
  }
  return true;
}

void Ledger::OnResult(const StepResult& result, const absl::Status& status,
                      const Effects& effects) {
  if (!report_->ok()) return;
  report_->Mix(static_cast<uint64_t>(status.code()));
  const bool valid = IsValid(result);
  if (status.ok() != valid) {
    report_->Fail("answer to step ", Index(result.id), ", valid: ", valid, ": ",
                  status.ToString());
    return;
  }
  if (!valid) {
    ++report_->counts().wrong_results;
    if (!effects.tokens.empty() || !effects.finished.empty() ||
        !effects.evictions.empty()) {
      report_->Fail("a refused answer had effects");
    }
    return;
  }
  const Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  acknowledged_ = Index(step.id);
  Settle(step, result, effects);
}

void Ledger::Settle(const Step& step, const StepResult& result,
                    const Effects& effects) {
  TakeCommandEffects(effects);
  SettleLoss(result.lost_blocks);
  SettleHostLoss(result.lost_host_blocks);
  const uint64_t finished_before = num_finished_;
  size_t next_token = 0;
  const std::vector<std::vector<int32_t>> sampled = Sampled(step, result);
  for (size_t i = 0; i < step.runs.size(); ++i) {
    SettleRun(step.runs[i], sampled[i], effects, &next_token);
    const Table* table = Find(step.runs[i]);
    if (table == nullptr || !step.runs[i].samples) continue;
    const bool may_have =
        options_.num_speculative_tokens > 0 && !table->has_scores;
    requests_.at(table->request).num_ready =
        may_have && !result.num_drafts.empty() ? result.num_drafts[i] : 0;
  }
  if (next_token != effects.tokens.size()) {
    report_->Fail(effects.tokens.size(), " tokens were told, ", next_token,
                  " were sampled");
  }
  for (size_t i = 0; i < step.orders.size() && report_->ok();) {
    const Step::GroupOrder& first = step.orders[i];
    size_t end = i + 1;
    while (end < step.orders.size() && step.orders[end].run == first.run) ++end;
    const auto outcomes = std::span(result.evictions).subspan(i, end - i);
    const bool kept = first.region != kNoRegion && outcomes.front().ok;
    const bool in_vain = Find(step.runs[first.run]) == nullptr ||
                         !std::ranges::all_of(outcomes, &EvictionOutcome::ok);
    if (kept && in_vain) lost_regions_.insert(first.region);
    SettleOrders(step.runs[first.run],
                 std::span(step.orders).subspan(i, end - i), outcomes, effects);
    i = end;
  }
  if (num_finished_ - finished_before != effects.finished.size()) {
    report_->Fail(effects.finished.size(), " ends were told, expected ",
                  num_finished_ - finished_before);
  }
}

void Ledger::SettleRun(const Step::Run& run, std::vector<int32_t> sampled,
                       const Effects& effects, size_t* next_token) {
  Table* table = Find(run);
  if (table == nullptr || !report_->ok()) return;
  Served& served = requests_.at(run.request);
  const SamplingParams sampling =
      served.request.sampling.value_or(SamplingParams());
  const auto ends = [&](int32_t token) {
    const std::vector<int32_t>& end_tokens =
        options_.engine.sampling.end_token_ids;
    return std::ranges::count(served.request.stop_token_ids, token) > 0 ||
           (!sampling.ignore_eos && std::ranges::count(end_tokens, token) > 0);
  };
  int32_t num_outputs = served.num_outputs();
  const auto stop = std::ranges::find_if(sampled, [&](int32_t token) {
    return ++num_outputs > sampling.min_tokens && ends(token);
  });
  const bool stops = stop != sampled.end();
  // What comes after it is nobody's.
  if (stops) sampled.erase(stop + 1, sampled.end());
  for (const int32_t token : sampled) {
    const size_t index = (*next_token)++;
    if (index >= effects.tokens.size() ||
        effects.tokens[index].request != run.request ||
        effects.tokens[index].token != token ||
        effects.tokens[index].index != served.num_outputs()) {
      report_->Fail("request ", Index(run.request), ": its token ",
                    served.num_outputs(), " was not told");
      return;
    }
    served.tokens.push_back(token);
  }
  if (run.samples) served.num_placeholders -= 1 + run.num_drafts;
  if (run.num_drafts > 0) {
    SettleDrafts(run, static_cast<int32_t>(sampled.size()), table);
  } else {
    table->num_settled += run.num_tokens;
  }
  NoteContent(served, *table);
  ReleaseOutOfSpan(table);
  if (!run.samples) return;
  if (!stops && served.num_outputs() < served.request.max_tokens) return;
  const FinishEffect* finish = FindFinish(effects, run.request);
  if (finish == nullptr) {
    report_->Fail("request ", Index(run.request), " ended and nobody said so");
    return;
  }
  End(*finish, stops ? FinishReason::kStop : FinishReason::kLength);
}

void Ledger::NoteContent(const Served& served, const Table& table) {
  const int32_t page_size = layout_.page_size;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::optional<BookOrder>& pending = table.groups[group].pending;
    for (int32_t begin = 0; begin + page_size <= table.num_settled;
         begin += page_size) {
      const BlockId block = table.groups[group].pages[begin / page_size];
      const std::optional<std::string> context = ContextAt(table, begin);
      const bool is_doomed =
          pending.has_value() && std::ranges::count(pending->own, block) > 0;
      if (block == kNullBlock || is_doomed || !context.has_value()) continue;
      Block& noted = blocks_[Index(block)];
      noted.scope = served.request.scope;
      noted.context = *context;
      noted.group = group;
      noted.content.assign(served.tokens.begin(),
                           served.tokens.begin() + begin + page_size);
    }
  }
}

void Ledger::CountEviction(const Served& served, const EvictionEffect& effect) {
  RunCounts& counts = report_->counts();
  ++counts.evictions;
  const Request& request = served.request;
  const bool is_orphan = !request.fork_of.empty() && !IsLive(request.fork_of);
  counts.orphan_evictions += is_orphan ? 1 : 0;
  const bool is_new = served.issued.size() > served.recorded.size();
  const bool is_squeeze = is_new && effect.command == 0 &&
                          request.eviction.mode == EvictionMode::kPressure;
  counts.squeezes += is_squeeze ? 1 : 0;
  const bool in_windows = request.eviction.target.evicts_in_windows();
  counts.window_squeezes += is_squeeze && in_windows ? 1 : 0;
}

void Ledger::SettleOrders(const Step::Run& run,
                          std::span<const Step::GroupOrder> orders,
                          std::span<const EvictionOutcome> outcomes,
                          const Effects& effects) {
  Table* table = Find(run);
  if (table == nullptr) return;
  const EvictionEffect* effect = nullptr;
  for (const EvictionEffect& candidate : effects.evictions) {
    const bool futile = candidate.status.ok() &&
                        candidate.evicted_entries == 0 &&
                        candidate.freed_blocks == 0;
    if (candidate.request == run.request && !futile &&
        !absl::IsAborted(candidate.status)) {
      effect = &candidate;
    }
  }
  // All groups are evicted from, or none.
  const bool ok = std::ranges::all_of(outcomes, &EvictionOutcome::ok);
  if (effect == nullptr || effect->status.ok() != ok ||
      effect->cut != table->groups[0].pending->cut) {
    report_->Fail("request ", Index(run.request),
                  ": its eviction was answered and nobody said so");
    return;
  }
  if (ok) {
    TakeRegions(run, orders, outcomes, *effect, table);
    return;
  }
  SettleRefusal(run, *effect,
                std::ranges::any_of(outcomes, &EvictionOutcome::ok),
                FindFinish(effects, run.request), table);
}

void Ledger::TakeRegions(const Step::Run& run,
                         std::span<const Step::GroupOrder> orders,
                         std::span<const EvictionOutcome> outcomes,
                         const EvictionEffect& effect, Table* table) {
  Served& served = requests_.at(run.request);
  const std::vector<int32_t>& counts = outcomes.front().counts;
  const RegionId region = orders.front().region;
  const int32_t length = served.issued.back().length;
  served.kept_less |=
      served.request.eviction.mode > EvictionMode::kAfterPrefill &&
      rules_.PagesByShard(counts) != table->groups[0].pending->page_totals;
  BookReceipt receipt;
  std::vector<BlockId> gone;
  for (size_t i = 0; i < orders.size(); ++i) {
    const int32_t group = orders[i].group;
    const BookReceipt more =
        rules_.Commit(group, outcomes[i].counts, &table->groups[group], &gone);
    receipt.evicted_entries += more.evicted_entries;
    receipt.freed_blocks += more.freed_blocks;
    report_->counts().window_evictions += group > 0 ? 1 : 0;
  }
  for (const BlockId block : gone) Release(block);
  CheckReceipt(effect, receipt, counts);
  table->takes_more |= effect.command != 0;
  // What is not shared is nobody else's context.
  const std::string before =
      table->contexts.empty() ? "" : table->contexts.back().second;
  const std::string by = region == kNoRegion
                             ? absl::StrCat("of request ", Index(run.request))
                             : PlanOf(served);
  table->contexts.emplace_back(length,
                               absl::StrCat(before, by, " at ", length, ";"));
  if (region != kNoRegion) KeepRegion(region, *table, served);
  const size_t index = served.issued.size() - 1;
  CountEviction(served, effect);
  if (index == served.recorded.size()) {
    served.recorded.push_back(served.issued[index]);
    NoteInherited(served.request.id);
  }
}

void Ledger::CheckReceipt(const EvictionEffect& effect,
                          const BookReceipt& receipt,
                          const std::vector<int32_t>& counts) {
  if (effect.evicted_entries == receipt.evicted_entries &&
      effect.freed_blocks == receipt.freed_blocks &&
      effect.freed_bytes == receipt.freed_blocks * layout_.block_bytes() &&
      effect.kept_entries == counts) {
    return;
  }
  report_->Fail("request ", Index(effect.request), ": ", effect.evicted_entries,
                " entries evicted (expected ", receipt.evicted_entries, "), ",
                effect.freed_blocks, " blocks freed (expected ",
                receipt.freed_blocks, ")");
}

void Ledger::KeepRegion(RegionId id, const Table& table, const Served& served) {
  // One without blocks is kept in vain.
  if (table.groups[0].region.blocks.empty()) {
    lost_regions_.insert(id);
    return;
  }
  Region& region = regions_[id];
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

void Ledger::TakeCommandEffects(const Effects& effects) {
  for (const EvictionEffect& effect : effects.evictions) {
    report_->Mix(Index(effect.request));
    report_->Mix(static_cast<uint64_t>(effect.status.code()));
    if (effect.command == 0) continue;
    if (commands_.erase(effect.command) == 0) {
      report_->Fail("command ", effect.command, " was answered twice");
    }
    if (effect.status.ok()) commanded_.insert(effect.request);
  }
}

const FinishEffect* Ledger::FindFinish(const Effects& effects,
                                       RequestId request) const {
  const auto found =
      std::ranges::find(effects.finished, request, &FinishEffect::request);
  return found == effects.finished.end() ? nullptr : &*found;
}

void Ledger::End(const FinishEffect& effect, FinishReason reason) {
  const auto found = requests_.find(effect.request);
  if (found == requests_.end() || !found->second.live) {
    report_->Fail("request ", Index(effect.request), " ended twice");
    return;
  }
  Served& served = found->second;
  if (effect.reason != reason ||
      effect.num_output_tokens != served.num_outputs() ||
      effect.num_preemptions != served.num_preemptions ||
      effect.num_cached_tokens != std::max(served.num_cached, 0)) {
    report_->Fail("request ", Index(effect.request), " ended by ",
                  static_cast<int>(effect.reason), " (expected ",
                  static_cast<int>(reason), ") with ", effect.num_output_tokens,
                  " tokens, ", effect.num_preemptions, " preemptions, ",
                  effect.num_cached_tokens, " cached tokens");
  }
  report_->Mix(Index(effect.request));
  report_->Mix(static_cast<uint64_t>(reason));
  report_->counts().max_preemptions =
      std::max(report_->counts().max_preemptions,
               static_cast<uint64_t>(served.num_preemptions));
  if (served.num_preemptions > kMaxPreemptions) {
    report_->Fail("request ", Index(effect.request), " was preempted ",
                  served.num_preemptions, " times");
  }
  ++report_->counts().finished;
  ++num_finished_;
  served.live = false;
  MarkDueSwaps(effect.request);
  names_.erase(served.request.id);
  if (served.slot != kNoSequenceSlot) CloseTable(served.slot);
}

}  // namespace blockmgr::sim
