// BlockManager: transactions over pool, prefix cache and sequences.
//
// It decides which memory each sequence has, and never touches K or V bytes.
// Everything comes in pairs that a step spans:
//
//   Reserve         takes slots for the tokens of a step about to be issued
//   Commit          the step is acknowledged: tokens are settled, full blocks
//                   are published to the prefix cache
//   Abort           the step was never issued: the slots are given back
//
//   ReserveEviction takes the destination blocks of an order
//   CommitEviction  the engine has moved the entries: the region exists, what
//                   it no longer needs is released
//   AbortEviction   the engine has refused the order: the old table holds
//
// Every call either succeeds or changes nothing. Scarcity is a value (false);
// broken REQUIRES abort. A block is used (by sequences), cached (only the
// prefix cache holds it: reclaimable), fenced or free:
//
//   used + cached + fenced + free == num_blocks - 1
//
// Cost: O(blocks named or changed by the call), independent of layers and heads
// except for the eviction calls. No allocation in a decode step that crosses no
// block boundary. Threads: core thread.
#ifndef BLOCKMGR_BLOCK_MANAGER_H_
#define BLOCKMGR_BLOCK_MANAGER_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_pool.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/sequence_cache.h"

namespace blockmgr {

// Where a region's destination blocks come from.
enum class CompactionPreference : uint8_t {
  kFreshFirst,  // copy to fresh blocks while there are some, else in place
  kInPlace,     // the sequence's own blocks first, fresh ones for the rest
};

struct BlockManagerStats {
  int32_t num_blocks = 0;  // of the pool, the null block included
  int32_t free_blocks = 0;
  int32_t cached_blocks = 0;      // held by the prefix cache alone: reclaimable
  int32_t fenced_blocks = 0;      // released, a step in flight may touch them
  int32_t used_blocks = 0;        // held by sequences
  uint64_t reclaimed_blocks = 0;  // since creation
};

// Blocks that hold the first tokens of a prompt already.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  // Of those, blocks that only the cache holds: using them costs as much of the
  // available blocks as taking fresh ones.
  int32_t num_reclaimable = 0;
};

struct TokenDemand {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
};

// What a committed eviction gave back.
struct EvictionReceipt {
  int64_t evicted_entries = 0;  // summed over layers and heads
  int32_t freed_blocks = 0;     // fewer blocks than before the order
};

class BlockManager {
 public:
  // REQUIRES: layout.Validate().ok(), max_sequences > 0.
  BlockManager(const ModelLayout& layout, int32_t max_sequences,
               bool enable_prefix_caching);

  const ModelLayout& layout() const { return layout_; }
  bool prefix_caching() const { return prefix_caching_; }
  // Blocks that Reserve could take now: free, or reclaimable.
  int32_t num_available() const {
    return pool_.num_free() + cache_.num_reclaimable();
  }
  // Released blocks that become available when the steps in flight are
  // acknowledged.
  int32_t num_fenced() const { return pool_.num_fenced() + num_cooling_; }
  // Blocks that could ever be used by one sequence: all but the null block.
  int32_t num_usable() const { return layout_.num_blocks - 1; }
  int32_t num_open_slots() const {
    return static_cast<int32_t>(free_slots_.size());
  }
  const SequenceCache& sequence(SequenceSlot slot) const {
    return sequences_[Index(slot)];
  }
  BlockManagerStats stats() const;

  // Steps in flight, see BlockPool.
  void Dispatch(StepId step) { pool_.Dispatch(step); }
  void Acknowledge(StepId step);
  // The engine is gone with all KV: every sequence must be closed; fences fall
  // and the cache is emptied.
  void LoseEngine();

  // The longest cached prefix of `tokens` in whole blocks, at most max_tokens
  // tokens. keys: of the full blocks of tokens (ExtendBlockKeys).
  PrefixMatch Match(std::span<const BlockKey> keys,
                    std::span<const int32_t> tokens, int32_t max_tokens) const;

  // Opens a sequence whose first tokens are `match` (settled and published),
  // which must still be in the cache. REQUIRES: num_open_slots() > 0.
  SequenceSlot Open(const PrefixMatch& match);

  // Takes slots for the next tokens of each sequence. Appends to `blocks` the
  // ids added to each tail and to `offsets` where each sequence's ids end. All
  // or nothing: false when fewer blocks are available than needed.
  [[nodiscard]] bool Reserve(std::span<const TokenDemand> demands,
                             std::vector<int64_t>* offsets,
                             std::vector<BlockId>* blocks);
  // Settles the next num_tokens reserved positions. Publishes the blocks that
  // are full of settled tokens, were computed without a region, and are not
  // about to be overwritten. tokens, keys: of the sequence from position 0, at
  // least as far as settled (read only while publishing).
  void Commit(SequenceSlot slot, int32_t num_tokens,
              std::span<const int32_t> tokens, std::span<const BlockKey> keys);
  // Whether Commit(slot, num_tokens) would publish, so that keys are needed.
  bool WillPublish(SequenceSlot slot, int32_t num_tokens) const;
  // Gives back the last num_tokens reserved positions, which no dispatched step
  // has seen. REQUIRES: they are not settled, nor below the cut of a pending
  // eviction.
  void Abort(SequenceSlot slot, int32_t num_tokens);
  // Releases everything the sequence holds, the tail's end first, and any
  // destinations of an eviction under way.
  void Close(SequenceSlot slot);
  // Blocks that Close would give back to the pool, now or after the fence.
  int32_t NumReleasable(SequenceSlot slot) const;

  // Blocks of positions [0, cut) that no other sequence holds. Positions not
  // reserved yet count: their blocks will be its own.
  int32_t NumOwnBlocks(SequenceSlot slot, int32_t cut) const;
  // Orders an eviction of [0, cut): takes num_fresh available blocks and, for
  // the rest of CeilDiv(page_total, layers * heads), blocks below cut that only
  // this sequence (and the cache, whose entry is dropped) holds. Appends the
  // destinations. False, with nothing changed, when there are too few.
  // REQUIRES: cut is a multiple of page_size, above the region's cut, at most
  // num_reserved; no eviction is pending.
  [[nodiscard]] bool ReserveEviction(SequenceSlot slot, int32_t cut,
                                     int64_t page_total, int32_t num_fresh,
                                     std::vector<BlockId>* destinations);
  // Whether counts [num_layers * num_heads] are a legal answer to the pending
  // order; InvalidArgument names the (layer, head) at fault.
  absl::Status ValidateCounts(SequenceSlot slot,
                              std::span<const int32_t> counts) const;
  // The pending order was carried out. REQUIRES: ValidateCounts(...).ok(), and
  // everything below the cut is settled.
  EvictionReceipt CommitEviction(SequenceSlot slot,
                                 std::span<const int32_t> counts);
  // The pending order was refused; the engine has moved nothing.
  void AbortEviction(SequenceSlot slot);

  // The region of a sequence with its page lists, derived on demand.
  // REQUIRES: it has one. O(pages).
  RaggedRegion DeriveRegion(SequenceSlot slot) const;

  // Drops every cached block that no sequence uses. True when none is left.
  bool ResetPrefixCache();

  // Equal for equal states (free-list order aside). O(pool), for tests.
  uint64_t StateHash() const;
  // Full recount of every holder. O(pool), for tests.
  void CheckInvariants() const;

 private:
  SequenceCache& at(SequenceSlot slot);
  const SequenceCache& at(SequenceSlot slot) const;
  // The blocks that positions [0, cut) are in, in table order.
  std::vector<BlockId> BlocksBelow(const SequenceCache& sequence,
                                   int32_t cut) const;
  bool IsOwn(BlockId block) const;
  // Takes available blocks, reclaiming the oldest cached ones when none is
  // free. REQUIRES: enough are available.
  void Take(std::span<BlockId> blocks);
  void ReclaimOldest();
  // The block no longer waits for its fence. REQUIRES: it did.
  void StopCooling(BlockId block);
  // Drops a sequence's hold; a block that only the cache still holds becomes
  // reclaimable, after the fence.
  void ReleaseFrom(BlockId block);
  void DropFromCache(BlockId block);
  void Publish(SequenceCache* sequence, std::span<const int32_t> tokens,
               std::span<const BlockKey> keys);
  // Blocks whose content may be published after num_tokens more are settled.
  int32_t NumPublishable(const SequenceCache& sequence,
                         int32_t num_tokens) const;

  const ModelLayout layout_;
  const bool prefix_caching_;
  BlockPool pool_;
  PrefixCache cache_;
  std::vector<SequenceCache> sequences_;  // by slot
  std::vector<SequenceSlot> free_slots_;  // stack
  // Blocks that only the cache holds and that wait for their fence, in order of
  // release, hence of fences. An entry is stale, and ignored, when its block
  // has been used since: its ticket is not the block's.
  struct Cooling {
    BlockId block;
    uint64_t ticket;
  };
  std::deque<Cooling> cooling_;
  std::vector<uint64_t> cooling_tickets_;  // by block; 0: not cooling
  uint64_t next_cooling_ticket_ = 1;
  int32_t num_cooling_ = 0;
  uint64_t reclaimed_blocks_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_MANAGER_H_
