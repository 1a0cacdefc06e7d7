// A naive twin of BlockManager: maps, sets and full recounts.
//
// The model does not choose blocks: it is told which ones the product chose,
// says whether they were allowed, and recounts everything from the tables
// alone. Violations are GoogleTest failures.
#ifndef TESTS_BLOCKMGR_NAIVE_MODEL_H_
#define TESTS_BLOCKMGR_NAIVE_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/naive_books.h"
#include "tests/blockmgr/naive_cache.h"
#include "tests/blockmgr/naive_host.h"

namespace blockmgr {

// The reservation of a sequence in one step.
struct NaiveRun {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
};

class NaiveModel {
 public:
  NaiveModel(const ModelLayout& layout, bool caching, int32_t num_host_blocks,
             NaiveTally* tally);

  bool has_steps_in_flight() const {
    return books_.fences.has_steps_in_flight();
  }
  const std::map<SequenceSlot, NaiveSequence>& sequences() const {
    return books_.sequences;
  }
  NaiveSequence& at(SequenceSlot slot) { return books_.sequences.at(slot); }
  const NaiveSequence& at(SequenceSlot slot) const {
    return books_.sequences.at(slot);
  }
  NaiveCache& cache() { return cache_; }
  NaiveHost& host() { return host_; }
  // Whether copies are planned.
  bool has_copies() const { return !books_.copies.empty(); }

  // Compares all counters and tables, and what is derived from them.
  void Check(const BlockManager& manager) const;
  // Compares the regions of all groups.
  void CheckRegions(const BlockManager& manager, SequenceSlot slot) const;

  // `sequence` has tokens, scope and wishes.
  void Open(SequenceSlot slot, NaiveSequence sequence, const NaiveMatch& match);
  int32_t CountBlocksNeeded(SequenceSlot slot, int32_t num_tokens) const;
  // `blocks` were handed out while num_free blocks were free: they are
  // nobody's, out of reach of the steps in flight, and the oldest cached ones
  // made room. Returns how many had to be reclaimed.
  int32_t HandOut(std::span<const BlockId> blocks, int32_t num_free);
  void Reserve(SequenceSlot slot, int32_t num_tokens,
               std::span<const BlockId> blocks);
  // Takes the last reserved tokens back; `seen`: steps may have touched their
  // blocks.
  void Withdraw(SequenceSlot slot, int32_t num_tokens, bool seen);
  bool WillPublish(SequenceSlot slot, int32_t num_tokens) const;
  void Commit(SequenceSlot slot, int32_t num_tokens);
  void Close(SequenceSlot slot);

  // The demands, in their order, that write into a block which somebody else
  // holds, and so must leave it.
  std::vector<TokenDemand> Leavers(std::span<const TokenDemand> demands) const;
  // A leaver does; before its Reserve.
  void Leave(const CopyOnWrite& copy);
  bool CanFork(SequenceSlot slot) const;
  bool IsWriter(SequenceSlot slot, BlockId block) const;
  // Blocks wholly before `num_tokens` that it holds in all groups, and its
  // regions'.
  int32_t CountFullBlocks(SequenceSlot slot, int32_t num_tokens) const;
  // The child has the parent's first num_tokens; the parent does not change.
  void Fork(SequenceSlot parent, SequenceSlot child, int32_t num_tokens);

  // Whether all is there that the position after the first num_tokens attends
  // to, and the rest of its own page.
  bool CanGoBack(SequenceSlot slot, int32_t num_tokens) const;
  void CutBack(SequenceSlot slot, int32_t num_tokens);
  // Returns the tokens left of every sequence that loses some, by slot. The
  // blocks are poisoned, the sequences cut back.
  std::map<SequenceSlot, int32_t> LoseBlocks(const std::set<BlockId>& lost);

  // Returns the blocks that an eviction of [0, cut) covers in a group when
  // `length` tokens are computed: those that the next token attends to. Without
  // a window the length does not matter.
  BookCover CoveredBy(SequenceSlot slot, int32_t group, int32_t cut,
                      int32_t length) const {
    return books_.rules.CoveredBy(at(slot).groups[group], group, cut, length);
  }
  // Returns those of them that this sequence holds alone.
  std::vector<BlockId> OwnBlocks(SequenceSlot slot, int32_t group, int32_t cut,
                                 int32_t length) const;
  // Counts these, and the pages yet to be computed that it will hold alone.
  int32_t CountOwnBlocks(SequenceSlot slot, int32_t group, int32_t cut,
                         int32_t length) const;
  // The entries that each head has of what a pending order covers.
  std::vector<int32_t> EntriesCovered(SequenceSlot slot, int32_t group) const {
    return books_.rules.EntriesCovered(at(slot).groups[group], group);
  }
  int32_t CountReleasable(SequenceSlot slot) const;
  // Takes over an order into its own blocks. Returns how many cache entries
  // that costs. Fresh destinations, which HandOut has seen, may follow.
  int32_t ReserveEviction(SequenceSlot slot, int32_t group, BookOrder order);
  // A name publishes the regions that all groups have now.
  EvictionReceipt CommitEviction(SequenceSlot slot, int32_t group,
                                 const std::vector<int32_t>& counts,
                                 const RegionName* name);
  void AbortEviction(SequenceSlot slot, int32_t group);

  // Host blocks that swapping the sequence out takes; none: it cannot be, as a
  // group lacks a page.
  std::optional<int32_t> CountHostBlocksNeeded(SequenceSlot slot) const;
  void SwapOut(SequenceSlot slot, SwapId swap,
               std::span<const BlockTransfer> transfers) {
    host_.SwapOut(at(slot), swap, transfers);
  }
  // Whether what is computed over a match's region is the same as over that of
  // a swapped sequence; both may have none.
  bool HasPastOf(SwapId swap, const NaiveMatch& match) const;
  void MatchSwapped(SwapId swap, int32_t num_tokens, NaiveMatch* match) const;
  // Opens what comes back, `transfers` by choice of the product.
  void SwapIn(SequenceSlot slot, const NaiveMatch& match,
              std::span<const BlockTransfer> transfers, int32_t num_free);

  // Does what the engine does in the step about to be dispatched: the planned
  // copies, then the rows of the runs. Afterwards every sequence must find all
  // its rows as it wrote them.
  void Execute(std::span<const NaiveRun> runs);
  void Dispatch(uint64_t step);
  void Acknowledge(uint64_t step) { books_.fences.Acknowledge(step); }
  void LoseEngine();

 private:
  void CheckCounts(const BlockManager& manager,
                   const std::vector<int32_t>& holders) const;
  void CheckTables(const BlockManager& manager, SequenceSlot slot,
                   const std::vector<int32_t>& holders) const;
  // Adds up the blocks of a group that fall out of its window with what is
  // under way, and those of the sequence alone that stay.
  struct Moving {
    int32_t num_falling = 0;
    int32_t num_own_falling = 0;
    int32_t num_own_staying = 0;
  };
  void CountMoving(const NaiveSequence& sequence, int32_t group,
                   const std::vector<int32_t>& holders, Moving* moving) const;
  // A planned copy of this sequence goes back to its source, if there is one.
  void Return(SequenceSlot slot);
  // Gives up the right to write to its last block, if that is partly filled.
  void StopWriting(SequenceSlot slot);
  // Gives up the pages wholly behind the first num_tokens positions; `seen`: by
  // steps, perhaps.
  void Pop(NaiveSequence* sequence, int32_t num_tokens, bool seen);
  // Notes what a full page holds, in all groups.
  void Write(const NaiveSequence& sequence, int32_t page);
  // Makes the sequence expect what the engine has in its blocks.
  void FindRows(NaiveSequence* sequence);
  void CheckRows(SequenceSlot slot) const;
  // The blocks of all groups that the last position is in, if positions after
  // it are as well.
  std::vector<BlockId> PartBlocks(const NaiveSequence& sequence) const;
  // Whether others than the leavers hold it, or will have rows there that are
  // not among its own.
  bool IsShared(SequenceSlot slot, BlockId part,
                std::span<const TokenDemand> leavers) const;
  // The tokens that a sequence can go on from when it loses these blocks.
  int32_t CountSoundTokens(SequenceSlot slot, const std::set<BlockId>& lost);
  int32_t num_groups() const { return books_.num_groups(); }
  int32_t page_size() const { return books_.layout.page_size; }

  const bool caching_;
  NaiveBooks books_;
  NaiveCache cache_;
  NaiveHost host_;
  // The sequences that may write to a block without looking.
  std::map<BlockId, SequenceSlot> writers_;
  uint64_t next_lineage_ = 1;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_NAIVE_MODEL_H_
