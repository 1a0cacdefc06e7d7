// Scripts of calls of a BlockManager, each of which the manager's fault test
// lets fail once.
#ifndef TESTS_SIM_TAKER_SCENARIOS_H_
#define TESTS_SIM_TAKER_SCENARIOS_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/sim/taker.h"

namespace blockmgr::sim {

struct TakerScenario {
  std::string name;
  TakerWorld world;
  std::function<void(Taker*)> play;
};

// Blocks are reserved, copied and evicted, of one layer group.
std::vector<TakerScenario> PoolScenarios();
// With a host tier, or layers that have a window.
std::vector<TakerScenario> HostAndWindowScenarios();

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_TAKER_SCENARIOS_H_
