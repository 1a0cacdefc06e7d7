// The world of one run: derived from a seed (swarm testing: every seed switches
// other features and faults off and on, because a run with everything on hides
// what only shows when something is off), or read from a stored run.
#ifndef TESTS_SIM_OPTIONS_H_
#define TESTS_SIM_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/model_layout.h"
#include "scheduler/scheduler.h"
#include "tests/sim/event.h"
#include "tests/sim/random.h"
#include "tests/testing/canary_options.h"

namespace blockmgr::sim {

struct SimOptions {
  int32_t seed = 0;

  // Layout.
  int32_t page_size = 1;
  int32_t num_blocks = 8;  // the null block included
  int32_t num_layers = 1;
  int32_t num_heads = 1;
  int32_t num_shards = 1;
  // Tokens; 0: all, or no such group.
  int32_t window = 0;
  int32_t group_window_1 = 0;
  int32_t group_window_2 = 0;
  int32_t group_window_3 = 0;

  // Scheduler.
  int32_t max_num_seqs = 4;
  int32_t max_num_batched_tokens = 16;
  int32_t max_waiting = 64;
  int32_t max_waiting_tokens = 1 << 20;
  int32_t prefill_threshold = 0;
  int32_t watermark_percent = 0;
  int32_t max_steps_in_flight = 1;
  int32_t num_speculative_tokens = 0;
  int32_t query_window = 4;
  int32_t num_scorer_states = 0;
  int32_t num_host_blocks = 0;
  int32_t prefix_caching = 1;
  int32_t reuse_parts = 0;
  int32_t in_place = 0;
  // By value of their enums.
  int32_t policy = 0;
  int32_t admission = 0;
  int32_t chunk_policy = 0;
  int32_t prefix_aging = 32;
  int32_t max_bypasses = 16;
  int32_t min_prefix_wait_tokens = 256;
  int32_t max_long_prefills = 0;
  int32_t fair_share = 0;
  // Of every tenant; 0: no limit.
  int32_t tenant_max_blocks = 0;
  int32_t tenant_max_requests = 0;
  int32_t tenant_max_tokens = 0;  // of prompts that wait

  // Engine.
  int32_t vocabulary = 4;
  int32_t other_choices = 0;  // keeps other entries when it recomputes
  int32_t refuse_one_in = 0;  // of eviction orders
  int32_t max_drafts = 0;     // ready after a token
  int32_t wrong_draft_one_in = 4;
  int32_t engine_delay = 2;         // at most, from plan to execution, ticks
  int32_t result_delay = 2;         // at most, from execution to core, ticks
  int32_t answer_fault_one_in = 0;  // of answers: lost, sent twice, overtaken

  // Clients.
  int32_t num_clients = 2;
  int32_t num_tenants = 1;
  int32_t grammar_tokens = 3;  // of prompts: the fewer the more hits
  int32_t max_prompt = 40;
  int32_t max_output = 12;
  int32_t evict_percent = 0;         // of requests
  int32_t share_percent = 0;         // of those: share what they compress
  int32_t later_percent = 0;         // of those: in decode, or under pressure
  int32_t window_evict_percent = 0;  // of those: in window groups, too
  int32_t fork_percent = 0;          // of requests
  int32_t scope_percent = 0;         // of requests: with an adapter or a salt
  int32_t retention_percent = 0;     // of requests: wish that blocks stay
  int32_t media_percent = 0;  // of requests, forks included: media of its own
  int32_t table_percent = 0;  // of evictions: budgets by a table
  int32_t stats_percent = 0;  // of evictions: query statistics of a table
  int32_t keeps_all = 0;      // bool: regions are as large as they may be
  int32_t again_percent = 0;  // of requests: the prompt of another, or more
  int32_t call_delay = 3;     // at most, ticks; calls overtake each other
  int32_t lose_one_in = 0;    // of calls
  int32_t repeat_one_in = 0;  // of calls: arrive twice
  int32_t batch = 1;          // messages handled in one pass, at most

  // How often each kind of event happens, relative to the others.
  std::array<int32_t, kNumEventKinds> weights = {};

  ModelLayout Layout() const;
  SchedulerOptions Scheduler() const;
  CanaryOptions Canary() const;
  friend bool operator==(const SimOptions&, const SimOptions&) = default;
};

SimOptions OptionsForSeed(int32_t seed);

// The next event of a run of these options.
Event NextEvent(const SimOptions& options, Random* random);

// One "name value" line per option. Unknown names are errors; options that are
// not named keep their defaults.
std::string FormatOptions(const SimOptions& options);
absl::StatusOr<SimOptions> ParseOptions(absl::string_view text);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_OPTIONS_H_
