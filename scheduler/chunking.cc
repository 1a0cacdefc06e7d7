#include "scheduler/chunking.h"

#include <algorithm>

namespace blockmgr {

int32_t EqualShare(int32_t budget, int32_t unit, std::vector<int32_t>* gaps) {
  std::ranges::sort(*gaps);
  int32_t left = std::max(budget, 0);
  auto num_left = static_cast<int32_t>(gaps->size());
  for (const int32_t gap : *gaps) {
    const int32_t share = left / num_left;
    if (gap > share) return std::max(unit, share / unit * unit);
    left -= gap;
    --num_left;
  }
  // All gaps fit into the budget.
  return gaps->empty() ? unit : std::max(unit, gaps->back());
}

}  // namespace blockmgr
