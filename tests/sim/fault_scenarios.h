// The scenarios of fault_test.cc.
#ifndef TESTS_SIM_FAULT_SCENARIOS_H_
#define TESTS_SIM_FAULT_SCENARIOS_H_

#include <iosfwd>
#include <vector>

#include "tests/sim/scripted.h"

namespace blockmgr::sim {

void PrintTo(const Scenario& scenario, std::ostream* out);

// Without and with evictions, swaps and drafts.
std::vector<Scenario> FaultScenarios();

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_FAULT_SCENARIOS_H_
