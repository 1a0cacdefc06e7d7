// DriverState: the state that all parts of ManagerDriver share. It has the
// manager under test, the naive model, the steps that are planned or in flight,
// and the counts of what happened.
#ifndef TESTS_BLOCKMGR_DRIVER_STATE_H_
#define TESTS_BLOCKMGR_DRIVER_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/driver_config.h"
#include "tests/blockmgr/naive_books.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

// DriverTally counts events. A test that never met a rare event shows nothing
// about it.
struct DriverTally {
  int64_t num_ops = 0;
  int64_t refused_reservations = 0;
  int64_t refused_orders = 0;
  int64_t undone_reservations = 0;
  int64_t undone_orders = 0;
  int64_t reclaimed_blocks = 0;
  int64_t matched_blocks = 0;
  int64_t matched_parts = 0;           // blocks of which a part was matched
  int64_t matched_waiting_blocks = 0;  // blocks of the cache alone, and fenced
  int64_t in_place_evictions = 0;
  int64_t copying_evictions = 0;
  int64_t mixed_evictions = 0;
  int64_t repeated_evictions = 0;
  int64_t refused_evictions = 0;
  int64_t refused_shards = 0;  // counts that one of several shards refused
  int64_t dropped_entries = 0;
  int64_t closed_in_flight = 0;
  int64_t lost_engines = 0;
  int64_t published_regions = 0;
  int64_t equal_regions = 0;  // published regions that were already cached
  int64_t matched_regions = 0;
  int64_t forks = 0;
  int64_t copies = 0;
  int64_t undone_copies = 0;
  int64_t rejections = 0;   // runs of which some tokens were rejected
  int64_t voided_runs = 0;  // runs of later steps that a rejection shortened
  int64_t cut_backs = 0;
  int64_t cut_by_loss = 0;      // sequences
  int64_t emptied_by_loss = 0;  // sequences that had a region, and lost all
  int64_t entries_lost = 0;     // blocks of the prefix cache
  int64_t last_holders = 0;     // wrote in place what was shared before
  int64_t group_copies = 0;     // copies in window groups
  int64_t part_forks = 0;       // forks of fewer tokens than the parent has
  int64_t refused_backs = 0;    // a window had moved on
  int64_t backs_with_gap = 0;   // a window had moved on by one page only
  int64_t swap_outs = 0;
  int64_t region_outs = 0;        // swap_outs with a region
  int64_t refused_swap_outs = 0;  // the host tier was full
  int64_t stuck_swap_outs = 0;    // a window lacked a page
  int64_t swap_ins = 0;
  int64_t shortened_ins = 0;      // swap_ins of fewer tokens than went out
  int64_t region_ins = 0;         // swap_ins with the region
  int64_t window_region_ins = 0;  // swap_ins with regions in windows
  int64_t ins_behind_cache = 0;   // swap_ins behind cached blocks
  int64_t ins_behind_region = 0;  // swap_ins behind a cached region
  int64_t refused_ins = 0;        // blocks were short
  int64_t needless_ins = 0;       // the cache had as many tokens
  int64_t stuck_ins = 0;          // the host tier lacked a page of the window
  int64_t lost_swaps = 0;
  int64_t dropped_swaps = 0;
  int64_t complete_readings = 0;  // readings of the whole prefix cache
  int64_t lapsed_readers = 0;     // the reader had missed too much
  int64_t told_removals = 0;
  int64_t told_regions = 0;
  // Calls that lacked one block only, and so changed nothing.
  int64_t reservations_less_one = 0;
  int64_t copies_less_one = 0;  // reservations_less_one that needed copies
  int64_t orders_less_one = 0;
  int64_t own_less_one = 0;  // orders_less_one that lacked an own block
  int64_t swap_outs_less_one = 0;
  // Calls that took the last block.
  int64_t last_reservations = 0;
  int64_t last_reclaims = 0;  // last_reservations that reclaimed blocks
  int64_t last_orders = 0;
  int64_t last_swap_outs = 0;
  NaiveTally naive;
};

// DriverRun is the reservation of a sequence in one step.
struct DriverRun {
  SequenceSlot slot;
  uint64_t incarnation;
  int32_t num_tokens;
};

// DriverOrder is an eviction from one layer group of a sequence.
struct DriverOrder {
  SequenceSlot slot;
  uint64_t incarnation;
  int32_t group = 0;
};

struct DriverStep {
  uint64_t id = 0;
  std::vector<DriverRun> runs = {};
  std::vector<DriverOrder> orders = {};
};

struct DriverState {
  DriverState(const DriverConfig& driver_config, DriverTally* counts)
      : config(driver_config),
        tally(*counts),
        manager(config.layout, config.max_sequences, config.caching,
                config.num_host_blocks),
        model(config.layout, config.caching, config.num_host_blocks,
              &counts->naive) {}

  // Whether a run or an order is obsolete: its sequence was closed or cut back
  // since.
  bool IsStale(SequenceSlot slot, uint64_t incarnation) const;
  // Makes all earlier runs and orders of the slot stale.
  void Renew(SequenceSlot slot) { incarnations[slot] = next_incarnation++; }
  // Whether the step being planned evicts from a window of the sequence. Such
  // an order depends on the tokens that are reserved now.
  bool HasOrderAtLength(SequenceSlot slot) const;
  // Whether the last group has a region that will leave its window.
  bool HasMovingRegion(const NaiveSequence& sequence) const {
    return config.evicts_in_windows &&
           !sequence.groups.back().region.blocks.empty();
  }
  // Computes the block names of a sequence from its tokens.
  void SetNames(NaiveSequence* sequence) const;
  // Drops the tokens that are not reserved: other tokens will follow the
  // reserved ones.
  void Forget(SequenceSlot slot);
  // Lets later prompts begin with the first num_tokens of a sequence.
  void Remember(const NaiveSequence& sequence, int32_t num_tokens);

  const DriverConfig config;
  DriverTally& tally;
  BlockManager manager;
  NaiveModel model;
  std::map<SequenceSlot, uint64_t> incarnations;
  uint64_t next_incarnation = 1;
  int64_t now_ms = 0;
  // The scope and the tokens of sequences that were compressed.
  std::vector<std::pair<int32_t, std::vector<int32_t>>> compressed;
  std::set<SequenceSlot> returning;  // swapped in with the step being planned
  std::set<RegionId> findable;       // cached regions not told as dropped
  DriverStep step;                   // the step being planned
  std::deque<DriverStep> in_flight;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_STATE_H_
