// World: a daemon's core, its clients, its engine and the wire between them, in
// one thread and in virtual time.
//
//   chaos     Apply(event), any number of times
//   heal      Heal(): faults stop. Every admitted request must end, and new
//             ones must be served, within a stated number of steps.
//   quiesce   Quiesce(): drain. Nothing may be left but the cache.
//
// Clients call (submit, cancel, evict) over a wire that loses, repeats, delays
// and reorders calls. The core must not take the answer of an engine for
// another one, although answers may be lost, repeated and overtaken.
//
//   WorldCore     the core, its passes, the wire and time
//   WorldClients  what clients ask for and see
//   WorldEngine   the engine, and what goes wrong with it
//
// Whatever is wrong is the report's first failure.
#ifndef TESTS_SIM_WORLD_H_
#define TESTS_SIM_WORLD_H_

#include "tests/sim/event.h"
#include "tests/sim/options.h"
#include "tests/sim/report.h"
#include "tests/sim/world_clients.h"
#include "tests/sim/world_core.h"
#include "tests/sim/world_engine.h"

namespace blockmgr::sim {

class World {
 public:
  World(const SimOptions& options, Report* report);
  // Ends the core first, so that late deliveries find a whole world.
  ~World() { core_.Stop(); }

  void Apply(const Event& event);
  void Heal();
  void Quiesce();

 private:
  void AskStats();
  void ResetCache();

  const SimOptions options_;
  Report* const report_;
  WorldCore core_{options_, report_};
  WorldEngine engine_{&core_};
  WorldClients clients_{&core_, engine_.canary()};
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_WORLD_H_
