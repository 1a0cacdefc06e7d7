// Ledger: the simulator's reference model of the scheduler.
//
// The ledger hears all that crosses the scheduler's border: calls, plans,
// answers and effects. It keeps books of its own of which sequence holds which
// block (LedgerBooks), and reports when the scheduler does what the books do
// not allow.
//
// The ledger uses no data structures of the product, but sets, maps and full
// recounts. It predicts nothing that the scheduler may choose: which requests
// run, which are preempted, and which blocks they get. It checks all that
// follows from these choices:
//
//   * A block is handed out only if no sequence holds it, and every step that
//     was dispatched before its last release is answered.
//   * A prefix hit is on blocks that hold exactly the request's tokens, from
//     answered steps without eviction. Or it is on a region that the request's
//     own evictions would make of exactly these tokens, and on blocks that were
//     computed after the same evictions.
//   * After every call, tables, lengths and regions are those of the manager.
//   * Tokens, ends and evictions are told once, in order, and as they happened.
//   * Drafts run when the engine has them and all tokens before them are
//     answered. Rejected drafts leave no trace.
//   * A request that was promised all its blocks is not preempted, unless
//     blocks were lost or a command has compressed a request.
//   * Recorded evictions are replayed, and no others before them.
//   * A refused eviction has not happened. The request goes on with what it
//     had. If a part was carried out, it goes on from its first token. It ends
//     only if it does not fit without the eviction.
//   * A page leaves a sequence when the settled tokens have left it behind the
//     window of its layer group, and not before. A region of such a group
//     leaves as a whole, with its cut.
//
// Every call costs O(pool + requests), so pools must be small.
#ifndef TESTS_SIM_LEDGER_H_
#define TESTS_SIM_LEDGER_H_

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "tests/sim/ledger_books.h"
#include "tests/sim/report.h"

namespace blockmgr::sim {

class Ledger {
 public:
  // `replays` says that the engine keeps the same entries when it recomputes.
  Ledger(const ModelLayout& layout, const SchedulerOptions& options,
         bool replays, Report* report)
      : books_(layout, options, replays, report) {}

  void OnSubmit(const Request& request, const absl::StatusOr<RequestId>& id);
  void OnCancel(RequestId request, const absl::Status& status,
                const Effects& effects);
  void OnEvict(RequestId request, const absl::StatusOr<uint64_t>& number);
  void OnWithdraw(uint64_t command);
  void OnPlan(const StepPlan& plan);
  void OnResult(const StepResult& result, const absl::Status& status,
                const Effects& effects);
  // Takes what the scheduler chose to keep of sequences that have lost blocks.
  // Call it after OnResult of an answer with lost blocks.
  void TakeCuts(const BlockManager& manager);
  // Takes out the sequences that have left their slots because an eviction was
  // refused. Call it after OnResult.
  void TakeLeft(const BlockManager& manager);
  void OnLoseEngine(const Effects& effects);
  void OnReset();

  // Compares the manager's tables and counts with the books.
  void Compare(const BlockManager& manager, const SchedulerStats& stats);
  // Checks that nothing is left when all requests have ended and every step is
  // answered.
  void CheckQuiescent(const SchedulerStats& stats);

  // Returns whether this is an answer to the oldest step in flight.
  bool IsValid(const StepResult& result) const;
  int32_t num_live() const { return static_cast<int32_t>(books_.names.size()); }
  bool IsLive(const std::string& name) const {
    return books_.names.contains(name);
  }
  // Returns the number of steps after which every live request must have ended
  // if nothing else is submitted. The oldest request makes progress in every
  // round of steps in flight, from its first token on if it was preempted.
  int64_t CountStepsToDrain() const;

 private:
  LedgerBooks books_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_H_
