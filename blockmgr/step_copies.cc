#include "blockmgr/step_copies.h"

#include <algorithm>

#include "blockmgr/base/check.h"

namespace blockmgr {

std::span<const CopyOnWrite> StepCopies::Of(SequenceSlot slot) const {
  const auto begin = std::ranges::find(copies_, slot, &CopyOnWrite::slot);
  const auto end = std::find_if(
      begin, copies_.end(),
      [slot](const CopyOnWrite& copy) { return copy.slot != slot; });
  return {begin, end};
}

StepCopies::Leaving StepCopies::LeavingOf(BlockId source) const {
  const auto found = leaving_.find(source);
  return found == leaving_.end() ? Leaving() : found->second;
}

void StepCopies::Add(const CopyOnWrite& copy) {
  copies_.push_back(copy);
  Leaving& leaving = leaving_[copy.blocks.source];
  ++leaving.num_sequences;
  leaving.max_tokens = std::max(leaving.max_tokens, copy.num_tokens);
}

void StepCopies::Shrink(size_t num_kept) {
  if (copies_.size() == num_kept) return;
  copies_.resize(num_kept);
  leaving_ = CountLeaving();
}

void StepCopies::Remove(SequenceSlot slot) {
  std::erase_if(copies_,
                [slot](const CopyOnWrite& copy) { return copy.slot == slot; });
  leaving_ = CountLeaving();
}

void StepCopies::CheckInvariants() const {
  BM_CHECK(leaving_ == CountLeaving());
}

absl::flat_hash_map<BlockId, StepCopies::Leaving> StepCopies::CountLeaving()
    const {
  absl::flat_hash_map<BlockId, Leaving> by_source;
  for (const CopyOnWrite& copy : copies_) {
    Leaving& leaving = by_source[copy.blocks.source];
    ++leaving.num_sequences;
    leaving.max_tokens = std::max(leaving.max_tokens, copy.num_tokens);
  }
  return by_source;
}

}  // namespace blockmgr
