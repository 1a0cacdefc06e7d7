// Random transactions on a BlockManager, in the order a scheduler makes them,
// and the same on a NaiveModel; everything is compared after each.
//
// A step collects reservations and eviction orders, is dispatched, and some
// steps later acknowledged: its tokens are settled, its evictions committed or
// refused. Meanwhile sequences may be closed, whatever is in flight.
#ifndef TESTS_BLOCKMGR_MANAGER_DRIVER_H_
#define TESTS_BLOCKMGR_MANAGER_DRIVER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/naive_model.h"
#include "tests/testing/cache_reader.h"

namespace blockmgr {

struct DriverConfig {
  ModelLayout layout;
  int32_t max_sequences = 0;
  bool caching = false;
  int32_t max_steps_in_flight = 0;
  int32_t num_host_blocks = 0;
  bool evicts_in_windows = false;
};

// Which layers have a window.
enum class DriverWindows : uint8_t {
  kNone,
  kGroups,         // some, in one to three window groups
  kEvictedGroups,  // likewise, and evictions concern them, too
  kAll,
};

// A random small manager with this page size.
DriverConfig RandomConfig(std::mt19937_64& random, int32_t page_size,
                          bool caching, DriverWindows windows);

// How often the rare things happened: a test that never met them shows nothing.
struct DriverTally {
  int64_t num_ops = 0;
  int64_t refused_reservations = 0;
  int64_t refused_orders = 0;
  int64_t undone_reservations = 0;
  int64_t undone_orders = 0;
  int64_t reclaimed_blocks = 0;
  int64_t matched_blocks = 0;
  int64_t matched_parts = 0;           // of a block
  int64_t matched_waiting_blocks = 0;  // only the cache's, and fenced
  int64_t in_place_evictions = 0;
  int64_t copying_evictions = 0;
  int64_t mixed_evictions = 0;
  int64_t repeated_evictions = 0;
  int64_t refused_evictions = 0;
  int64_t refused_shards = 0;  // counts, for the pages of one of several
  int64_t dropped_entries = 0;
  int64_t closed_in_flight = 0;
  int64_t lost_engines = 0;
  int64_t published_regions = 0;
  int64_t equal_regions = 0;  // of those, in the cache already
  int64_t matched_regions = 0;
  int64_t forks = 0;
  int64_t copies = 0;
  int64_t undone_copies = 0;
  int64_t rejections = 0;   // of some of a step's tokens
  int64_t voided_runs = 0;  // of later steps, by those
  int64_t cut_backs = 0;
  int64_t cut_by_loss = 0;      // sequences
  int64_t emptied_by_loss = 0;  // of those, some with a region
  int64_t entries_lost = 0;     // blocks of the prefix cache
  int64_t last_holders = 0;     // wrote in place what was shared before
  int64_t group_copies = 0;     // of those in window groups
  int64_t part_forks = 0;       // of fewer tokens, with windows
  int64_t refused_backs = 0;    // windows had moved on
  int64_t backs_with_gap = 0;   // to where one had moved on by a page
  int64_t swap_outs = 0;
  int64_t region_outs = 0;        // of those
  int64_t refused_swap_outs = 0;  // the host tier was full
  int64_t stuck_swap_outs = 0;    // a window lacked a page
  int64_t swap_ins = 0;
  int64_t shortened_ins = 0;      // of those, of fewer tokens
  int64_t region_ins = 0;         // likewise, with the region
  int64_t window_region_ins = 0;  // likewise, with regions in windows
  int64_t ins_behind_cache = 0;   // likewise, behind cached blocks
  int64_t ins_behind_region = 0;  // of those, on a cached region
  int64_t refused_ins = 0;        // for want of blocks
  int64_t needless_ins = 0;       // the cache had as much
  int64_t stuck_ins = 0;          // what the window needs had not left
  int64_t lost_swaps = 0;
  int64_t dropped_swaps = 0;
  int64_t complete_readings = 0;  // of the prefix cache
  int64_t lapsed_readers = 0;     // had missed too much
  int64_t told_removals = 0;
  int64_t told_regions = 0;
  // Calls that lacked one block, and so changed nothing; and those that took
  // the last one, some by reclaiming it.
  int64_t reservations_less_one = 0;
  int64_t copies_less_one = 0;  // of those, for copies too
  int64_t orders_less_one = 0;
  int64_t own_less_one = 0;  // of those, for want of own blocks
  int64_t swap_outs_less_one = 0;
  int64_t last_reservations = 0;
  int64_t last_reclaims = 0;
  int64_t last_orders = 0;
  int64_t last_swap_outs = 0;
  NaiveTally naive;
};

class ManagerDriver {
 public:
  ManagerDriver(const DriverConfig& config, std::mt19937_64& random,
                DriverTally* tally);

  // One random operation; growing ones with the given probability.
  void Operate(double grow);
  // Compares everything.
  void Check();
  // Closes and acknowledges everything: nothing may have leaked.
  void Finish();

 private:
  struct Run {
    SequenceSlot slot;
    uint64_t incarnation;
    int32_t num_tokens;
  };
  struct Ordered {
    SequenceSlot slot;
    uint64_t incarnation;
    int32_t group = 0;
  };
  struct Step {
    uint64_t id = 0;
    std::vector<Run> runs;
    std::vector<Ordered> orders;
  };

  int32_t Int(int32_t low, int32_t high);
  bool Chance(double probability);
  SequenceSlot AnySlot();
  void AppendTokens(std::vector<int32_t>* tokens, int32_t count);
  std::vector<RetentionRange> RandomWishes();
  std::string RandomHistory();
  bool IsStale(SequenceSlot slot, uint64_t incarnation) const;

  void Grow();
  void Shrink();
  // With a prompt, a scope, wishes and names; not open yet.
  NaiveSequence RandomSequence();
  void Open();
  // Tokens for some sequences.
  std::vector<TokenDemand> RandomDemands();
  // Reserves for some sequences; true if it was done.
  bool Reserve();
  // Whether what an eviction of all but a page leaves can be published; asked
  // where windows make that a rare thing to see more often.
  bool IsReady(const NaiveSequence& sequence) const;
  SequenceSlot SlotToCompress();
  // Orders an eviction of some sequence; true if it was done.
  bool OrderEviction();
  // From a layer group.
  bool OrderEviction(SequenceSlot slot, int32_t group);
  // Returns the cut of an eviction. No further than the region: there is none.
  int32_t RandomCut(const NaiveSequence& sequence, int32_t group);
  // A number of pages per shard for what the order covers.
  int64_t RandomPageTotal(SequenceSlot slot, int32_t group,
                          const BookOrder& order);
  // So that what they make can be published.
  bool OrderInAllGroups();
  bool HasWindow(int32_t group) const {
    return config_.layout.window_of(group) > 0;
  }
  // Whether the last group has a region that will leave its window.
  bool HasMovingRegion(const NaiveSequence& sequence) const {
    return config_.evicts_in_windows &&
           !sequence.groups.back().region.blocks.empty();
  }
  // Pages per shard that one block has.
  int32_t PagesPerShard() const {
    return config_.layout.pages_per_block() / config_.layout.num_shards;
  }
  // Asks for destinations, `num_own` of which there are, and tells the model.
  bool PlaceOrder(SequenceSlot slot, int32_t group, BookOrder order,
                  int64_t page_total, std::span<const int64_t> told);
  void Fork();
  void ForkAt(SequenceSlot slot, int32_t num_tokens);
  // What Reserve has to say about shared blocks.
  void CheckCopies(const std::vector<TokenDemand>& demands,
                   const std::vector<TokenDemand>& leavers,
                   const std::vector<CopyOnWrite>& copies);
  void AbortRun();
  // Whether the step being planned has an order that goes by what is reserved
  // now, as what is in a window does.
  bool HasOrderAtLength(SequenceSlot slot) const;
  // Compares what an eviction from a group would cover.
  void CheckCovered(SequenceSlot slot, int32_t group);
  void CheckCoveredInWindows(SequenceSlot slot);
  void Undo(const Run& run);
  void UndoReserve();
  void UndoOrder();
  void Close(SequenceSlot slot);
  void CloseAny();
  void Dispatch();
  void Acknowledge();
  // Commits run number i of an acknowledged step, or some of its tokens only.
  void Settle(Step* step, size_t i);
  // Some positions of `slot` from the end on, whatever step they are in.
  void RollbackSome(SequenceSlot slot);
  // The last num_tokens positions, of runs in flight or planned, and of
  // `acknowledged`, which are yet to be settled.
  void Rollback(SequenceSlot slot, int32_t num_tokens,
                std::span<Run> acknowledged);
  void CutBack(SequenceSlot slot);
  // A number of settled tokens of at least `least` that the sequence can go
  // back to; checks whether it can.
  int32_t RandomBack(SequenceSlot slot, int32_t least);
  void CheckMatch(const PrefixMatch& match, const NaiveMatch& expected);
  void LoseBlocks();
  // Other tokens will follow those that the sequence still holds.
  void Forget(SequenceSlot slot);
  void Conclude(const Ordered& order);
  void Refuse(const Ordered& order);
  void CommitEviction(const Ordered& order, const std::vector<int32_t>& counts);
  // A legal answer to the pending order of a group.
  std::vector<int32_t> RandomCounts(SequenceSlot slot, int32_t group);
  int32_t ShardOf(int32_t head_index) const;
  // Makes a shard keep all that it holds; whether that is more than its total.
  bool ExceedTotal(SequenceSlot slot, int32_t group, int32_t shard,
                   std::vector<int32_t>* counts) const;
  void CheckIllegalCounts(SequenceSlot slot, int32_t group,
                          std::vector<int32_t> counts);
  void ResetPrefixCache();
  void LoseEngine();
  // Something with the host tier.
  void Swap();
  SequenceSlot SlotToSwapOut();
  // Whether others may start with its region, and it has gone on from there.
  static bool IsPublished(const NaiveSequence& sequence);
  void SwapOut(SequenceSlot slot);
  void SwapIn(SwapId swap);
  // What the cache has of the first num_tokens of a swapped sequence, computed
  // over the same region.
  void MatchPastOf(SwapId swap, const NaiveSequence& sequence,
                   int32_t max_tokens, PrefixMatch* match,
                   NaiveMatch* expected);
  void LoseHostBlocks();
  // Somebody reads some of what the prefix cache tells.
  void ReadPrefixCache();

  const DriverConfig config_;
  std::mt19937_64& random_;
  DriverTally* const tally_;
  BlockManager manager_;
  NaiveModel model_;
  std::map<SequenceSlot, uint64_t> incarnations_;
  uint64_t next_incarnation_ = 1;
  uint64_t next_step_ = 1;
  int64_t now_ms_ = 0;
  // Scope and tokens of the regions that were published.
  std::vector<std::pair<int32_t, std::vector<int32_t>>> compressed_;
  std::set<SequenceSlot> returning_;  // with the step being planned
  std::set<RegionId> findable_;       // in the cache, as far as it told
  Step step_;                         // being planned
  std::deque<Step> in_flight_;
  bool cache_was_touched_ = false;  // by the last Reserve or OrderEviction
  CacheReader reader_;
  // Of its own, so that what happens does not depend on who reads.
  std::mt19937_64 reader_random_;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_MANAGER_DRIVER_H_
