// BlockPromises: how many blocks requests will still take.
//
// The free functions answer for one request. BlockPromises sums up the blocks
// that all running and admitted requests are promised (Promise), and computes
// the blocks that one more request would need.
#ifndef SCHEDULER_BLOCK_PROMISES_H_
#define SCHEDULER_BLOCK_PROMISES_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/prefix_match.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

// Returns the first of the request's compressions that `match` does not stand
// for. `eviction` is how the request is compressed.
int32_t NextCompression(const RequestState& request,
                        const EvictionPlan& eviction, const PrefixMatch& match);

// Returns the most tokens, without drafts, that a step computes of a request.
int32_t MaxChunk(const SchedulerOptions& options);
// Returns the most tokens, drafts included, that a step computes of this
// request when num_left tokens are left to compute.
int32_t MaxChunk(const SchedulerOptions& options, const RequestState& request,
                 int64_t num_left);

struct PoolFit {
  int32_t max_chunk = 0;    // tokens of a step, so that the peak fits
  int32_t peak_blocks = 0;  // may still be more than the pool has
};
// Returns how a request that computes `length` tokens in all fits into the
// whole pool. In models with windows a step holds what it computes, so that
// smaller chunks lower the peak.
PoolFit FitPool(const ModelLayout& layout, const SchedulerOptions& options,
                int32_t length, std::span<const CompressionPoint> compressions,
                const DecodeCompression* decode,
                const EvictionCommand* squeeze);

// Returns the blocks that a running request must reserve of its tenant's quota:
// the blocks that it has and will still take. In models with windows: its peak.
int32_t CountBlocksToReserve(const SchedulerState& state,
                             const RequestState& request);

// Reads the state and the decision so far; writes only what the decision
// remembers of the sums. Thread-compatible.
class BlockPromises {
 public:
  // Borrows both arguments, which must outlive this object.
  BlockPromises(const SchedulerState& state, StepDecision* decision)
      : state_(state), decision_(*decision) {}

  // Returns the blocks of a match that other sequences use.
  static int32_t CountInUse(const PrefixMatch& match) {
    return match.CountSaved() - match.cost.num_cooling;
  }
  // Returns the blocks of a request at its peak if it starts on `match`, the
  // blocks of the match included. Blocks of the match that others use count
  // twice if a compression will copy their survivors.
  int32_t NeededOn(const RequestState& request, const PrefixMatch& match,
                   Promise promise) const;
  // Returns the blocks that running and admitted requests will still take.
  // O(running) for the first call of a decision, O(1) for later ones.
  int64_t All(Promise promise);

 private:
  // Returns whether a compression to come, of the request or of a running one,
  // covers blocks that both use. Its survivors are copied to other blocks.
  bool IsCopied(const RequestState& request, const PrefixMatch& match) const;
  // Returns how many blocks below the request's next cut are shared.
  int32_t CountSharedBelow(const RequestState& request) const;
  int64_t CountBlocksPromised(Promise promise) const;

  const SchedulerState& state_;
  StepDecision& decision_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_BLOCK_PROMISES_H_
