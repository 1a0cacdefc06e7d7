#include "scheduler/eviction_requests.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/table_files.h"
#include "scheduler/compression_points.h"
#include "scheduler/forks.h"
#include "scheduler/require_range.h"
#include "scheduler/scheduler.h"

namespace blockmgr {
namespace {

absl::Status ValidateSharing(const RequestEviction& eviction) {
  if (!eviction.share_prefix) return absl::OkStatus();
  if (eviction.mode == EvictionMode::kPressure) {
    return absl::InvalidArgumentError(
        "eviction.share_prefix: expected a mode that compresses the prompt, "
        "got pressure");
  }
  const EvictionPolicy& policy = eviction.policy;
  if (policy.scorer_state() != ScorerState::kNone) {
    return Invalid(
        "eviction.share_prefix: expected a policy that needs no scores "
        "accumulated from the first token on, got ",
        FormatPolicy(policy));
  }
  return absl::OkStatus();
}

std::string WindowRatioError(const EvictionTarget& target,
                             absl::string_view why) {
  return absl::StrCat("eviction.target.window_keep_ratio: expected 1 ", why,
                      ", got ", target.window_keep_ratio.ToString());
}

// Checks that a policy which evicts from windows needs neither scores that are
// accumulated from the first token on nor budgets of a table.
absl::Status ValidateWindows(const RequestEviction& eviction) {
  const EvictionPolicy& policy = eviction.policy;
  if (!eviction.target.evicts_in_windows() ||
      (policy.scorer_state() == ScorerState::kNone && !policy.needs_table())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(WindowRatioError(
      eviction.target,
      absl::StrCat(
          "with scores accumulated from the first token on, or budgets "
          "of a table (",
          FormatPolicy(policy), ")")));
}

// So many points take a hundred milliseconds with a table and 256 heads.
constexpr int32_t kMaxPlannedPoints = 4096;

bool HasInterval(EvictionMode mode) {
  return mode == EvictionMode::kEveryChunk || mode == EvictionMode::kDecode;
}

absl::Status ValidatePolicy(const EvictionPolicy& policy,
                            const std::shared_ptr<const BudgetTable>& table) {
  BM_RETURN_IF_ERROR(policy.Validate());
  if (!policy.needs_table() || table != nullptr) return absl::OkStatus();
  return Invalid("eviction.policy: expected the budget table '",
                 policy.budget.profile, "' with the request, got none");
}

absl::Status ValidateTarget(const EvictionTarget& target) {
  if (target.kind == EvictionTarget::Kind::kTokens) {
    BM_RETURN_IF_ERROR(
        RequireRange("tokens_per_head", target.tokens, 1, INT32_MAX));
  }
  return target.Validate();
}

// Returns whether the model has layers to evict from.
absl::Status ValidateLayers(const ModelLayout& layout) {
  if (layout.kind_of(0) == GroupKind::kFull) return absl::OkStatus();
  return Invalid(
      "eviction: expected none for a model whose layers all have a sliding "
      "window (",
      layout.window, " tokens): what falls out of it is given back anyway");
}

// Returns whether the policy's table, if it has one, is of a model of this
// shape.
absl::Status ValidateTable(const EvictionPolicy& policy,
                           const std::shared_ptr<const BudgetTable>& table,
                           const ModelLayout& layout) {
  if (!policy.needs_table()) return absl::OkStatus();
  return CheckTable(policy, ShapeOf(layout), *table);
}

// Returns whether the engine has the query statistics that the policy names.
absl::Status ValidateQueryStats(absl::string_view field,
                                const EvictionPolicy& policy,
                                const SchedulerOptions& options) {
  const std::string& name = policy.scorer.stats;
  if (!policy.needs_query_stats() ||
      options.engine.query_stats.contains(name)) {
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (const auto& [known, fingerprint] : options.engine.query_stats) {
    names.push_back(known);
  }
  return NoSuchTable(absl::StrCat(field, ": stats"),
                     "table of query statistics of the engine", names, name);
}

// Returns whether the engine has what the policy of a command observes.
absl::Status ValidateObserved(const RequestState& request,
                              const EvictionPolicy& policy,
                              const SchedulerOptions& options) {
  if (policy.scorer_state() != ScorerState::kNone &&
      policy.scorer_state() != request.eviction.scorer_state) {
    return absl::FailedPreconditionError(absl::StrCat(
        "policy: ", FormatPolicy(policy),
        " needs scores accumulated from the first token on; expected a request "
        "whose own policy has them, got one without"));
  }
  if (policy.query_window() > 0 &&
      request.CountQueriesKept(options.query_window) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "policy: ", FormatPolicy(policy),
        " observes queries; expected a scheduler, or a request's own policy, "
        "that has the engine keep some, got query_window 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateEviction(const RequestEviction& eviction,
                              const SchedulerOptions& options) {
  if (eviction.mode == EvictionMode::kNone) {
    if (!eviction.share_prefix) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "eviction.share_prefix: expected a mode that compresses the prompt, "
        "got none");
  }
  const EvictionPolicy& policy = eviction.policy;
  BM_RETURN_IF_ERROR(ValidatePolicy(policy, eviction.table));
  BM_RETURN_IF_ERROR(ValidateTarget(eviction.target));
  if (policy.scorer.kind == ScorerKind::kExternal ||
      policy.budget.kind == BudgetKind::kExternal) {
    return absl::InvalidArgumentError(
        "eviction.policy: expected a policy of the engine's own, got external "
        "scores or budgets (evict the running request instead)");
  }
  BM_RETURN_IF_ERROR(ValidateSharing(eviction));
  BM_RETURN_IF_ERROR(ValidateWindows(eviction));
  RangeChecks checks("eviction.");
  VisitRequestEviction(eviction, checks);
  BM_RETURN_IF_ERROR(checks.status());
  const int32_t window = policy.query_window();
  if (HasInterval(eviction.mode) && eviction.compress_every < window) {
    return Invalid(
        "eviction.compress_every: expected what the policy "
        "observes, at least ",
        window, ", got ", eviction.compress_every);
  }
  const int32_t most = options.max_query_window();
  return RequireRange("eviction.policy: window", window, 0, most,
                      options.long_prefill_token_threshold == most
                          ? "to long_prefill_token_threshold"
                          : "to max_num_batched_tokens - max_num_seqs + 1");
}

absl::Status ValidateEviction(const RequestEviction& eviction,
                              const ModelLayout& layout,
                              const SchedulerOptions& options) {
  const int32_t page_size = layout.page_size;
  if (HasInterval(eviction.mode) &&
      (eviction.compress_every < page_size ||
       eviction.compress_every % page_size != 0)) {
    return Invalid("eviction.compress_every: expected a multiple of ",
                   page_size, " (page_size), got ", eviction.compress_every);
  }
  BM_RETURN_IF_ERROR(ValidateEviction(eviction, options));
  if (eviction.mode == EvictionMode::kNone) return absl::OkStatus();
  BM_RETURN_IF_ERROR(ValidateLayers(layout));
  const EvictionPolicy& policy = eviction.policy;
  BM_RETURN_IF_ERROR(ValidateTable(policy, eviction.table, layout));
  BM_RETURN_IF_ERROR(ValidateQueryStats("eviction.policy", policy, options));
  if (policy.scorer_state() != ScorerState::kNone &&
      options.engine.num_scorer_states == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "eviction.policy: ", FormatPolicy(policy),
        " needs scores that the engine accumulates, but it announced "
        "num_scorer_states 0"));
  }
  if (eviction.target.evicts_in_windows()) {
    if (policy.protect.recent_percent > 0) {
      return Invalid(
          "eviction.policy: protect: recent_percent: expected 0 with "
          "window_keep_ratio, got ",
          policy.protect.recent_percent);
    }
    if (layout.num_window_groups() == 0) {
      return absl::InvalidArgumentError(WindowRatioError(
          eviction.target,
          "for a model of which no group of layers has a window"));
    }
    if (!options.engine.supports_window_evictions) {
      return absl::FailedPreconditionError(WindowRatioError(
          eviction.target,
          "for an engine that did not announce supports_window_evictions"));
    }
  }
  if (eviction.share_prefix && (eviction.share_multiple < 0 ||
                                eviction.share_multiple % page_size != 0)) {
    return Invalid("eviction.share_multiple: expected 0 or a multiple of ",
                   page_size, " (page_size), got ", eviction.share_multiple);
  }
  return absl::OkStatus();
}

std::string SharingWarning(const RequestEviction& eviction) {
  const int32_t window = eviction.policy.query_window();
  if (!eviction.share_prefix || window == 0) return "";
  return absl::StrCat(
      "eviction.share_prefix: ", FormatPolicy(eviction.policy),
      " keeps what the last ", window,
      " tokens of a prefix attend to, and evicts what later questions ask for; "
      "expected a scorer that observes no queries, such as keydiff");
}

absl::Status ValidateCommand(const RequestState& request,
                             const EvictionCommand& command,
                             const SchedulerState& state) {
  BM_RETURN_IF_ERROR(ValidateLayers(state.layout()));
  BM_RETURN_IF_ERROR(ValidatePolicy(command.policy, command.table));
  BM_RETURN_IF_ERROR(
      ValidateTable(command.policy, command.table, state.layout()));
  BM_RETURN_IF_ERROR(ValidateTarget(command.target));
  if (command.target.evicts_in_windows()) {
    return Invalid(
        "target.window_keep_ratio: expected 1 for a request that runs: its "
        "windows have no room for a region, got ",
        command.target.window_keep_ratio.ToString());
  }
  BM_RETURN_IF_ERROR(
      ValidateQueryStats("policy", command.policy, state.options()));
  BM_RETURN_IF_ERROR(
      ValidateObserved(request, command.policy, state.options()));
  const int32_t page_size = state.layout().page_size;
  const int32_t cut_now =
      request.running ? state.manager.sequence(request.slot).cut() : 0;
  const int32_t largest =
      LargestCut(request.running ? request.num_computed - request.num_unverified
                                 : static_cast<int32_t>(request.tokens.size()),
                 page_size);
  if (command.cut != 0 && (command.cut % page_size != 0 ||
                           command.cut <= cut_now || command.cut > largest)) {
    return Invalid("cut: expected 0 or a multiple of ", page_size, " above ",
                   cut_now, " and at most ", largest, ", got ", command.cut);
  }
  const int64_t num_heads = state.layout().pages_per_block();
  const bool wants_scores = command.policy.scorer.kind == ScorerKind::kExternal;
  const int64_t num_scores =
      command.scores == nullptr ? 0 : std::ssize(*command.scores);
  const int64_t expected_scores =
      wants_scores ? num_heads * int64_t{command.cut} : 0;
  if (wants_scores && command.cut == 0) {
    return absl::InvalidArgumentError(
        "cut: expected the positions that the scores cover, got 0");
  }
  if (num_scores != expected_scores) {
    return Invalid(
        "scores: expected ", expected_scores,
        " values (layers * heads * cut, for an external scorer only), got ",
        num_scores);
  }
  const bool wants_budgets =
      command.policy.budget.kind == BudgetKind::kExternal;
  const int64_t num_budgets =
      command.budgets == nullptr ? 0 : std::ssize(*command.budgets);
  if (num_budgets != (wants_budgets ? num_heads : 0)) {
    return Invalid("budgets: expected ", wants_budgets ? num_heads : 0,
                   " values (layers * heads, for external budgets only), got ",
                   num_budgets);
  }
  if (!wants_budgets) return absl::OkStatus();
  int32_t largest_budget = 0;
  for (const int32_t budget : *command.budgets) {
    BM_RETURN_IF_ERROR(RequireRange("budgets", budget, 0, INT32_MAX));
    largest_budget = std::max(largest_budget, budget);
  }
  if (largest_budget > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "budgets: expected one above 0, got 0 for every head");
}

absl::Status CheckNumPoints(const Request& request, const RequestState* parent,
                            const ModelLayout& layout) {
  const RequestEviction& eviction = request.eviction;
  const auto num_prompt = static_cast<int32_t>(request.prompt.size());
  const int32_t last_length = num_prompt + request.max_tokens - 1;
  const DecodeCompression* inherited =
      parent == nullptr ? nullptr : parent->eviction.decode.get();
  int32_t num_tokens = 0;
  int32_t every = 1;
  if (inherited != nullptr) {
    if (!KnowsTotals(inherited->table.get(), inherited->point.policy, layout)) {
      num_tokens = last_length - inherited->end;
      every = inherited->every;
    }
  } else if (eviction.mode == EvictionMode::kEveryChunk) {
    num_tokens = num_prompt;
    every = eviction.compress_every;
  } else if (eviction.mode == EvictionMode::kDecode &&
             !KnowsTotals(eviction.table.get(), eviction.policy, layout)) {
    num_tokens = request.max_tokens;
    every = eviction.compress_every;
  }
  if (num_tokens / every <= kMaxPlannedPoints) return absl::OkStatus();
  return Invalid(
      inherited == nullptr ? "eviction.compress_every" : "max_tokens",
      ": expected at most ", kMaxPlannedPoints,
      " compressions of one request, got ", num_tokens / every, ", every ",
      every, " of ", num_tokens, " tokens");
}

EvictionPlan PlanEviction(const Request& request, const RequestState* parent,
                          const ModelLayout& layout) {
  const auto num_prompt = static_cast<int32_t>(request.prompt.size());
  const int32_t last_length = num_prompt + request.max_tokens - 1;
  if (parent != nullptr) {
    return InheritedPlan(*parent, num_prompt, last_length, layout);
  }
  const RequestEviction& eviction = request.eviction;
  EvictionPlan planned;
  planned.compressions = PlanCompressions(eviction, num_prompt, layout);
  planned.decode =
      DecodeCompressionOf(eviction, num_prompt, last_length, layout);
  if (eviction.mode == EvictionMode::kPressure) {
    planned.squeeze = std::make_unique<const EvictionCommand>(
        EvictionCommand{.policy = eviction.policy,
                        .target = eviction.target,
                        .cut = 0,
                        .scores = nullptr,
                        .budgets = nullptr,
                        .table = eviction.table});
  }
  if (eviction.mode != EvictionMode::kNone) {
    planned.scorer_state = eviction.policy.scorer_state();
    planned.state_begin = eviction.policy.scorer.n_sink;
  }
  if (eviction.share_prefix) {
    planned.sharing = std::make_unique<const SharedCompression>(
        ShareCompression(eviction, num_prompt, layout));
  }
  return planned;
}

}  // namespace blockmgr
