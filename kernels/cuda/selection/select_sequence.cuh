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
#include "kernels/cuda/selection/select_divided.cuh"
#include "kernels/cuda/selection/select_heads.cuh"
#include "kernels/cuda/selection/select_moves.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/selection/select_scopes.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

// longest_tail is in tokens. There are two launches, or one without regions. In
// chunks there are four.
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
  if (params.lists.region_lengths == nullptr) return true;
  if (params.chunks.offsets == nullptr) {
    return launch(size(1, kPrefixSharedBytes), kKernel<IndexRegions>, params);
  }
  const auto chunks = [&](int64_t shared_bytes) {
    return SizeOf(params.chunks.count, 1, kIndexThreads, shared_bytes);
  };
  return launch(chunks(0), kKernel<MarkRegions>, params) &&
         launch(chunks(kPrefixSharedBytes), kKernel<CountRegions>, params) &&
         launch(chunks(0), kKernel<PlaceRegions>, params);
}

// Launches the search of every divided head and its survivors.
template <bool kSecond, typename Launch>
bool RunDividedHeads(const SelectProblem& p, const LaunchSize& chunks,
                     Launch& launch) {
  return launch(chunks, kKernel<SelectHeadPass<0, kSecond>>, p) &&
         launch(chunks, kKernel<SelectHeadPass<1, kSecond>>, p) &&
         launch(chunks, kKernel<SelectHeadPass<2, kSecond>>, p) &&
         launch(chunks, kKernel<SelectHeadSurvivors<kSecond>>, p);
}

// Launches the search of every scope, which ends with the budgets.
template <bool kFloors, typename Launch>
bool RunScopes(const SelectProblem& p, const LaunchSize& chunks,
               Launch& launch) {
  return launch(chunks, kKernel<SelectBeginScopes<kFloors>>, p) &&
         launch(chunks, kKernel<SelectScopePass<kFloors>>, p) &&
         launch(chunks, kKernel<SelectEndScopes<kFloors>>, p);
}

// Calls launch(size, kernel, arguments..) for every kernel, in order, each
// after the kernel before it has ended. Stops at the first launch that returns
// false. There are two launches if budgets do not depend on scores, four if
// they do. Divided heads add four, in the two stages of critical eight.
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
  const bool has_budgets =
      !IsScored(p)
          ? launch(grid(p.num_heads, kSelectThreads, kRadixSharedBytes),
                   kKernel<SelectSplit>, p)
      : HasFloors(p) ? RunScopes<true>(p, chunks, launch)
                     : RunScopes<false>(p, chunks, launch);
  if (!has_budgets ||
      !(p.critical ? launch(heads, kKernel<SelectSurvivors<true>>, p)
                   : launch(heads, kKernel<SelectSurvivors<false>>, p))) {
    return false;
  }
  if (p.divide_from == INT32_MAX) return true;
  return RunDividedHeads<false>(p, chunks, launch) &&
         (!p.critical || RunDividedHeads<true>(p, chunks, launch));
}

template <typename Launch>
bool RunSelectMoves(const SelectMoves& p, Launch& launch) {
  if (p.num_heads == 0) return true;
  const int32_t blocks =
      p.chunks.offsets == nullptr ? p.num_heads : p.chunks.count;
  return launch(SizeOf(blocks, 1, kSelectThreads, kMovesSharedBytes),
                kKernel<PlanMoves>, p,
                MakeDivider(static_cast<uint32_t>(p.page_size)));
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_SEQUENCE_CUH_
