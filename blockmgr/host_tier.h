// HostTier: room in host memory for the KV of preempted sequences.
//
// The tier has num_blocks host blocks. Each has room for the content of one
// block of the pool. HostTier knows which swapped-out sequence holds which host
// blocks and what they stand for. The bytes belong to the engine. A swapped-out
// sequence shares its host blocks with no other sequence, and holds them until
// it is dropped or comes back. A host block that steps in flight may still read
// or write is fenced, as in BlockPool.
//
//   num_free() + num_fenced() + num_used() == num_blocks()
//
// Cost: O(host blocks named). No memory is taken if num_blocks is 0. Threads:
// core thread.
#ifndef BLOCKMGR_HOST_TIER_H_
#define BLOCKMGR_HOST_TIER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_pool.h"
#include "blockmgr/group_cache.h"
#include "blockmgr/region_content.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// The first num_tokens tokens of a sequence that has left the pool.
struct SwappedSequence {
  int32_t num_tokens = 0;
  // The regions of the layer groups when the sequence was swapped out. The
  // block ids in them no longer mean anything, only the number and the order of
  // the blocks.
  std::vector<GroupRegion> regions;
  // Whether a window group ever had a region.
  bool evicted_in_windows = false;
  std::shared_ptr<const RegionContent> content;
  // For one group after the other: the blocks of its region in order, then the
  // blocks of the pages behind the region that num_tokens tokens need.
  std::vector<HostBlockId> blocks;
};

class HostTier {
 public:
  // Without blocks, no sequence is ever swapped out. REQUIRES: num_blocks >= 0.
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

  // Takes num_blocks host blocks for the sequence. Returns kNoSwap, with
  // nothing changed, if too few are free. REQUIRES: num_blocks > 0.
  SwapId Add(SwappedSequence sequence, int32_t num_blocks);
  // REQUIRES: the sequence was not dropped and has not come back.
  const SwappedSequence& at(SwapId swap) const;
  bool Contains(SwapId swap) const { return sequences_.contains(swap); }
  // Forgets the sequence and releases its host blocks.
  void Drop(SwapId swap);
  // Drops the sequence when the next step is dispatched. That step reads its
  // host blocks for the last time.
  void DropAfterNextStep(SwapId swap);
  // Returns the sequences that hold one of these blocks, in ascending order.
  std::vector<SwapId> FindHolders(std::span<const HostBlockId> blocks) const;

  // Tell which steps are in flight, see BlockPool.
  void Dispatch(StepId step) {
    if (!pool_.has_value()) return;
    pool_->Dispatch(step);
    if (!leaving_.empty()) DropLeaving();
  }
  void Acknowledge(StepId step) {
    if (pool_.has_value()) pool_->Acknowledge(step);
  }
  // Drops every sequence and all fences, because the engine is gone.
  void LoseEngine();

  // Returns the bytes of memory. Leaves out the contents and records of regions
  // that the two sets have, and adds the tier's other contents and records to
  // the sets.
  int64_t metadata_bytes(
      absl::flat_hash_set<const RegionContent*>* contents,
      absl::flat_hash_set<const RegionRecord*>* records) const;
  // Returns the same hash for the same state. O(num_blocks), for tests.
  uint64_t StateHash() const;
  // Recounts every holder. O(num_blocks), for tests.
  void CheckInvariants() const;

 private:
  void DropLeaving();

  const int32_t num_blocks_;
  // Host block i is block i + 1 here, because block 0 is the null block. No
  // value without host blocks.
  std::optional<BlockPool> pool_;
  absl::flat_hash_map<SwapId, SwappedSequence> sequences_;
  std::vector<SwapId> leaving_;
  uint64_t next_swap_ = 1;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_HOST_TIER_H_
