#include "tests/sim/options.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/check.h"

namespace blockmgr::sim {
namespace {

struct Field {
  absl::string_view name;
  int32_t SimOptions::*value;
};

constexpr Field kFields[] = {
    {"seed", &SimOptions::seed},
    {"page_size", &SimOptions::page_size},
    {"num_blocks", &SimOptions::num_blocks},
    {"num_layers", &SimOptions::num_layers},
    {"num_heads", &SimOptions::num_heads},
    {"num_shards", &SimOptions::num_shards},
    {"max_num_seqs", &SimOptions::max_num_seqs},
    {"max_num_batched_tokens", &SimOptions::max_num_batched_tokens},
    {"max_waiting", &SimOptions::max_waiting},
    {"max_waiting_tokens", &SimOptions::max_waiting_tokens},
    {"prefill_threshold", &SimOptions::prefill_threshold},
    {"watermark_percent", &SimOptions::watermark_percent},
    {"max_steps_in_flight", &SimOptions::max_steps_in_flight},
    {"query_window", &SimOptions::query_window},
    {"num_scorer_states", &SimOptions::num_scorer_states},
    {"num_host_blocks", &SimOptions::num_host_blocks},
    {"prefix_caching", &SimOptions::prefix_caching},
    {"reuse_parts", &SimOptions::reuse_parts},
    {"in_place", &SimOptions::in_place},
    {"policy", &SimOptions::policy},
    {"admission", &SimOptions::admission},
    {"chunk_policy", &SimOptions::chunk_policy},
    {"prefix_aging", &SimOptions::prefix_aging},
    {"max_bypasses", &SimOptions::max_bypasses},
    {"min_prefix_wait_tokens", &SimOptions::min_prefix_wait_tokens},
    {"max_long_prefills", &SimOptions::max_long_prefills},
    {"fair_share", &SimOptions::fair_share},
    {"tenant_max_blocks", &SimOptions::tenant_max_blocks},
    {"tenant_max_requests", &SimOptions::tenant_max_requests},
    {"tenant_max_tokens", &SimOptions::tenant_max_tokens},
    {"vocabulary", &SimOptions::vocabulary},
    {"other_choices", &SimOptions::other_choices},
    {"refuse_one_in", &SimOptions::refuse_one_in},
    {"engine_delay", &SimOptions::engine_delay},
    {"result_delay", &SimOptions::result_delay},
    {"num_clients", &SimOptions::num_clients},
    {"num_tenants", &SimOptions::num_tenants},
    {"grammar_tokens", &SimOptions::grammar_tokens},
    {"max_prompt", &SimOptions::max_prompt},
    {"max_output", &SimOptions::max_output},
    {"evict_percent", &SimOptions::evict_percent},
    {"share_percent", &SimOptions::share_percent},
    {"later_percent", &SimOptions::later_percent},
    {"fork_percent", &SimOptions::fork_percent},
    {"call_delay", &SimOptions::call_delay},
    {"lose_one_in", &SimOptions::lose_one_in},
    {"repeat_one_in", &SimOptions::repeat_one_in},
    {"batch", &SimOptions::batch},
    {"num_speculative_tokens", &SimOptions::num_speculative_tokens},
    {"max_drafts", &SimOptions::max_drafts},
    {"wrong_draft_one_in", &SimOptions::wrong_draft_one_in},
    {"window", &SimOptions::window},
    {"group_window_1", &SimOptions::group_window_1},
    {"group_window_2", &SimOptions::group_window_2},
    {"group_window_3", &SimOptions::group_window_3},
    {"scope_percent", &SimOptions::scope_percent},
    {"retention_percent", &SimOptions::retention_percent},
    {"media_percent", &SimOptions::media_percent},
    {"table_percent", &SimOptions::table_percent},
    {"keeps_all", &SimOptions::keeps_all},
    {"again_percent", &SimOptions::again_percent},
    {"answer_fault_one_in", &SimOptions::answer_fault_one_in},
    {"window_evict_percent", &SimOptions::window_evict_percent},
    {"stats_percent", &SimOptions::stats_percent},
};

// Layer groups in a third of the runs, and in a tenth a window alone.
void ChooseWindows(Random* random, SimOptions* options) {
  const auto window = [random, options] {
    const int32_t page_size = options->page_size;
    return random->Between(page_size,
                           random->Pick<int32_t>({1, 3, 8}) * page_size + 4);
  };
  if (random->OneIn(3)) {
    const int32_t num_groups = random->Between(1, 3);
    options->group_window_1 = window();
    if (num_groups > 1) options->group_window_2 = window();
    if (num_groups > 2) options->group_window_3 = window();
    // So that as many requests fit as without them, or less, but not none.
    const int32_t num_blocks =
        random->OneIn(3) ? options->num_blocks / 3 + 3 : options->num_blocks;
    options->num_blocks =
        std::max(options->num_blocks, num_blocks * (1 + num_groups));
    options->tenant_max_blocks *= 1 + num_groups;
  } else if (random->OneIn(6)) {
    options->window = window();
    options->evict_percent = 0;
    options->share_percent = 0;
    options->later_percent = 0;
  }
}

void ChooseQuotas(Random* random, SimOptions* options) {
  // Small quotas refuse the larger requests, not nearly all.
  const int32_t least = options->num_blocks / (random->OneIn(4) ? 4 : 2);
  options->tenant_max_blocks =
      random->OneIn(4) ? 0 : random->Between(least, options->num_blocks);
  options->tenant_max_requests = random->Between(0, 5);
  options->tenant_max_tokens = random->OneIn(2) ? random->Between(8, 300) : 0;
}

void ChoosePolicies(Random* random, SimOptions* options) {
  options->policy = random->Pick<int32_t>({0, 0, 1, 2});
  options->admission = random->Pick<int32_t>({0, 0, 1, 2});
  options->chunk_policy = random->OneIn(3) ? 1 : 0;
  options->prefix_aging = random->Pick<int32_t>({1, 8, 64});
  options->max_bypasses = random->Pick<int32_t>({0, 1, 16});
  options->min_prefix_wait_tokens = random->Pick<int32_t>({0, 1, 4, 256});
  if (options->prefill_threshold > 0 && random->OneIn(2)) {
    options->max_long_prefills = random->Between(1, 2);
  }
  options->num_tenants = random->OneIn(2) ? 1 : random->Between(2, 3);
  options->fair_share = random->OneIn(3) ? 1 : 0;
}

// Faults come one at a time in a third of the runs, all at once in a third.
void ChooseFaults(Random* random, SimOptions* options) {
  auto& weights = options->weights;
  const auto weight = [&weights](EventKind kind) -> int32_t& {
    return weights[static_cast<size_t>(kind)];
  };
  weight(EventKind::kAdvance) = 100;
  weight(EventKind::kSubmit) = random->Pick<int32_t>({10, 30, 60});
  weight(EventKind::kStats) = 1;
  const std::vector<std::pair<EventKind, int32_t>> faults = {
      {EventKind::kResubmit, 4},    {EventKind::kCancel, 6},
      {EventKind::kEvict, 20},      {EventKind::kHangUp, 2},
      {EventKind::kSlowClient, 1},  {EventKind::kCrash, 1},
      {EventKind::kCorrupt, 4},     {EventKind::kStaleOpen, 1},
      {EventKind::kWrongAttach, 1}, {EventKind::kReset, 2},
  };
  // In half of the runs engines and streams live long, and so do requests.
  const bool is_calm = random->OneIn(2);
  const int32_t style = random->Between(0, 3);
  if (style == 0) {
    const auto [kind, often] = random->Pick(faults);
    weight(kind) = 2 * often;
  } else {
    for (const auto& [kind, often] : faults) {
      if (style == 1 || random->OneIn(2)) weight(kind) = often;
    }
  }
  for (const EventKind kind :
       {EventKind::kAdvance, EventKind::kSubmit, EventKind::kResubmit,
        EventKind::kCancel, EventKind::kEvict}) {
    weight(kind) *= is_calm ? 30 : 1;
  }
  if (style == 0 && !random->OneIn(4)) return;
  options->lose_one_in = random->OneIn(2) ? 10 : 0;
  options->repeat_one_in = random->OneIn(2) ? 10 : 0;
  options->refuse_one_in = random->OneIn(4) ? 4 : 0;
  options->other_choices = random->OneIn(4) ? 1 : 0;
}

// What becomes of the evictions of requests.
void ChooseEvictions(Random* random, SimOptions* options) {
  // Sharers rely on an engine that keeps the same entries of the same tokens.
  if (options->evict_percent > 0 && options->other_choices == 0) {
    options->share_percent = random->Pick<int32_t>({0, 50, 90, 90});
    if (options->share_percent > 0 && !random->OneIn(4)) {
      // Prompts that are worth it, and room for what is shared to stay.
      options->num_blocks = std::max(options->num_blocks, 40);
      options->max_prompt =
          std::max(options->max_prompt, std::min(100, 8 * options->page_size));
      options->prefix_caching = 1;
    }
  }
  if (options->evict_percent > 0) {
    options->later_percent = random->Pick<int32_t>({0, 40, 90});
  }
}

// In some of the runs a few compressed sequences with long outputs crowd the
// pool: they are squeezed, forked, swapped out and come back.
void ChooseCrowds(Random* random, SimOptions* options) {
  const bool may_crowd =
      options->window == 0 && options->share_percent == 0 &&
      options->admission != static_cast<int32_t>(AdmissionPolicy::kGuaranteed);
  if (!may_crowd || !random->OneIn(2)) return;
  const auto num_groups = static_cast<int32_t>(options->Layout().num_groups());
  options->page_size = std::min(options->page_size, random->Between(1, 2));
  options->num_blocks = num_groups * random->Between(16, 40);
  options->tenant_max_blocks = 0;
  options->max_num_seqs = random->Between(4, 8);
  options->max_num_batched_tokens =
      std::max(options->max_num_batched_tokens, 24);
  options->max_prompt = 10 * options->page_size;
  options->max_output = 32 * options->page_size;
  options->max_waiting = 3;
  options->vocabulary = 1000;
  options->media_percent = 0;
  options->evict_percent = 90;
  options->later_percent = random->Pick<int32_t>({20, 60, 90});
  options->fork_percent = random->Pick<int32_t>({20, 70});
  options->num_host_blocks = 4 * options->num_blocks;
  options->watermark_percent = random->Pick<int32_t>({0, 1});
  // No more than it serves, or nobody would find the one it is a fork of.
  auto& weights = options->weights;
  weights[static_cast<size_t>(EventKind::kSubmit)] =
      weights[static_cast<size_t>(EventKind::kAdvance)] / 6;
}

// In a third of the runs about a tenth of all answers is lost, doubled or
// overtaken. Nearly each of them costs the engine: none where it is to live
// long.
void ChooseAnswerFaults(Random* random, SimOptions* options) {
  const bool is_calm =
      options->weights[static_cast<size_t>(EventKind::kAdvance)] > 100;
  if (is_calm || random->OneIn(3)) return;
  options->answer_fault_one_in = random->Between(7, 10);
}

// In most runs of hybrid models their windows are evicted from, too; in some of
// these sequences longer than the windows crowd the pool, with regions beside
// what the windows hold.
void ChooseWindowEvictions(Random* random, SimOptions* options) {
  if (options->group_window_1 == 0 || options->evict_percent == 0) return;
  options->window_evict_percent = random->Pick<int32_t>({0, 50, 90, 90});
  if (options->window_evict_percent == 0 || random->OneIn(2)) return;
  options->page_size = std::min(options->page_size, random->Between(1, 2));
  for (int32_t* window : {&options->group_window_1, &options->group_window_2,
                          &options->group_window_3}) {
    if (*window > 0) *window = options->page_size * random->Between(4, 12);
  }
  const auto num_groups = static_cast<int32_t>(options->Layout().num_groups());
  options->num_blocks = num_groups * random->Between(14, 40);
  options->tenant_max_blocks = 0;
  options->max_num_seqs = random->Between(3, 8);
  options->max_num_batched_tokens = random->Between(8, 24);
  options->max_prompt = 14 * options->page_size;
  options->max_output = 20 * options->page_size;
  options->vocabulary = 1000;
  options->evict_percent = 90;
  options->share_percent = 0;
  options->later_percent = random->Pick<int32_t>({0, 40, 80});
  options->fork_percent = random->Pick<int32_t>({20, 70});
  options->keeps_all = 1;
  if (random->OneIn(2)) {
    options->weights[static_cast<size_t>(EventKind::kLoseBlocks)] = 6;
  }
  if (random->OneIn(2)) {
    options->admission = static_cast<int32_t>(AdmissionPolicy::kGuaranteed);
  }
  // Of compressed prefixes that are shared, those that are still in windows.
  if (options->other_choices == 0 && random->OneIn(2)) {
    options->share_percent = 80;
    options->prefix_caching = 1;
  }
}

SimOptions Checked(const SimOptions& options) {
  BM_CHECK(options.Layout().Validate().ok());
  BM_CHECK(options.Scheduler().Validate().ok());
  return options;
}

void ChooseTokenQuotasAndStats(Random* random, SimOptions* options) {
  if (random->OneIn(8)) options->max_waiting_tokens = random->Between(1, 200);
  // The seeds that plants.txt names, most below 100, find their bugs without.
  if (options->seed > 100 && random->OneIn(3)) options->stats_percent = 30;
}

}  // namespace

ModelLayout SimOptions::Layout() const {
  ModelLayout layout = {.num_layers = num_layers,
                        .num_heads = num_heads,
                        .num_q_heads = num_heads,
                        .head_dim = 8,
                        .page_size = page_size,
                        .dtype = DType::kFloat32,
                        .num_blocks = num_blocks,
                        .num_shards = num_shards,
                        .window = window};
  for (const int32_t tokens :
       {group_window_1, group_window_2, group_window_3}) {
    if (tokens > 0) layout.group_windows.push_back(tokens);
  }
  return layout;
}

SchedulerOptions SimOptions::Scheduler() const {
  SchedulerOptions options;
  options.max_num_batched_tokens = max_num_batched_tokens;
  options.max_num_seqs = max_num_seqs;
  options.max_model_len = 4096;
  options.long_prefill_token_threshold = prefill_threshold;
  options.watermark = watermark_percent / 100.0;
  options.max_steps_in_flight = max_steps_in_flight;
  options.max_waiting = max_waiting;
  options.max_waiting_tokens = max_waiting_tokens;
  options.num_speculative_tokens = num_speculative_tokens;
  options.query_window = query_window;
  options.engine.num_scorer_states = num_scorer_states;
  options.engine.num_host_blocks = num_host_blocks;
  options.engine.supports_window_evictions = window_evict_percent > 0;
  if (stats_percent > 0) options.engine.query_stats["measured"] = "1a2b";
  options.enable_prefix_caching = prefix_caching != 0;
  options.reuse_partial_blocks = reuse_parts != 0;
  options.compaction = in_place != 0 ? CompactionPreference::kInPlace
                                     : CompactionPreference::kFreshFirst;
  options.policy = static_cast<SchedulingPolicy>(policy);
  options.admission = static_cast<AdmissionPolicy>(admission);
  options.chunk_policy = static_cast<ChunkPolicy>(chunk_policy);
  options.prefix_aging = prefix_aging;
  options.max_bypasses = max_bypasses;
  options.min_prefix_wait_tokens = min_prefix_wait_tokens;
  options.max_long_prefills = max_long_prefills;
  options.fair_share = fair_share != 0;
  options.tenant_limits = {.max_blocks = tenant_max_blocks,
                           .max_requests = tenant_max_requests,
                           .max_queued_tokens = tenant_max_tokens};
  return options;
}

CanaryOptions SimOptions::Canary() const {
  return {.seed = static_cast<uint64_t>(seed) + 1,
          .vocabulary = vocabulary,
          .same_choice_on_replay = other_choices == 0,
          .keeps_all = keeps_all != 0,
          .refuse_one_in = refuse_one_in,
          .num_host_blocks = num_host_blocks,
          .max_drafts = max_drafts,
          .wrong_draft_one_in = wrong_draft_one_in};
}

SimOptions OptionsForSeed(int32_t seed) {
  Random random(0x51B0000000000000ull ^ static_cast<uint64_t>(seed));
  SimOptions options;
  options.seed = seed;
  options.page_size = random.Pick<int32_t>({1, 2, 2, 16});
  // Mostly tiny pools: there somebody is preempted all the time.
  const int32_t largest = random.Pick<int32_t>({6, 12, 24, 64});
  options.num_blocks = random.Between(3, largest + 1);
  options.num_layers = random.Between(1, 3);
  options.num_heads = random.Between(1, random.OneIn(3) ? 8 : 3);
  options.max_num_seqs = random.Between(1, 8);
  options.max_num_batched_tokens =
      random.Between(std::max(4, options.max_num_seqs), 48);
  options.max_waiting = random.OneIn(8) ? 3 : 64;
  options.prefill_threshold = random.OneIn(3) ? random.Between(1, 20) : 0;
  options.watermark_percent = random.Pick<int32_t>({0, 1, 10, 50});
  options.max_steps_in_flight = random.Between(1, 4);
  options.query_window = random.Between(0, 6);
  // Few: somebody waits for one.
  options.num_scorer_states =
      random.OneIn(3) ? random.Pick<int32_t>({1, 1, 2, 4}) : 0;
  options.prefix_caching = random.OneIn(4) ? 0 : 1;
  options.in_place = random.OneIn(2) ? 1 : 0;
  options.vocabulary = random.OneIn(2) ? 4 : 1000;
  options.engine_delay = random.Between(0, 3);
  options.result_delay = random.Between(0, 3);
  options.num_clients = random.Between(1, 4);
  options.grammar_tokens = random.Pick<int32_t>({2, 3, 50});
  // So that a handful of requests fill the pool.
  const int32_t room = (options.num_blocks - 1) * options.page_size;
  options.max_prompt = std::clamp(room / 2, 2, 100);
  options.max_output = std::clamp(room / 2, 2, 40);
  options.evict_percent = random.Pick<int32_t>({0, 0, 40, 90, 90});
  options.call_delay = random.Between(0, 4);
  options.batch = random.OneIn(3) ? random.Between(2, 4) : 1;
  ChoosePolicies(&random, &options);
  ChooseFaults(&random, &options);
  ChooseEvictions(&random, &options);
  options.weights[static_cast<size_t>(EventKind::kLoseBlocks)] =
      random.Pick<int32_t>({0, 0, 0, 1, 6});
  options.fork_percent = random.Pick<int32_t>({0, 0, 20, 60});
  if (random.OneIn(4)) ChooseQuotas(&random, &options);
  options.reuse_parts = random.OneIn(2) ? 1 : 0;
  // None, too few for anybody, for some, and for all.
  options.num_host_blocks = random.Pick<int32_t>(
      {0, 0, 1, options.num_blocks / 2, 4 * options.num_blocks});
  if (random.OneIn(2)) {
    options.num_speculative_tokens = random.Pick<int32_t>({0, 1, 3, 8, 20});
    options.max_drafts = random.Between(1, 8);
    options.wrong_draft_one_in = random.Between(1, 12);
  }
  if (random.OneIn(3)) {
    options.num_shards = random.Between(2, 4);
    options.num_heads = options.num_shards * random.Between(1, 2);
  }
  ChooseWindows(&random, &options);
  options.scope_percent = random.Pick<int32_t>({0, 0, 30});
  options.retention_percent = random.Pick<int32_t>({0, 0, 40});
  options.weights[static_cast<size_t>(EventKind::kHoldPlans)] =
      random.Pick<int32_t>({0, 0, 1, 2});
  options.media_percent = random.Pick<int32_t>({0, 40});
  options.table_percent = random.Pick<int32_t>({0, 0, 30, 80});
  options.keeps_all = random.OneIn(2) ? 1 : 0;
  options.again_percent = random.Pick<int32_t>({0, 0, 20, 60});
  ChooseCrowds(&random, &options);
  ChooseAnswerFaults(&random, &options);
  ChooseWindowEvictions(&random, &options);
  ChooseTokenQuotasAndStats(&random, &options);
  return Checked(options);
}

Event NextEvent(const SimOptions& options, Random* random) {
  const int32_t total =
      std::accumulate(options.weights.begin(), options.weights.end(), 0);
  BM_CHECK(total > 0);
  int32_t left = random->Between(0, total - 1);
  Event event;
  event.noise = random->Next() & 0xFFFFFFFFull;
  for (int32_t i = 0; i < kNumEventKinds; ++i) {
    left -= options.weights[i];
    if (left >= 0) continue;
    event.kind = static_cast<EventKind>(i);
    break;
  }
  return event;
}

std::string FormatOptions(const SimOptions& options) {
  std::string text;
  for (const Field& field : kFields) {
    absl::StrAppend(&text, field.name, " ", options.*field.value, "\n");
  }
  for (int32_t i = 0; i < kNumEventKinds; ++i) {
    absl::StrAppend(&text, "weight.", EventName(static_cast<EventKind>(i)), " ",
                    options.weights[i], "\n");
  }
  return text;
}

absl::StatusOr<SimOptions> ParseOptions(absl::string_view text) {
  SimOptions options;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int32_t* value = nullptr;
    for (const Field& field : kFields) {
      if (!words.empty() && field.name == words[0]) {
        value = &(options.*field.value);
      }
    }
    for (int32_t i = 0; i < kNumEventKinds; ++i) {
      const std::string name =
          absl::StrCat("weight.", EventName(static_cast<EventKind>(i)));
      if (!words.empty() && name == words[0]) value = &options.weights[i];
    }
    if (words.size() != 2 || value == nullptr ||
        !absl::SimpleAtoi(words[1], value)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "option: expected a name and a number, got '", line, "'"));
    }
  }
  return options;
}

}  // namespace blockmgr::sim
