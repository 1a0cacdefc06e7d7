// Selection and compaction on a device.
#ifndef KERNELS_CUDA_DEVICE_SELECTOR_H_
#define KERNELS_CUDA_DEVICE_SELECTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cuda/device_pool.h"
#include "kernels/cuda/select.h"

namespace blockmgr {

// What a selection found: as SelectEntries and AllocateBudgets.
struct DeviceSelection {
  std::vector<int32_t> budgets;  // [num_layers * num_heads]
  KeepSets keep;
};

// A new region that survivors are to be moved to, over all layers and heads of
// the pool. Borrowed for the call.
struct DeviceCompaction {
  // Candidates as they are now: CSR over heads, [num_layers * num_heads + 1].
  std::span<const int64_t> offsets;
  std::span<const SlotIndex> slots;  // [offsets.back()]
  const KeepSets* keep = nullptr;    // ranks into them
  // The region's page lists, and how many pages of each it held before.
  std::span<const int32_t> page_offsets;  // CSR
  std::span<const PageId> pages;
  std::span<const int32_t> held_pages;  // [num_layers * num_heads]
};

// DeviceSelector chooses what SelectEntries chooses, and moves what
// PlanCompaction would, bit for bit.
//
// Cost: 8 to 22 small kernels and a wait per selection, five kernels per
// compaction; 4 bytes of device memory per page of the pool from the first
// compaction on. Thread-compatible.
class DeviceSelector {
 public:
  // The pool is borrowed.
  explicit DeviceSelector(const DevicePool* pool) : pool_(*pool) {}
  DeviceSelector(const DeviceSelector&) = delete;
  DeviceSelector& operator=(const DeviceSelector&) = delete;
  ~DeviceSelector();

  // Unimplemented for policies with parity, which are the CPU's alone.
  static absl::Status Supports(const EvictionPolicy& policy);

  // One sequence; arguments as of SelectEntries. REQUIRES: Supports(policy).
  void Select(const EvictionPolicy& policy, const EvictionTarget& target,
              const HeadShape& shape, const EvictionRange& range,
              const EntriesView& entries, std::span<const int32_t> external,
              DeviceSelection* selection);

  // Plans the moves and carries both phases out. Does not wait.
  void Compact(const DeviceCompaction& compaction);

 private:
  // Arrays of a selection and of a compaction; see SelectProblem, SelectMoves.
  struct SelectionArrays {
    CallMemory::Array<SelectScope> scopes;
    CallMemory::Array<int64_t> offsets;
    CallMemory::Array<int32_t> positions;
    CallMemory::Array<float> scores;
    CallMemory::Array<float> value_norms;
    CallMemory::Array<float> products;
    CallMemory::Array<SelectHead> heads;
    CallMemory::Array<RadixSearch> searches;
    CallMemory::Array<uint32_t> zeros;  // histograms, then counters
    CallMemory::Array<int32_t> equals;
    CallMemory::Array<int32_t> budgets;
    CallMemory::Array<uint32_t> survivors;
    CallMemory::Array<int64_t> num_nan;
  };
  struct MoveArrays {
    CallMemory::Array<uint32_t> survivors;
    CallMemory::Array<int32_t> kept;
    CallMemory::Array<int64_t> offsets;
    CallMemory::Array<int64_t> slots;
    CallMemory::Array<int32_t> page_offsets;
    CallMemory::Array<int32_t> pages;
    CallMemory::Array<int32_t> held;
    CallMemory::Array<int64_t> kept_offsets;
    CallMemory::Array<int64_t> strays;
    CallMemory::Array<uint32_t> filled;
    CallMemory::Array<int32_t> counts;
    CallMemory::Array<RowMove> moves;  // of phase 1, then of phase 2
    CallMemory::Array<int64_t> num_moves;
  };

  // Adds the arrays to the call; the problem has everything but pointers.
  SelectProblem AddSelection(const EvictionPolicy& policy,
                             const HeadShape& shape, const EntriesView& entries,
                             SelectionArrays* arrays);
  void PointTo(const SelectionArrays& arrays, const EntriesView& entries,
               SelectProblem* problem) const;
  // Keep sets as the selection's kernels leave them.
  CallMemory::Array<uint32_t> AddSurvivors(std::span<const int64_t> offsets,
                                           const KeepSets& keep);
  MoveArrays AddMoves(const DeviceCompaction& compaction);
  void NeedPagePlaces();

  const DevicePool& pool_;
  std::vector<SelectScope> scopes_;  // of the call
  // -1 per page of the pool, between calls; null before the first compaction.
  int32_t* page_places_ = nullptr;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_DEVICE_SELECTOR_H_
