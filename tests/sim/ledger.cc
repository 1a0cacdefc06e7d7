// Calls, comparison and the end.

#include "tests/sim/ledger.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

namespace blockmgr::sim {

std::set<BlockId> Ledger::Table::Blocks() const {
  std::set<BlockId> blocks;
  for (const GroupBook& group : groups) {
    for (const BlockId block : group.Blocks()) blocks.insert(block);
  }
  return blocks;
}

Ledger::Ledger(const ModelLayout& layout, const SchedulerOptions& options,
               bool replays, Report* report)
    : layout_(layout),
      rules_(layout),
      options_(options),
      replays_(replays),
      report_(report),
      blocks_(layout.num_blocks),
      host_fences_(options.engine.num_host_blocks, 0) {}

bool Ledger::IsWellFormed(const Request& request) const {
  const int32_t vocabulary = options_.engine.sampling.vocabulary_size;
  const auto is_unknown = [vocabulary](int32_t token) {
    return token < 0 || (vocabulary > 0 && token >= vocabulary);
  };
  int32_t media_end = 0;
  for (const MediaItem& item : request.scope.media) {
    if (item.begin < media_end || item.length < 1) return false;
    media_end = item.begin + item.length;
  }
  return !request.id.empty() && request.id.size() <= 128 &&
         !request.prompt.empty() && request.max_tokens >= 1 &&
         media_end <= std::ssize(request.prompt) &&
         std::ranges::none_of(request.prompt, is_unknown) &&
         std::ranges::none_of(request.stop_token_ids, is_unknown) &&
         std::ssize(request.prompt) + request.max_tokens <=
             options_.max_model_len;
}

std::string Ledger::ScopeOf(const ContentScope& scope, int32_t num_tokens) {
  std::string text =
      absl::StrCat(scope.tenant, "/", scope.lora, "/", scope.cache_salt);
  for (const MediaItem& item : scope.media) {
    if (item.begin >= num_tokens) break;
    absl::StrAppend(&text, "/", item.hash, " at ", item.begin, "+",
                    item.length);
  }
  return text;
}

const Ledger::Served* Ledger::ParentOf(const Request& request) const {
  const auto id = names_.find(request.fork_of);
  if (id == names_.end()) return nullptr;
  const Served& parent = requests_.at(id->second);
  const bool may_be =
      ScopeOf(parent.request.scope, 0) == ScopeOf(request.scope, 0) &&
      request.eviction.mode == EvictionMode::kNone;
  return may_be ? &parent : nullptr;
}

void Ledger::OnSubmit(const Request& request,
                      const absl::StatusOr<RequestId>& id) {
  report_->Mix(static_cast<uint64_t>(id.status().code()));
  const bool in_use = names_.contains(request.id);
  const Served* const parent = ParentOf(request);
  const bool is_orphan = parent == nullptr && !request.fork_of.empty();
  const RequestEviction eviction =
      parent == nullptr ? request.eviction : parent->request.eviction;
  const Peaks peaks = PeaksOf(request, eviction.target);
  const bool fits_plain = peaks.most <= layout_.num_blocks - 1;
  // An eviction ordered from outside makes room, too.
  const bool is_plain =
      eviction.mode == EvictionMode::kNone &&
      (parent == nullptr || (parent->is_plain && parent->recorded.empty()));
  if (!id.ok()) {
    ++report_->counts().refused;
    if (in_use != absl::IsAlreadyExists(id.status())) {
      report_->Fail("Submit of '", request.id, "', in use: ", in_use, ": ",
                    id.status().ToString());
    }
    const bool is_full = num_live() - static_cast<int32_t>(tables_.size()) >=
                         options_.max_waiting;
    const bool is_fit = fits_plain && !is_full && !in_use && !is_orphan &&
                        MayQueue(request) && !request.sampling.has_value() &&
                        IsWithinQuota(request, peaks.most);
    if (is_fit && (absl::IsResourceExhausted(id.status()) ||
                   (is_plain && IsWellFormed(request)))) {
      report_->Fail("a request of ", peaks.most,
                    " blocks at most was refused: ", id.status().ToString());
    }
    return;
  }
  if (!IsWellFormed(request)) {
    report_->Fail("malformed request '", request.id, "' was admitted");
  }
  if (is_orphan) {
    report_->Fail("'", request.id, "' was taken for a fork of '",
                  request.fork_of, "'");
    return;
  }
  if (in_use) report_->Fail("Submit took the name '", request.id, "' twice");
  if (!MayQueue(request)) {
    report_->Fail(request.prompt.size(), " tokens were queued, too");
  }
  if (is_plain && peaks.least > layout_.num_blocks - 1) {
    report_->Fail("a request of ", peaks.least, " blocks was admitted to ",
                  layout_.num_blocks - 1);
  }
  ++report_->counts().requests;
  if (!requests_.emplace(*id, Served{}).second) {
    report_->Fail("request number ", Index(*id), " was given twice");
  }
  Served& served = requests_[*id];
  served.request = request;
  served.request.eviction = eviction;
  served.num_own = served.num_prompt();
  served.is_plain = is_plain;
  if (is_plain) served.peak = peaks.least;
  served.tokens = request.prompt;
  if (parent != nullptr) {
    served.num_own = parent->num_own;
    served.kept_less = parent->kept_less;
    const auto num_tokens = static_cast<int32_t>(request.prompt.size());
    const bool has_other = ScopeOf(parent->request.scope, num_tokens) !=
                           ScopeOf(request.scope, num_tokens);
    report_->counts().other_media += has_other ? 1 : 0;
  }
  names_[request.id] = *id;
  CheckQuotas();
}

int64_t Ledger::CountQueuedTokens() const {
  int64_t num_tokens = 0;
  for (const auto& [name, id] : names_) {
    const Served& served = requests_.at(id);
    if (served.num_cached < 0) num_tokens += served.num_prompt();
  }
  return num_tokens;
}

bool Ledger::MayQueue(const Request& request) const {
  const int64_t queued = CountQueuedTokens();
  return queued == 0 ||
         queued + std::ssize(request.prompt) <= options_.max_waiting_tokens;
}

bool Ledger::IsWithinQuota(const Request& request, int32_t peak) const {
  const TenantLimits& limits = options_.tenant_limits;
  int64_t num_requests = 1;
  int64_t num_tokens = std::ssize(request.prompt);
  for (const auto& [name, id] : names_) {
    const Served& served = requests_.at(id);
    if (served.request.scope.tenant != request.scope.tenant) continue;
    ++num_requests;
    if (served.num_cached < 0) num_tokens += served.num_prompt();
  }
  return (limits.max_requests == 0 || num_requests <= limits.max_requests) &&
         (limits.max_queued_tokens == 0 ||
          num_tokens <= limits.max_queued_tokens) &&
         (limits.max_blocks == 0 || peak <= limits.max_blocks);
}

int64_t Ledger::CountReserved(const Served& served) const {
  if (served.slot == kNoSequenceSlot) return 0;
  const Table& table = tables_.at(served.slot);
  // Until it is compressed for the first time; with windows, always. (A request
  // that is computed again will be compressed where it was.)
  if (layout_.has_windows() ||
      (served.peak > 0 && table.cut() == 0 && served.recorded.empty())) {
    return served.peak;
  }
  // Of what an order in flight gives back, and of what a loss has cost, the
  // quota knows better.
  if (table.has_order() || table.takes_more) return 0;
  return std::ssize(table.Blocks());
}

void Ledger::CheckQuotas() {
  const TenantLimits& limits = options_.tenant_limits;
  struct Use {
    int64_t num_requests = 0;
    int64_t queued_tokens = 0;
    int64_t blocks = 0;
  };
  std::map<std::string, Use> uses;
  for (const auto& [name, id] : names_) {
    const Served& served = requests_.at(id);
    Use& use = uses[served.request.scope.tenant];
    ++use.num_requests;
    if (served.num_cached < 0) use.queued_tokens += served.num_prompt();
    use.blocks += CountReserved(served);
  }
  for (const auto& [tenant, use] : uses) {
    if ((limits.max_requests > 0 && use.num_requests > limits.max_requests) ||
        (limits.max_queued_tokens > 0 &&
         use.queued_tokens > limits.max_queued_tokens) ||
        (limits.max_blocks > 0 && use.blocks > limits.max_blocks)) {
      report_->Fail("tenant '", tenant, "' has ", use.num_requests,
                    " requests, ", use.queued_tokens, " tokens queued and ",
                    use.blocks, " blocks reserved, beyond its quotas");
    }
  }
}

void Ledger::OnCancel(RequestId request, const absl::Status& status,
                      const Effects& effects) {
  const auto found = requests_.find(request);
  const bool was_live = found != requests_.end() && found->second.live;
  report_->Mix(static_cast<uint64_t>(status.code()));
  if (status.ok() != was_live ||
      effects.finished.size() != (was_live ? 1u : 0u) ||
      !effects.tokens.empty()) {
    report_->Fail("Cancel of request ", Index(request), ", live: ", was_live,
                  ": ", status.ToString(), ", ", effects.finished.size(),
                  " ends");
    return;
  }
  TakeCommandEffects(effects);
  if (was_live) End(effects.finished[0], FinishReason::kCancelled);
}

void Ledger::OnEvict(RequestId request,
                     const absl::StatusOr<uint64_t>& number) {
  report_->Mix(static_cast<uint64_t>(number.status().code()));
  if (!number.ok()) return;
  const auto found = requests_.find(request);
  if (found == requests_.end() || !found->second.live) {
    report_->Fail("an eviction of a request that is not live was accepted");
  }
  was_commanded_ = true;
  if (!commands_.insert(*number).second) {
    report_->Fail("command number ", *number, " was given twice");
  }
  report_->counts().evicted_again += commanded_.count(request);
}

void Ledger::OnWithdraw(uint64_t command) {
  if (commands_.erase(command) == 0) {
    report_->Fail("command ", command, " was withdrawn, and did not wait");
  }
}

void Ledger::OnReset() {
  for (int32_t i = 1; i < layout_.num_blocks; ++i) {
    if (CountHolders(BlockId{i}) == 0) blocks_[i].content.clear();
  }
  LoseRegions([this](BlockId block) { return CountHolders(block) == 0; });
}

void Ledger::OnLoseEngine(const Effects& effects) {
  TakeCommandEffects(effects);
  if (!effects.finished.empty() || !effects.tokens.empty()) {
    report_->Fail("the loss of an engine ended a request");
  }
  while (!tables_.empty()) CloseTable(tables_.begin()->first);
  unannounced_.clear();
  in_flight_.clear();
  acknowledged_ = dispatched_;
  for (Block& block : blocks_) block = Block{};
  regions_.clear();
  lost_regions_.clear();
  swaps_.clear();
  std::ranges::fill(host_fences_, 0);
}

int32_t Ledger::CountHolders(BlockId block) const {
  int32_t count = 0;
  for (const auto& [slot, table] : tables_) {
    count += static_cast<int32_t>(table.Blocks().count(block));
  }
  return count;
}

void Ledger::Release(BlockId block) {
  blocks_[Index(block)].fence = dispatched_;
}

void Ledger::CloseTable(SequenceSlot slot) {
  const auto node = tables_.extract(slot);
  for (const BlockId block : node.mapped().Blocks()) Release(block);
  Served& served = requests_.at(node.mapped().request);
  served.slot = kNoSequenceSlot;
  served.num_placeholders = 0;
  served.num_ready = 0;
  unannounced_.insert(slot);
}

void Ledger::Compare(const BlockManager& manager, const SchedulerStats& stats) {
  if (!report_->ok()) return;
  std::set<BlockId> used;
  for (const auto& [slot, table] : tables_) {
    const std::set<BlockId> blocks = table.Blocks();
    used.insert(blocks.begin(), blocks.end());
    const SequenceCache& sequence = manager.sequence(slot);
    if (!sequence.open || sequence.num_reserved != table.num_reserved ||
        sequence.num_settled != table.num_settled) {
      report_->Fail("slot ", Index(slot), ": the manager has ",
                    sequence.num_settled, " of ", sequence.num_reserved,
                    " tokens settled; expected ", table.num_settled, " of ",
                    table.num_reserved);
      return;
    }
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      CompareGroup(manager, slot, group, table.groups[group]);
    }
  }
  std::set<BlockId> in_regions;
  for (const auto& [id, region] : regions_) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      if (region.gone.contains(group)) continue;
      const std::vector<BlockId>& blocks = region.regions[group].blocks;
      in_regions.insert(blocks.begin(), blocks.end());
    }
  }
  int32_t num_cacheable = 0;
  for (int32_t i = 1; i < layout_.num_blocks; ++i) {
    const bool held = used.contains(BlockId{i});
    const bool has_content =
        !blocks_[i].content.empty() || in_regions.contains(BlockId{i});
    num_cacheable += !held && has_content ? 1 : 0;
  }
  const BlockManagerStats& counts = stats.blocks;
  const auto num_used = static_cast<int32_t>(used.size());
  if (counts.used_blocks != num_used || counts.cached_blocks > num_cacheable ||
      counts.free_blocks + counts.cached_blocks + counts.fenced_blocks +
              counts.used_blocks !=
          layout_.num_blocks - 1) {
    report_->Fail("blocks: used ", counts.used_blocks, " (expected ", num_used,
                  "), cached ", counts.cached_blocks, " (at most ",
                  num_cacheable, "), fenced ", counts.fenced_blocks, ", free ",
                  counts.free_blocks, " of ", layout_.num_blocks - 1);
  }
  CompareHost(stats);
  const auto num_tables = static_cast<int32_t>(tables_.size());
  if (stats.num_running != num_tables ||
      stats.num_running + stats.num_waiting != num_live() ||
      stats.num_waiting_tokens != CountQueuedTokens() ||
      stats.num_steps_in_flight != std::ssize(in_flight_) ||
      stats.num_finished != num_finished_) {
    report_->Fail("requests: ", stats.num_running, " running (expected ",
                  num_tables, "), ", stats.num_waiting, " waiting with ",
                  stats.num_waiting_tokens, " tokens, ", num_live(), " live, ",
                  stats.num_finished, " ended (expected ", num_finished_, ")");
  }
}

void Ledger::CheckQuiescent(const SchedulerStats& stats) {
  report_->counts().passes = stats.num_passes;
  report_->counts().prefix_waits = stats.num_prefix_waits;
  if (!names_.empty() || !in_flight_.empty() || !commands_.empty() ||
      stats.blocks.used_blocks != 0 || stats.blocks.fenced_blocks != 0 ||
      stats.used_host_blocks != 0) {
    report_->Fail("at rest: ", names_.size(), " live requests, ",
                  in_flight_.size(), " steps in flight, ", commands_.size(),
                  " unanswered commands, ", stats.blocks.used_blocks, " used, ",
                  stats.blocks.fenced_blocks, " fenced blocks, ",
                  stats.used_host_blocks, " used host blocks");
  }
}

int64_t Ledger::StepsToDrain() const {
  int64_t steps = 16;
  for (const auto& [name, id] : names_) {
    const Request& request = requests_.at(id).request;
    const int64_t length = std::ssize(request.prompt) + request.max_tokens + 4;
    steps += (options_.max_steps_in_flight + 2) * length;
    // A request is computed again for each compression that is refused when
    // entries were moved already. There is one for each page at most.
    if (was_refused_) steps += length * length / layout_.page_size;
  }
  return steps;
}

}  // namespace blockmgr::sim
