// Copies of rows inside one pool, as plain data: what compaction, copy-on-write
// and swap ask a backend to do.
#ifndef BLOCKMGR_BASE_MOVES_H_
#define BLOCKMGR_BASE_MOVES_H_

#include <vector>

#include "blockmgr/base/ids.h"

namespace blockmgr {

// Copy the K row, the V row and the side data of one slot to another.
struct SlotMove {
  SlotIndex source;
  SlotIndex destination;
  friend bool operator==(const SlotMove&, const SlotMove&) = default;
};

// The copies of one compaction. Inside a phase no slot is both read and
// written, so any order and any parallelism is right; phase 2 starts after
// phase 1 has ended for every head.
struct CompactionMoves {
  std::vector<SlotMove> phase1;
  std::vector<SlotMove> phase2;
};

struct BlockCopy {
  BlockId source;
  BlockId destination;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_MOVES_H_
