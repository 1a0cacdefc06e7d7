#include "blockmgr/cooling_entries.h"

#include "blockmgr/base/check.h"

namespace blockmgr {

void CoolingEntries::Add(int32_t entry, int32_t num_blocks) {
  BM_CHECK(!Contains(entry));
  if (entry >= std::ssize(tickets_)) tickets_.resize(entry + size_t{1}, 0);
  tickets_[entry] = next_ticket_;
  queue_.push_back({entry, next_ticket_++});
  num_blocks_ += num_blocks;
}

void CoolingEntries::Remove(int32_t entry, int32_t num_blocks) {
  BM_CHECK(Contains(entry));
  tickets_[entry] = 0;
  num_blocks_ -= num_blocks;
}

int32_t CoolingEntries::Front() {
  for (; first_ < queue_.size(); ++first_) {
    const auto [entry, ticket] = queue_[first_];
    if (tickets_[entry] == ticket) break;
  }
  // Erasing keeps the memory.
  if (2 * first_ >= queue_.size()) {
    queue_.erase(queue_.begin(),
                 queue_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  return queue_.empty() ? kNone : queue_[first_].entry;
}

}  // namespace blockmgr
