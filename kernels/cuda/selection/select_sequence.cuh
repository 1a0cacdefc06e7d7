// The order of the kernels of an index and of a selection. The launches of nvcc
// and of the emulator both follow it. C++17.
#ifndef KERNELS_CUDA_SELECTION_SELECT_SEQUENCE_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/paged_pool.h"
#include "kernels/cuda/selection/entry_index.cuh"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_budgets.cuh"
#include "kernels/cuda/selection/select_heads.cuh"
#include "kernels/cuda/selection/select_moves.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/selection/select_scopes.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

// longest_tail is in tokens.
template <typename Launch>
bool RunIndexEntries(const EntryIndexParams& params, int32_t longest_tail,
                     Launch& launch) {
  const int64_t num_lists =
      int64_t{params.lists.num_sequences} * params.lists.num_heads;
  const auto size = [&](int64_t y, int64_t shared_bytes) {
    return SizeOf(num_lists, y, kIndexThreads, shared_bytes, params.num_layers);
  };
  // Launched also without tails, because this kernel checks the offsets.
  const int64_t num_blocks =
      longest_tail == 0 ? 1 : CeilDivide(longest_tail, kIndexTailEntries);
  if (!launch(size(num_blocks, 0), kKernel<IndexTails>, params)) return false;
  return params.lists.region_lengths == nullptr ||
         launch(size(1, kPrefixSharedBytes), kKernel<IndexRegions>, params);
}

// Calls launch(size, kernel, arguments..) for every kernel, in order, each
// after the kernel before it has ended. Stops at the first launch that returns
// false. There are two launches for equal budgets, four for adakv, seven with
// floors.
template <typename Launch>
bool RunSelect(const SelectProblem& p, Launch& launch) {
  if (p.num_heads == 0) return true;
  const auto grid = [](int32_t blocks, uint32_t threads,
                       uint32_t shared_bytes) {
    return LaunchSize{static_cast<uint32_t>(blocks), 1, threads, shared_bytes};
  };
  const LaunchSize heads =
      grid(p.num_heads, kSelectHeadThreads, kHeadSharedBytes);
  const LaunchSize chunks =
      grid(p.chunks.count, kSelectThreads, kRadixSharedBytes);
  static_assert(kScopeSharedBytes <= kRadixSharedBytes);
  const bool begins_at_once = IsScored(p) && !HasFloors(p);
  if (begins_at_once
          ? !launch(chunks, kKernel<SelectBeginScopes>, p)
          : !launch(grid(p.num_heads, kSelectThreads, kRadixSharedBytes),
                    kKernel<SelectSplit>, p)) {
    return false;
  }
  if (HasFloors(p) &&
      (!launch(heads, kKernel<SelectFloors>, p) ||
       !launch(grid(p.num_scopes, kSelectThreads, kScopeSharedBytes),
               kKernel<SelectBeginPool>, p) ||
       !launch(chunks, kKernel<SelectScopePass<0>>, p))) {
    return false;
  }
  if (IsScored(p) && (!launch(chunks, kKernel<SelectScopePass<1>>, p) ||
                      !launch(chunks, kKernel<SelectEndScopes>, p))) {
    return false;
  }
  return p.critical ? launch(heads, kKernel<SelectSurvivors<true>>, p)
                    : launch(heads, kKernel<SelectSurvivors<false>>, p);
}

template <typename Launch>
bool RunSelectMoves(const SelectMoves& p, Launch& launch) {
  if (p.num_heads == 0) return true;
  const LaunchSize grid = {static_cast<uint32_t>(p.num_heads), 1,
                           kSelectThreads, kMovesSharedBytes};
  return launch(grid, kKernel<PlanMoves>, p,
                MakeDivider(static_cast<uint32_t>(p.page_size)));
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_SEQUENCE_CUH_
