// The order of the kernels of an index and of a selection: one list for nvcc's
// launches and for the emulator. C++17.
#ifndef KERNELS_CUDA_SELECT_SEQUENCE_CUH_
#define KERNELS_CUDA_SELECT_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/entry_index.cuh"
#include "kernels/cuda/entry_index.h"
#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/select.h"
#include "kernels/cuda/select_budgets.cuh"
#include "kernels/cuda/select_moves.cuh"
#include "kernels/cuda/select_radix.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

// longest_tail: tokens.
template <typename Launch>
bool RunIndexEntries(const EntryIndexParams& params, int32_t longest_tail,
                     Launch&& launch) {
  const int64_t num_lists =
      int64_t{params.lists.num_sequences} * params.lists.num_heads;
  const auto size = [&](int64_t y, int64_t shared_bytes) {
    return SizeOf(num_lists, y, kIndexThreads, shared_bytes, params.num_layers);
  };
  // Without tails, too: it is what looks at the offsets.
  const int64_t num_blocks =
      longest_tail == 0 ? 1 : CeilDivide(longest_tail, kIndexTailEntries);
  if (!launch(size(num_blocks, 0), kKernel<IndexTails>, params)) return false;
  return params.lists.region_lengths == nullptr ||
         launch(size(1, kPrefixSharedBytes), kKernel<IndexRegions>, params);
}

// Calls launch(size, kernel, arguments..) for every kernel, in order, each
// after the one before it has ended; stops at the first that returns false.
// Six launches for equal budgets, ten for adakv, fourteen with floors; six more
// for critical.
template <typename Launch>
bool RunSelect(const SelectProblem& p, Launch&& launch) {
  if (p.num_heads == 0) return true;
  const auto heads = static_cast<uint32_t>(p.num_heads);
  const auto scopes = static_cast<uint32_t>(p.num_scopes);
  const auto chunks = static_cast<uint32_t>(p.num_chunks);
  const LaunchSize per_head = {heads, 1, simt::kWarpThreads, 0};
  const LaunchSize per_scope = {scopes, 1, simt::kWarpThreads, 0};
  const LaunchSize counting = {heads, chunks, kSelectThreads,
                               kPrefixSharedBytes};
  const LaunchSize radix = {heads, chunks, kSelectThreads, kRadixSharedBytes};
  const auto passes = [&](bool of_scope, bool second) {
    for (uint32_t digit = 0; digit < 3; ++digit) {
      if (!launch(radix, kKernel<SelectRadixPass>, p, digit, of_scope,
                  second)) {
        return false;
      }
    }
    return true;
  };
  const auto survivors = [&](bool second) {
    return passes(false, second) &&
           launch(counting, kKernel<SelectCountEquals>, p, second) &&
           launch(counting, kKernel<SelectEmit>, p, second);
  };
  if (!launch(per_head, kKernel<SelectSplit>, p)) return false;
  if (HasFloors(p) && (!passes(false, false) ||
                       !launch(per_scope, kKernel<SelectBeginPool>, p))) {
    return false;
  }
  if (IsScored(p) && (!passes(true, false) ||
                      !launch(counting, kKernel<SelectCountAtCut>, p))) {
    return false;
  }
  if (!survivors(false)) return false;
  if (!p.critical) return true;
  const LaunchSize per_thread = {(heads + kSelectThreads - 1) / kSelectThreads,
                                 1, kSelectThreads, 0};
  return launch(per_thread, kKernel<SelectBeginSecond>, p) && survivors(true);
}

template <typename Launch>
bool RunSelectMoves(const SelectMoves& p, Launch&& launch) {
  if (p.num_heads == 0) return true;
  const LaunchSize grid = {static_cast<uint32_t>(p.num_heads), 1,
                           kSelectThreads, kPrefixSharedBytes};
  return launch(grid, kKernel<MovesMarkPages>, p) &&
         launch(grid, kKernel<MovesFindStrays>, p) &&
         launch(grid, kKernel<MovesFillHoles>, p);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_SEQUENCE_CUH_
