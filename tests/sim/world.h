// World: a daemon's core, its clients, its engine and the wire between them, in
// one thread and in virtual time.
//
//   chaos     Apply(event), any number of times
//   heal      Heal(): faults stop; every admitted request must end, and new
//             ones must be served, within a stated number of steps
//   quiesce   Quiesce(): drain; nothing may be left but the cache
//
// Clients call (submit, cancel, evict) over a wire that loses, repeats, delays
// and reorders calls; token and step streams keep their order until they break,
// and what was on its way then may still arrive. An engine's client may lose an
// answer, send it twice or let others overtake it all the same: the core must
// not take it for another. Plans keep their order: they may be held up for
// long, and be lost with a stream before anybody knows that it is broken. The
// engine is a CanaryEngine that hears of plans late, computes late and answers
// late. Whatever is wrong is the report's first failure.
#ifndef TESTS_SIM_WORLD_H_
#define TESTS_SIM_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/server/core.h"
#include "tests/sim/audited_scheduler.h"
#include "tests/sim/event.h"
#include "tests/sim/options.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/sim/request_maker.h"
#include "tests/sim/transport.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr::sim {

class World {
 public:
  World(const SimOptions& options, Report* report);
  ~World();

  void Apply(const Event& event);
  void Heal();
  void Quiesce();

 private:
  enum class Corruption : uint8_t {
    kNone,
    kLaterStep,
    kEarlierStep,
    kToken,
    kMoreTokens,
    kFewerTokens,
    kMoreOutcomes,
    kCounts,  // of the next eviction
    kLayout,  // of the next eviction
    kLostBlock,
    kDrafts,
  };
  // What happens to an answer on its way.
  enum class WireFault : uint8_t { kNone, kLost, kTwice, kOvertaken };
  class ClientSink;
  class StepSink;
  class OnceReply;

  using Life = ServedRequest::Life;
  struct Client {
    std::string session;
    std::shared_ptr<ClientSink> sink;  // null: hung up
    bool opening = false;
    bool slow = false;  // refuses the next delivery
  };

  // Time and passes (world.cc).
  void Advance(int64_t ticks);
  // Hands a command to the core, in the pass that is open or in one of its own.
  void Post(Command command);
  void OpenPass();
  void ClosePass();
  std::shared_ptr<OnceReply> Expect(const char* what);
  // A call over the wire: lost, delayed or repeated.
  void Call(Transport::Delivery delivery);
  int64_t Delay(int32_t most);
  void CheckAlive();

  // Clients (world_clients.cc).
  void Submit();
  void Resubmit();
  void Cancel();
  void Evict();
  void HangUp();
  void HangUpNow(int32_t client);
  void OpenStream(int32_t client);
  void SendSubmit(int32_t index);
  void TakeItem(const TokenItem& item);
  void TakeFinish(const FinishEffect& effect, const Request& request,
                  Life* life);
  void CheckServed() const;

  // The engine (world_engine.cc).
  void StartEngine(int64_t delay);
  void Attach(uint64_t life);
  void OpenSteps(uint64_t life, const Attachment& attachment);
  void Crash();
  void EngineIsCutOff(StepSink* sink);
  // The connection turns out to be broken, a while after it broke.
  void BreakLater(const std::shared_ptr<StepSink>& sink);
  void HoldPlans();
  void StaleOpen();
  void WrongAttach();
  void ReceivePlan(const std::shared_ptr<StepSink>& sink, const StepPlan& plan);
  void ExecuteNext(const std::shared_ptr<StepSink>& sink);
  void SendAnswer(const std::shared_ptr<StepSink>& sink, StepResult result);
  void CorruptDrafts(StepResult* result);
  // orders: what the result's outcomes are of.
  void Corrupt(std::span<const EvictionOrder> orders, StepResult* result);
  void CorruptCounts(const EvictionOrder& order, std::vector<int32_t>* counts);
  // Moves what the first shard keeps to the last, no more pages in all. False,
  // with nothing changed, where the last has room for them.
  bool OverfillShard(const EvictionOrder& order,
                     std::vector<int32_t>* counts) const;
  void LoseBlocks();

  // Operators (world.cc).
  void AskStats();
  void ResetCache();

  const SimOptions options_;
  Report* const report_;
  Random random_{0};  // of the current event
  Transport transport_;
  AuditedScheduler* scheduler_ = nullptr;  // the core's; null: none yet
  std::unique_ptr<Core> core_;
  bool pass_is_open_ = false;
  int32_t num_in_pass_ = 0;
  bool faults_ = true;  // until Heal
  bool quiescing_ = false;

  std::vector<Client> clients_;
  std::deque<ServedRequest> served_;        // by number of request
  std::map<std::string, int32_t> numbers_;  // by id
  RequestMaker requests_{options_, &random_, &served_};

  CanaryEngine canary_;
  std::shared_ptr<StepSink> sink_;  // of the engine's present life, if open
  uint64_t engine_life_ = 0;
  Corruption corruption_ = Corruption::kNone;  // of an answer to come
  WireFault wire_fault_ = WireFault::kNone;    // of an answer to come
  Attachment last_attachment_;                 // known to strangers
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_WORLD_H_
