// The device side of list_splits.h: finds a CTA's piece of a list from the
// number of the CTA.
#ifndef KERNELS_CUDA_LIST_SPLITS_CUH_
#define KERNELS_CUDA_LIST_SPLITS_CUH_

#include <cstdint>

#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// C. Returns how many of holds(0), holds(1), .. holds(count - 1) are true
// before the first false. The condition must stay false after the first false.
// All lanes test at once: 32,768 conditions take three dependent loads, where
// halving needs fifteen.
template <typename Holds>
SIMT_DEVICE int32_t CountLeading(int32_t count, const Holds& holds) {
  int32_t begin = 0;  // true before, unknown in [begin, begin + count)
  while (count > 0) {
    const int32_t step = (count + 31) / 32;
    const int32_t first = static_cast<int32_t>(simt::Lane()) * step;
    const int32_t last = first + step < count ? first + step - 1 : count - 1;
    const int32_t whole =
        simt::PopCount(simt::Ballot(first < count && holds(begin + last)));
    begin += whole * step < count ? whole * step : count;
    // The last condition of the next piece is false.
    const int32_t rest = count - whole * step;
    count = (rest < step ? rest : step) - 1;
  }
  return begin;
}

// The piece of a list that a CTA works on.
struct ListSplit {
  int32_t list = 0;
  int32_t split = 0;  // of the list
};

// C. Finds the last list that begins at the CTA or before. This list has
// pieces.
SIMT_DEVICE ListSplit FindSplit(const int32_t* offsets, int32_t num_lists,
                                int32_t cta) {
  ListSplit found;
  found.list =
      CountLeading(num_lists, [&](int32_t i) { return offsets[i] <= cta; }) - 1;
  found.split = cta - offsets[found.list];
  return found;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_LIST_SPLITS_CUH_
