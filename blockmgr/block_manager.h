// BlockManager: transactions over pool, prefix cache and sequences.
//
// BlockManager decides which memory each sequence has. It never touches K or V
// bytes. Its calls come in pairs, one when a step is issued and one when the
// step is answered:
//
//   Reserve         takes slots for the tokens of a step about to be issued
//   Commit          settles tokens that the step has computed, and publishes
//                   full blocks to the prefix cache
//   Abort           gives the slots back: the step was never issued
//   Rollback        voids tokens of an issued step: drafts that were rejected
//
//   ReserveEviction takes the destination blocks of an order
//   CommitEviction  makes the region, and releases the blocks that it replaces:
//                   the engine has moved the entries
//   AbortEviction   keeps the old table: the engine has refused the order
//
// Two more calls serve preempted sequences, with or without a region:
//
//   SwapOut         takes host blocks for a sequence that is about to be closed
//   SwapIn          takes blocks for it again, to copy the KV back to
//
// Sequences share blocks through the prefix cache and through forks. No row
// that another holder has is ever overwritten. One sequence at most may write
// to a partly filled block: after a fork, the parent goes on in the block,
// behind the rows of the fork. The first Reserve of any other holder takes a
// fresh block instead and names the copy to make (copy on write).
//
// A group of layers with a sliding window (ModelLayout) holds the pages of a
// sequence from FirstPage(group, num_settled) on, or from one page earlier
// after the sequence was cut back. Commit releases the pages that leave the
// window of the settled tokens; tokens that are only scheduled do not count.
// Released pages stay in the prefix cache while there is room. A window group
// may have a region of its own in place of its first pages. The region is
// released whole.
//
// Every call either succeeds or changes nothing. A call returns false where
// blocks are short, and aborts the program where a REQUIRES is broken. A block
// is in one of four states:
//
//   used    a sequence holds it
//   cached  the prefix cache alone holds it; it can be reclaimed as soon as no
//           step in flight may touch it (until then it cools)
//   fenced  it is released, but a step in flight may still touch it
//   free
//
//   used + cached + fenced + free == num_blocks - 1 (block 0 is the null block)
//
// Readers of vLLM: vLLM's "evict" (a cached block gives way to a new one) is
// "reclaim" here. "Evict" here drops KV entries of a live sequence for good.
//
// Cost: O(blocks named or changed by the call), independent of layers and heads
// except for the eviction calls. A steady decode step allocates nothing, though
// it publishes, and reclaims, blocks. Threads: one at a time (in blockmgrd, the
// core thread).
#ifndef BLOCKMGR_BLOCK_MANAGER_H_
#define BLOCKMGR_BLOCK_MANAGER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/cached_pool.h"
#include "blockmgr/host_tier.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/prefix_match.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/sequence_cache.h"
#include "blockmgr/sequence_publisher.h"
#include "blockmgr/step_copies.h"

namespace blockmgr {

class BlockManager {
 public:
  // REQUIRES: layout.Validate().ok(), max_sequences > 0, num_host_blocks >= 0.
  BlockManager(const ModelLayout& layout, int32_t max_sequences,
               bool enable_prefix_caching, int32_t num_host_blocks = 0);

  const ModelLayout& layout() const { return layout_; }
  bool prefix_caching() const { return prefix_caching_; }
  // Returns how many blocks Reserve could take now: the free and the
  // reclaimable ones.
  int32_t num_available() const { return blocks_.num_available(); }
  // Returns how many blocks become available when the steps in flight are
  // acknowledged: the fenced ones, and the cached ones that still cool.
  // stats().fenced_blocks does not count the latter.
  int32_t num_fenced() const { return blocks_.num_fenced(); }
  // Returns how many blocks one sequence could use: all but the null block.
  int32_t num_usable() const { return layout_.num_blocks - 1; }
  int32_t num_open_slots() const {
    return static_cast<int32_t>(free_slots_.size());
  }
  const SequenceCache& sequence(SequenceSlot slot) const {
    return sequences_[Index(slot)];
  }
  // Returns the number of blocks the sequence holds, summed over all groups.
  int32_t CountBlocks(SequenceSlot slot) const;
  // Returns how many blocks leave the windows of the sequence once all of its
  // reserved tokens are settled. O(windows).
  FallingBlocks CountFalling(SequenceSlot slot) const;
  // Returns the blocks in windows that no other sequence holds, and that stay
  // in the windows once all of the reserved tokens are settled. O(windows).
  OwnInWindows CountOwnInWindows(SequenceSlot slot) const;
  const HostTier& host() const { return host_; }
  const PrefixCache& prefix_cache() const { return blocks_.cache(); }
  BlockManagerStats stats() const;
  // Returns the bytes of host memory in which blocks, prefix cache, sequences
  // and regions are accounted for. O(sequences + regions), for reports.
  int64_t metadata_bytes() const;

  // Tell which steps are in flight (see BlockPool). The next dispatched step
  // carries the copies of every Reserve since the step before.
  void Dispatch(StepId step) {
    blocks_.pool().Dispatch(step);
    host_.Dispatch(step);
    if (!copies_.empty()) ReleaseCopySources();
  }
  void Acknowledge(StepId step) {
    blocks_.Acknowledge(step);
    host_.Acknowledge(step);
  }
  // Forgets all KV, in the host tier too, because the engine is gone. Fences
  // fall, and the prefix cache is emptied. REQUIRES: every sequence is closed.
  void LoseEngine();

  // Returns the longest cached prefix of `tokens`: whole blocks, at most
  // max_tokens tokens, and at most the blocks whose keys `chain` has. In every
  // linked group the pages inside the window must be cached, too. With a query,
  // a compressed prefix is preferred to blocks of the same or a shorter length.
  // Its length is limited by query->max_tokens_over instead. The match is valid
  // until the cache changes. `memory` holds the vectors of earlier matches: the
  // call allocates only if this match is longer than those were.
  PrefixMatch Match(const BlockChain& chain, std::span<const int32_t> tokens,
                    int32_t max_tokens, const RegionQuery* query = nullptr,
                    MatchMemory* memory = nullptr) const;

  // Extends a match by the first rows of a cached block whose tokens begin as
  // the sequence goes on, up to max_tokens in all. The sequence that Open makes
  // of the match copies these rows with its first Reserve. Does nothing in
  // models with windows. O(1). REQUIRES: the match is valid.
  void MatchPart(const BlockChain& chain, std::span<const int32_t> tokens,
                 int32_t max_tokens, PrefixMatch* match) const;

  // Returns the first num_tokens of a sequence as a match, so that Open makes a
  // fork that begins with them: it shares their blocks and takes none. If
  // num_tokens end inside a block, the fork's first Reserve takes a fresh block
  // in every group, unless the fork is then the only holder. Valid until the
  // sequence changes. O(blocks of the sequence). REQUIRES:
  // CanFork(source); num_tokens is at most num_settled and not below the cut;
  // CanGoBack(source, num_tokens).
  PrefixMatch MatchFork(SequenceSlot source, int32_t num_tokens) const;

  // Returns whether the sequence could go on from its first num_tokens settled
  // tokens: every window group must still have the pages that the next token
  // attends to. Always true for 0 and for all settled tokens. Also true for all
  // but one of them, unless the sequence was cut back before.
  bool CanGoBack(SequenceSlot slot, int32_t num_tokens) const;

  // Opens a sequence that begins with the tokens of `match`. These tokens count
  // as settled, and as published where the cache has them. The match was found
  // by `chain` and is still valid. If the match ends inside a block, the first
  // Reserve copies the part. If the match has blocks in the host tier, SwapIn
  // must follow. Growing to num_expected tokens will allocate no memory.
  // REQUIRES: num_open_slots() > 0.
  SequenceSlot Open(const BlockChain& chain, const PrefixMatch& match,
                    int32_t num_expected = 0);

  // Returns whether the sequence's tail has come back from the host tier and is
  // not published yet.
  bool IsComingBack(SequenceSlot slot) const { return WillPublish(slot, 0); }
  // Returns whether MatchFork(slot, ..) is possible now. It is not while no
  // slot is open, while an eviction of the sequence is pending (the entries it
  // moves cannot be shared), while the next step carries a copy for the
  // sequence, or while IsComingBack(slot).
  bool CanFork(SequenceSlot slot) const;

  // Returns the number of blocks that Reserve would take for this sequence
  // alone. If sequences share a partly filled last block, the sum of their
  // numbers is one block per group too high. When one call reserves for all of
  // them, the last sequence finds that the others have left the block, and
  // writes in place.
  int32_t CountBlocksNeeded(SequenceSlot slot, int32_t num_tokens) const;
  // Takes slots for the next tokens of each sequence. Appends to `blocks` the
  // ids that are added to the sequence's tail, then the same number of ids for
  // each window group in turn, and appends to `offsets` where the ids of each
  // sequence end. Returns false, with nothing changed, if fewer blocks are
  // available than are needed.
  //
  // If a sequence's last block is partly filled and shared, with another
  // sequence or with the cache, it is replaced in all groups, which takes one
  // block more per group. The copies to make are appended to `copies`. Their
  // sources stay held until the next step is dispatched, and fenced until that
  // step is acknowledged. A sequence that is alone with the block writes in
  // place. REQUIRES: `copies` is given if a sequence was forked, or opened on
  // part of a block; no sequence is named twice.
  [[nodiscard]] bool Reserve(std::span<const TokenDemand> demands,
                             std::vector<int64_t>* offsets,
                             std::vector<BlockId>* blocks,
                             std::vector<CopyOnWrite>* copies = nullptr);
  // Settles the next num_tokens reserved positions. Publishes each block that
  // is full of settled tokens, was computed without a region, and will not be
  // overwritten. `tokens` and `chain` are the sequence's from position 0 on, at
  // least as far as it is settled; they are read only if WillPublish.
  void Commit(SequenceSlot slot, int32_t num_tokens,
              std::span<const int32_t> tokens, const BlockChain& chain);
  // Returns whether Commit(slot, num_tokens) would publish a block, and so read
  // the chain.
  bool WillPublish(SequenceSlot slot, int32_t num_tokens) const {
    return FillsBlock(at(slot), num_tokens);
  }
  // Gives back the last num_tokens reserved positions, which no dispatched step
  // has seen. If that empties a block that Reserve took for a copy, the shared
  // block is back in the table, and the caller must not make the copy. (Close
  // does the same.) REQUIRES: the positions are not settled, and not below the
  // cut of a pending eviction.
  void Abort(SequenceSlot slot, int32_t num_tokens);
  // Voids the last num_tokens reserved positions, which dispatched steps may
  // have seen: drafts that were not accepted. (Reserve took slots for all
  // drafts, and Commit has settled the accepted ones.) Blocks wholly behind the
  // new end are released through the fence. The next Reserve hands the
  // positions out again.
  //
  // Positions are voided from the end only. So rejecting drafts of one step
  // also voids what later steps, in flight or being planned, hold of this
  // sequence, and the caller must not commit their answers for it. Rows that
  // those steps still write are overwritten by a later step, or lie in released
  // blocks. A void position is never published, because only settled ones are.
  // REQUIRES: as Abort.
  void Rollback(SequenceSlot slot, int32_t num_tokens);
  // Forgets all positions from num_tokens on, settled or not, and releases the
  // blocks that held only those, through the fence. As after Rollback, the
  // caller must not commit answers of steps in flight, or being planned, for
  // the sequence. If the new end lies inside a block that others hold (the
  // cache is one of them), the sequence will copy the block before it writes.
  // The next block that the sequence publishes follows the last full block that
  // the sequence has left. If that block has no entry in the cache, or if fewer
  // tokens are left than were computed when the region was made, the sequence
  // publishes nothing more. REQUIRES: num_tokens is 0, which drops the region
  // too, or not below the region's cut; num_tokens <= num_settled;
  // CanGoBack(slot, num_tokens); no eviction is pending.
  void CutBack(SequenceSlot slot, int32_t num_tokens);
  // Handles blocks whose content the engine has lost (their memory is good).
  // Each sequence that holds such a block is cut back to its settled positions
  // before the first one. It is cut back to 0 if the block belongs to its
  // region, or if it cannot go back there. A pending order of such a sequence
  // is aborted, and the blocks that the order may have moved entries into count
  // as lost. The cache drops the lost blocks and every entry that is found only
  // through them. The engine must also name the copies it made of lost blocks.
  // Blocks that nobody holds are ignored. InvalidArgument, naming the place,
  // for a block that the pool does not have; then nothing is changed. O(blocks
  // of all sequences + entries of the cache).
  absl::StatusOr<LossReport> LoseBlocks(std::span<const BlockId> blocks);
  // Releases everything the sequence holds, the end of its tail first, and the
  // destinations of a pending eviction.
  void Close(SequenceSlot slot);
  // Returns the number of blocks that Close would give back to the pool, at
  // once or after the fence.
  int32_t CountReleasable(SequenceSlot slot) const;

  // Takes host blocks for the settled tokens of a sequence that is about to be
  // closed: for its region, then for its tail, then the same for each window
  // group. Appends the copies, which must be made before the next dispatched
  // step writes to blocks. Returns kNoSwap, with nothing changed, if the tier
  // has too few blocks left, if no entry is left to copy, or if a window lacks
  // a page because the sequence was cut back. REQUIRES: something is settled;
  // no eviction and no copy of the sequence is pending. O(blocks of the
  // sequence).
  SwapId SwapOut(SequenceSlot slot, std::vector<BlockTransfer>* transfers);
  // Extends a match of the same tokens by the host blocks of a sequence that
  // was swapped out, to its first num_tokens. Leaves the match as it is if the
  // cache has as many tokens, or if the sequence cannot go back there. Cached
  // blocks of the index group stay in the match if they have the same past.
  // `length` is the sequence's PrefixMatch::length. REQUIRES: num_tokens is
  // above 0, at most what was swapped out, and not below the cut or the length.
  void MatchSwapped(SwapId swap, int32_t num_tokens, int32_t length,
                    PrefixMatch* match) const;
  // Takes blocks for the swapped-out part of the sequence that Open(match) has
  // opened. Appends the copies, which the next dispatched step carries. The
  // host tier then forgets the sequence. REQUIRES: match.CountIns() blocks are
  // available.
  void SwapIn(SequenceSlot slot, const PrefixMatch& match,
              std::vector<BlockTransfer>* transfers);
  // Releases the host blocks of a sequence that will not come back. REQUIRES:
  // it has not come back.
  void DropSwapped(SwapId swap) { host_.Drop(swap); }
  // Handles host blocks whose content the engine has lost. Drops the
  // swapped-out sequences that hold one, and returns them. InvalidArgument as
  // LoseBlocks.
  absl::StatusOr<std::vector<SwapId>> LoseHostBlocks(
      std::span<const HostBlockId> blocks);

  // Returns how many blocks an eviction of positions [0, cut) of a group covers
  // when `length` tokens are computed, and how many of these no other sequence
  // holds. Blocks of positions that are not reserved yet will be the sequence's
  // own. `length` means nothing for full attention. REQUIRES: cut <= length; in
  // full attention, cut is not below the cut of the group's region.
  CoveredBlocks CountCovered(SequenceSlot slot, int32_t group, int32_t cut,
                             int32_t length) const;
  // Orders an eviction of positions [0, cut) in one group. The eviction covers
  // the positions that the token after the reserved ones attends to. The order
  // needs CeilDiv(page_total, shard_pages_per_block) destination blocks. Of
  // these it takes num_fresh from the available blocks. The rest are blocks
  // below the cut that no other sequence holds. If the cache holds such a
  // block, too, the cache's entry is dropped. Appends the destinations. Returns
  // false, with nothing changed, if there are too few blocks. REQUIRES: cut is
  // a multiple of page_size, above the cut of the group's region and what has
  // left the span, and at most num_reserved; no eviction of the group is
  // pending; no shard's total exceeds page_total.
  [[nodiscard]] bool ReserveEviction(SequenceSlot slot,
                                     const EvictionDemand& demand,
                                     std::vector<BlockId>* destinations);
  // Checks that `counts`, [num_layers * num_heads] kept entries, are a legal
  // answer to the group's pending order, and that the page lists that follow
  // from the counts have the checksum, if one is given. Otherwise returns
  // InvalidArgument.
  absl::Status ValidateCounts(SequenceSlot slot, int32_t group,
                              std::span<const int32_t> counts,
                              std::optional<uint64_t> checksum = {}) const;
  // Makes the region of the group's pending order, which the engine has carried
  // out, and releases the blocks that it replaces.
  //
  // With a publication, which only the index group can have, other sequences
  // can find the region from now on, together with the regions and blocks of
  // the other groups and the block behind the cut. The publication's length
  // must be one page above the cut. The region is not published if the sequence
  // has settled more or less than that length, if nothing is kept, if an order
  // of another group is pending, or if a window lacks a page because the
  // sequence was cut back. Without a published region, the sequence publishes
  // nothing that it computes from now on.
  //
  // REQUIRES: ValidateCounts(...).ok(). Everything below the cut is settled; in
  // a group with a window, exactly the tokens that were reserved when the
  // eviction was ordered.
  EvictionReceipt CommitEviction(
      SequenceSlot slot, int32_t group, std::span<const int32_t> counts,
      const RegionPublication* publication = nullptr);
  // Drops the group's pending order, which the engine has refused without
  // moving anything. The old table stays.
  void AbortEviction(SequenceSlot slot, int32_t group);

  // Returns the region of a group with its page lists, which are derived on
  // demand. REQUIRES: the group has a region. O(pages).
  RaggedRegion DeriveRegion(SequenceSlot slot, int32_t group) const;

  // Drops every cached block and region that no sequence uses.
  CacheReset ResetPrefixCache() { return blocks_.Reset(); }
  // Appends the regions that the cache has dropped since the last call. No
  // sequence will be opened on them any more, so an engine may forget them.
  void TakeDroppedRegions(std::vector<RegionId>* regions) {
    blocks_.TakeDroppedRegions(regions);
  }
  // Sets the time by which retention wishes expire. See ReclaimOrder::SetTime.
  void SetTime(int64_t now_ms) { blocks_.cache().SetTime(now_ms); }
  // For tests, O(pool): a hash that is equal for equal states, and a recount of
  // the holders of every block, which aborts where it differs.
  uint64_t StateHash() const;
  void CheckInvariants() const;

 private:
  // Tables of sequences (block_manager.cc).
  SequenceCache& at(SequenceSlot slot) {
    SequenceCache& sequence = sequences_[Index(slot)];
    BM_CHECK(sequence.open);
    return sequence;
  }
  const SequenceCache& at(SequenceSlot slot) const {
    const SequenceCache& sequence = sequences_[Index(slot)];
    BM_CHECK(sequence.open);
    return sequence;
  }
  void ReserveTables(SequenceSlot slot, int32_t num_tokens);
  // Fill a group's table with the region and the blocks that the match has.
  void OpenRegion(const BlockChain& chain, const PrefixMatch& match,
                  int32_t group, GroupCache* cache);
  void OpenTail(const BlockChain& chain, const PrefixMatch& match,
                int32_t group, GroupCache* cache);
  // Gives up the blocks of all tables wholly behind the first num_tokens
  // positions; `release` tells how.
  void Shrink(SequenceCache* sequence, int32_t num_tokens,
              absl::FunctionRef<void(BlockId)> release);
  // Releases the regions of all groups.
  void ReleaseRegions(SequenceCache* sequence);

  // The prefix cache.
  SequencePublisher publisher() { return {&layout_, &blocks_}; }
  // Returns whether num_tokens more settled positions fill a block that can be
  // published and is not.
  bool FillsBlock(const SequenceCache& sequence, int32_t num_tokens) const {
    return prefix_caching_ && sequence.chain_serial != kNoSerial &&
           sequence.num_settled + num_tokens >=
               (sequence.num_published + 1) * layout_.page_size;
  }

  // Spans of layer groups (block_manager_groups.cc).
  // Releases what left the spans since num_before tokens were settled.
  void ReleaseOutOfSpan(SequenceCache* sequence, int32_t num_before);
  // Returns how many blocks the region has, or 0 for a shared region.
  int32_t CountOwnRegionBlocks(const GroupRegion& region) const;

  // Forks and copies on write (block_manager_fork.cc).
  // Opens a sequence that is equal to the given one, reserved positions too.
  SequenceSlot Duplicate(SequenceSlot slot);
  // Returns whether a write after the last position needs a copy of the last
  // block. It does if the block has a holder besides this sequence and the
  // sequences in copies_. It also does if a sequence in copies_ has rows in the
  // block that the write would destroy, because that sequence may take the
  // block back (UndoCopy).
  bool NeedsCopy(const SequenceCache& sequence) const;
  // Adds to copies_ what the sequence's next write needs, still without a
  // destination.
  void PlanCopy(SequenceSlot slot);
  // Puts fresh blocks in the place of the sources of copies_ from `first` on.
  void CarryOut(size_t first, std::vector<CopyOnWrite>* copies);
  // Takes the source back if the sequence has a copy in copies_.
  void UndoCopy(SequenceSlot slot);
  // Must be called after reserved positions were given back. If no unsettled
  // position is left, undoes the sequence's copies, and its last block is
  // shared as it was when the last position was settled.
  void ReturnToSettled(SequenceSlot slot);
  void ReleaseCopySources();

  // Evictions (block_manager_eviction.cc).
  const PendingEviction& PendingOf(SequenceSlot slot, int32_t group) const;
  // Returns the blocks that the group's pending eviction covers.
  HeldBlocks CoveredBy(SequenceSlot slot, int32_t group) const;
  void AbortEvictions(SequenceSlot slot);

  // Losses (block_manager_loss.cc).
  // Returns how many settled positions a sequence with a lost block has left.
  // No value if the sequence has no lost block. See LoseBlocks.
  std::optional<int32_t> CountSoundTokens(
      SequenceSlot slot, const absl::flat_hash_set<BlockId>& lost) const;

  // Audits (block_manager_audit.cc). CheckGroup audits a group's table.
  // CheckCopies audits copies_ and which sequences may write to shared blocks.
  // Both add up the holders of blocks.
  void CheckGroup(const SequenceCache& sequence, int32_t group,
                  absl::FunctionRef<void(BlockId)> hold) const;
  void CheckCopies(std::vector<int32_t>* holders) const;

  const ModelLayout layout_;
  const bool prefix_caching_;
  CachedPool blocks_;
  HostTier host_;
  std::vector<SequenceCache> sequences_;  // indexed by slot
  std::vector<SequenceSlot> free_slots_;  // used as a stack
  StepCopies copies_;                     // copies of the step being planned
  uint64_t next_region_ = 1;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_MANAGER_H_
