#include "blockmgr/block_manager.h"

#include <algorithm>

#include "blockmgr/base/check.h"

namespace blockmgr {

BlockManager::BlockManager(const ModelLayout& layout, int32_t max_sequences,
                           bool enable_prefix_caching)
    : layout_(layout),
      prefix_caching_(enable_prefix_caching),
      pool_(layout.num_blocks),
      cache_(layout.num_blocks, layout.page_size),
      sequences_(max_sequences),
      cooling_tickets_(layout.num_blocks, 0) {
  BM_CHECK(layout.Validate().ok());
  BM_CHECK(max_sequences > 0);
  free_slots_.reserve(max_sequences);
  for (int32_t i = max_sequences - 1; i >= 0; --i) {
    free_slots_.push_back(SequenceSlot{i});
  }
}

SequenceCache& BlockManager::at(SequenceSlot slot) {
  SequenceCache& sequence = sequences_[Index(slot)];
  BM_CHECK(sequence.open);
  return sequence;
}

const SequenceCache& BlockManager::at(SequenceSlot slot) const {
  const SequenceCache& sequence = sequences_[Index(slot)];
  BM_CHECK(sequence.open);
  return sequence;
}

BlockManagerStats BlockManager::stats() const {
  BlockManagerStats stats;
  stats.num_blocks = layout_.num_blocks;
  stats.free_blocks = pool_.num_free();
  stats.cached_blocks = cache_.num_reclaimable() + num_cooling_;
  stats.fenced_blocks = pool_.num_fenced();
  stats.used_blocks = pool_.num_held() - stats.cached_blocks;
  stats.reclaimed_blocks = reclaimed_blocks_;
  return stats;
}

void BlockManager::Acknowledge(StepId step) {
  pool_.Acknowledge(step);
  while (!cooling_.empty()) {
    const auto [block, ticket] = cooling_.front();
    const bool waits = cooling_tickets_[Index(block)] == ticket;
    if (waits && !pool_.IsPastFence(block)) return;
    cooling_.pop_front();
    if (!waits) continue;
    StopCooling(block);
    cache_.AddReclaimable(block);
  }
}

void BlockManager::StopCooling(BlockId block) {
  BM_CHECK(cooling_tickets_[Index(block)] != 0);
  cooling_tickets_[Index(block)] = 0;
  --num_cooling_;
}

void BlockManager::LoseEngine() {
  BM_CHECK(free_slots_.size() == sequences_.size());
  pool_.ForgetSteps();
  BM_CHECK(ResetPrefixCache());
}

PrefixMatch BlockManager::Match(std::span<const BlockKey> keys,
                                std::span<const int32_t> tokens,
                                int32_t max_tokens) const {
  PrefixMatch match;
  if (!prefix_caching_ || max_tokens <= 0) return match;
  const size_t num_keys = std::min<size_t>(
      keys.size(), static_cast<size_t>(max_tokens / layout_.page_size));
  cache_.Match(keys.first(num_keys), tokens, &match.blocks);
  for (const BlockId block : match.blocks) {
    match.num_reclaimable += cache_.IsReclaimable(block) ? 1 : 0;
  }
  return match;
}

SequenceSlot BlockManager::Open(const PrefixMatch& match) {
  BM_CHECK(!free_slots_.empty());
  const SequenceSlot slot = free_slots_.back();
  free_slots_.pop_back();
  SequenceCache& sequence = sequences_[Index(slot)];
  BM_CHECK(!sequence.open);
  sequence.open = true;
  for (const BlockId block : match.blocks) {
    BM_CHECK(cache_.Contains(block));
    if (cache_.IsReclaimable(block)) {
      cache_.RemoveReclaimable(block);
    } else if (pool_.num_holders(block) == 1) {
      StopCooling(block);
    }
    pool_.AddRef(block);
    sequence.tail.push_back(block);
  }
  sequence.num_published = static_cast<int32_t>(match.blocks.size());
  sequence.num_reserved = sequence.num_published * layout_.page_size;
  sequence.num_settled = sequence.num_reserved;
  if (!match.blocks.empty()) {
    sequence.chain_serial = cache_.serial(match.blocks.back());
  }
  return slot;
}

void BlockManager::DropFromCache(BlockId block) {
  cache_.Remove(block);
  pool_.ReleaseUntouched(block);
}

void BlockManager::ReclaimOldest() {
  const BlockId block = cache_.oldest();
  cache_.RemoveReclaimable(block);
  DropFromCache(block);
  ++reclaimed_blocks_;
}

void BlockManager::Take(std::span<BlockId> blocks) {
  while (pool_.num_free() < std::ssize(blocks)) ReclaimOldest();
  BM_CHECK(pool_.Allocate(blocks));
}

bool BlockManager::Reserve(std::span<const TokenDemand> demands,
                           std::vector<int64_t>* offsets,
                           std::vector<BlockId>* blocks) {
  int64_t needed = 0;
  for (const TokenDemand& demand : demands) {
    needed += at(demand.slot).BlocksFor(demand.num_tokens, layout_.page_size);
  }
  if (needed > num_available()) return false;
  const size_t begin = blocks->size();
  blocks->resize(begin + needed);
  Take(std::span(*blocks).subspan(begin));
  size_t next = begin;
  for (const TokenDemand& demand : demands) {
    SequenceCache& sequence = at(demand.slot);
    const int32_t count =
        sequence.BlocksFor(demand.num_tokens, layout_.page_size);
    sequence.tail.insert(sequence.tail.end(), blocks->begin() + next,
                         blocks->begin() + next + count);
    sequence.num_reserved += demand.num_tokens;
    next += count;
    offsets->push_back(static_cast<int64_t>(next));
  }
  return true;
}

int32_t BlockManager::NumPublishable(const SequenceCache& sequence,
                                     int32_t num_tokens) const {
  if (!prefix_caching_ || sequence.region != nullptr ||
      sequence.chain_serial == kNoSerial) {
    return 0;
  }
  return (sequence.num_settled + num_tokens) / layout_.page_size;
}

bool BlockManager::WillPublish(SequenceSlot slot, int32_t num_tokens) const {
  const SequenceCache& sequence = at(slot);
  return NumPublishable(sequence, num_tokens) > sequence.num_published;
}

void BlockManager::Commit(SequenceSlot slot, int32_t num_tokens,
                          std::span<const int32_t> tokens,
                          std::span<const BlockKey> keys) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(sequence.num_settled + num_tokens <= sequence.num_reserved);
  sequence.num_settled += num_tokens;
  if (NumPublishable(sequence, 0) > sequence.num_published) {
    Publish(&sequence, tokens, keys);
  }
}

void BlockManager::Publish(SequenceCache* sequence,
                           std::span<const int32_t> tokens,
                           std::span<const BlockKey> keys) {
  const int32_t page_size = layout_.page_size;
  const int32_t num_full = NumPublishable(*sequence, 0);
  for (int32_t i = sequence->num_published; i < num_full; ++i) {
    const BlockId block = sequence->tail[i];
    if (sequence->pending.has_value()) {
      const std::vector<BlockId>& doomed = sequence->pending->destinations;
      const auto own_end = doomed.begin() + sequence->pending->num_own;
      if (std::find(doomed.begin(), own_end, block) != own_end) {
        sequence->chain_serial = kNoSerial;
        return;
      }
    }
    bool inserted = false;
    sequence->chain_serial = cache_.Insert(
        block, keys[i], sequence->chain_serial,
        tokens.subspan(static_cast<size_t>(i) * page_size, page_size),
        &inserted);
    if (inserted) pool_.AddRef(block);
    if (sequence->chain_serial == kNoSerial) return;
    sequence->num_published = i + 1;
  }
}

void BlockManager::Abort(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(num_tokens >= 0);
  BM_CHECK(sequence.num_reserved - num_tokens >= sequence.num_settled);
  sequence.num_reserved -= num_tokens;
  BM_CHECK(!sequence.pending.has_value() ||
           sequence.pending->cut <= sequence.num_reserved);
  const int32_t needed =
      CeilDiv(sequence.num_reserved - sequence.cut(), layout_.page_size);
  while (std::ssize(sequence.tail) > needed) {
    pool_.ReleaseUntouched(sequence.tail.back());
    sequence.tail.pop_back();
  }
}

void BlockManager::ReleaseFrom(BlockId block) {
  pool_.Release(block);
  if (pool_.num_holders(block) != 1 || !cache_.Contains(block)) return;
  if (pool_.IsPastFence(block)) {
    cache_.AddReclaimable(block);
  } else {
    cooling_tickets_[Index(block)] = next_cooling_ticket_;
    cooling_.push_back({block, next_cooling_ticket_++});
    ++num_cooling_;
  }
}

void BlockManager::Close(SequenceSlot slot) {
  SequenceCache& sequence = at(slot);
  if (sequence.pending.has_value()) AbortEviction(slot);
  for (size_t i = sequence.tail.size(); i-- > 0;) {
    ReleaseFrom(sequence.tail[i]);
  }
  if (sequence.region != nullptr) {
    for (const BlockId block : sequence.region->blocks) ReleaseFrom(block);
  }
  // Keeps the table's memory for the next sequence of this slot.
  std::vector<BlockId> tail = std::move(sequence.tail);
  tail.clear();
  sequence = SequenceCache{};
  sequence.tail = std::move(tail);
  free_slots_.push_back(slot);
}

bool BlockManager::IsOwn(BlockId block) const {
  const int32_t holders = pool_.num_holders(block);
  return holders == 1 || (holders == 2 && cache_.Contains(block));
}

int32_t BlockManager::NumReleasable(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  int32_t count = 0;
  for (const BlockId block : sequence.tail) count += IsOwn(block) ? 1 : 0;
  if (sequence.region != nullptr) {
    count += static_cast<int32_t>(sequence.region->blocks.size());
  }
  if (sequence.pending.has_value()) {
    count += static_cast<int32_t>(sequence.pending->destinations.size()) -
             sequence.pending->num_own;
  }
  return count;
}

bool BlockManager::ResetPrefixCache() {
  while (cache_.num_reclaimable() > 0) ReclaimOldest();
  for (const auto [block, ticket] : cooling_) {
    if (cooling_tickets_[Index(block)] != ticket) continue;
    StopCooling(block);
    DropFromCache(block);
  }
  cooling_.clear();
  BM_CHECK(num_cooling_ == 0);
  return cache_.num_entries() == 0;
}

}  // namespace blockmgr
