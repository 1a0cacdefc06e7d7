// BlockPool hands out the blocks of one arena and counts their holders.
//
// The pool knows blocks by number only. Their bytes belong to a backend. Only
// CachedPool::Take calls Allocate, because it reclaims cached blocks first. A
// block is in one of three states:
//
//   held     it has one or more holders
//   fenced   it has no holder, but a step in flight may still touch it
//   free     Allocate may hand it out
//
//   num_held() + num_fenced() + num_free() == num_blocks() - 1
//
// Block 0 is the null block. It is never handed out and never held. If too few
// blocks are free, Allocate returns false. Releasing a block that nobody holds
// is a bug of the caller and aborts the program in every build.
//
// Dispatch(s) says that step s may touch every block that is held now.
// Acknowledge(s) says that step s no longer touches any block. If the last
// holder of a block goes while steps are in flight, the block is fenced until
// the newest of these steps is acknowledged.
//
// Cost: O(blocks named in the call). Nothing is allocated after construction.
// Threads: core thread.
#ifndef BLOCKMGR_BLOCK_POOL_H_
#define BLOCKMGR_BLOCK_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/check.h"
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
  // Returns whether all steps that earlier releases have fenced the block
  // behind are acknowledged. Then ReleaseUntouched by its last holder frees it
  // at once. Release fences it anew.
  bool IsPastFence(BlockId block) const {
    return fences_[Index(block)] <= acknowledged_;
  }
  bool has_steps_in_flight() const { return dispatched_ > acknowledged_; }

  // Fills `blocks` with free blocks, each held once. Returns false, with
  // nothing changed, if there are too few free blocks.
  [[nodiscard]] bool Allocate(std::span<BlockId> blocks);

  // Adds one holder to a block. REQUIRES: the block is held.
  void AddRef(BlockId block);

  // Drops one holder. A block without holders becomes fenced, or free if no
  // step is in flight. REQUIRES: the block is held.
  void Release(BlockId block);

  // Drops a holder for which no step in flight touches the block: the prefix
  // cache, or a reservation that was aborted. The fence of the block stays as
  // the other holders have left it. REQUIRES: the block is held.
  void ReleaseUntouched(BlockId block) {
    int32_t& refs = refs_[Index(block)];
    BM_CHECK(refs > 0);  // double release, or the null block
    if (--refs == 0) GiveBack(block);
  }

  // REQUIRE: steps are dispatched, and acknowledged, in ascending order.
  void Dispatch(StepId step);
  void Acknowledge(StepId step);
  // Drops all fences, because the engine is gone and its steps with it.
  void ForgetSteps();

  // Returns the bytes of memory, which do not depend on the pool's state.
  int64_t metadata_bytes() const;

  // Returns a hash of holders, fences and free blocks. It does not depend on
  // the order of the free list. O(num_blocks), for tests.
  uint64_t StateHash() const;
  // Audits everything that is said above. O(num_blocks), for tests.
  void CheckInvariants() const;

 private:
  struct Fenced {
    BlockId block;
    uint64_t step;
  };
  // Makes a block without holders fenced, or free.
  void GiveBack(BlockId block);

  std::vector<int32_t> refs_;     // holders per block
  std::vector<uint64_t> fences_;  // newest step that may touch the block
  std::vector<BlockId> free_;     // used as a stack
  // A ring of the fenced blocks, in the order of their fences, [num_blocks].
  std::vector<Fenced> fenced_;
  int32_t fenced_head_ = 0;
  int32_t num_fenced_ = 0;
  uint64_t dispatched_ = 0;
  uint64_t acknowledged_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_POOL_H_
