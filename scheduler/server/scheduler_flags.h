// The scheduler's options as flags, for every program that has a scheduler.
//
// A flag is called, read and defaulted alike everywhere; each program says in
// its own words what it is for, and leaves out what means nothing to it.
#ifndef SCHEDULER_SERVER_SCHEDULER_FLAGS_H_
#define SCHEDULER_SERVER_SCHEDULER_FLAGS_H_

#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "scheduler/scheduler_options.h"

namespace blockmgr {

// Help of each flag; without one there is no such flag.
struct SchedulerFlagTexts {
  const char* max_num_batched_tokens = nullptr;
  const char* max_num_seqs = nullptr;
  const char* max_model_len = nullptr;
  const char* long_prefill_token_threshold = nullptr;
  const char* watermark = nullptr;
  const char* max_steps_in_flight = nullptr;
  const char* num_speculative_tokens = nullptr;
  const char* max_waiting = nullptr;
  const char* max_waiting_tokens = nullptr;
  const char* max_num_blocks = nullptr;
  const char* query_window = nullptr;
  const char* enable_prefix_caching = nullptr;
  const char* reuse_partial_blocks = nullptr;
  const char* compaction = nullptr;
};

// The same for who is next, who is admitted and who gets how much of a step.
struct PolicyFlagTexts {
  const char* scheduling_policy = nullptr;
  const char* admission = nullptr;
  const char* chunk_policy = nullptr;
  const char* prefix_aging = nullptr;
  const char* max_bypasses = nullptr;
  const char* min_prefix_wait_tokens = nullptr;
  const char* max_prefix_wait_steps = nullptr;
  const char* max_long_prefills = nullptr;
};

// Add the flags, in this order, whose defaults are the values in `options`.
// That is borrowed, and must outlive the parsing. Values are checked when a
// scheduler is created (SchedulerOptions::Validate), names of policies here.
void AddSchedulerFlags(CLI::App* app, const SchedulerFlagTexts& texts,
                       SchedulerOptions* options);
void AddPolicyFlags(CLI::App* app, const PolicyFlagTexts& texts,
                    SchedulerOptions* options);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SCHEDULER_FLAGS_H_
