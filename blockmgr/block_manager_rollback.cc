// Going back: positions that dispatched steps have seen and that do not count;
// and what is lost with blocks, the engine or the cache.

#include <algorithm>
#include <optional>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

int32_t BlockManager::PendingCut(const SequenceCache& sequence) const {
  int32_t cut = sequence.pending.has_value() ? sequence.pending->cut : 0;
  for (const WindowCache& window : Windows(sequence)) {
    if (window.pending != nullptr) cut = std::max(cut, window.pending->cut);
  }
  return cut;
}

void BlockManager::Abort(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(num_tokens >= 0);
  BM_CHECK(sequence.num_reserved - num_tokens >= sequence.num_settled);
  sequence.num_reserved -= num_tokens;
  BM_CHECK(PendingCut(sequence) <= sequence.num_reserved);
  Shrink(&sequence, sequence.num_reserved,
         [this](BlockId block) { pool_.ReleaseUntouched(block); });
  if (num_tokens > 0) ReturnToSettled(slot);
}

void BlockManager::Rollback(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(num_tokens >= 0);
  const int32_t end = sequence.num_reserved - num_tokens;
  BM_CHECK(end >= sequence.num_settled);
  BM_CHECK(PendingCut(sequence) <= end);
  sequence.num_reserved = end;
  Shrink(&sequence, end, [this](BlockId block) { ReleaseFrom(block); });
  if (num_tokens > 0) ReturnToSettled(slot);
}

void BlockManager::CutBack(SequenceSlot slot, int32_t num_tokens) {
  SequenceCache& sequence = at(slot);
  BM_CHECK(PendingCut(sequence) == 0);
  BM_CHECK(num_tokens <= sequence.num_settled);
  BM_CHECK(num_tokens == 0 || num_tokens >= sequence.cut());
  BM_CHECK(CanGoBack(slot, num_tokens));
  if (!copies_.empty()) UndoCopy(slot);
  Shrink(&sequence, num_tokens, [this](BlockId block) { ReleaseFrom(block); });
  if (num_tokens == 0) {
    if (sequence.region != nullptr) sequence.content.reset();
    ReleaseRegions(&sequence);
  }
  sequence.num_found = std::min(sequence.num_found, num_tokens);
  sequence.num_reserved = num_tokens;
  sequence.num_settled = num_tokens;
  sequence.shares_last_block = num_tokens % layout_.page_size != 0;
  if (prefix_caching_) CutChain(&sequence);
}

void BlockManager::CutChain(SequenceCache* sequence) const {
  const int32_t num_full = sequence->num_settled / layout_.page_size;
  if (num_full == 0 && sequence->region == nullptr) {
    sequence->num_published = 0;
    sequence->chain_serial = sequence->root_serial;
    sequence->chain_key = BlockKey{};
    return;
  }
  if (num_full >= sequence->num_published) return;
  sequence->num_published = num_full;
  if (sequence->chain_serial == kNoSerial) return;
  // Over a region the first page of the tail was computed before it, and what
  // follows that page comes after the region.
  const int32_t num_before = sequence->cut() / layout_.page_size;
  int32_t entry = PrefixCache::kNone;
  if (sequence->region == nullptr || num_full > num_before + 1) {
    const BlockId last = sequence->tail[num_full - num_before - 1];
    if (cache_.Contains(last)) entry = Index(last);
  } else if (num_full == num_before + 1) {
    entry = cache_.FindRegion(sequence->region->id);
  }
  if (entry == PrefixCache::kNone) {
    sequence->chain_serial = kNoSerial;
  } else {
    ContinueAfter(entry, sequence);
  }
}

std::optional<int32_t> BlockManager::SoundTokens(
    SequenceSlot slot, const absl::flat_hash_set<BlockId>& lost) const {
  const SequenceCache& sequence = at(slot);
  const auto is_lost = [&lost](BlockId block) { return lost.contains(block); };
  bool has_lost = false;
  absl::flat_hash_set<BlockId> moved;  // entries have been moved into those
  const auto look = [&](const std::vector<BlockId>& tail,
                        const RegionRecord* region,
                        const PendingEviction* pending) {
    has_lost |= std::ranges::any_of(tail, is_lost);
    if (region != nullptr) {
      has_lost |= std::ranges::any_of(region->blocks, is_lost);
    }
    if (pending == nullptr) return;
    has_lost |= std::ranges::any_of(pending->destinations, is_lost);
    moved.insert(pending->destinations.begin(),
                 pending->destinations.begin() + pending->num_own);
  };
  look(sequence.tail, sequence.region.get(),
       sequence.pending.has_value() ? &*sequence.pending : nullptr);
  for (const WindowCache& window : Windows(sequence)) {
    look(window.tail, window.region.get(), window.pending.get());
  }
  const auto copy = std::ranges::find(copies_, slot, &CopyOnWrite::slot);
  const bool lost_source = copy != copies_.end() && [&] {
    const std::span<const BlockCopy> others =
        WindowCopies(static_cast<size_t>(copy - copies_.begin()));
    return is_lost(copy->blocks.source) ||
           std::ranges::any_of(others, is_lost, &BlockCopy::source);
  }();
  if (!has_lost && !lost_source) return std::nullopt;

  const auto is_unsound = [&](BlockId block) {
    return lost.contains(block) || moved.contains(block);
  };
  const auto region_is_unsound = [&](const RegionRecord* region) {
    return region != nullptr && std::ranges::any_of(region->blocks, is_unsound);
  };
  if (region_is_unsound(sequence.region.get())) return 0;
  const auto first_unsound = [&](const std::vector<BlockId>& tail) {
    return static_cast<int32_t>(std::ranges::find_if(tail, is_unsound) -
                                tail.begin());
  };
  int32_t num_sound =
      sequence.cut() / layout_.page_size + first_unsound(sequence.tail);
  for (const WindowCache& window : Windows(sequence)) {
    if (region_is_unsound(window.region.get())) return 0;
    num_sound = std::min(num_sound, first_unsound(window.tail));
  }
  if (lost_source) {
    // In the place of the copy, where the last settled position is.
    num_sound = std::min(num_sound, sequence.num_settled / layout_.page_size);
  }
  const int32_t num_tokens =
      std::min(sequence.num_settled, num_sound * layout_.page_size);
  return num_tokens < sequence.cut() || !CanGoBack(slot, num_tokens)
             ? 0
             : num_tokens;
}

void BlockManager::DropFromCache(int32_t entry) {
  for (const int32_t orphan : cache_.Unlink(entry)) DropAnyEntry(orphan);
  const CachedRegion* cached = cache_.region(entry);
  if (cached == nullptr) {
    cache_.Remove(entry);
    pool_.ReleaseUntouched(BlockId{entry});
    return;
  }
  const std::shared_ptr<const RegionRecord> record = cached->record;
  // An engine knows those of windows by that of group 0.
  if (!cached->in_window) dropped_regions_.push_back(record->id);
  cache_.Remove(entry);
  for (const BlockId block : record->blocks) pool_.ReleaseUntouched(block);
}

void BlockManager::ReclaimNext() {
  const int32_t entry = cache_.next_to_reclaim();
  const int32_t before = cache_.num_reclaimable();
  cache_.RemoveReclaimable(entry);
  DropFromCache(entry);
  // Window blocks may have gone with it.
  reclaimed_blocks_ += static_cast<uint64_t>(before - cache_.num_reclaimable());
}

void BlockManager::DropAnyEntry(int32_t entry) {
  const bool is_reclaimable = cache_.IsReclaimable(entry);
  if (cooling_.Contains(entry)) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
  }
  if (is_reclaimable) cache_.RemoveReclaimable(entry);
  DropFromCache(entry);
}

absl::StatusOr<LossReport> BlockManager::LoseBlocks(
    std::span<const BlockId> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Index(blocks[i]) < 1 || Index(blocks[i]) >= layout_.num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("blocks[", i, "]: expected 1 to ",
                       layout_.num_blocks - 1, ", got ", Index(blocks[i])));
    }
  }
  const absl::flat_hash_set<BlockId> lost(blocks.begin(), blocks.end());
  LossReport report;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceSlot slot{static_cast<int32_t>(i)};
    if (!sequences_[i].open) continue;
    const std::optional<int32_t> num_tokens = SoundTokens(slot, lost);
    if (num_tokens.has_value()) report.sequences.push_back({slot, *num_tokens});
  }
  // Entries first, so that no sequence goes on after one of them.
  const int32_t num_held = cache_.num_blocks_held();
  absl::flat_hash_set<EntrySerial> gone;
  for (const int32_t entry : cache_.FindLost(lost, &gone)) {
    // A window block goes with what it is found by.
    if (cache_.serial(entry) != kNoSerial) DropAnyEntry(entry);
  }
  report.dropped_blocks = num_held - cache_.num_blocks_held();
  for (const CutSequence& cut : report.sequences) {
    AbortEvictions(cut.slot);
    CutBack(cut.slot, cut.num_tokens);
  }
  for (SequenceCache& sequence : sequences_) {
    if (gone.contains(sequence.chain_serial)) sequence.chain_serial = kNoSerial;
  }
  return report;
}

void BlockManager::LoseEngine() {
  BM_CHECK(free_slots_.size() == sequences_.size());
  pool_.ForgetSteps();
  host_.LoseEngine();
  BM_CHECK(ResetPrefixCache().num_in_use == 0);
  dropped_regions_.clear();
}

CacheReset BlockManager::ResetPrefixCache() {
  const int32_t before = cache_.num_blocks_held();
  while (cache_.num_reclaimable() > 0) ReclaimNext();
  for (int32_t entry = cooling_.Front(); entry != CoolingEntries::kNone;
       entry = cooling_.Front()) {
    cooling_.Remove(entry, cache_.num_blocks(entry));
    DropFromCache(entry);
  }
  BM_CHECK(cooling_.num_blocks() == 0);
  return {.num_dropped = before - cache_.num_blocks_held(),
          .num_in_use = cache_.num_blocks_held()};
}

void BlockManager::TakeDroppedRegions(std::vector<RegionId>* regions) {
  regions->insert(regions->end(), dropped_regions_.begin(),
                  dropped_regions_.end());
  dropped_regions_.clear();
}

}  // namespace blockmgr
