// The transfers of swaps, by layer group.
#ifndef ENGINE_TABLES_SWAP_TRANSFERS_H_
#define ENGINE_TABLES_SWAP_TRANSFERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables_state.h"

namespace blockmgr {

// GroupTransfers counts the transfers of a swap that belong to one group.
struct GroupTransfers {
  int64_t num_region = 0;  // transfers of the region's blocks
  int64_t num_pages = 0;   // transfers of pages behind the region

  friend bool operator==(const GroupTransfers&,
                         const GroupTransfers&) = default;
};

// Returns the error of a field of the plan that is about a swap.
template <typename... Parts>
absl::Status InvalidSwap(const char* field, SwapId swap,
                         const Parts&... parts) {
  return Invalid(field, " of swap ", Index(swap), ": ", parts...);
}

// Returns how many transfers belong to each group, [num_groups]. Of a region,
// the blocks without pages are not copied, and the tables do not know which
// these are. REQUIRES: the slot is in use, and num_tokens is one at which its
// sequence can leave.
absl::StatusOr<std::vector<GroupTransfers>> SplitSwapOut(
    const TablesState& state, const SwapOut& out,
    std::span<const BlockTransfer> transfers);

// Returns how many of the start's transfers belong to each group,
// [num_groups]. The count of group 0's pages is what the other counts leave.
// The count may be negative if the plan is wrong. REQUIRES: the swap is in the
// host tier, and a region that the start names is kept.
std::vector<GroupTransfers> SplitSwapIn(const TablesState& state,
                                        const SequenceStart& start);

}  // namespace blockmgr

#endif  // ENGINE_TABLES_SWAP_TRANSFERS_H_
