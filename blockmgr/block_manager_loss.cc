// BlockManager after a loss: of blocks of the pool, or of the engine.

#include <algorithm>
#include <optional>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

void BlockManager::LoseEngine() {
  BM_CHECK(free_slots_.size() == sequences_.size());
  pool_.ForgetSteps();
  host_.LoseEngine();
  BM_CHECK(ResetPrefixCache().num_in_use == 0);
  dropped_regions_.clear();
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

}  // namespace blockmgr
