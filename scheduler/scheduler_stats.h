// What a scheduler counts.
//
// A number is a member of SchedulerStats and a row of VisitSchedulerStats,
// which has its name, its Prometheus metric and its meaning. The rows are the
// source of the metrics (scheduler/server/metrics_exporter.h), of
// AdminService.GetStats (a field of the same name; wire/request_wire.h) and of
// the counts in the reports of blockmgr-bench. A visitor is called as
//
//   visit(kind, name, value, metric, help)
//
// where the value is an int32_t, int64_t or uint64_t, const if the stats are. A
// number whose metric is "" has no metric of its own: another metric covers it.
#ifndef SCHEDULER_SCHEDULER_STATS_H_
#define SCHEDULER_SCHEDULER_STATS_H_

#include <cstdint>
#include <vector>

#include "blockmgr/block_manager.h"
#include "scheduler/scheduler_options.h"

namespace blockmgr {

enum class StatKind : uint8_t {
  kCounter,  // grows from 0
  kGauge,    // the value now
  kPeak,     // since Scheduler::ForgetKeptEntries()
};

// See VisitSchedulerStats for meanings. Counters count from the creation of the
// scheduler.
struct SchedulerStats {
  int32_t num_waiting = 0;
  int64_t num_waiting_tokens = 0;
  int32_t num_running = 0;
  int32_t num_steps_in_flight = 0;
  uint64_t num_steps = 0;
  uint64_t num_finished = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_swap_outs = 0;
  uint64_t num_swap_ins = 0;
  uint64_t num_swapped_in_tokens = 0;
  int32_t num_swapped = 0;
  int32_t host_blocks = 0;
  int32_t used_host_blocks = 0;
  uint64_t num_passes = 0;
  uint64_t num_prefix_waits = 0;
  uint64_t num_prompt_tokens = 0;
  uint64_t num_cached_tokens = 0;
  uint64_t num_cached_region_tokens = 0;
  uint64_t num_computed_tokens = 0;
  uint64_t num_recomputed_tokens = 0;
  uint64_t num_output_tokens = 0;
  uint64_t num_draft_tokens = 0;
  uint64_t num_accepted_tokens = 0;
  uint64_t num_evictions = 0;
  uint64_t num_refused_evictions = 0;
  uint64_t num_squeezes = 0;
  uint64_t num_forks = 0;
  uint64_t num_lost_blocks = 0;
  uint64_t num_cut_requests = 0;
  uint64_t num_lost_host_blocks = 0;
  uint64_t evicted_entries = 0;
  uint64_t evicted_blocks = 0;
  int64_t evicted_bytes = 0;
  int32_t kept_entries_min = 0;
  int32_t kept_entries_median = 0;
  int32_t kept_entries_max = 0;
  std::vector<TenantUse> tenants;  // now: see Tenants::Uses
  BlockManagerStats blocks;
  int64_t metadata_bytes = 0;
};

template <typename Stats, typename Visitor>
void VisitRequestStats(Stats& s, Visitor&& visit) {
  visit(StatKind::kGauge, "num_waiting", s.num_waiting,
        "blockmgr_requests_waiting", "Requests without blocks now");
  visit(StatKind::kGauge, "num_waiting_tokens", s.num_waiting_tokens,
        "blockmgr_prompt_tokens_waiting",
        "Tokens of prompts that wait for their first admission now");
  visit(StatKind::kGauge, "num_running", s.num_running,
        "blockmgr_requests_running",
        "Admitted, unfinished requests, which hold blocks now");
  visit(StatKind::kGauge, "num_swapped", s.num_swapped,
        "blockmgr_requests_swapped",
        "Waiting requests whose KV is in host memory now");
  visit(StatKind::kGauge, "num_steps_in_flight", s.num_steps_in_flight,
        "blockmgr_steps_in_flight", "Plans without a result now");
  visit(StatKind::kCounter, "num_steps", s.num_steps, "blockmgr_steps_total",
        "Steps that the engine has answered");
  // blockmgr_requests_finished_total has them by reason.
  visit(StatKind::kCounter, "num_finished", s.num_finished, "",
        "Requests that ended");
  visit(StatKind::kCounter, "num_preemptions", s.num_preemptions,
        "blockmgr_preemptions_total",
        "Running requests that gave up their blocks");
  visit(StatKind::kCounter, "num_swap_outs", s.num_swap_outs,
        "blockmgr_swap_outs_total",
        "Preemptions whose KV was copied to the host");
  visit(StatKind::kCounter, "num_swap_ins", s.num_swap_ins,
        "blockmgr_swap_ins_total",
        "Swapped out requests that came back with their KV");
  visit(StatKind::kCounter, "num_swapped_in_tokens", s.num_swapped_in_tokens,
        "blockmgr_swapped_in_tokens_total",
        "Tokens whose KV came back from the host");
  visit(StatKind::kCounter, "num_passes", s.num_passes, "blockmgr_passes_total",
        "How often a later request passed one that did not fit");
  visit(StatKind::kCounter, "num_prefix_waits", s.num_prefix_waits,
        "blockmgr_prefix_waits_total",
        "Steps that requests waited for a prefix that another "
        "request was about to compute");
  visit(StatKind::kCounter, "num_forks", s.num_forks, "blockmgr_forks_total",
        "Requests that began with another's blocks");
  visit(StatKind::kCounter, "num_cut_requests", s.num_cut_requests,
        "blockmgr_cut_requests_total",
        "Running requests that held a lost block, counted each time");
}

template <typename Stats, typename Visitor>
void VisitTokenStats(Stats& s, Visitor&& visit) {
  visit(StatKind::kCounter, "num_prompt_tokens", s.num_prompt_tokens,
        "blockmgr_prompt_tokens_total",
        "Prompt tokens of requests at their first admission");
  visit(StatKind::kCounter, "num_cached_tokens", s.num_cached_tokens,
        "blockmgr_cached_tokens_total",
        "Prompt tokens that were not computed: prefix hits and forks");
  visit(StatKind::kCounter, "num_cached_region_tokens",
        s.num_cached_region_tokens, "blockmgr_cached_region_tokens_total",
        "Cached tokens that compressed prefixes held");
  visit(StatKind::kCounter, "num_computed_tokens", s.num_computed_tokens,
        "blockmgr_computed_tokens_total",
        "Tokens that the engine computed, again or for the first "
        "time");
  visit(StatKind::kCounter, "num_recomputed_tokens", s.num_recomputed_tokens,
        "blockmgr_recomputed_tokens_total",
        "Computed tokens that had been computed before");
  visit(StatKind::kCounter, "num_output_tokens", s.num_output_tokens,
        "blockmgr_output_tokens_total", "Tokens that the engine sampled");
  visit(StatKind::kCounter, "num_draft_tokens", s.num_draft_tokens,
        "blockmgr_draft_tokens_total", "Drafts that the engine verified");
  visit(StatKind::kCounter, "num_accepted_tokens", s.num_accepted_tokens,
        "blockmgr_accepted_draft_tokens_total",
        "Drafts that became outputs of their requests");
}

template <typename Stats, typename Visitor>
void VisitEvictionStats(Stats& s, Visitor&& visit) {
  visit(StatKind::kCounter, "num_evictions", s.num_evictions,
        "blockmgr_evictions_total", "Evictions carried out");
  visit(StatKind::kCounter, "num_refused_evictions", s.num_refused_evictions,
        "blockmgr_evictions_refused_total",
        "Evictions that the engine refused, of requests that still "
        "ran");
  visit(StatKind::kCounter, "num_squeezes", s.num_squeezes,
        "blockmgr_squeezes_total",
        "Evictions ordered because blocks were short");
  visit(StatKind::kCounter, "evicted_entries", s.evicted_entries,
        "blockmgr_evicted_entries_total",
        "Entries dropped, of all layers and heads");
  visit(StatKind::kCounter, "evicted_blocks", s.evicted_blocks,
        "blockmgr_evicted_blocks_total",
        "Blocks that sequences gave up by evictions");
  visit(StatKind::kCounter, "evicted_bytes", s.evicted_bytes,
        "blockmgr_evicted_bytes_total",
        "Bytes that sequences gave up by evictions, in all shards");
  visit(StatKind::kPeak, "kept_entries_min", s.kept_entries_min, "",
        "Fewest entries that an eviction kept in a (layer, head)");
  visit(StatKind::kPeak, "kept_entries_median", s.kept_entries_median, "",
        "Median of the entries that evictions kept per (layer, head)");
  visit(StatKind::kPeak, "kept_entries_max", s.kept_entries_max, "",
        "Most entries that an eviction kept in a (layer, head)");
}

template <typename Stats, typename Visitor>
void VisitMemoryStats(Stats& s, Visitor&& visit) {
  // blockmgr_pool_blocks and blockmgr_blocks have these by state.
  visit(StatKind::kGauge, "num_blocks", s.blocks.num_blocks, "",
        "Blocks of the pool, the null block included");
  visit(StatKind::kGauge, "free_blocks", s.blocks.free_blocks, "",
        "Blocks that nothing holds now");
  visit(StatKind::kGauge, "cached_blocks", s.blocks.cached_blocks, "",
        "Blocks that only the prefix cache holds now");
  visit(StatKind::kGauge, "fenced_blocks", s.blocks.fenced_blocks, "",
        "Released blocks that a step in flight may touch now");
  visit(StatKind::kGauge, "used_blocks", s.blocks.used_blocks, "",
        "Blocks that sequences hold now");
  visit(StatKind::kCounter, "reclaimed_blocks", s.blocks.reclaimed_blocks,
        "blockmgr_reclaimed_blocks_total",
        "Cached blocks taken for other content (vLLM: evicted)");
  visit(StatKind::kCounter, "num_lost_blocks", s.num_lost_blocks,
        "blockmgr_lost_blocks_total",
        "Blocks whose content the engine has lost");
  visit(StatKind::kGauge, "host_blocks", s.host_blocks, "blockmgr_host_blocks",
        "Blocks of the host tier");
  visit(StatKind::kGauge, "used_host_blocks", s.used_host_blocks,
        "blockmgr_used_host_blocks",
        "Blocks of the host tier that hold KV now");
  visit(StatKind::kCounter, "num_lost_host_blocks", s.num_lost_host_blocks,
        "blockmgr_lost_host_blocks_total",
        "Host blocks whose content the engine has lost");
  visit(StatKind::kGauge, "metadata_bytes", s.metadata_bytes,
        "blockmgr_metadata_bytes",
        "Memory of this process that keeps account of the blocks");
}

template <typename Stats, typename Visitor>
void VisitSchedulerStats(Stats& stats, Visitor&& visit) {
  VisitRequestStats(stats, visit);
  VisitTokenStats(stats, visit);
  VisitEvictionStats(stats, visit);
  VisitMemoryStats(stats, visit);
}

// Subtracts the counters of `before`, earlier stats of the same scheduler. The
// counters of `stats` then say what was counted since.
void SubtractCounters(const SchedulerStats& before, SchedulerStats* stats);

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_STATS_H_
