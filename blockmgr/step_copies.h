// StepCopies: the copies on write of the step being planned.
//
// A sequence that is about to write to a block that others hold, too, gets a
// fresh block in every layer group and leaves the old ones, the sources. Until
// the step is dispatched, the sequence's hold on a source remains, so that the
// sequence can take the source back.
#ifndef BLOCKMGR_STEP_COPIES_H_
#define BLOCKMGR_STEP_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/moves.h"

namespace blockmgr {

class StepCopies {
 public:
  // The sequences that leave a block with this step.
  struct Leaving {
    int32_t num_sequences = 0;
    // The most tokens that one of these sequences takes along from the block.
    int32_t max_tokens = 0;
    friend bool operator==(const Leaving&, const Leaving&) = default;
  };

  bool empty() const { return copies_.empty(); }
  size_t size() const { return copies_.size(); }
  // In the order of planning: [copying sequences, layer groups].
  std::span<const CopyOnWrite> all() const { return copies_; }
  // Returns the copies of a sequence: one per group, or none at all.
  std::span<const CopyOnWrite> Of(SequenceSlot slot) const;
  // Returns who leaves a block. O(1).
  Leaving LeavingOf(BlockId source) const;

  // Adds a copy, whose destination may still be unknown.
  void Add(const CopyOnWrite& copy);
  void SetDestination(size_t i, BlockId destination) {
    copies_[i].blocks.destination = destination;
  }
  // Forgets all copies but the first num_kept.
  void Shrink(size_t num_kept);
  // Forgets the copies of a sequence.
  void Remove(SequenceSlot slot);
  void Clear() { Shrink(0); }

  // For tests.
  void CheckInvariants() const;

 private:
  absl::flat_hash_map<BlockId, Leaving> CountLeaving() const;

  std::vector<CopyOnWrite> copies_;
  absl::flat_hash_map<BlockId, Leaving> leaving_;  // copies_ by source
};

}  // namespace blockmgr

#endif  // BLOCKMGR_STEP_COPIES_H_
