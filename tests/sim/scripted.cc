#include "tests/sim/scripted.h"

#include <algorithm>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/check.h"

namespace blockmgr::sim {
namespace {

int32_t Number(absl::string_view text) {
  int32_t number = 0;
  BM_CHECK(absl::SimpleAtoi(text, &number));
  return number;
}

}  // namespace

SchedulerOptions ScriptOptions(int32_t steps_in_flight) {
  SchedulerOptions options = PlainOptions();
  options.max_model_len = 4096;
  options.min_prefix_wait_tokens = 0;
  options.max_steps_in_flight = steps_in_flight;
  options.enable_prefix_caching = true;
  options.max_bypasses = SchedulerOptions().max_bypasses;
  return options;
}

RequestEviction Eviction(absl::string_view mode, int32_t page_size) {
  if (mode == "plain") return {};
  if (mode == "snap") return SnapKv(3, page_size);
  RequestEviction eviction = Recency(page_size);
  // In layer groups with a window, too.
  if (absl::ConsumeSuffix(&mode, "_windows")) {
    eviction.target.window_keep_ratio = {5, 10};
  }
  if (mode == "every" || mode == "decode") {
    eviction.mode =
        mode == "every" ? EvictionMode::kEveryChunk : EvictionMode::kDecode;
    eviction.compress_every = 2 * page_size;
  }
  if (mode == "pressure") eviction.mode = EvictionMode::kPressure;
  eviction.share_prefix = mode == "shared";
  return eviction;
}

Scripted::Scripted(const Scenario& scenario, int32_t fault_at, FaultKind fault,
                   Twin twin)
    : scenario_(scenario),
      fault_at_(fault_at),
      fault_(fault),
      twin_(std::move(twin)),
      scheduler_(scenario.layout, scenario.options, true, &report_),
      engine_(scenario.layout, scenario.options.max_num_seqs,
              {.seed = 5,
               .vocabulary = 1000,
               .num_host_blocks = scenario.options.engine.num_host_blocks,
               .max_drafts = scenario.options.num_speculative_tokens}) {
  BM_CHECK(scenario.layout.Validate().ok());
  BM_CHECK(scenario.options.Validate().ok());
  scheduler_.FailSwapOuts(twin_.swap_outs);
}

bool Scripted::AtPoint() {
  const bool fires = num_points_++ == fault_at_ || fault_at_ == kEverywhere;
  num_fired_ += fires ? 1 : 0;
  return fires;
}

void Scripted::Run() {
  for (const absl::string_view word :
       absl::StrSplit(scenario_.script, ' ', absl::SkipEmpty())) {
    if (report_.ok()) Do(word);
  }
  Drain();
  scheduler_.CheckQuiescent();
}

void Scripted::Do(absl::string_view word) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(word, absl::MaxSplits(':', 1));
  const std::vector<std::string> rest = absl::StrSplit(parts.second, ',');
  const int32_t times = parts.first == "issue" || parts.first == "answer"
                            ? (parts.second.empty() ? 1 : Number(parts.second))
                            : 0;
  for (int32_t i = 0; i < times && report_.ok(); ++i) {
    if (parts.first == "issue") {
      Issue();
    } else if (engine_.num_queued() > 0 || is_held_) {
      Answer();
    }
  }
  if (times > 0) return;
  if (parts.first == "submit") {
    Request request = MakeRequest(rest[0], Number(rest[1]), Number(rest[2]),
                                  rest.size() > 3 ? Number(rest[3]) : 0);
    if (rest.size() > 4) {
      request.eviction = Eviction(rest[4], scenario_.layout.page_size);
    }
    Submit(std::move(request));
  } else if (parts.first == "cancel") {
    Refuse(
        [this] { return scheduler_.Cancel(RequestId{123456}, &effects_).ok(); },
        "Cancel of nobody");
    (void)scheduler_.Cancel(names_[rest[0]], &effects_);
    TakeEffects();
  } else if (parts.first == "evict") {
    Evict(rest[0], Number(rest[1]));
  } else if (parts.first == "fork") {
    Fork(rest[0], rest[1], Number(rest[2]), Number(rest[3]));
  } else if (parts.first == "lose_blocks") {
    LoseBlock(rest[0], static_cast<size_t>(Number(rest[1])));
  } else if (parts.first == "lose") {
    LoseEngine();
    TakeEffects();
  } else if (parts.first == "reset") {
    scheduler_.ResetPrefixCache();
  } else if (parts.first == "drain") {
    Drain();
  } else {
    report_.Fail("script: no word '", std::string(word), "'");
  }
}

// At a point of refused calls: `call` must be refused (false), and leave no
// trace, which AuditedScheduler sees to as well.
void Scripted::Refuse(const std::function<bool()>& call, const char* what) {
  if (fault_ != FaultKind::kRefusedCall || !AtPoint()) return;
  const uint64_t before = scheduler_.StateHash();
  if (call()) report_.Fail(what, " was accepted");
  if (scheduler_.StateHash() != before) report_.Fail(what, " left a trace");
}

void Scripted::RefuseSubmits(const Request& good) {
  const auto refuse = [&](const char* what, auto change) {
    Request bad = good;
    bad.id = absl::StrCat(good.id, " wrong");
    change(&bad);
    Refuse([&] { return scheduler_.Submit(bad).ok(); }, what);
  };
  refuse("an empty prompt", [](Request* bad) { bad->prompt.clear(); });
  refuse("a negative token", [](Request* bad) { bad->prompt.back() = -1; });
  refuse("no output", [](Request* bad) { bad->max_tokens = 0; });
  refuse("no name", [](Request* bad) { bad->id.clear(); });
  refuse("more than the pool", [this](Request* bad) {
    bad->eviction = {};
    bad->prompt.assign(
        size_t{1} * scenario_.layout.num_blocks * scenario_.layout.page_size,
        1);
  });
  refuse("a fork of nobody", [](Request* bad) { bad->fork_of = "nobody"; });
  if (!good.fork_of.empty()) {
    refuse("a fork of a stranger",
           [](Request* bad) { bad->scope.tenant = "stranger"; });
    refuse("a fork with an eviction of its own",
           [](Request* bad) { bad->eviction = Eviction("after", 4); });
  }
  refuse("a policy without a window", [](Request* bad) {
    bad->eviction = Eviction("snap", 4);
    bad->eviction.policy.scorer.window = 0;
  });
}

void Scripted::Submit(Request request) {
  RefuseSubmits(request);
  const absl::StatusOr<RequestId> id = scheduler_.Submit(request);
  statuses_[request.id] = id.status();
  if (!id.ok()) return;
  Refuse([&] { return scheduler_.Submit(request).ok(); }, "a name in use");
  names_[request.id] = *id;
  Life& life = lives_[*id];
  life.name = request.id;
  life.request = std::move(request);
}

void Scripted::Fork(const std::string& name, const std::string& other,
                    int32_t at, int32_t max_tokens) {
  const auto found = lives_.find(names_[other]);
  if (found == lives_.end()) return;
  const Life& parent = found->second;
  Request request = MakeRequest(name, 0, max_tokens);
  request.prompt = parent.request.prompt;
  // Whatever went wrong so far: those it has when it runs alone.
  const std::vector<int32_t> outputs =
      engine_.OutputsAlone(parent.request.prompt, at, {});
  request.prompt.insert(request.prompt.end(), outputs.begin(), outputs.end());
  request.fork_of = other;
  Submit(std::move(request));
}

void Scripted::LoseBlock(const std::string& name, size_t index) {
  for (int32_t i = 0; i < scenario_.options.max_num_seqs; ++i) {
    if (!engine_.is_open(SequenceSlot{i})) continue;
    const SequenceTable& table = engine_.row(SequenceSlot{i});
    if (table.request != names_[name]) continue;
    const std::vector<BlockId>& blocks = table.groups.front().blocks;
    if (index < blocks.size()) engine_.LoseBlocks({blocks[index]});
  }
}

void Scripted::LoseEngine() {
  scheduler_.LoseEngine(&effects_);
  engine_.Restart();
}

void Scripted::RefuseEvicts(RequestId request) {
  const auto refuse = [&](const char* what, auto change) {
    EvictionCommand bad;
    bad.policy = Eviction("after", 4).policy;
    bad.target = Eviction("after", 4).target;
    change(&bad);
    Refuse([&] { return scheduler_.Evict(request, bad).ok(); }, what);
  };
  refuse("a negative cut", [](EvictionCommand* bad) { bad->cut = -16; });
  refuse("a cut beyond all", [this](EvictionCommand* bad) {
    bad->cut = 1000 * scenario_.layout.page_size;
  });
  refuse("no tokens", [](EvictionCommand* bad) { bad->target.tokens = 0; });
  refuse("scores of nothing", [](EvictionCommand* bad) {
    bad->policy.scorer.kind = ScorerKind::kExternal;
  });
  refuse("budgets of another model", [](EvictionCommand* bad) {
    bad->policy.budget.kind = BudgetKind::kExternal;
    bad->budgets = std::make_shared<std::vector<int32_t>>(77, 1);
  });
}

void Scripted::Evict(const std::string& name, int32_t tokens) {
  const RequestId request = names_[name];
  RefuseEvicts(request);
  if (twin_.commands.contains(num_commands_ + 1)) {
    ++num_commands_;
    return;
  }
  EvictionCommand command;
  command.policy = Eviction("after", 4).policy;
  command.target = Eviction("after", 4).target;
  command.target.tokens = tokens;
  num_commands_ += scheduler_.Evict(request, command).ok() ? 1 : 0;
}

bool Scripted::Issue() {
  is_held_ = twin_.is_held && aftermath_.step == StepId{0} &&
             num_steps() + 1 == static_cast<int64_t>(Index(twin_.step)) &&
             engine_.num_queued() < scenario_.options.max_steps_in_flight &&
             scheduler_.has_unfinished_requests();
  std::map<RequestId, Held> before;
  if (fault_ == FaultKind::kRefusedOrder) before = HeldNow();
  const int64_t num_swap_outs = scheduler_.num_swap_outs();
  if (!report_.ok() || is_held_ || !scheduler_.Schedule(&plan_)) return false;
  before_[plan_.id] = std::move(before);
  for (int64_t i = num_swap_outs; i < scheduler_.num_swap_outs(); ++i) {
    swap_outs_[plan_.id].insert(i);
  }
  WritePlan();
  const absl::Status status = engine_.Enqueue(plan_);
  if (!status.ok()) report_.Fail(status.ToString());
  return true;
}

void Scripted::WritePlan() {
  std::string text;
  for (const SequenceStart& start : plan_.starts) {
    running_[start.slot] = start.request;
    absl::StrAppend(&text, "start ", Index(start.request), " at ",
                    start.num_cached_tokens, " of ", start.num_tokens, "; ");
  }
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    absl::StrAppend(
        &text, Index(running_.at(plan_.slots[i])), ": ", plan_.num_tokens[i],
        " from ", plan_.positions[i], plan_.samples[i] != 0 ? " samples" : "",
        ", ", plan_.num_drafts.empty() ? 0 : plan_.num_drafts[i], " drafts; ");
  }
  plans_.push_back(std::move(text));
}

void Scripted::RefuseAnswers(const StepResult& good) {
  const auto refuse = [&](const char* what, auto change) {
    StepResult bad = good;
    change(&bad);
    // Nobody reads the counts of a request that is gone.
    if (scheduler_.ledger().IsValid(bad)) return;
    Refuse(
        [&] {
          Effects effects;
          const bool taken = scheduler_.Update(bad, &effects).ok();
          return taken || !effects.tokens.empty() ||
                 !effects.finished.empty() || !effects.evictions.empty();
        },
        what);
  };
  refuse("the answer to a later step",
         [](StepResult* bad) { bad->id = StepId{Index(bad->id) + 1}; });
  refuse("the answer to an earlier step",
         [](StepResult* bad) { bad->id = StepId{Index(bad->id) - 1}; });
  refuse("a token too many",
         [](StepResult* bad) { bad->sampled.push_back(1); });
  refuse("a token too few", [](StepResult* bad) { bad->sampled.pop_back(); });
  for (size_t i = 0; i < good.sampled.size(); ++i) {
    refuse("a token where none is due", [i](StepResult* bad) {
      bad->sampled[i] = bad->sampled[i] < 0 ? 3 : -1;
    });
  }
  refuse("an accepted token too many",
         [](StepResult* bad) { bad->accepted.push_back(1); });
  refuse("more accepted than there were drafts", [](StepResult* bad) {
    bad->num_accepted.resize(bad->sampled.size());
    bad->num_accepted.back() += 21;
    bad->accepted.resize(bad->accepted.size() + 21);
  });
  refuse("fewer accepted than none", [](StepResult* bad) {
    bad->num_accepted.assign(bad->sampled.size(), -1);
  });
  refuse("drafts of nobody", [](StepResult* bad) {
    bad->num_drafts.assign(bad->sampled.size() + 1, 0);
  });
  refuse("fewer drafts than none", [](StepResult* bad) {
    bad->num_drafts.assign(bad->sampled.size(), -1);
  });
  refuse("the loss of no block",
         [](StepResult* bad) { bad->lost_blocks = {kNullBlock}; });
  refuse("the loss of a block that is not there", [this](StepResult* bad) {
    bad->lost_blocks = {BlockId{scenario_.layout.num_blocks}};
  });
  refuse("an outcome too many",
         [](StepResult* bad) { bad->evictions.emplace_back(); });
  for (size_t i = 0; i < good.evictions.size(); ++i) {
    if (!good.evictions[i].ok) continue;
    const auto counts = [i](StepResult* bad) -> std::vector<int32_t>& {
      return bad->evictions[i].counts;
    };
    refuse("an outcome too few",
           [](StepResult* bad) { bad->evictions.pop_back(); });
    refuse("a count too few", [&](StepResult* bad) { counts(bad).pop_back(); });
    refuse("a negative count", [&](StepResult* bad) { counts(bad)[0] = -1; });
    refuse("a count above all",
           [&](StepResult* bad) { counts(bad).back() = 1 << 20; });
  }
}

bool Scripted::IsPoint(const StepPlan& plan) const {
  switch (fault_) {
    case FaultKind::kRefusedCall:
      return false;
    case FaultKind::kRefusedOrder:
      return !plan.evictions.empty();
    case FaultKind::kLostEngine:
      return true;
    case FaultKind::kLostCopies:
      return !plan.transfers_out.empty() || !plan.transfers_in.empty();
    case FaultKind::kLostReturns:
      return !plan.transfers_in.empty();
  }
  return false;
}

void Scripted::Answer() {
  const StepId step = is_held_ ? twin_.step : engine_.next().id;
  const bool fires = (is_held_ || IsPoint(engine_.next())) && AtPoint();
  if (fires && fault_ == FaultKind::kLostEngine) {
    LoseEngine();
    NoteAftermath(step);
    is_held_ = false;
    return TakeEffects();
  }
  engine_.RefuseOrders(fires && fault_ == FaultKind::kRefusedOrder);
  if (fires && fault_ == FaultKind::kLostCopies) LoseCopies();
  if (fires && fault_ == FaultKind::kLostReturns) LoseReturns();
  absl::StatusOr<StepResult> result = engine_.Execute();
  if (!result.ok()) return report_.Fail(result.status().ToString());
  RefuseAnswers(*result);
  const bool is_twins = !twin_.is_held && step == twin_.step;
  if (is_twins) Cancel(twin_.cancel);
  const absl::Status status = scheduler_.Update(*result, &effects_);
  if (!status.ok()) report_.Fail(status.ToString());
  if (fires || is_twins) NoteAftermath(step);
  if (fires && fault_ == FaultKind::kRefusedOrder) CheckRefused(step);
  TakeEffects();
}

void Scripted::Drain() {
  const int64_t limit = num_steps() + scheduler_.ledger().CountStepsToDrain();
  while (report_.ok() &&
         (scheduler_.has_unfinished_requests() || engine_.num_queued() > 0)) {
    while (Issue()) continue;
    if (engine_.num_queued() > 0 || is_held_) Answer();
    if (num_steps() > limit) report_.Fail("no end after ", limit, " steps");
  }
}

void Scripted::TakeEffects() {
  for (const TokenEffect& effect : effects_.tokens) {
    lives_.at(effect.request).outputs.push_back(effect.token);
  }
  for (const FinishEffect& effect : effects_.finished) {
    Life& life = lives_.at(effect.request);
    life.finish.push_back(effect);
    const std::vector<int32_t> alone =
        engine_.OutputsAlone(life.request.prompt, life.request.max_tokens, {});
    const bool complete = effect.reason == FinishReason::kLength;
    if ((complete && life.outputs != alone) ||
        !std::equal(life.outputs.begin(), life.outputs.end(), alone.begin())) {
      report_.Fail("'", life.name, "' put out other tokens than alone");
    }
  }
  effects_.Clear();
}

const FinishEffect* Scripted::FinishOf(const std::string& name) const {
  const auto id = names_.find(name);
  if (id == names_.end() || lives_.at(id->second).finish.empty()) {
    return nullptr;
  }
  return &lives_.at(id->second).finish.front();
}

uint64_t Scripted::OutcomeHash() const {
  uint64_t hash = 0;
  const auto mix = [&hash](uint64_t value) { hash = SplitMix64(hash ^ value); };
  for (const auto& [id, life] : lives_) {
    bool complete = false;
    for (const FinishEffect& finish : life.finish) {
      mix(static_cast<uint64_t>(finish.reason));
      complete |= finish.reason == FinishReason::kLength;
    }
    // How far the others came depends on the moment of their end.
    if (!complete) continue;
    for (const int32_t token : life.outputs) mix(token);
  }
  return hash;
}

}  // namespace blockmgr::sim
