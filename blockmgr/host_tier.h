// HostTier: room in host memory for the KV of preempted sequences.
//
// Bounded: num_blocks host blocks, each with room for the content of one block
// of the pool. It knows who holds which of them and what it stands for; the
// bytes are the engine's. A sequence that is swapped out holds its host blocks
// alone until it is dropped or comes back. Host blocks that steps in flight
// still write or read are handed out again when those are acknowledged, as in
// BlockPool, which counts them here.
//
//   num_free() + num_fenced() + num_used() == num_blocks()
//
// Cost: O(host blocks named); memory only for what is configured. Threads: core
// thread.
#ifndef BLOCKMGR_HOST_TIER_H_
#define BLOCKMGR_HOST_TIER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_pool.h"
#include "blockmgr/group_cache.h"
#include "blockmgr/region_content.h"

namespace blockmgr {

// The first num_tokens tokens of a sequence that has left the pool.
struct SwappedSequence {
  int32_t num_tokens = 0;
  // The regions of the layer groups, as they were. Only the number and the
  // order of a region's blocks still means something.
  std::vector<GroupRegion> regions;
  // Whether a group with a window had a region, now or before.
  bool evicted_in_windows = false;
  std::shared_ptr<const RegionContent> content;
  // For each group in turn: the blocks of its region, in order, then those of
  // the pages behind the region that num_tokens tokens need.
  std::vector<HostBlockId> blocks;
};

class HostTier {
 public:
  // REQUIRES: num_blocks >= 0; 0: nobody is ever swapped out.
  explicit HostTier(int32_t num_blocks);

  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_free() const { return pool_.has_value() ? pool_->num_free() : 0; }
  int32_t num_fenced() const {
    return pool_.has_value() ? pool_->num_fenced() : 0;
  }
  int32_t num_used() const { return num_blocks_ - num_free() - num_fenced(); }
  int32_t num_sequences() const {
    return static_cast<int32_t>(sequences_.size());
  }

  // Takes num_blocks host blocks for the sequence. kNoSwap, with nothing
  // changed, when there are not so many. REQUIRES: num_blocks > 0.
  SwapId Add(SwappedSequence sequence, int32_t num_blocks);
  // REQUIRES: it has neither been dropped nor come back.
  const SwappedSequence& at(SwapId swap) const;
  bool Contains(SwapId swap) const { return sequences_.contains(swap); }
  // Forgets it, and gives up its host blocks.
  void Drop(SwapId swap);
  // The next step to be dispatched reads it for the last time: dropped then.
  void DropAfterNextStep(SwapId swap);
  // Those that hold one of these blocks, in ascending order.
  std::vector<SwapId> FindHolders(std::span<const HostBlockId> blocks) const;

  // Steps in flight, see BlockPool.
  void Dispatch(StepId step) {
    if (!pool_.has_value()) return;
    pool_->Dispatch(step);
    if (!leaving_.empty()) DropLeaving();
  }
  void Acknowledge(StepId step) {
    if (pool_.has_value()) pool_->Acknowledge(step);
  }
  // The engine is gone with all that was swapped out; fences fall.
  void LoseEngine();

  // Bytes of memory of its own, but for regions' content, which others share.
  int64_t metadata_bytes() const;
  // Equal for equal states. O(num_blocks), for tests.
  uint64_t StateHash() const;
  // Full recount of every holder. O(num_blocks), for tests.
  void CheckInvariants() const;

 private:
  void DropLeaving();

  const int32_t num_blocks_;
  // Its blocks are one above the host's: it has a null block. None: without
  // any.
  std::optional<BlockPool> pool_;
  absl::flat_hash_map<SwapId, SwappedSequence> sequences_;
  std::vector<SwapId> leaving_;
  uint64_t next_swap_ = 1;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_HOST_TIER_H_
