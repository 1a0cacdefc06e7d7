// Random lives of one sequence: compress, grow, compress again.
//
// Keeps what the sequence holds twice: as the product's region and tail, and as
// an ordered list of slots per head. Shared by the tests of layout and moves.
#ifndef TESTS_BLOCKMGR_REGION_HISTORY_H_
#define TESTS_BLOCKMGR_REGION_HISTORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"
#include "tests/blockmgr/naive_layout.h"
#include "tests/testing/random.h"

namespace blockmgr {

// One random eviction of the positions below cut.
struct RandomEviction {
  int32_t cut = 0;
  int32_t num_tail_blocks = 0;        // of the tail, below the cut
  std::vector<BlockId> destinations;  // own and fresh, shuffled
  std::set<int32_t> writable;         // the destinations
  // Positions that every head keeps, ascending.
  std::map<NaiveHead, std::vector<int32_t>> kept_positions;
  KeepSets keep;              // the same, as ranks
  std::vector<int32_t> kept;  // entries per (layer, head)
};

class RegionHistory {
 public:
  // Begins with a tail of so many blocks.
  RegionHistory(std::mt19937_64& random, int32_t num_blocks);

  const ModelLayout& layout() const { return layout_; }
  const std::vector<int32_t>& region_positions() const {
    return region_positions_;
  }
  // Of `eviction`, with or without the tail blocks after the cut.
  CacheView view(const RandomEviction& eviction, bool whole_tail) const;
  int32_t length() const {
    return cut_ + static_cast<int32_t>(tail_.size()) * layout_.page_size;
  }

  RandomEviction NextEviction(std::mt19937_64& random);
  // What every head holds below the cut: slot -> position, in list order.
  struct HeldSlot {
    NaiveSlot slot;
    int32_t position = 0;
  };
  std::vector<HeldSlot> HeldBelow(const NaiveHead& head, int32_t cut) const;
  // The page lists that the naive rule gives.
  NaivePages NaiveNext(const RandomEviction& eviction) const;
  // The eviction has happened. positions: of the region's slots, head by head.
  void Advance(const RandomEviction& eviction, RaggedRegion next,
               std::vector<int32_t> positions);
  void Grow(int32_t num_blocks);

  std::vector<NaiveHead> heads() const;
  SlotIndex slot_index(const NaiveSlot& slot) const;

 private:
  BlockId NewBlock() { return BlockId{next_block_++}; }

  ModelLayout layout_;
  std::optional<RaggedRegion> region_;
  std::vector<int32_t> region_positions_;
  std::vector<BlockId> tail_;
  int32_t cut_ = 0;
  int32_t next_block_ = 1;
  std::map<NaiveHead, std::vector<HeldSlot>> held_;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_REGION_HISTORY_H_
