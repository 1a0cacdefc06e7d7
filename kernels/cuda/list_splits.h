// The division of lists of unequal lengths among the CTAs of a kernel: plain
// data that the host fills and kernels read. C++17, for any compiler.
#ifndef KERNELS_CUDA_LIST_SPLITS_H_
#define KERNELS_CUDA_LIST_SPLITS_H_

#include <algorithm>
#include <cstdint>

namespace blockmgr {

// List l has the CTAs offsets[l] .. offsets[l + 1] - 1, one for each of its
// pieces. A grid is flat. In a grid {pieces of the longest list, lists}, most
// CTAs would have nothing to do if one list is long.
struct ListSplits {
  const int32_t* offsets = nullptr;  // [num_lists + 1]
  int32_t count = 0;                 // offsets[num_lists], known to the host
};

// Writes the offsets of ListSplits to out[0 .. num_lists], for lists that begin
// at offsets[0 .. num_lists] and pieces of split_entries. A list without
// entries gets min_splits pieces, 0 or 1. Returns out[num_lists].
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

// Returns the entries of the longest of the lists that begin at offsets[0 ..
// num_lists].
inline int64_t LongestList(const int64_t* offsets, int64_t num_lists) {
  int64_t longest = 0;
  for (int64_t list = 0; list < num_lists; ++list) {
    longest = std::max(longest, offsets[list + 1] - offsets[list]);
  }
  return longest;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LIST_SPLITS_H_
