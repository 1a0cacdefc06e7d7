// The order of the kernels of an index and of a selection: one list for nvcc's
// launches and for the emulator. C++17.
#ifndef KERNELS_CUDA_SELECT_SEQUENCE_CUH_
#define KERNELS_CUDA_SELECT_SEQUENCE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/entry_index.cuh"
#include "kernels/cuda/entry_index.h"
#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/pool_view.h"
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
// Five launches for equal budgets, nine for adakv, thirteen with floors; five
// more for critical.
template <typename Launch>
bool RunSelect(const SelectProblem& p, Launch&& launch) {
  if (p.num_heads == 0) return true;
  const auto heads = static_cast<uint32_t>(p.num_heads);
  const auto scopes = static_cast<uint32_t>(p.num_scopes);
  const auto chunks = static_cast<uint32_t>(p.chunks.count);
  const auto size = [](uint32_t blocks, uint32_t shared_bytes) {
    return LaunchSize{blocks, 1, kSelectThreads, shared_bytes};
  };
  const LaunchSize radix = size(chunks, kRadixSharedBytes);
  const auto passes = [&](bool of_scope, auto second) {
    constexpr bool kSecond = decltype(second)::value;
    return launch(radix, kKernel<SelectRadixPass<0, kSecond>>, p, of_scope) &&
           launch(radix, kKernel<SelectRadixPass<1, kSecond>>, p, of_scope) &&
           launch(radix, kKernel<SelectRadixPass<2, kSecond>>, p, of_scope);
  };
  const auto survivors = [&](auto second) {
    constexpr bool kSecond = decltype(second)::value;
    return passes(false, second) && launch(size(chunks, kPrefixSharedBytes),
                                           kKernel<SelectEmit<kSecond>>, p);
  };
  if (!launch(size(heads, kScopeSharedBytes), kKernel<SelectSplit>, p)) {
    return false;
  }
  if (HasFloors(p) &&
      (!passes(false, std::false_type()) ||
       !launch(size(scopes, kScopeSharedBytes), kKernel<SelectBeginPool>, p))) {
    return false;
  }
  if (IsScored(p) && (!passes(true, std::false_type()) ||
                      !launch(size(chunks, kScopeSharedBytes),
                              kKernel<SelectCountAtCut>, p))) {
    return false;
  }
  if (!survivors(std::false_type())) return false;
  if (!p.critical) return true;
  return launch(size((heads + kSelectThreads - 1) / kSelectThreads, 0),
                kKernel<SelectBeginSecond>, p) &&
         survivors(std::true_type());
}

template <typename Launch>
bool RunSelectMoves(const SelectMoves& p, Launch&& launch) {
  if (p.num_heads == 0) return true;
  const LaunchSize grid = {static_cast<uint32_t>(p.num_heads), 1,
                           kSelectThreads, kPrefixSharedBytes};
  const Divider page_size = MakeDivider(static_cast<uint32_t>(p.page_size));
  return launch(grid, kKernel<MovesMarkPages>, p) &&
         launch(grid, kKernel<MovesFindStrays>, p, page_size) &&
         launch(grid, kKernel<MovesFillHoles>, p, page_size);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_SEQUENCE_CUH_
