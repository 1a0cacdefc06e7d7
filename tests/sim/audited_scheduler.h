// AuditedScheduler: the real scheduler, watched. Every call is followed by a
// full audit, is told to the reference model, and, when it fails, must have
// changed nothing.
#ifndef TESTS_SIM_AUDITED_SCHEDULER_H_
#define TESTS_SIM_AUDITED_SCHEDULER_H_

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/scheduler_impl.h"
#include "tests/sim/ledger.h"
#include "tests/sim/report.h"
#include "tests/testing/cache_reader.h"

namespace blockmgr::sim {

class AuditedScheduler : public SchedulerImpl {
 public:
  AuditedScheduler(const ModelLayout& layout, const SchedulerOptions& options,
                   bool replays, Report* report);

  absl::StatusOr<RequestId> Submit(Request request) override;
  absl::Status Cancel(RequestId request, Effects* effects) override;
  absl::StatusOr<uint64_t> Evict(RequestId request,
                                 EvictionCommand command) override;
  bool WithdrawEviction(RequestId request, uint64_t command) override;
  bool Schedule(StepPlan* plan) override;
  absl::Status Update(const StepResult& result, Effects* effects) override;
  void LoseEngine(Effects* effects) override;
  CacheReset ResetPrefixCache() override;

  const Ledger& ledger() const { return ledger_; }
  // Calls that took host blocks, or would have, of which these find too few.
  int64_t num_swap_outs() const { return num_swap_outs_; }
  void FailSwapOuts(std::set<int64_t> calls) {
    failing_swap_outs_ = std::move(calls);
  }
  // Everything has ended: all books are empty but the cache's.
  void CheckQuiescent();

 protected:
  SwapId TakeHostBlocks(SequenceSlot slot,
                        std::vector<BlockTransfer>* transfers) override;

 private:
  // Reads the prefix cache now and then.
  struct Reader {
    int64_t interval = 1;  // calls
    int32_t max_blocks = 1;
    CacheReader cache;
    int64_t num_readings = 0;
  };

  void Audit();
  void ReadPrefixCache();
  void ExpectUnchanged(uint64_t before, const char* call);

  Report* const report_;
  Ledger ledger_;
  int64_t num_calls_ = 0;
  std::vector<Reader> readers_;
  int64_t num_swap_outs_ = 0;
  std::set<int64_t> failing_swap_outs_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_AUDITED_SCHEDULER_H_
