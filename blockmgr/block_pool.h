// BlockPool hands out the blocks of one arena and counts their holders.
//
// It knows blocks by number only; the bytes are a backend's business. A block
// is held (one or more holders), fenced (no holder, but a step that was
// dispatched before the release may still touch it) or free. At every return
//
//   num_free() + num_fenced() + num_held() == num_blocks() - 1
//
// Block 0 is the null block: never handed out, never held. Running out is
// ordinary and reported by value. Releasing a block nobody holds is a bug in
// the caller and aborts in every build.
//
// Fences: Dispatch(s) says that step s may touch every block held now;
// Acknowledge(s) that it no longer does. A block whose last holder goes while
// steps are in flight is not handed out before the newest of them is
// acknowledged.
//
// Cost: O(blocks named in the call); nothing is allocated after construction.
// Threads: core thread.
#ifndef BLOCKMGR_BLOCK_POOL_H_
#define BLOCKMGR_BLOCK_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"

namespace blockmgr {

class BlockPool {
 public:
  // REQUIRES: num_blocks >= 2 (the null block and one more).
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(refs_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_fenced() const { return num_fenced_; }
  int32_t num_held() const {
    return num_blocks() - 1 - num_free() - num_fenced();
  }
  int32_t num_holders(BlockId block) const { return refs_[Index(block)]; }
  // Whether a released `block` could be handed out at once.
  bool IsPastFence(BlockId block) const {
    return fences_[Index(block)] <= acknowledged_;
  }
  bool has_steps_in_flight() const { return dispatched_ > acknowledged_; }

  // Fills `blocks` with free blocks, each held once. All or nothing: with too
  // few free blocks, returns false and leaves the pool and `blocks` unchanged.
  [[nodiscard]] bool Allocate(std::span<BlockId> blocks);

  // Adds one holder to a block. REQUIRES: it is held.
  void AddRef(BlockId block);

  // Drops one holder; a block left with none is fenced, or free when no step is
  // in flight. REQUIRES: it is held.
  void Release(BlockId block);

  // The same for a holder whose steps are all acknowledged, or that no step
  // ever saw (the prefix cache, an aborted reservation): the block's fence
  // stays what the other holders made it.
  void ReleaseUntouched(BlockId block);

  // REQUIRES: steps are dispatched, and acknowledged, in ascending order.
  void Dispatch(StepId step);
  void Acknowledge(StepId step);
  // The engine is gone, and every step with it: fences fall.
  void ForgetSteps();

  // Bytes of memory of its own, whatever is held.
  int64_t metadata_bytes() const;

  // Free and fenced blocks, holders and fences: equal for equal states,
  // whatever the order of the free list. O(num_blocks), for tests.
  uint64_t StateHash() const;
  // Audits everything above in O(num_blocks). For tests.
  void CheckInvariants() const;

 private:
  struct Fenced {
    BlockId block;
    uint64_t step;
  };
  void Drop(BlockId block);

  std::vector<int32_t> refs_;     // holders per block
  std::vector<uint64_t> fences_;  // newest step that may touch the block
  std::vector<BlockId> free_;     // stack
  // Ring of released blocks in order of their fences; capacity num_blocks.
  std::vector<Fenced> fenced_;
  int32_t fenced_head_ = 0;
  int32_t num_fenced_ = 0;
  uint64_t dispatched_ = 0;
  uint64_t acknowledged_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_POOL_H_
