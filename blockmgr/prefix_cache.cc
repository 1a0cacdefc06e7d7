#include "blockmgr/prefix_cache.h"

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

PrefixCache::PrefixCache(int32_t num_blocks, int32_t page_size)
    : page_size_(page_size),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * page_size) {
  index_.reserve(num_blocks);
}

void PrefixCache::Match(std::span<const BlockKey> keys,
                        std::span<const int32_t> tokens,
                        std::vector<BlockId>* blocks) const {
  EntrySerial parent = kRootSerial;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto found = index_.find(keys[i]);
    if (found == index_.end()) return;
    const BlockId block = found->second;
    const Entry& entry = entries_[Index(block)];
    if (entry.parent != parent ||
        !std::ranges::equal(TokensOf(block),
                            tokens.subspan(i * page_size_, page_size_))) {
      return;
    }
    blocks->push_back(block);
    parent = entry.serial;
  }
}

EntrySerial PrefixCache::Insert(BlockId block, const BlockKey& key,
                                EntrySerial parent,
                                std::span<const int32_t> tokens,
                                bool* inserted) {
  BM_CHECK(!Contains(block));
  BM_CHECK(parent != kNoSerial);
  BM_CHECK(std::ssize(tokens) == page_size_);
  *inserted = false;
  const auto [found, is_new] = index_.try_emplace(key, block);
  if (!is_new) {
    const Entry& existing = entries_[Index(found->second)];
    const bool equal = existing.parent == parent &&
                       std::ranges::equal(TokensOf(found->second), tokens);
    return equal ? existing.serial : kNoSerial;
  }
  Entry& entry = entries_[Index(block)];
  entry.key = key;
  entry.serial = next_serial_++;
  entry.parent = parent;
  std::ranges::copy(
      tokens,
      tokens_.begin() + static_cast<int64_t>(Index(block)) * page_size_);
  *inserted = true;
  return entry.serial;
}

void PrefixCache::AddReclaimable(BlockId block) {
  Entry& entry = entries_[Index(block)];
  BM_CHECK(entry.serial != kNoSerial);
  BM_CHECK(!entry.listed);
  entry.listed = true;
  entry.previous = tail_;
  entry.next = kNone;
  (tail_ == kNone ? head_ : entries_[tail_].next) = Index(block);
  tail_ = Index(block);
  ++num_reclaimable_;
}

void PrefixCache::RemoveReclaimable(BlockId block) {
  Entry& entry = entries_[Index(block)];
  BM_CHECK(entry.listed);
  (entry.previous == kNone ? head_ : entries_[entry.previous].next) =
      entry.next;
  (entry.next == kNone ? tail_ : entries_[entry.next].previous) =
      entry.previous;
  entry.listed = false;
  entry.previous = entry.next = kNone;
  --num_reclaimable_;
}

void PrefixCache::Remove(BlockId block) {
  Entry& entry = entries_[Index(block)];
  BM_CHECK(entry.serial != kNoSerial);
  BM_CHECK(!entry.listed);
  BM_CHECK(index_.erase(entry.key) == 1);
  entry = Entry{};
}

uint64_t PrefixCache::StateHash() const {
  uint64_t hash = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].serial == kNoSerial) continue;
    hash += SplitMix64(SplitMix64(i) ^ entries_[i].key.low ^
                       SplitMix64(entries_[i].serial));
  }
  for (int32_t i = head_; i != kNone; i = entries_[i].next) {
    hash = SplitMix64(hash ^ static_cast<uint64_t>(i));
  }
  return hash;
}

void PrefixCache::CheckInvariants() const {
  int32_t num_listed = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.serial == kNoSerial) {
      BM_CHECK(!entry.listed);
      continue;
    }
    const auto found = index_.find(entry.key);
    BM_CHECK(found != index_.end());
    BM_CHECK(static_cast<size_t>(Index(found->second)) == i);
    BM_CHECK(entry.parent < entry.serial);
    num_listed += entry.listed ? 1 : 0;
  }
  BM_CHECK(num_listed == num_reclaimable_);
  int32_t walked = 0;
  for (int32_t i = head_; i != kNone; i = entries_[i].next) {
    BM_CHECK(entries_[i].listed);
    BM_CHECK((entries_[i].next == kNone) == (i == tail_));
    ++walked;
  }
  BM_CHECK(walked == num_reclaimable_);
}

}  // namespace blockmgr
