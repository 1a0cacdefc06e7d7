// PrefixCacheUpdates: turns a reading of the prefix cache into messages of a
// size that every client accepts.
#ifndef SCHEDULER_SERVER_PREFIX_CACHE_UPDATES_H_
#define SCHEDULER_SERVER_PREFIX_CACHE_UPDATES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockmgr/block_hash.h"
#include "blockmgr/region_content.h"
#include "proto/blockmgr/v1/admin.pb.h"
#include "scheduler/server/commands.h"

namespace blockmgr {

// Makes messages and sends nothing. Thread-compatible.
class PrefixCacheUpdates {
 public:
  // Makes no message.
  PrefixCacheUpdates() = default;
  explicit PrefixCacheUpdates(PrefixCacheReading reading);

  // Fills `update`, whose memory is reused, with the next message of about
  // `max_bytes`. A reading has at least one message, and only the last message
  // has the position. Returns false if no message is left.
  bool Next(int64_t max_bytes, v1::PrefixCacheUpdate* update);

 private:
  // Add the next item (the head, a block or a piece of a region) to `update`.
  // Return an upper bound of the item's bytes.
  int64_t AddHead(v1::PrefixCacheUpdate* update);
  int64_t AddBlock(v1::PrefixCacheUpdate* update);
  int64_t AddPiece(v1::PrefixCacheUpdate* update);

  PrefixCacheReading reading_;
  bool has_head_ = false;  // true until the head is added
  size_t block_ = 0;       // index of the next block
  size_t region_ = 0;      // index of the next region, or the one of parts_
  // The parts of the region that are not added yet. The next part is the last
  // element.
  std::vector<const RegionContent*> parts_;
  int32_t token_ = 0;  // index of the next token of the next part
  // The media of the next part. The next item is the last element.
  std::vector<MediaItem> media_;
};

v1::PrefixCachePosition ToProto(const PrefixCacheCursor& cursor);
PrefixCacheCursor FromProto(const v1::PrefixCachePosition& proto);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_PREFIX_CACHE_UPDATES_H_
