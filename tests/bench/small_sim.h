// A simulation small enough that hundreds of requests take a moment.
#ifndef TESTS_BENCH_SMALL_SIM_H_
#define TESTS_BENCH_SMALL_SIM_H_

#include "bench/options.h"
#include "bench/sim.h"

namespace blockmgr {

inline SimOptions SmallSim() {
  SimOptions sim;
  sim.model.num_layers = 2;
  sim.model.num_heads = 2;
  sim.model.num_q_heads = 4;
  sim.model.head_dim = 64;
  sim.model.layer_params = 1e8;
  sim.model.output_params = 0;
  sim.model.step_overhead_s = 0.001;
  sim.num_blocks = 400;
  sim.scheduler.max_num_batched_tokens = 512;
  return sim;
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_SMALL_SIM_H_
