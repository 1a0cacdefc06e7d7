// WorldClients: the clients of a World, what they ask for, and what they see of
// it.
//
// A client submits requests, cancels them and evicts from them, by calls over
// the wire. Its token stream keeps the order of tokens until it breaks, and
// what was on its way then may still arrive. Every request must put out what it
// puts out alone, and end once.
#ifndef TESTS_SIM_WORLD_CLIENTS_H_
#define TESTS_SIM_WORLD_CLIENTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/server/commands.h"
#include "tests/sim/request_maker.h"
#include "tests/sim/world_core.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr::sim {

class WorldClients {
 public:
  // Borrows both. The canary says what a request that runs alone puts out.
  WorldClients(WorldCore* core, const CanaryEngine& canary);

  // Returns the budget tables that requests may name.
  BudgetTables Tables() const;
  // Opens the stream of every client that has none.
  void OpenStreams();
  void Submit();
  // Submits a recent request once more.
  void Resubmit();
  void Cancel();
  void Evict();
  void HangUp();
  // Makes a client refuse the next delivery.
  void SlowDown();
  // From now on no client is slow.
  void Heal();
  // Submits a small request of every client, which must be served.
  void SubmitLast();
  // Checks that every request has ended for its client.
  void CheckServed() const;
  // Checks that the core, which is drained, refuses a request.
  void CheckRefused();

 private:
  class ClientSink;
  using Life = ServedRequest::Life;
  struct Client {
    std::string session;
    std::shared_ptr<ClientSink> sink;  // null after it has hung up
    bool is_opening = false;
    bool is_slow = false;  // refuses the next delivery
  };

  // Adds a request of a client, and submits it.
  void Add(int32_t client, std::string id, Request request);
  // Submits the request of that number over the wire, or at once.
  void CallSubmit(int32_t index);
  void SendSubmit(int32_t index);
  void OpenStream(int32_t client);
  void HangUpNow(int32_t client);
  void TakeItem(const TokenItem& item);
  void TakeFinish(const FinishEffect& effect, const Request& request,
                  Life* life);

  WorldCore& core_;
  const CanaryEngine& canary_;
  const SimOptions& options_;
  Report* const report_;
  Random& random_;
  std::vector<Client> clients_;
  std::deque<ServedRequest> served_;        // by number of request
  std::map<std::string, int32_t> numbers_;  // by id
  RequestMaker requests_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_WORLD_CLIENTS_H_
