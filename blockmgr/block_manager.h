// BlockManager: transactions over pool, prefix cache and sequences.
//
// It decides which memory each sequence has, and never touches K or V bytes.
// Everything comes in pairs that a step spans:
//
//   Reserve         takes slots for the tokens of a step about to be issued
//   Commit          the step is acknowledged: tokens are settled, full blocks
//                   are published to the prefix cache
//   Abort           the step was never issued: the slots are given back
//   Rollback        it was, but some of its tokens are rejected
//
//   ReserveEviction takes the destination blocks of an order
//   CommitEviction  the engine has moved the entries: the region exists, what
//                   it no longer needs is released
//   AbortEviction   the engine has refused the order: the old table holds
//
// and, for sequences that are preempted, with or without a region:
//   SwapOut         takes host blocks for one that is about to be closed
//   SwapIn          gives it blocks again, to copy the KV back to
//
// Sequences share blocks, by the prefix cache and by Fork. A shared block is
// written by nobody: the first Reserve of a sequence that would write into one
// gives it a fresh block instead, and tells what to copy (copy on write).
//
// A group of layers with a window (ModelLayout) has of each sequence the pages
// from FirstPage(group, num_settled) on (or one less, having gone back): what
// falls out of the window of what is settled, not of what is only scheduled, is
// released by Commit, and stays in the prefix cache as long as there is room.
// A region of its own in place of the first of them is released whole.
//
// Every call either succeeds or changes nothing. Scarcity is a value (false);
// broken REQUIRES abort. A block is used (by sequences), cached (only the
// prefix cache holds it: reclaimable), fenced or free:
//
//   used + cached + fenced + free == num_blocks - 1
//
// Cost: O(blocks named or changed by the call), independent of layers and heads
// except for the eviction calls. A steady decode step allocates nothing, though
// it publishes, and reclaims, blocks. Threads: core thread.
#ifndef BLOCKMGR_BLOCK_MANAGER_H_
#define BLOCKMGR_BLOCK_MANAGER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/block_pool.h"
#include "blockmgr/cooling_entries.h"
#include "blockmgr/host_tier.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/prefix_match.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/sequence_cache.h"

namespace blockmgr {

class BlockManager {
 public:
  // REQUIRES: layout.Validate().ok(), max_sequences > 0, num_host_blocks >= 0.
  BlockManager(const ModelLayout& layout, int32_t max_sequences,
               bool enable_prefix_caching, int32_t num_host_blocks = 0);

  const ModelLayout& layout() const { return layout_; }
  bool prefix_caching() const { return prefix_caching_; }
  // Blocks that Reserve could take now: free, or reclaimable.
  int32_t num_available() const {
    return pool_.num_free() + cache_.num_reclaimable();
  }
  // Released blocks, available when the steps in flight are acknowledged.
  int32_t num_fenced() const {
    return pool_.num_fenced() + cooling_.num_blocks();
  }
  // Blocks that one sequence could ever use: all but the null block.
  int32_t num_usable() const { return layout_.num_blocks - 1; }
  int32_t num_open_slots() const {
    return static_cast<int32_t>(free_slots_.size());
  }
  const SequenceCache& sequence(SequenceSlot slot) const {
    return sequences_[Index(slot)];
  }
  // REQUIRES: 1 <= group < layout().num_groups().
  const WindowCache& window(SequenceSlot slot, int32_t group) const {
    return windows_[WindowIndex(slot, group)];
  }
  // The table of a window group: its block i has page i, null before FirstPage
  // of what is settled and below its region's cut. REQUIRES: as window().
  const std::vector<BlockId>& window_tail(SequenceSlot slot,
                                          int32_t group) const {
    return window(slot, group).tail;
  }
  // Blocks that it holds, in all groups.
  int32_t NumBlocks(SequenceSlot slot) const;
  // Of those, the ones that leave windows when all that is reserved is settled:
  // its own, or all; and its own that stay in windows then. O(windows).
  int32_t NumFalling(SequenceSlot slot) const;
  int32_t NumFallingOrShared(SequenceSlot slot) const;
  OwnInWindows NumOwnInWindows(SequenceSlot slot) const;
  const HostTier& host() const { return host_; }
  const PrefixCache& prefix_cache() const { return cache_; }
  BlockManagerStats stats() const;
  // Host memory that keeps account of the pool: of blocks, the prefix cache,
  // sequences and regions. O(sequences + regions), for occasional reports.
  int64_t metadata_bytes() const;

  // Steps in flight, see BlockPool. The next step to be dispatched is the one
  // that carries the copies of every Reserve since the last.
  void Dispatch(StepId step) {
    pool_.Dispatch(step);
    host_.Dispatch(step);
    if (!copies_.empty()) ReleaseCopySources();
  }
  void Acknowledge(StepId step);
  // The engine is gone with all KV, in the host tier, too: every sequence must
  // be closed; fences fall and the cache is emptied.
  void LoseEngine();

  // The longest cached prefix of `tokens` in whole blocks, at most max_tokens
  // tokens and as far as `chain` names them. With a query, a compressed prefix
  // that covers no less is preferred (whose limit the query has). As long as
  // every group has what is in its window there. Valid until the cache changes.
  // What `used` has memory for takes no more.
  PrefixMatch Match(const BlockChain& chain, std::span<const int32_t> tokens,
                    int32_t max_tokens, const RegionQuery* query = nullptr,
                    PrefixMatch used = {}) const;

  // Extends what Match has found by the first rows of a block that begins as
  // the sequence goes on, up to max_tokens; Open's sequence copies them with
  // its first Reserve. Not in models with windows. O(1). REQUIRES: it is valid.
  void MatchPart(const BlockChain& chain, std::span<const int32_t> tokens,
                 int32_t max_tokens, PrefixMatch* match) const;

  // The first num_tokens of a sequence, to be forked by Open. Valid until the
  // sequence changes. REQUIRES: CanFork(source), and Open in its place;
  // num_tokens is settled, not below the cut, and it can go back there.
  PrefixMatch MatchFork(SequenceSlot source, int32_t num_tokens) const;

  // Whether every group still has what the sequence needs to go on from its
  // first num_tokens settled tokens; always so for 0 and all of them, and for
  // all but one of a sequence that has not gone back already.
  bool CanGoBack(SequenceSlot slot, int32_t num_tokens) const;

  // Opens a sequence whose first tokens are `match` (settled and published as
  // far as there), found by `chain` and still in the cache, or of a sequence.
  // A part of a block is copied by the first Reserve; for what comes back from
  // the host tier SwapIn is to follow. Its tables have room for num_expected
  // tokens: growing to that allocates nothing. REQUIRES: num_open_slots() > 0.
  SequenceSlot Open(const BlockChain& chain, const PrefixMatch& match,
                    int32_t num_expected = 0);

  // Whether its tail is back from the host tier, and yet to be published.
  bool IsComingBack(SequenceSlot slot) const { return WillPublish(slot, 0); }
  // Whether Fork(slot) is possible now: a slot is open, no eviction is pending
  // (what it moves cannot be shared), nor a copy that the next step carries,
  // and it is not coming back.
  bool CanFork(SequenceSlot slot) const;
  // A new sequence that shares everything settled that the given one holds, and
  // is published as far; what steps in flight write is not shared. Takes no
  // blocks: who writes into the last block, where it is partly filled, takes
  // one per group then, the first of the two where both have the same rows. The
  // two know nothing of each other. REQUIRES: CanFork(slot). O(its blocks).
  SequenceSlot Fork(SequenceSlot slot);

  // Blocks that Reserve would take for this sequence alone. For several that
  // share a last block the sum may be one more (per group) than for all in one
  // call, where the last of them finds that the others have left it.
  int32_t BlocksNeeded(SequenceSlot slot, int32_t num_tokens) const;
  // Takes slots for the next tokens of each sequence. Appends to `blocks` the
  // ids added to each tail, then as many for each window group in turn, and to
  // `offsets` where each sequence's ids end. All or nothing: false when fewer
  // blocks are available than needed.
  //
  // A last block that is partly filled and shared (with other sequences that
  // have not left it, or the cache) is replaced, in all groups, and the copies
  // appended to `copies`; that takes a block more per group. Who is alone with
  // it writes in place. Sources stay held until the next step is dispatched,
  // fenced until it is acknowledged. REQUIRES: copies, where sequences were
  // forked or opened on part of a block; no sequence is named twice.
  [[nodiscard]] bool Reserve(std::span<const TokenDemand> demands,
                             std::vector<int64_t>* offsets,
                             std::vector<BlockId>* blocks,
                             std::vector<CopyOnWrite>* copies = nullptr);
  // Settles the next num_tokens reserved positions. Publishes the blocks that
  // are full of settled tokens, were computed without a region, and are not
  // about to be overwritten. tokens, chain: of the sequence from position 0, at
  // least as far as settled (read only while publishing).
  void Commit(SequenceSlot slot, int32_t num_tokens,
              std::span<const int32_t> tokens, const BlockChain& chain);
  // Whether Commit(slot, num_tokens) would publish, so that names are needed.
  bool WillPublish(SequenceSlot slot, int32_t num_tokens) const;
  // Gives back the last num_tokens reserved positions, which no dispatched step
  // has seen. With the last of them goes a copy that the step was to carry: the
  // shared block is back in the table, and the caller forgets the copy; so also
  // when the sequence is closed. REQUIRES: they are not settled, nor below the
  // cut of a pending eviction.
  void Abort(SequenceSlot slot, int32_t num_tokens);
  // Voids the last num_tokens reserved positions, which dispatched steps may
  // have seen: draft tokens that were not accepted (Reserve took slots for all
  // of them; Commit settles the accepted ones first). Blocks wholly behind the
  // new end are released, through the fence; the next Reserve hands out the
  // positions anew. Positions go from the end only: to reject some of one step
  // is to void all that later steps, in flight or being planned, hold of this
  // sequence, and what those steps answer for it is not committed. What they
  // still write lands in slots that are rewritten by a later step or released.
  // Nothing void is ever published, since only what is settled is.
  // REQUIRES: as Abort.
  void Rollback(SequenceSlot slot, int32_t num_tokens);
  // Forgets all positions from num_tokens on, settled or not, and releases
  // what holds them alone, through the fence. As after Rollback, nothing that
  // steps in flight or being planned answer for the sequence is committed. Cut
  // back into a block that others hold, the cache for one, it will copy before
  // it writes. What it publishes next follows what it has left; where that has
  // no entry of its own in the cache, or is less than was computed when its
  // region was made, it publishes nothing more.
  // REQUIRES: num_tokens <= num_settled; 0, which drops the region too, or not
  // below the region's cut, and CanGoBack(slot, num_tokens); no eviction is
  // pending.
  void CutBack(SequenceSlot slot, int32_t num_tokens);
  // The engine reports that the content of these blocks is lost (the memory is
  // good). Each sequence that holds one is cut back to its settled positions
  // before the first: 0, if one belongs to its region, or it cannot go back
  // there. A pending order of such a sequence is aborted, and the blocks it may
  // have moved entries into count as lost. The cache drops these blocks and all
  // that is found only through them. The engine names copies it made of lost
  // blocks as well; blocks that nobody holds do no harm. InvalidArgument,
  // naming the place, for a block that the pool does not have; then nothing is
  // changed. O(blocks of all sequences + entries of the cache).
  absl::StatusOr<LossReport> LoseBlocks(std::span<const BlockId> blocks);
  // Releases everything the sequence holds, the tail's end first, and any
  // destinations of an eviction under way.
  void Close(SequenceSlot slot);
  // Blocks that Close would give back to the pool, now or after the fence.
  int32_t NumReleasable(SequenceSlot slot) const;

  // Takes host blocks for the settled tokens of a sequence that is about to be
  // closed, for its region first, then the tail, then the same of the window
  // groups; appends the copies, which are made before the next step to be
  // dispatched, or any later one, writes to blocks. kNoSwap, with nothing
  // changed, when the tier has too few left, no entry is left to copy, or it
  // has gone back and a window lacks a page.
  // REQUIRES: something is settled; no eviction is pending, nor a copy. O(its
  // blocks).
  SwapId SwapOut(SequenceSlot slot, std::vector<BlockTransfer>* transfers);
  // Extends what Match has found of the same tokens by what comes back of a
  // sequence that was swapped out: its first num_tokens, unless the cache has
  // as many, or it cannot go back there. What is cached in group 0 stays, where
  // it has the same past. `length`: as PrefixMatch::length of the sequence.
  // REQUIRES: num_tokens is at most what was swapped out, and not below its cut
  // or length, nor 0.
  void MatchSwapped(SwapId swap, int32_t num_tokens, int32_t length,
                    PrefixMatch* match) const;
  // Takes blocks for what comes back to the sequence that Open(match) has
  // opened, and appends the copies that the next step to be dispatched carries;
  // then the host tier forgets it. REQUIRES: match.num_ins() blocks are
  // available.
  void SwapIn(SequenceSlot slot, const PrefixMatch& match,
              std::vector<BlockTransfer>* transfers);
  // It will not come back. REQUIRES: it has not.
  void DropSwapped(SwapId swap) { host_.Drop(swap); }
  // The engine reports that these host blocks do not hold what they should:
  // drops, and returns, those who hold one. InvalidArgument as for LoseBlocks.
  absl::StatusOr<std::vector<SwapId>> LoseHostBlocks(
      std::span<const HostBlockId> blocks);

  // Whether one sequence at most holds the region.
  bool IsOwnRegion(const RegionRecord& region) const;
  // Blocks of positions [0, cut) that no other sequence holds. Positions not
  // reserved yet count: their blocks will be its own.
  int32_t NumOwnBlocks(SequenceSlot slot, int32_t cut) const;
  // Blocks that a window group has of them when `length` tokens are computed,
  // and how many of these nobody else holds, likewise. REQUIRES: cut <= length.
  CoveredBlocks CoveredInWindow(SequenceSlot slot, int32_t group, int32_t cut,
                                int32_t length) const;
  // Orders an eviction of [0, cut) in one group: takes num_fresh available
  // blocks and, for the rest of CeilDiv(page_total, shard_pages_per_block),
  // blocks below cut that only this sequence (and the cache, whose entry is
  // dropped) holds. Appends the destinations. False, with nothing changed, when
  // there are too few. Of a window group it covers what the token after those
  // reserved attends to. REQUIRES: cut is a multiple of page_size, above the
  // group's region's cut and what is left out, at most num_reserved; no
  // eviction of the group is pending; no shard's total exceeds page_total.
  [[nodiscard]] bool ReserveEviction(SequenceSlot slot,
                                     const EvictionDemand& demand,
                                     std::vector<BlockId>* destinations);
  // Whether counts [num_layers * num_heads] are a legal answer to the group's
  // pending order, whose page lists have the checksum, if any. InvalidArgument.
  absl::Status ValidateCounts(SequenceSlot slot,
                              std::span<const int32_t> counts,
                              int32_t group = 0,
                              std::optional<uint64_t> checksum = {}) const;
  // The pending order was carried out. With a publication, whose length must be
  // one page above the cut, the region can be found by others from now on,
  // together with the block after it, wherever what is before the cut went; not
  // so when more or less than that length is settled, nothing is kept, an order
  // of a window group is pending, or it has gone back and a window lacks a
  // page. REQUIRES: everything below the cut is settled,
  // ValidateCounts(...).ok().
  EvictionReceipt CommitEviction(
      SequenceSlot slot, std::span<const int32_t> counts,
      const RegionPublication* publication = nullptr);
  // The same of a window group. Nothing that the sequence computes from now on
  // is published, until a region of group 0 is, with those that the windows
  // have. REQUIRES: what was reserved when it was ordered is settled, and
  // nothing since; ValidateCounts(...).ok().
  EvictionReceipt CommitWindowEviction(SequenceSlot slot, int32_t group,
                                       std::span<const int32_t> counts);
  // The group's pending order was refused; the engine has moved nothing.
  void AbortEviction(SequenceSlot slot, int32_t group = 0);

  // The region of a group with its page lists, derived on demand.
  // REQUIRES: it has one. O(pages).
  RaggedRegion DeriveRegion(SequenceSlot slot, int32_t group = 0) const;

  CacheReset ResetPrefixCache();  // of what no sequence uses
  // Regions that the cache has dropped since the last call: no sequence will be
  // opened on them any more. Appends them. An engine may forget them.
  void TakeDroppedRegions(std::vector<RegionId>* regions);
  // Sets the time by which retention wishes expire. See ReclaimOrder::SetTime.
  void SetTime(int64_t now_ms) { cache_.SetTime(now_ms); }
  // O(pool), for tests: equal for equal states; a recount of every holder.
  uint64_t StateHash() const;
  void CheckInvariants() const;

 private:
  // Tables of sequences (block_manager.cc).
  SequenceCache& at(SequenceSlot slot);
  const SequenceCache& at(SequenceSlot slot) const;
  void ReserveTables(SequenceSlot slot, int32_t num_tokens);
  // Gives up the blocks of all tables wholly behind the first num_tokens
  // positions; `release` tells how.
  void Shrink(SequenceCache* sequence, int32_t num_tokens,
              absl::FunctionRef<void(BlockId)> release);
  // Takes available blocks, reclaiming cached ones when none is free. REQUIRES:
  // enough are available.
  void Take(std::span<BlockId> blocks);
  // Drops a sequence's hold on a block of its tail, or its region.
  void ReleaseFrom(BlockId block);
  void ReleaseRegion(const RegionRecord& region);
  void ReleaseRegions(SequenceCache* sequence);  // of all groups

  // The prefix cache (block_manager_cache.cc).
  // Of Match: what nobody uses; regions, in the memory of `used`.
  void CountUnused(PrefixMatch* match) const;
  PrefixMatch MatchOver(const BlockChain& chain,
                        std::span<const int32_t> tokens, RegionQuery query,
                        PrefixMatch used, int64_t* num_looks) const;
  // What a sequence wishes for the entry; null: nothing.
  void ApplyRetention(int32_t entry, const Retention* wish) {
    if (wish != nullptr) cache_.SetRetention(entry, *wish);
  }
  // What the sequence publishes next comes after `entry`.
  void ContinueAfter(int32_t entry, SequenceCache* sequence) const;
  // The sequence ends earlier than before: what it publishes next comes after
  // the last full block it has left.
  void CutChain(SequenceCache* sequence) const;
  // Pages whose content may be published after num_tokens more are settled.
  int32_t NumPublishable(const SequenceCache& sequence,
                         int32_t num_tokens) const;
  void Publish(SequenceCache* sequence, std::span<const int32_t> tokens,
               const BlockChain& chain);
  // Publishes the sequence's new region and continues its chain over it; false
  // when it cannot be found again. `is_cached`: the cache has one like it.
  bool PublishRegion(SequenceSlot slot, const RegionPublication& publication,
                     bool* is_cached);
  // The block after the region, or an equal one, in the cache from now on.
  BlockId PublishTail(const SequenceCache& sequence,
                      const RegionPublication& publication);
  // Some block of an entry: all were released together.
  BlockId SomeBlock(int32_t entry) const;
  // Only the cache holds the entry now: reclaimable, after the fence.
  void BecomeUnused(int32_t entry);
  // A sequence is about to use the entry.
  void Wake(int32_t entry);
  // A region can be found now in place of these blocks: those behind the first
  // num_found positions, which nobody has ever found or uses, go before others.
  // The same of a region that it goes on from.
  void Supersede(int32_t num_found, std::span<const BlockId> blocks);
  void Supersede(RegionId region);
  void ReclaimNext();
  // Gives up the cache's hold on an entry; the second: not a reclaimable one.
  void DropAnyEntry(int32_t entry);
  void DropFromCache(int32_t entry);

  // Windows (block_manager_windows.cc).
  enum class Owned : uint8_t { kAny, kOwn };
  int32_t NumFalling(SequenceSlot slot, Owned owned) const;
  size_t WindowIndex(SequenceSlot slot, int32_t group) const {
    return static_cast<size_t>(Index(slot)) * layout_.group_windows.size() +
           static_cast<size_t>(group - 1);
  }
  std::span<WindowCache> Windows(const SequenceCache& sequence);
  std::span<const WindowCache> Windows(const SequenceCache& sequence) const;
  // The first page that a group's table has; whether every one has FirstPage.
  int32_t FirstHeld(SequenceSlot slot, int32_t group) const;
  bool HasWindows(SequenceSlot slot) const;
  void ReleaseRegionBehind(WindowCache* window, int32_t group,
                           int32_t num_settled);
  // Releases what left the windows since num_before tokens were settled.
  void ReleaseBehindWindows(SequenceCache* sequence, int32_t num_before);
  // The most pages of the match, at least num_least, for which every group has
  // its window; -1: there are none.
  int32_t PagesInWindows(const PrefixMatch& match, int32_t num_least) const;
  // Shortens a match to those and names the window blocks. False: to nothing.
  bool FitWindows(PrefixMatch* match) const;
  // The block of a match in a window group that has this page, or null.
  BlockId WindowBlock(const PrefixMatch& match, int32_t page,
                      int32_t group) const;
  // The beginning of the sequence's tables, from the cache.
  void OpenWindows(const BlockChain& chain, const PrefixMatch& match,
                   SequenceCache* sequence);
  // Publishes what the window groups have of a page with `entry`.
  void PublishWindows(const SequenceCache& sequence, int32_t page,
                      int32_t entry, const Retention* wish);
  // What a region of `length` is to link; likewise.
  RegionWindows LinkWindows(const SequenceCache& sequence, int32_t length,
                            const Retention* wish);
  // Of its region: all blocks, or none if they are not its own.
  int32_t RegionBlocksOf(const WindowCache& window, Owned owned) const;

  // Forks and copies on write (block_manager_fork.cc).
  // A new sequence that is the same, reserved positions too.
  SequenceSlot Duplicate(SequenceSlot slot);
  // Whether writing after the last position needs a copy of the last block:
  // somebody besides those in copies_ holds it, or one of those has rows there
  // that would be lost if it came back.
  bool NeedsCopy(const SequenceCache& sequence) const;
  // Adds to copies_ what the sequence's next write needs, still without a
  // destination.
  void PlanCopy(SequenceSlot slot);
  // Forgets all copies but the first num_kept, which have no destination yet.
  void ForgetPlanned(size_t num_kept);
  // Puts fresh blocks in the place of the planned copy's sources.
  void CarryOut(size_t copy, std::vector<CopyOnWrite>* copies);
  std::span<const BlockCopy> WindowCopies(size_t copy) const;
  // If the sequence has a copy in copies_, it takes the source back.
  void UndoCopy(SequenceSlot slot);
  // The first positions after the settled ones were given back, if all were.
  void ReturnToSettled(SequenceSlot slot);
  absl::flat_hash_map<BlockId, LeavingSequences> CountLeaving() const;
  void ReleaseCopySources();

  // Evictions (block_manager_eviction.cc).
  // Whether no other sequence holds a block of the tail. What the cache holds
  // can be taken from it.
  bool IsOwn(BlockId block) const;
  // Of those covered, the ones that are the sequence's own, in table order.
  std::vector<BlockId> OwnOf(const HeldBlocks& covered) const;
  // For an order that covers those. False, with nothing changed: too few.
  bool TakeDestinations(const HeldBlocks& covered, const EvictionDemand& demand,
                        PendingEviction* pending);
  // Appends num_own of the candidates, which are its own, in their order, and
  // drops what the cache has of them.
  void TakeOwn(const RegionRecord* region, std::span<const BlockId> candidates,
               int64_t num_own, std::vector<BlockId>* taken);
  const PendingEviction& PendingOf(SequenceSlot slot, int32_t group) const;
  // The highest cut of the evictions that are pending, in any group; 0: none.
  int32_t PendingCut(const SequenceCache& sequence) const;
  // What the group's pending order covers.
  HeldBlocks CoveredBy(SequenceSlot slot, int32_t group) const;
  // Gives up what the new region stands for, or has no use for.
  EvictionReceipt Replace(const HeldBlocks& covered,
                          const PendingEviction& pending,
                          const RegionRecord& region);
  void AbortEvictions(SequenceSlot slot);

  // Losses (block_manager_loss.cc).
  // Settled positions before the first lost block; none if it has none of them.
  std::optional<int32_t> SoundTokens(
      SequenceSlot slot, const absl::flat_hash_set<BlockId>& lost) const;

  // Audits (block_manager_audit.cc): of the window groups' tables, of copies_
  // and who may write to shared blocks, of the cache. Those before add up the
  // holders of blocks.
  void CheckWindowTails(const SequenceCache& sequence,
                        absl::FunctionRef<void(BlockId)> hold) const;
  void CheckCopies(std::vector<int32_t>* holders) const;
  void CheckCacheHolds(std::span<const int32_t> holders) const;

  const ModelLayout layout_;
  const bool prefix_caching_;
  BlockPool pool_;
  PrefixCache cache_;
  HostTier host_;
  std::vector<SequenceCache> sequences_;  // by slot
  std::vector<WindowCache> windows_;      // [slots, window groups]
  std::vector<SequenceSlot> free_slots_;  // stack
  // Of the step being planned, at most one per sequence. A source keeps the
  // hold that the sequence had, so that Abort finds it.
  std::vector<CopyOnWrite> copies_;       // of group 0
  std::vector<BlockCopy> window_copies_;  // [copies, window groups]
  absl::flat_hash_map<BlockId, LeavingSequences> leaving_;  // copies_ by source
  CoolingEntries cooling_;  // that only the cache holds
  uint64_t next_region_ = 1;
  std::vector<RegionId> dropped_regions_;
  uint64_t reclaimed_blocks_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_MANAGER_H_
