// SequenceCache: what one sequence holds, and how far it got.
//
//   positions   0 ................. num_settled ......... num_reserved
//               |  acknowledged    |  steps in flight    |
//
// A plain record, owned and changed by BlockManager. The sequence has the same
// positions in every layer group, and one GroupCache per group.
//
// num_reserved: positions with a slot. num_settled <= num_reserved: positions
// whose step has been acknowledged.
#ifndef BLOCKMGR_SEQUENCE_CACHE_H_
#define BLOCKMGR_SEQUENCE_CACHE_H_

#include <cstdint>
#include <memory>

#include <absl/container/inlined_vector.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/group_cache.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

// Three cache lines in a model of one group: a decode step goes through the
// record of each running sequence.
struct SequenceCache {
  absl::InlinedVector<GroupCache, 1> groups{GroupCache()};  // [layer groups]
  int32_t num_reserved = 0;
  int32_t num_settled = 0;
  bool open = false;
  // Others may hold the last block, which is partly filled: look before writing
  // to it. Then num_settled == num_reserved. Of the sequences that hold a block
  // at most one may write to it, and the others' rows come before its own.
  bool shares_last_block = false;
  // What shares_last_block was when the first of the positions that are not
  // settled was reserved, and is again when the last of them is given back.
  bool shared_when_settled = false;
  int32_t num_found = 0;  // positions that came from the prefix cache

  // Publication. The prefix cache names the content of group 0. What other
  // groups have of the same tokens is found through group 0.
  //
  // The blocks of the first num_published pages of positions have been offered
  // to the prefix cache, over a region those after it. chain_serial names the
  // entry of the last of them (or of the region); chain_entry is that entry as
  // long as it has that serial. kNoSerial: the chain is broken and nothing more
  // is published.
  int32_t num_published = 0;
  EntrySerial chain_serial = kNoSerial;
  int32_t chain_entry = 0;
  BlockKey chain_key;                   // of the last of them, over a region
  EntrySerial root_serial = kNoSerial;  // held in the prefix cache
  // Of the last region found or published; null: none yet.
  std::shared_ptr<const RegionContent> content;

  // The group whose content the prefix cache names.
  const GroupCache& first() const { return groups.front(); }
  GroupCache& first() { return groups.front(); }
  // The cut of group 0.
  int32_t cut() const { return first().cut(); }
  // Returns the blocks that `num_tokens` more positions need in each group.
  int32_t BlocksFor(int32_t num_tokens, int32_t page_size) const {
    return CeilDiv(num_reserved + num_tokens, page_size) -
           CeilDiv(num_reserved, page_size);
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_SEQUENCE_CACHE_H_
