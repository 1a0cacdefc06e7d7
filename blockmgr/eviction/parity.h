// Published programs to the letter: what `parity(kvpress)` and
// `parity(released)` select (ALGORITHMS, sections 0.9 and 2).
//
// Unlike the library's own selection, a program knows no protected set: it
// gives the window (snapkv, tova) or the sinks (expected_attention) a score
// above all others of their layer, lets them compete, breaks ties inside them
// to the lowest position, truncates counts and lets totals drift. Kept so that
// results can be compared with published ones; not for serving.
//
//   kvpress   NVIDIA's library: uniform (top k per head), adakv(mode=floor),
//             each with topk or critical; streaming
//   released  Ada-KV's code: adakv(mode=blend) with topk, or with critical as
//             the paper's algorithm 1 states it; the window is kept beside the
//             budgets of the past
//
// A count is int(T * (1 - r)) in doubles, T = range.cut, with r the double
// nearest to 1 - keep ratio; or the target's tokens, which may be 0 here.
#ifndef BLOCKMGR_EVICTION_PARITY_H_
#define BLOCKMGR_EVICTION_PARITY_H_

#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// That a published program does what the policy says; true without parity.
// InvalidArgument names stage, key, expected and got.
absl::Status CheckParity(const EvictionPolicy& policy);

// The scores as a program sees them, [entries.offsets.back()]: the entries of
// the window or the sinks get the greatest of their layer's other scores + 1,
// those of streaming 1 or 0. O(entries).
std::vector<float> ParityScores(const EvictionPolicy& policy,
                                const EvictionTarget& target,
                                const HeadShape& shape,
                                const EvictionRange& range,
                                const EntriesView& entries);

// Entries kept per (layer, head), [num_layers * num_heads]. O(entries).
// REQUIRES: policy.parity is not kNone, CheckParity is OK.
std::vector<int32_t> ParityBudgets(const EvictionPolicy& policy,
                                   const EvictionTarget& target,
                                   const HeadShape& shape,
                                   const EvictionRange& range,
                                   const EntriesView& entries);

// The entries themselves. O(entries). REQUIRES: as ParityBudgets; for critical,
// entries.value_norms.
KeepSets SelectParity(const EvictionPolicy& policy,
                      const EvictionTarget& target, const HeadShape& shape,
                      const EvictionRange& range, const EntriesView& entries);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_PARITY_H_
