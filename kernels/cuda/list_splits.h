// How the CTAs of a kernel share lists of unequal lengths: plain data that the
// host fills and kernels read. Compiles as C++17 with any compiler.
#ifndef KERNELS_CUDA_LIST_SPLITS_H_
#define KERNELS_CUDA_LIST_SPLITS_H_

#include <algorithm>
#include <cstdint>

namespace blockmgr {

// List l has the CTAs from offsets[l] on, as many as it has pieces. Grids are
// flat; one of {pieces of the longest list, lists} is mostly of CTAs that have
// nothing to do where one list is long.
struct ListSplits {
  const int32_t* offsets = nullptr;  // [num_lists + 1]
  int32_t count = 0;                 // offsets[num_lists]: what the host knows
};

// ListSplits of lists that begin at offsets[0 .. num_lists], in pieces of
// split_entries, to out[0 .. num_lists]. Lists without entries have min_splits,
// 0 or 1. Returns the last one.
inline int32_t FillSplitOffsets(const int64_t* offsets, int64_t num_lists,
                                int32_t split_entries, int32_t* out,
                                int32_t min_splits = 0) {
  out[0] = 0;
  for (int64_t list = 0; list < num_lists; ++list) {
    const int64_t size = offsets[list + 1] - offsets[list];
    const auto splits =
        static_cast<int32_t>((size + split_entries - 1) / split_entries);
    out[list + 1] = out[list] + std::max(splits, min_splits);
  }
  return out[num_lists];
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LIST_SPLITS_H_
