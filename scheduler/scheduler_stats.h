// SchedulerStats: the counters and gauges of a scheduler.
//
// A number is a row of BM_SCHEDULER_STATS: X(kind, type, name, metric, help).
// The rows are the source of the members of SchedulerStats, of the Prometheus
// metrics (scheduler/server/metrics_exporter.cc), of AdminService.GetStats (the
// field of the same name; wire/request_wire.cc) and of the counts in the
// reports of blockmgr-bench. A number whose metric is "" has no metric of its
// own, because another metric covers it.
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
  kPeak,     // most since Scheduler::ForgetKeptEntries()
};

// Counters count from the creation of the scheduler.
#define BM_SCHEDULER_STATS(X)                                                 \
  X(Gauge, int32_t, num_waiting, "blockmgr_requests_waiting",                 \
    "Requests without blocks now")                                            \
  X(Gauge, int64_t, num_waiting_tokens, "blockmgr_prompt_tokens_waiting",     \
    "Tokens of prompts that wait for their first admission now")              \
  X(Gauge, int32_t, num_running, "blockmgr_requests_running",                 \
    "Admitted, unfinished requests, which hold blocks now")                   \
  X(Gauge, int32_t, num_swapped, "blockmgr_requests_swapped",                 \
    "Waiting requests whose KV is in host memory now")                        \
  X(Gauge, int32_t, num_steps_in_flight, "blockmgr_steps_in_flight",          \
    "Plans without a result now")                                             \
  X(Counter, uint64_t, num_steps, "blockmgr_steps_total",                     \
    "Steps that the engine has answered")                                     \
  X(Counter, uint64_t, num_finished, "", "Requests that ended")               \
  X(Counter, uint64_t, num_preemptions, "blockmgr_preemptions_total",         \
    "Running requests that gave up their blocks")                             \
  X(Counter, uint64_t, num_swap_outs, "blockmgr_swap_outs_total",             \
    "Preemptions whose KV was copied to the host")                            \
  X(Counter, uint64_t, num_swap_ins, "blockmgr_swap_ins_total",               \
    "Swapped out requests that came back with their KV")                      \
  X(Counter, uint64_t, num_swapped_in_tokens,                                 \
    "blockmgr_swapped_in_tokens_total",                                       \
    "Tokens whose KV came back from the host")                                \
  X(Counter, uint64_t, num_passes, "blockmgr_passes_total",                   \
    "How often a later request passed one that did not fit")                  \
  X(Counter, uint64_t, num_prefix_waits, "blockmgr_prefix_waits_total",       \
    "Steps that requests waited for a prefix that another request was about " \
    "to compute")                                                             \
  X(Counter, uint64_t, num_forks, "blockmgr_forks_total",                     \
    "Requests that began with another's blocks")                              \
  X(Counter, uint64_t, num_cut_requests, "blockmgr_cut_requests_total",       \
    "Running requests that held a lost block, counted each time")             \
  X(Counter, uint64_t, num_prompt_tokens, "blockmgr_prompt_tokens_total",     \
    "Prompt tokens of requests at their first admission")                     \
  X(Counter, uint64_t, num_cached_tokens, "blockmgr_cached_tokens_total",     \
    "Prompt tokens that were not computed: prefix hits and forks")            \
  X(Counter, uint64_t, num_cached_region_tokens,                              \
    "blockmgr_cached_region_tokens_total",                                    \
    "Cached tokens that compressed prefixes held")                            \
  X(Counter, uint64_t, num_computed_tokens, "blockmgr_computed_tokens_total", \
    "Tokens that the engine computed, again or for the first time")           \
  X(Counter, uint64_t, num_recomputed_tokens,                                 \
    "blockmgr_recomputed_tokens_total",                                       \
    "Computed tokens that had been computed before")                          \
  X(Counter, uint64_t, num_output_tokens, "blockmgr_output_tokens_total",     \
    "Tokens that the engine sampled")                                         \
  X(Counter, uint64_t, num_draft_tokens, "blockmgr_draft_tokens_total",       \
    "Drafts that the engine verified")                                        \
  X(Counter, uint64_t, num_accepted_tokens,                                   \
    "blockmgr_accepted_draft_tokens_total",                                   \
    "Drafts that became outputs of their requests")                           \
  X(Counter, uint64_t, num_evictions, "blockmgr_evictions_total",             \
    "Evictions carried out")                                                  \
  X(Counter, uint64_t, num_refused_evictions,                                 \
    "blockmgr_evictions_refused_total",                                       \
    "Evictions that the engine refused, of requests that still ran")          \
  X(Counter, uint64_t, num_squeezes, "blockmgr_squeezes_total",               \
    "Evictions ordered because blocks were short")                            \
  X(Counter, uint64_t, evicted_entries, "blockmgr_evicted_entries_total",     \
    "Entries dropped, of all layers and heads")                               \
  X(Counter, uint64_t, evicted_blocks, "blockmgr_evicted_blocks_total",       \
    "Blocks that sequences gave up by evictions")                             \
  X(Counter, int64_t, evicted_bytes, "blockmgr_evicted_bytes_total",          \
    "Bytes that sequences gave up by evictions, in all shards")               \
  X(Peak, int32_t, kept_entries_min, "",                                      \
    "Fewest entries that an eviction kept in a (layer, head)")                \
  X(Peak, int32_t, kept_entries_median, "",                                   \
    "Median of the entries that evictions kept per (layer, head)")            \
  X(Peak, int32_t, kept_entries_max, "",                                      \
    "Most entries that an eviction kept in a (layer, head)")                  \
  X(Counter, uint64_t, num_lost_blocks, "blockmgr_lost_blocks_total",         \
    "Blocks whose content the engine has lost")                               \
  X(Gauge, int32_t, host_blocks, "blockmgr_host_blocks",                      \
    "Blocks of the host tier")                                                \
  X(Gauge, int32_t, used_host_blocks, "blockmgr_used_host_blocks",            \
    "Blocks of the host tier that hold KV now")                               \
  X(Counter, uint64_t, num_lost_host_blocks,                                  \
    "blockmgr_lost_host_blocks_total",                                        \
    "Host blocks whose content the engine has lost")                          \
  X(Gauge, int64_t, metadata_bytes, "blockmgr_metadata_bytes",                \
    "Memory of this process that keeps account of the blocks")

// Numbers of BlockManagerStats. blockmgr_pool_blocks and blockmgr_blocks have
// the gauges, by state.
#define BM_BLOCK_STATS(X)                                                   \
  X(Gauge, int32_t, num_blocks, "",                                         \
    "Blocks of the pool, the null block included")                          \
  X(Gauge, int32_t, free_blocks, "", "Blocks that nothing holds now")       \
  X(Gauge, int32_t, cached_blocks, "",                                      \
    "Blocks that only the prefix cache holds now")                          \
  X(Gauge, int32_t, fenced_blocks, "",                                      \
    "Released blocks that a step in flight may touch now")                  \
  X(Gauge, int32_t, used_blocks, "", "Blocks that sequences hold now")      \
  X(Counter, uint64_t, reclaimed_blocks, "blockmgr_reclaimed_blocks_total", \
    "Cached blocks taken for other content (vLLM: evicted)")

struct SchedulerStats {
#define BM_MEMBER(kind, type, name, metric, help) type name = 0;
  BM_SCHEDULER_STATS(BM_MEMBER)
#undef BM_MEMBER
  // The use now: one item per tenant that the options name, and one ("*") for
  // all others.
  std::vector<TenantUse> tenants;
  BlockManagerStats blocks;
};

// Calls visit(StatKind, name, value, metric, help) for every number.
template <typename Stats, typename Visitor>
void VisitSchedulerStats(Stats& stats, Visitor&& visit) {
#define BM_VISIT(kind, type, name, metric, help) \
  visit(StatKind::k##kind, #name, stats.name, metric, help);
  BM_SCHEDULER_STATS(BM_VISIT)
#undef BM_VISIT
#define BM_VISIT(kind, type, name, metric, help) \
  visit(StatKind::k##kind, #name, stats.blocks.name, metric, help);
  BM_BLOCK_STATS(BM_VISIT)
#undef BM_VISIT
}

// Subtracts the counters of `before`, earlier stats of the same scheduler. The
// counters of `stats` then say what was counted since.
void SubtractCounters(const SchedulerStats& before, SchedulerStats* stats);

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_STATS_H_
