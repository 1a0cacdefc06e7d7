// SequenceCache: the memory that one sequence holds, and how far it got.
//
//   positions   0 ................. num_settled ......... num_reserved
//               |  acknowledged    |  steps in flight    |
//
// A plain record, owned and changed by BlockManager. The sequence has the same
// positions in every layer group, and one GroupCache per group. Reserve raises
// num_reserved: these positions have slots. Commit raises num_settled: a step
// that computed these positions was acknowledged. num_settled <= num_reserved.
#ifndef BLOCKMGR_SEQUENCE_CACHE_H_
#define BLOCKMGR_SEQUENCE_CACHE_H_

#include <cstdint>
#include <memory>

#include <absl/container/inlined_vector.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/group_cache.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

// A record of a model with one group has three cache lines. Every decode step
// reads the record of each running sequence.
struct SequenceCache {
  absl::InlinedVector<GroupCache, 1> groups{GroupCache()};  // [layer groups]
  int32_t num_reserved = 0;
  int32_t num_settled = 0;
  bool open = false;
  // The last block is partly filled and others may hold it: a write must look
  // for other holders first. While the flag is set, num_settled ==
  // num_reserved. Of the sequences that hold a block, at most one may write to
  // it. The rows of the other sequences come before the writer's rows.
  bool shares_last_block = false;
  // The value of shares_last_block before the first unsettled position was
  // reserved. It is restored when all unsettled positions are given back.
  bool shared_when_settled = false;
  int32_t num_found = 0;  // positions that came from the cache

  // Publication, by the index group (GroupCache).
  //
  // The blocks of the first num_published pages were offered to the prefix
  // cache. With a region, only the blocks behind it were. chain_serial is the
  // serial that the next block follows: the serial of the last block offered,
  // of the region, or of the root. If chain_serial is kNoSerial, the chain is
  // broken, and nothing more is published.
  int32_t num_published = 0;
  EntrySerial chain_serial = kNoSerial;
  // The key of the entry with the serial chain_serial; used only behind a
  // region.
  BlockKey chain_key;
  EntrySerial root_serial = kNoSerial;  // the sequence is a user of this root
  // The content of the last region that was found or published. Null before the
  // first one.
  std::shared_ptr<const RegionContent> content;

  // Return the index group.
  const GroupCache& first() const { return groups.front(); }
  GroupCache& first() { return groups.front(); }
  // Returns the cut of the index group.
  int32_t cut() const { return first().cut(); }
  // Returns the highest cut of the evictions that are pending, in any group. 0
  // if none is.
  int32_t pending_cut() const;
  // Returns the first page that the group's tail holds.
  int32_t FirstHeld(const ModelLayout& layout, int32_t group) const;
  // Returns whether every group holds what the token after the settled ones
  // attends to.
  bool HasWindows(const ModelLayout& layout) const;
  // Returns how many blocks each group needs for `num_tokens` more positions.
  // Most decode steps need none, and do not divide.
  int32_t CountBlocksFor(int32_t num_tokens, int32_t page_size) const {
    const int32_t lacking =
        num_reserved + num_tokens - first().tail_end() * page_size;
    return lacking <= 0 ? 0 : CeilDiv(lacking, page_size);
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_SEQUENCE_CACHE_H_
