// BlockManager: losses of blocks of the pool, or of the engine.

#include <algorithm>
#include <optional>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

void BlockManager::LoseEngine() {
  BM_CHECK(free_slots_.size() == sequences_.size());
  blocks_.pool().ForgetSteps();
  host_.LoseEngine();
  BM_CHECK(blocks_.Reset().num_in_use == 0);
  // The engine has lost these regions, so nobody needs their names.
  std::vector<RegionId> dropped;
  blocks_.TakeDroppedRegions(&dropped);
}

absl::StatusOr<LossReport> BlockManager::LoseBlocks(
    std::span<const BlockId> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (Index(blocks[i]) < 1 || Index(blocks[i]) >= layout_.num_blocks) {
      return Invalid("blocks[", i, "]: expected 1 to ", layout_.num_blocks - 1,
                     ", got ", Index(blocks[i]));
    }
  }
  const absl::flat_hash_set<BlockId> lost(blocks.begin(), blocks.end());
  LossReport report;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceSlot slot{static_cast<int32_t>(i)};
    if (!sequences_[i].open) continue;
    const std::optional<int32_t> num_tokens = CountSoundTokens(slot, lost);
    if (num_tokens.has_value()) report.sequences.push_back({slot, *num_tokens});
  }
  // The entries are dropped before the sequences change, so that no sequence
  // continues its chain after a lost entry.
  const int32_t num_held = blocks_.cache().num_blocks_held();
  absl::flat_hash_set<EntrySerial> gone;
  for (const int32_t entry : blocks_.cache().FindLost(lost, &gone)) {
    // A linked block may have been dropped with the entry that leads to it.
    if (blocks_.cache().serial(entry) != kNoSerial) blocks_.Drop(entry);
  }
  report.dropped_blocks = num_held - blocks_.cache().num_blocks_held();
  for (const CutSequence& cut : report.sequences) {
    AbortEvictions(cut.slot);
    CutBack(cut.slot, cut.num_tokens);
  }
  for (SequenceCache& sequence : sequences_) {
    if (gone.contains(sequence.chain_serial)) sequence.chain_serial = kNoSerial;
  }
  return report;
}

std::optional<int32_t> BlockManager::CountSoundTokens(
    SequenceSlot slot, const absl::flat_hash_set<BlockId>& lost) const {
  const SequenceCache& sequence = at(slot);
  const auto is_lost = [&lost](BlockId block) { return lost.contains(block); };
  bool has_lost = false;
  // Blocks to which an eviction in flight moves entries.
  absl::flat_hash_set<BlockId> moved;
  for (const GroupCache& cache : sequence.groups) {
    has_lost |= std::ranges::any_of(cache.tail, is_lost);
    if (cache.region != nullptr) {
      has_lost |= std::ranges::any_of(cache.region->blocks, is_lost);
    }
    if (cache.pending == nullptr) continue;
    const std::vector<BlockId>& destinations = cache.pending->destinations;
    has_lost |= std::ranges::any_of(destinations, is_lost);
    moved.insert(destinations.begin(),
                 destinations.begin() + cache.pending->num_own);
  }
  const bool lost_source = std::ranges::any_of(
      copies_.Of(slot),
      [&](const CopyOnWrite& copy) { return is_lost(copy.blocks.source); });
  if (!has_lost && !lost_source) return std::nullopt;

  const auto is_unsound = [&](BlockId block) {
    return lost.contains(block) || moved.contains(block);
  };
  int32_t num_sound = CeilDiv(sequence.num_settled, layout_.page_size);
  for (const GroupCache& cache : sequence.groups) {
    if (cache.region != nullptr &&
        std::ranges::any_of(cache.region->blocks, is_unsound)) {
      return 0;
    }
    const auto first_unsound = std::ranges::find_if(cache.tail, is_unsound);
    num_sound = std::min(
        num_sound, cache.tail_begin + static_cast<int32_t>(first_unsound -
                                                           cache.tail.begin()));
  }
  if (lost_source) {
    // The copy has replaced the source, which has the last settled position.
    num_sound = std::min(num_sound, sequence.num_settled / layout_.page_size);
  }
  const int32_t num_tokens =
      std::min(sequence.num_settled, num_sound * layout_.page_size);
  return CanGoBack(slot, num_tokens) ? num_tokens : 0;
}

}  // namespace blockmgr
