// CanaryMemory: the device and host memory of a CanaryEngine.
//
// Every slot of every page holds a CanaryTag instead of K and V. The memory
// carries out copies and moves. It knows which blocks the last steps have
// touched, and which blocks have lost their content.
//
// Thread-compatible.
#ifndef TESTS_TESTING_CANARY_MEMORY_H_
#define TESTS_TESTING_CANARY_MEMORY_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/step_plan.h"

namespace blockmgr {

// CanaryTag says what was written to a slot, for which layer, head and
// position, and by whom.
struct CanaryTag {
  // Hash of all tokens up to the position, and of the evictions before it was
  // computed.
  uint64_t content = 0;
  uint64_t incarnation = 0;
  RequestId request{0};
  StepId step{0};  // the step that computed the entry
  int32_t position = -1;
  int32_t head_index = -1;
  int32_t group = -1;  // of layers
};

class CanaryMemory {
 public:
  CanaryMemory(const ModelLayout& layout, int32_t num_host_blocks);

  const CanaryTag& tag(SlotIndex place) const { return tags_[place]; }
  // Writes the tag, with the index of the head, to a row of every head's page
  // of a block.
  void Write(BlockId block, int32_t row, CanaryTag tag);
  // Carries out the moves of a compaction. Their order within a group, and
  // whether groups are put together, must not matter. `seed` decides both.
  void Move(CompactionMoves moves, uint64_t seed);

  // Copies to the host tier. This comes before anything else of the plan. A
  // step in flight must not touch any of the host blocks.
  absl::Status CopyOut(const StepPlan& plan, std::span<const StepId> in_flight,
                       StepResult* result);
  // Copies what comes back, and copies on write.
  void CopyIn(const StepPlan& plan, StepResult* result);

  // Notes that a step touches blocks.
  void Touch(StepId step, std::span<const BlockId> blocks) {
    touched_[step].insert(blocks.begin(), blocks.end());
  }
  // Checks that no step in flight touches a block that `step` hands out.
  absl::Status CheckFresh(BlockId block, StepId step,
                          std::span<const StepId> in_flight) const;
  // Forgets what steps long before this one have touched.
  void ForgetStepsBefore(StepId step);

  // The next call of CarryOutLosses loses these blocks.
  void LoseBlocks(const std::vector<BlockId>& blocks);
  void LoseHostBlocks(const std::vector<HostBlockId>& blocks);
  // Loses the tags of blocks, and reports the blocks.
  void CarryOutLosses(StepResult* result);
  // Returns whether a block has lost its content, and no step has written it
  // since.
  bool has_lost() const { return !lost_.empty(); }
  bool IsLost(BlockId block) const { return lost_.contains(block); }
  void SetLost(BlockId block, bool is_lost);

 private:
  // Copies the tags of a block to its host block, or back.
  void CopyTags(const BlockTransfer& transfer, bool to_host);

  ModelLayout layout_;
  std::vector<CanaryTag> tags_;                    // by SlotIndex
  std::vector<std::vector<CanaryTag>> host_tags_;  // by host block
  // Blocks that executed steps have touched, by step.
  absl::flat_hash_map<StepId, absl::flat_hash_set<BlockId>> touched_;
  absl::flat_hash_map<StepId, absl::flat_hash_set<HostBlockId>> touched_host_;
  // Blocks that the next report loses.
  std::vector<BlockId> losses_;
  std::vector<HostBlockId> host_losses_;
  // Blocks that are lost, and that no step has written since.
  absl::flat_hash_set<BlockId> lost_;
  absl::flat_hash_set<HostBlockId> lost_host_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_MEMORY_H_
