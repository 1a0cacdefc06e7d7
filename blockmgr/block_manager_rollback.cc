// Going back: positions that dispatched steps have seen and that do not count.

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

void BlockManager::Rollback(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(num_tokens >= 0);
  const int32_t end = sequence.num_reserved - num_tokens;
  BM_CHECK(end >= sequence.num_settled);
  BM_CHECK(!sequence.pending.has_value() || sequence.pending->cut <= end);
  sequence.num_reserved = end;
  const int32_t num_kept = CeilDiv(end - sequence.cut(), layout_.page_size);
  while (std::ssize(sequence.tail) > num_kept) {
    ReleaseFrom(sequence.tail.back());
    sequence.tail.pop_back();
  }
  ReturnToSettled(slot);
}

}  // namespace blockmgr
