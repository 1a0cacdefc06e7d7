// LedgerBooks: the state that all parts of the simulator's ledger share.
//
//   ledger_admission.h   what is submitted, and quotas
//   ledger_plan.h        plans: ledger_starts.h, ledger_swaps.h,
//                        ledger_blocks.h and ledger_orders.h have their parts
//   ledger_answer.h      answers: ledger_outcomes.h has those to evictions
//   ledger_effects.h     what the scheduler tells of ends and commands
//   ledger_loss.h        lost blocks
//   ledger_compare.h     comparison with the manager and the scheduler
//
// A function that only checks has a const reference to the books. It reports
// failures and counts events, which leaves the books as they are.
#ifndef TESTS_SIM_LEDGER_BOOKS_H_
#define TESTS_SIM_LEDGER_BOOKS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <absl/functional/function_ref.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "tests/sim/ledger_records.h"
#include "tests/sim/report.h"
#include "tests/testing/books.h"

namespace blockmgr::sim {

struct LedgerBooks {
  LedgerBooks(const ModelLayout& model_layout,
              const SchedulerOptions& scheduler_options, bool engine_replays,
              Report* run_report);

  // Reports what is wrong. The first report of a run counts.
  template <typename... Parts>
  void Fail(const Parts&... parts) const {
    report->Fail(parts...);
  }
  bool ok() const { return report->ok(); }
  RunCounts& counts() const { return report->counts(); }

  // Returns the request, or null if no live request has the name.
  const LedgerRequest* FindLive(const std::string& name) const;
  // Returns the table of a run, or null if its stay in the slot is over.
  const LedgerTable* Find(const LedgerStep::Run& run) const;
  LedgerTable* Find(const LedgerStep::Run& run);
  // Returns the tokens of prompts that have not been admitted.
  int64_t CountQueuedTokens() const;
  // Returns how many sequences hold the block.
  int32_t CountHolders(BlockId block) const;
  // Returns whether the table has what the tokens from `length` on attend to.
  bool CanGoOn(const LedgerTable& table, int32_t length) const;
  // Returns the evictions before the page from `begin` on was computed. Returns
  // nothing if there was an eviction meanwhile.
  std::optional<std::string> ContextAt(const LedgerTable& table,
                                       int32_t begin) const;
  LedgerPeaks PeaksOf(const Request& request,
                      const EvictionTarget& target) const;

  // Notes that a sequence has given up the block.
  void Release(BlockId block);
  // Takes the sequence out of its slot. The next plan must say so.
  void CloseTable(SequenceSlot slot);
  // Gives up the blocks behind the first `length` tokens.
  void CutTables(int32_t length, LedgerTable* table);
  // Takes a block that the plan hands out, and checks that it is free.
  void TakeFresh(BlockId block);
  // Notes that the block gets other content, and what regions lose by it. No
  // region of group 0 may lose a block before the plan has dropped it.
  void OverwriteRegions(BlockId block);
  // Notes that the kept regions have lost blocks. The plan must drop those that
  // have lost the region of group 0.
  void LoseRegions(absl::FunctionRef<bool(BlockId)> is_lost);

  const ModelLayout layout;
  const BookRules rules;
  const SchedulerOptions options;
  const bool replays;  // the engine keeps the same entries when it recomputes
  Report* const report;

  std::map<RequestId, LedgerRequest> requests;  // all that were ever accepted
  std::map<std::string, RequestId> names;       // of live requests
  uint64_t num_finished = 0;                    // requests

  std::map<SequenceSlot, LedgerTable> tables;  // open
  std::set<SequenceSlot> unannounced;          // closed, engine not told yet
  uint64_t next_stay = 1;

  std::set<uint64_t> commands;    // accepted and not answered
  std::set<RequestId> commanded;  // evicted by command since the last plan
  bool was_commanded = false;     // any request, ever
  bool was_refused = false;       // any eviction, ever

  std::deque<LedgerStep> in_flight;
  uint64_t dispatched = 0;    // the newest step
  uint64_t acknowledged = 0;  // the newest step that is answered

  std::vector<LedgerBlock> blocks;
  std::map<RegionId, LedgerRegion> regions;  // sequences may start with them
  std::set<RegionId> lost_regions;           // of no use, and not dropped yet

  std::map<SwapId, LedgerSwap> swaps;
  std::vector<uint64_t> host_fences;    // LedgerBlock::fence by host block
  std::vector<LedgerReturn> returning;  // of the plan at hand
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_BOOKS_H_
