#include "scheduler/server/scheduler_flags.h"

#include <map>
#include <string>

#include "scheduler/server/flag_checks.h"

namespace blockmgr {
namespace {

constexpr char kSchedulerGroup[] = "Scheduler";
constexpr char kPolicyGroup[] = "Scheduling policy";

template <typename Number>
void AddNumber(CLI::App* app, const char* group, const char* flag,
               Number* value, const char* text) {
  if (text == nullptr) return;
  app->add_option(flag, *value, text)
      ->check(AnyNumber<Number>())
      ->capture_default_str()
      ->group(group);
}

// `chosen`: the name of the default.
template <typename Enum>
void AddChoice(CLI::App* app, const char* group, const char* flag, Enum* value,
               const std::map<std::string, Enum>& names, const char* choices,
               const char* chosen, const char* text) {
  if (text == nullptr) return;
  app->add_option(flag, *value, text)
      ->transform(NameIn(names, choices))
      ->default_str(chosen)
      ->group(group);
}

}  // namespace

void AddSchedulerFlags(CLI::App* app, const SchedulerFlagTexts& texts,
                       SchedulerOptions* options) {
  const auto add = [app](const char* flag, auto* value, const char* text) {
    AddNumber(app, kSchedulerGroup, flag, value, text);
  };
  add("--max-num-batched-tokens", &options->max_num_batched_tokens,
      texts.max_num_batched_tokens);
  add("--max-num-seqs", &options->max_num_seqs, texts.max_num_seqs);
  add("--max-model-len", &options->max_model_len, texts.max_model_len);
  add("--long-prefill-token-threshold", &options->long_prefill_token_threshold,
      texts.long_prefill_token_threshold);
  add("--watermark", &options->watermark, texts.watermark);
  add("--max-steps-in-flight", &options->max_steps_in_flight,
      texts.max_steps_in_flight);
  add("--num-speculative-tokens", &options->num_speculative_tokens,
      texts.num_speculative_tokens);
  add("--max-waiting", &options->max_waiting, texts.max_waiting);
  add("--max-waiting-tokens", &options->max_waiting_tokens,
      texts.max_waiting_tokens);
  add("--max-num-blocks", &options->max_num_blocks, texts.max_num_blocks);
  add("--query-window", &options->query_window, texts.query_window);
  if (texts.enable_prefix_caching != nullptr) {
    app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                  options->enable_prefix_caching, texts.enable_prefix_caching)
        ->group(kSchedulerGroup);
  }
  if (texts.reuse_partial_blocks != nullptr) {
    app->add_flag("--reuse-partial-blocks", options->reuse_partial_blocks,
                  texts.reuse_partial_blocks)
        ->group(kSchedulerGroup);
  }
  static const auto& compaction =
      *new std::map<std::string, CompactionPreference>{
          {"fresh", CompactionPreference::kFreshFirst},
          {"in-place", CompactionPreference::kInPlace}};
  AddChoice(app, kSchedulerGroup, "--compaction", &options->compaction,
            compaction, "fresh|in-place", "fresh", texts.compaction);
}

void AddPolicyFlags(CLI::App* app, const PolicyFlagTexts& texts,
                    SchedulerOptions* options) {
  AddChoice(app, kPolicyGroup, "--scheduling-policy", &options->policy,
            SchedulingPolicyNames(), "fcfs|priority|prefix", "fcfs",
            texts.scheduling_policy);
  AddChoice(app, kPolicyGroup, "--admission", &options->admission,
            AdmissionPolicyNames(), "vllm|guaranteed|max_utilization", "vllm",
            texts.admission);
  AddChoice(app, kPolicyGroup, "--chunk-policy", &options->chunk_policy,
            ChunkPolicyNames(), "first_come|equal_progress", "first_come",
            texts.chunk_policy);
  const auto add = [app](const char* flag, auto* value, const char* text) {
    AddNumber(app, kPolicyGroup, flag, value, text);
  };
  add("--prefix-aging", &options->prefix_aging, texts.prefix_aging);
  add("--max-bypasses", &options->max_bypasses, texts.max_bypasses);
  add("--min-prefix-wait-tokens", &options->min_prefix_wait_tokens,
      texts.min_prefix_wait_tokens);
  add("--max-prefix-wait-steps", &options->max_prefix_wait_steps,
      texts.max_prefix_wait_steps);
  add("--max-long-prefills", &options->max_long_prefills,
      texts.max_long_prefills);
}

}  // namespace blockmgr
