// Copies of rows inside one pool, or between the pool and the host tier, as
// plain data. Compaction, copy-on-write and swap ask a backend to execute them.
#ifndef BLOCKMGR_BASE_MOVES_H_
#define BLOCKMGR_BASE_MOVES_H_

#include <cstdint>
#include <vector>

#include "blockmgr/base/ids.h"

namespace blockmgr {

// Copies the K row, the V row and the side data of one slot to another slot.
struct SlotMove {
  SlotIndex source;
  SlotIndex destination;
  friend bool operator==(const SlotMove&, const SlotMove&) = default;
};

// The copies of one compaction, in groups: one group for each (layer, head)
// that moves anything.
//
// All sources of a group are read before any destination of the group is
// written, and the groups are executed in their order. No destination is a
// source of a later group, so groups that follow one another may also be
// executed as one large group.
struct CompactionMoves {
  std::vector<SlotMove> moves;
  // Group i is moves[group_ends[i - 1] .. group_ends[i]); group 0 begins at 0.
  std::vector<int64_t> group_ends;
  // Whether some slot may be both a source and a destination, as when a
  // sequence is compacted into blocks of its own. If false, all moves may be
  // executed in any order and in parallel.
  bool in_place = false;
};

struct BlockCopy {
  BlockId source;
  BlockId destination;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// A block, and the host block that its content is copied to or from: all layers
// and heads.
struct BlockTransfer {
  BlockId block;
  HostBlockId host;
  friend bool operator==(const BlockTransfer&, const BlockTransfer&) = default;
};

// A copy that a sequence needs before it writes to a shared last block of its
// tail.
//
// Before the step computes anything, the engine copies the rows of the first
// num_tokens tokens, for all layers and heads (copying the whole block is also
// right). The engine then replaces the source by the destination in the
// sequence's block table, before it appends the step's new blocks. A sequence
// that starts on a part of a cached block has no table yet: the source is the
// cached block, and the destination is one of the new blocks. If a sequence
// shares the last block of one layer group, it shares the last blocks of all
// groups, and there is one copy for each group.
struct CopyOnWrite {
  SequenceSlot slot = kNoSequenceSlot;
  BlockCopy blocks{kNullBlock, kNullBlock};
  int32_t num_tokens = 0;
  int32_t group = 0;  // layer group
  friend bool operator==(const CopyOnWrite&, const CopyOnWrite&) = default;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_MOVES_H_
