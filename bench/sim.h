// A daemon and an engine in one process and in virtual time: an hour of trace
// in seconds.
//
// Arrivals are submitted when virtual time passes them; whenever the scheduler
// has a step to give, it is issued, up to max_steps_in_flight of them, and the
// simulated engine runs them one after the other. No clock and no threads: the
// same arguments give the same result, bit for bit.
#ifndef BENCH_SIM_H_
#define BENCH_SIM_H_

#include <cstdint>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "bench/options.h"
#include "bench/report.h"
#include "engine/reference/sim_engine.h"
#include "program/progress.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

struct SimOptions {
  SimModel model;
  // 22,527 blocks of Llama-3.1-8B, 47 GB: what an 80 GB GPU has left.
  int32_t num_blocks = 22528;  // the null block included
  SchedulerOptions scheduler;
  uint64_t seed = 0;  // of the engine
};

// Adds the flags of the scheduler and of the simulated model. `options` is
// borrowed and must outlive the parsing.
void AddSimFlags(CLI::App* app, SimOptions* options);

// Runs a plan to its end. `progress` may be null. Errors: a bad model, pool or
// scheduler option, named; Internal if the scheduler stops with requests left.
absl::StatusOr<RunResult> RunSim(const SimOptions& options,
                                 const BenchPlan& plan, Progress* progress);

}  // namespace blockmgr

#endif  // BENCH_SIM_H_
