#include "blockmgr/reclaim_order.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

int32_t ReclaimOrder::next() const {
  for (size_t word = 0; word < occupied_.size(); ++word) {
    if (occupied_[word] == 0) continue;
    const auto bit = static_cast<size_t>(std::countr_zero(occupied_[word]));
    return levels_[word * 64 + bit].head;
  }
  BM_CHECK(false);
  return kNone;
}

void ReclaimOrder::SetPriority(int32_t entry, uint8_t priority) {
  Node& node = nodes_[entry];
  if (node.priority == priority) return;
  if (node.listed) Unlink(entry);
  node.priority = priority;
  if (node.listed) Link(entry);
}

void ReclaimOrder::ReserveExpiries() {
  expiry_of_.resize(nodes_.size(), kNone);
  if (expiries_.capacity() < nodes_.size()) {
    expiries_.reserve(nodes_.capacity());
  }
}

void ReclaimOrder::Grow(int32_t limit) {
  nodes_.resize(limit);
  if (!expiry_of_.empty()) ReserveExpiries();
}

void ReclaimOrder::SettleExpiry(size_t hole, const Expiry& expiry) {
  const auto put = [this](size_t place, const Expiry& what) {
    expiries_[place] = what;
    expiry_of_[what.entry] = static_cast<int32_t>(place);
  };
  while (hole > 0 && expiry < expiries_[(hole - 1) / 2]) {
    put(hole, expiries_[(hole - 1) / 2]);
    hole = (hole - 1) / 2;
  }
  while (true) {
    size_t child = 2 * hole + 1;
    if (child + 1 < expiries_.size() &&
        expiries_[child + 1] < expiries_[child]) {
      ++child;
    }
    if (child >= expiries_.size() || expiry < expiries_[child]) break;
    put(hole, expiries_[child]);
    hole = child;
  }
  put(hole, expiry);
}

void ReclaimOrder::AddExpiry(int32_t entry, int64_t ms) {
  if (expiry_of_.empty()) ReserveExpiries();
  nodes_[entry].expires = true;
  const Expiry expiry = {.ms = ms, .wish = next_wish_++, .entry = entry};
  expiries_.push_back(expiry);
  SettleExpiry(expiries_.size() - 1, expiry);
}

void ReclaimOrder::DropExpiry(int32_t entry) {
  if (!nodes_[entry].expires) return;
  nodes_[entry].expires = false;
  const Expiry last = expiries_.back();
  expiries_.pop_back();
  if (last.entry != entry) SettleExpiry(expiry_of_[entry], last);
}

void ReclaimOrder::SetRetention(int32_t entry, Retention retention) {
  BM_CHECK(retention.priority <= kMaxPriority);
  DropExpiry(entry);
  nodes_[entry].superseded = false;
  if (retention.expires_ms <= now_ms_) retention = {};
  SetPriority(entry, retention.priority);
  if (retention.expires_ms == Retention::kNever) return;
  AddExpiry(entry, retention.expires_ms);
}

void ReclaimOrder::SetSuperseded(int32_t entry, bool superseded) {
  Node& node = nodes_[entry];
  if (node.superseded == superseded) return;
  // An entry with a wish is not superseded. A wish with a duration counts even
  // if its priority is the default.
  if (superseded && (node.priority != kDefaultPriority || node.expires)) return;
  node.superseded = superseded;
  SetPriority(entry, superseded ? kSupersededPriority : kDefaultPriority);
}

void ReclaimOrder::Forget(int32_t entry) {
  BM_CHECK(!nodes_[entry].listed);
  DropExpiry(entry);
  nodes_[entry] = Node{};
}

void ReclaimOrder::SetTime(int64_t now_ms) {
  // The time stays below kNever, so that entries which never expire do not
  // expire at the end of time either. A clock that goes back stands still.
  now_ms_ = std::clamp(now_ms, now_ms_, Retention::kNever - 1);
  while (!expiries_.empty() && expiries_.front().ms <= now_ms_) {
    const int32_t entry = expiries_.front().entry;
    DropExpiry(entry);
    SetPriority(entry, kDefaultPriority);
  }
}

uint64_t ReclaimOrder::StateHash() const {
  uint64_t hash = 0;
  for (const Level& level : levels_) {
    hash = SplitMix64(hash);
    for (int32_t i = level.head; i != kNone; i = nodes_[i].next) {
      hash = SplitMix64(hash ^ static_cast<uint64_t>(i));
    }
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].priority == kDefaultPriority) continue;
    hash += SplitMix64(SplitMix64(i) ^ nodes_[i].priority);
  }
  std::vector<Expiry> in_order = expiries_;
  std::ranges::sort(in_order);
  for (const Expiry& expiry : in_order) {
    hash = SplitMix64(hash ^ static_cast<uint64_t>(expiry.ms) ^
                      SplitMix64(static_cast<uint64_t>(expiry.entry)));
  }
  return hash;
}

void ReclaimOrder::CheckInvariants() const {
  size_t num_listed = 0;
  size_t num_expiring = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    num_listed += nodes_[i].listed ? 1 : 0;
    num_expiring += nodes_[i].expires ? 1 : 0;
  }
  BM_CHECK(num_expiring == expiries_.size());
  BM_CHECK(std::ranges::is_heap(expiries_, std::greater<>()));
  for (size_t i = 0; i < expiries_.size(); ++i) {
    const int32_t entry = expiries_[i].entry;
    BM_CHECK(nodes_[entry].expires);
    BM_CHECK(expiry_of_[entry] == static_cast<int32_t>(i));
  }
  size_t walked = 0;
  for (size_t level = 0; level < kNumLevels; ++level) {
    const bool occupied = ((occupied_[level / 64] >> (level % 64)) & 1) != 0;
    BM_CHECK(occupied == (levels_[level].head != kNone));
    for (int32_t i = levels_[level].head; i != kNone; i = nodes_[i].next) {
      BM_CHECK(nodes_[i].listed && nodes_[i].priority == level);
      BM_CHECK((nodes_[i].next == kNone) == (i == levels_[level].tail));
      ++walked;
    }
  }
  BM_CHECK(walked == num_listed);
}

}  // namespace blockmgr
