#include "scheduler/step_decision.h"

#include <span>
#include <utility>

namespace blockmgr {

void StepDecision::Clear(size_t num_objects) {
  if (marks_.size() < num_objects) marks_.resize(num_objects);
  preempted.clear();
  runs.clear();
  matches.clear();
  orders.clear();
  passed.clear();
  prefix_waits.clear();
  inherited.clear();
  misplaced.clear();
  squeezed.clear();
  if (!computing.empty()) computing.clear();
  promised = {};
  ++number_;
  num_marked_ = 0;
  num_awaiting = 0;
  has_drafts = false;
  num_spared = 0;
  num_looked_blocks = 0;
  num_long_prefills.reset();
  chunk_share = kNoShare;
}

void StepDecision::Inherit(const RequestState& fork, EvictionPlan eviction) {
  MarkOf(fork).inherited = static_cast<int32_t>(inherited.size());
  inherited.push_back({&fork, std::move(eviction)});
}

void StepDecision::Await(const RequestState& fork) {
  MarkOf(fork).awaits = true;
  ++num_awaiting;
}

bool StepDecision::Awaits(const RequestState& request) const {
  const Mark* mark = Find(request);
  return mark != nullptr && mark->awaits;
}

const StepDecision::Run* StepDecision::RunOf(
    const RequestState& request) const {
  for (; num_marked_ < runs.size(); ++num_marked_) {
    MarkOf(*runs[num_marked_].request).run = static_cast<int32_t>(num_marked_);
  }
  const Mark* mark = Find(request);
  return mark == nullptr || mark->run < 0 ? nullptr : &runs[mark->run];
}

const EvictionPlan& StepDecision::InheritedOf(
    const RequestState& request) const {
  const Mark* mark = Find(request);
  return mark == nullptr || mark->inherited < 0
             ? request.eviction
             : inherited[mark->inherited].eviction;
}

int64_t StepDecision::CountReservedBy(TenantId tenant) const {
  int64_t blocks = 0;
  for (const Run& run : std::span(runs).last(matches.size())) {
    if (run.request->tenant == tenant) blocks += run.request->peak_blocks;
  }
  return blocks;
}

const StepDecision::Mark* StepDecision::Find(
    const RequestState& request) const {
  const Mark& mark = marks_[request.index];
  return mark.decision == number_ ? &mark : nullptr;
}

StepDecision::Mark& StepDecision::MarkOf(const RequestState& request) const {
  Mark& mark = marks_[request.index];
  if (mark.decision != number_) mark = {.decision = number_};
  return mark;
}

}  // namespace blockmgr
