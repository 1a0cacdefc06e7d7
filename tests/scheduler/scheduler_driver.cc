#include "tests/scheduler/scheduler_driver.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/block_tables.h"
#include "tests/testing/is_invalid.h"

namespace blockmgr {

namespace {

CanaryOptions WithHost(CanaryOptions canary, const SchedulerOptions& options) {
  canary.num_host_blocks = options.engine.num_host_blocks;
  return canary;
}

// Whether the engine has what the manager holds; what a window has left behind,
// the manager has let go.
bool IsTable(const std::vector<BlockId>& held,
             const std::vector<BlockId>& table) {
  if (held.size() != table.size()) return false;
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i] != kNullBlock && held[i] != table[i]) return false;
  }
  return true;
}

}  // namespace

SchedulerDriver::SchedulerDriver(const ModelLayout& layout,
                                 const SchedulerOptions& options,
                                 const CanaryOptions& canary)
    : canary_(canary),
      scheduler_(layout, options),
      engine_(layout, options.max_num_seqs, WithHost(canary, options)) {}

void SchedulerDriver::Fail(absl::string_view what) {
  ok_ = false;
  ADD_FAILURE() << std::string(what);
}

void SchedulerDriver::Audit() {
  scheduler_.CheckInvariants();
  const SchedulerStats stats = scheduler_.stats();
  const BlockManagerStats& blocks = stats.blocks;
  if (blocks.free_blocks + blocks.cached_blocks + blocks.fenced_blocks +
          blocks.used_blocks !=
      blocks.num_blocks - 1) {
    Fail("blocks are not conserved");
  }
  int32_t live = 0;
  for (const auto& [id, served] : served_) live += served.finish ? 0 : 1;
  if (stats.num_waiting + stats.num_running != live) {
    Fail(absl::StrCat(stats.num_waiting, " waiting, ", stats.num_running,
                      " running, ", live, " live"));
  }
}

absl::StatusOr<RequestId> SchedulerDriver::Submit(Request request) {
  const uint64_t before = scheduler_.StateHash();
  absl::StatusOr<RequestId> id = scheduler_.Submit(request);
  if (id.ok()) {
    served_[*id].request = std::move(request);
  } else if (scheduler_.StateHash() != before) {
    Fail("a refused Submit changed the state");
  }
  Audit();
  return id;
}

absl::Status SchedulerDriver::Cancel(RequestId id) {
  absl::Status status = scheduler_.Cancel(id, &effects_);
  TakeEffects();
  Audit();
  return status;
}

absl::StatusOr<uint64_t> SchedulerDriver::Evict(RequestId id,
                                                EvictionCommand command) {
  const uint64_t before = scheduler_.StateHash();
  absl::StatusOr<uint64_t> number = scheduler_.Evict(id, std::move(command));
  if (!number.ok() && scheduler_.StateHash() != before) {
    Fail("a refused Evict changed the state");
  }
  Audit();
  return number;
}

void SchedulerDriver::LoseEngine() {
  scheduler_.LoseEngine(&effects_);
  engine_.Restart();
  plans_.clear();
  slots_.clear();
  cut_.clear();
  TakeEffects();
  Audit();
  if (scheduler_.stats().blocks.free_blocks !=
      scheduler_.layout().num_blocks - 1) {
    Fail("blocks are in use without an engine");
  }
}

bool SchedulerDriver::Issue() {
  const uint64_t before = scheduler_.StateHash();
  if (!scheduler_.Schedule(&plan_)) {
    if (scheduler_.StateHash() != before) {
      Fail("Schedule returned false and changed the state");
    }
    if (scheduler_.num_steps_in_flight() == 0 &&
        scheduler_.has_unfinished_requests()) {
      Fail("nothing is in flight and nothing can run");
    }
    return false;
  }
  CheckPlan();
  const absl::Status status = engine_.Enqueue(plan_);
  if (!status.ok()) Fail(status.ToString());
  Audit();
  return ok_;
}

void SchedulerDriver::CheckPlan() {
  const SchedulerOptions& options = scheduler_.options();
  for (const SwapOut& out : plan_.swap_outs) {
    swapped_[out.swap] = served_.at(slots_.at(out.slot)).issued;
  }
  for (const SequenceSlot slot : plan_.released) {
    slots_.erase(slot);
    cut_.erase(slot);
  }
  for (const SequenceStart& start : plan_.starts) {
    if (start.source == start.slot) {
      // What it was compressed by stays.
      if (slots_.at(start.slot) != start.request || !cut_.erase(start.slot)) {
        Fail("a sequence starts again that lost nothing");
      }
      continue;
    }
    if (!slots_.emplace(start.slot, start.request).second) {
      Fail("a sequence starts in a slot that is in use");
    }
    Served& served = served_.at(start.request);
    served.issued.clear();
    // What made the region is its own now.
    if (start.swap != kNoSwap) {
      served.issued = swapped_.at(start.swap);
    } else if (start.source != kNoSequenceSlot) {
      served.issued = engine_.evictions(start.source);
    } else if (start.region != kNoRegion) {
      served.issued = engine_.evictions(start.region);
    }
    const auto both =
        std::min(std::ssize(served.issued), std::ssize(served.recorded));
    // What it had itself may be otherwise than first recorded, where the engine
    // kept less on replay.
    const bool may_differ =
        start.swap != kNoSwap && !canary_.same_choice_on_replay;
    if (!may_differ &&
        !std::equal(served.issued.begin(), served.issued.begin() + both,
                    served.recorded.begin())) {
      Fail("a region of other evictions than before");
    }
    if (std::ssize(served.issued) > both) served.recorded = served.issued;
  }
  plans_.emplace_back();
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const int32_t end = plan_.positions[i] + plan_.num_tokens[i];
    issued_[plan_.slots[i]] = end;
    const int32_t num_drafts =
        plan_.num_drafts.empty() ? 0 : plan_.num_drafts[i];
    plans_.back().push_back({plan_.slots[i], end, num_drafts});
  }
  if (plan_.total_tokens() > options.max_num_batched_tokens) {
    Fail("more tokens than the budget");
  }
  if (std::ssize(slots_) > options.max_num_seqs) Fail("too many sequences");
  for (const Run& run : plans_.back()) {
    if (run.num_drafts > options.num_speculative_tokens) {
      Fail("more drafts than allowed");
    }
  }
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const int32_t tokens = plan_.num_tokens[i] - plans_.back()[i].num_drafts;
    if (options.long_prefill_token_threshold > 0 &&
        tokens > options.long_prefill_token_threshold) {
      Fail("a chunk above the threshold");
    }
  }
  CheckOrders();
}

void SchedulerDriver::CheckOrders() {
  for (const EvictionOrder& order : plan_.evictions) {
    if (order.group > 0) continue;  // of the one before
    const RequestId id = slots_.at(order.slot);
    Served& served = served_.at(id);
    const CanaryEviction point{.length = order.length, .cut = order.cut};
    const size_t index = served.issued.size();
    served.issued.push_back(point);
    served.page_total = order.page_total;
    if (canary_.same_choice_on_replay && !MayReplayOtherwise(served) &&
        index < served.recorded.size() && served.recorded[index] != point) {
      Fail(absl::StrCat("replay at length ", point.length, ", cut ", point.cut,
                        " of an eviction at length ",
                        served.recorded[index].length, ", cut ",
                        served.recorded[index].cut));
    }
    const auto num_prompt = static_cast<int32_t>(served.request.prompt.size());
    if (order.length == num_prompt &&
        CountTokensInPlan(id) <
            std::min(order.policy.query_window(), num_prompt)) {
      Fail("the last chunk is shorter than the observation window");
    }
  }
  if (!canary_.same_choice_on_replay) return;
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const Served& served = served_.at(slots_.at(plan_.slots[i]));
    const size_t index = served.issued.size();
    if (!MayReplayOtherwise(served) && index < served.recorded.size() &&
        served.recorded[index].length <=
            plan_.positions[i] + plan_.num_tokens[i]) {
      Fail("a recorded eviction is not replayed");
    }
  }
}

StepResult SchedulerDriver::Execute() {
  absl::StatusOr<StepResult> result = engine_.Execute();
  if (result.ok()) return *std::move(result);
  Fail(result.status().ToString());
  return {};
}

void SchedulerDriver::Answer() {
  AnswerWith([](StepResult*) {});
}

void SchedulerDriver::Settle(const StepResult& result) {
  const absl::Status status = scheduler_.Update(result, &effects_);
  if (!status.ok()) return Fail(status.ToString());
  for (size_t i = 0; i < plans_.front().size(); ++i) {
    const auto [slot, end, num_drafts] = plans_.front()[i];
    // Nobody else has run there since.
    if (num_drafts == 0 || issued_.at(slot) != end) continue;
    issued_.at(slot) -= num_drafts - result.num_accepted[i];
  }
  plans_.pop_front();
  if (!result.lost_blocks.empty()) NoteCuts();
  TakeEffects();
  Audit();
  if (ok_ && scheduler_.num_steps_in_flight() == 0) CompareTables();
}

void SchedulerDriver::NoteCuts() {
  for (const auto& [slot, id] : slots_) {
    const SequenceCache& sequence = scheduler_.manager().sequence(slot);
    if (sequence.open && sequence.num_reserved < issued_.at(slot)) {
      cut_.insert(slot);
    }
  }
}

void SchedulerDriver::CompareTables() {
  const BlockManager& manager = scheduler_.manager();
  for (const auto& [slot, id] : slots_) {
    const SequenceCache& sequence = manager.sequence(slot);
    // The engine hears of it with the next step.
    if (!sequence.open || cut_.contains(slot)) continue;
    const SequenceTable& table = engine_.row(slot);
    bool is_equal = true;
    for (size_t i = 0; i < table.groups.size(); ++i) {
      const GroupTable& own = table.groups[i];
      const std::vector<BlockId> blocks = BlocksByPage(sequence.groups[i]);
      const auto behind = std::span(blocks).subspan(own.region.cut /
                                                    manager.layout().page_size);
      is_equal &= IsTable({behind.begin(), behind.end()}, own.blocks);
    }
    const RegionLayout* const layout = table.groups.front().region.layout.get();
    if (!is_equal || sequence.num_settled != table.num_computed ||
        (sequence.first().region != nullptr) != (layout != nullptr)) {
      Fail("the engine's table is not the manager's");
      return;
    }
    if (sequence.first().region == nullptr) continue;
    const RaggedRegion region = manager.DeriveRegion(slot, 0);
    const RaggedRegion theirs(manager.layout(), *layout);
    if (!std::ranges::equal(region.page_list(), theirs.page_list()) ||
        !std::ranges::equal(region.kept(), theirs.kept())) {
      Fail("the engine's region is not the manager's");
    }
  }
}

void SchedulerDriver::TakeEffects() {
  for (const TokenEffect& effect : effects_.tokens) {
    Served& served = served_.at(effect.request);
    if (served.finish.has_value()) Fail("a token after the end");
    if (effect.index != std::ssize(served.outputs)) {
      Fail("a token out of order");
    }
    served.outputs.push_back(effect.token);
  }
  // Evictions first: a command is answered before its request is done with.
  for (const EvictionEffect& effect : effects_.evictions) {
    TakeEviction(effect);
  }
  for (const FinishEffect& effect : effects_.finished) TakeFinish(effect);
  effects_.Clear();
}

void SchedulerDriver::TakeEviction(const EvictionEffect& effect) {
  Served& served = served_.at(effect.request);
  served.evictions.push_back(effect);
  if (!effect.status.ok()) {
    if (!absl::IsInternal(effect.status)) return;
    // The request goes on as if it had never had it.
    served.issued.pop_back();
    const auto index = std::ssize(served.issued);
    if (index < std::ssize(served.recorded)) {
      served.recorded.erase(served.recorded.begin() + index);
      served.kept_less = true;  // than before: the next ones find more
    }
    return;
  }
  if (std::ssize(effect.kept_entries) !=
      scheduler_.layout().pages_per_block()) {
    Fail("an eviction that does not say what is kept");
  }
  if (effect.evicted_entries == 0 && effect.freed_blocks == 0) return;
  const size_t index = served.issued.size() - 1;
  if (served.issued[index].cut != effect.cut) Fail("another cut than ordered");
  if (effect.freed_blocks <= 0) Fail("an eviction that freed nothing");
  if (index == served.recorded.size()) {
    served.recorded.push_back(served.issued[index]);
  }
  int64_t num_pages = 0;
  for (const int32_t kept : effect.kept_entries) {
    num_pages += CeilDiv(kept, scheduler_.layout().page_size);
  }
  served.kept_less |= num_pages < served.page_total;
}

void SchedulerDriver::TakeFinish(const FinishEffect& effect) {
  Served& served = served_.at(effect.request);
  if (served.finish.has_value()) Fail("a request ended twice");
  served.finish = effect;
  const std::vector<int32_t> alone = engine_.OutputsAlone(
      served.request.prompt, served.request.max_tokens,
      served.request.stop_token_ids, served.request.sampling);
  const bool complete = effect.reason == FinishReason::kLength ||
                        effect.reason == FinishReason::kStop;
  if (effect.num_output_tokens != std::ssize(served.outputs) ||
      served.outputs.size() > alone.size() ||
      (complete && served.outputs.size() != alone.size()) ||
      !std::equal(served.outputs.begin(), served.outputs.end(),
                  alone.begin())) {
    Fail(absl::StrCat("request ", Index(effect.request),
                      " did not output what it does alone"));
  }
  if (!complete) return;
  const bool by_token = std::ranges::count(served.request.stop_token_ids,
                                           served.outputs.back()) > 0;
  std::optional<int32_t> stop;
  if (!by_token) {
    stop = CanaryEngine::StopAfter(served.request.sampling, served.outputs);
  }
  const bool stopped = by_token || stop.has_value();
  if (stopped != (effect.reason == FinishReason::kStop) ||
      stop != effect.stop) {
    Fail("a wrong finish reason");
  }
}

void SchedulerDriver::Step() {
  if (!Issue()) {
    if (ok_ && engine_.num_queued() == 0) Fail("Step had nothing to run");
  }
  while (ok_ && engine_.num_queued() > 0) Answer();
}

int32_t SchedulerDriver::StepUntilRunning(RequestId id) {
  int32_t num_steps = 0;
  for (; ok_ && SlotOf(id) == kNoSequenceSlot; ++num_steps) Step();
  return num_steps;
}

const SequenceStart* SchedulerDriver::StartInPlan(RequestId id) const {
  const auto start =
      std::ranges::find(plan_.starts, id, &SequenceStart::request);
  return start == plan_.starts.end() ? nullptr : &*start;
}

int64_t SchedulerDriver::CountStepsToDrain() const {
  // The oldest request makes progress in every round of steps in flight, from
  // its first token on if it was preempted.
  int64_t steps = 16;
  for (const auto& [id, served] : served_) {
    if (served.finish.has_value()) continue;
    steps +=
        (scheduler_.options().max_steps_in_flight + 2) *
        (std::ssize(served.request.prompt) + served.request.max_tokens + 4);
  }
  return steps;
}

void SchedulerDriver::Drain() {
  const int64_t limit = CountStepsToDrain();
  int64_t steps = 0;
  while (ok_ && scheduler_.has_unfinished_requests()) {
    while (ok_ && Issue()) {
    }
    if (!ok_) return;
    Answer();
    if (++steps > limit) {
      Fail(absl::StrCat("requests are unfinished after ", limit, " steps"));
    }
  }
  while (ok_ && engine_.num_queued() > 0) Answer();
}

void SchedulerDriver::CheckQuiescent() {
  if (!ok_) return;
  const SchedulerStats stats = scheduler_.stats();
  const int32_t usable = stats.blocks.num_blocks - 1;
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_waiting_tokens, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_steps_in_flight, 0);
  EXPECT_EQ(stats.blocks.used_blocks, 0);
  EXPECT_EQ(stats.blocks.free_blocks + stats.blocks.cached_blocks, usable);
  EXPECT_EQ(scheduler_.ResetPrefixCache().num_in_use, 0);
  EXPECT_EQ(scheduler_.stats().blocks.free_blocks, usable);
  EXPECT_EQ(stats.num_finished, served_.size());
  uint64_t num_outputs = 0;
  uint64_t num_preemptions = 0;
  for (const auto& [id, served] : served_) {
    EXPECT_TRUE(served.finish.has_value());
    num_outputs += served.outputs.size();
    if (served.finish) num_preemptions += served.finish->num_preemptions;
  }
  EXPECT_EQ(stats.num_output_tokens, num_outputs);
  EXPECT_EQ(stats.num_preemptions, num_preemptions);
  Audit();
}

int32_t SchedulerDriver::CountTokensInPlan(RequestId id) const {
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    if (slots_.at(plan_.slots[i]) == id) return plan_.num_tokens[i];
  }
  return 0;
}

std::vector<BlockId> SchedulerDriver::BlocksInPlan(RequestId id) const {
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    if (slots_.at(plan_.slots[i]) != id) continue;
    const auto blocks = plan_.NewBlocks(scheduler_.manager().layout(), i);
    return {blocks.begin(), blocks.end()};
  }
  return {};
}

SequenceSlot SchedulerDriver::SlotOf(RequestId id) const {
  for (const auto& [slot, request] : slots_) {
    if (request == id) return slot;
  }
  return kNoSequenceSlot;
}

void ExpectRefused(const std::vector<WrongAnswer>& cases,
                   const StepResult& good, SchedulerImpl* scheduler) {
  for (const WrongAnswer& wrong : cases) {
    SCOPED_TRACE(wrong.text);
    StepResult result = good;
    wrong.spoil(&result);
    Effects effects;
    const uint64_t before = scheduler->StateHash();
    const absl::Status status = scheduler->Update(result, &effects);
    EXPECT_THAT(status, IsInvalid(wrong.text));
    if (wrong.is_whole) {
      EXPECT_EQ(status.message(), wrong.text);
    }
    EXPECT_EQ(scheduler->StateHash(), before);
    EXPECT_TRUE(effects.tokens.empty() && effects.token_data.empty() &&
                effects.logprobs.empty() && effects.evictions.empty() &&
                effects.finished.empty());
  }
}

RequestId Submit(SchedulerDriver* driver, Request request) {
  const absl::StatusOr<RequestId> id = driver->Submit(std::move(request));
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or(RequestId{0});
}

}  // namespace blockmgr
