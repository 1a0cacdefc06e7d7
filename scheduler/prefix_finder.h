// PrefixFinder: finds how much of a waiting request need not be computed,
// because the prefix cache or the host tier has it.
//
// Nothing is allocated unless a match is longer than all before it.
// Thread-compatible.
#ifndef SCHEDULER_PREFIX_FINDER_H_
#define SCHEDULER_PREFIX_FINDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "blockmgr/block_manager.h"
#include "blockmgr/prefix_match.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_options.h"

namespace blockmgr {

class PrefixFinder {
 public:
  // Borrows both arguments, which must outlive this object.
  PrefixFinder(const BlockManager& manager, const SchedulerOptions& options)
      : manager_(manager), options_(options) {}

  // Returns the longest cached prefix of a request that is compressed by
  // `eviction`. The match is the finder's, for the caller to use or to move
  // away until the next call. REQUIRES: request.chain names all full blocks.
  PrefixMatch& Find(const RequestState& request, const EvictionPlan& eviction);
  // Extends the match that Find has returned by the KV that the host tier has
  // of the request. REQUIRES: request.swap is not kNoSwap.
  void AddSwapped(const RequestState& request, const EvictionPlan& eviction);

 private:
  // Extends the match by a part of a block, if that is wanted.
  void MatchPart(const RequestState& request, int32_t max_tokens);

  const BlockManager& manager_;
  const SchedulerOptions& options_;
  PrefixMatch match_;
  MatchMemory memory_;
  std::string history_;          // scratch of Find
  std::vector<int32_t> limits_;  // scratch of Find
};

}  // namespace blockmgr

#endif  // SCHEDULER_PREFIX_FINDER_H_
