#include "scheduler/step_decision.h"

#include <span>

namespace blockmgr {

void StepDecision::Clear() {
  preempted.clear();
  runs.clear();
  matches.clear();
  orders.clear();
  passed.clear();
  prefix_waits.clear();
  misplaced.clear();
  squeezed.clear();
  if (!computing.empty()) computing.clear();
  promised = {};
  ++number;
  num_awaiting = 0;
  has_drafts = false;
  num_spared = 0;
  num_looked_blocks = 0;
  num_long_prefills.reset();
  chunk_share = kNoShare;
}

void StepDecision::Add(const Run& run) {
  run.request->planned = {.decision = number,
                          .run = static_cast<int32_t>(runs.size())};
  runs.push_back(run);
}

void StepDecision::Await(RequestState* fork) {
  fork->planned = {.decision = number, .run = -1};
  ++num_awaiting;
}

const StepDecision::Run* StepDecision::RunOf(
    const RequestState& request) const {
  const RequestState::Planned& planned = request.planned;
  const bool has_run = planned.decision == number && planned.run >= 0;
  return has_run ? &runs[planned.run] : nullptr;
}

int64_t StepDecision::ReservedBy(TenantId tenant) const {
  int64_t blocks = 0;
  for (const Run& run : std::span(runs).last(matches.size())) {
    if (run.request->tenant == tenant) blocks += run.request->peak_blocks;
  }
  return blocks;
}

}  // namespace blockmgr
