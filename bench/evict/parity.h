// Published programs to the letter: what `parity(kvpress)` and
// `parity(released)` select.
//
// Unlike the library's own selection, a program knows no protected set: it
// gives the window (snapkv, tova) or the sinks (expected_attention) a score
// above all others of their layer, lets them compete, breaks ties inside them
// to the lowest position, truncates counts and lets totals drift. Kept so that
// results can be compared with published ones; not for serving.
//
//   kvpress   NVIDIA's library: uniform (top k per head) and adakv(mode=floor),
//             each with topk or critical; with topk alone streaming, snapkv
//             with pyramid(formula=kvpress), and lukv, which gives the first
//             four entries and the last a score above all others, the scorer's
//             window or sinks included
//   released  the authors' code. Ada-KV's: snapkv with adakv(mode=blend),
//             pyramid(formula=adakv) or ada_pyramid(formula=adakv), with topk,
//             or with critical as the paper's algorithm 1 states it;
//             KVCache-Factory's: the same with pyramid(formula=factory);
//             HeadKV's: headkv with topk. The window is kept beside the
//             budgets of the past. LU-KV's paper: lukv with topk; its budgets
//             have no window beside them
//
// Where snapkv is not named, any scorer does; streaming with uniform alone. How
// much is kept comes from parity_budgets.h. A target of all there is evicts
// nothing, whatever a program's formulas say there.
#ifndef BENCH_EVICT_PARITY_H_
#define BENCH_EVICT_PARITY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "bench/evict/parity_policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// The scores as a program sees them, [entries.offsets.back()]: the entries of
// the window or the sinks get the greatest of their layer's other scores + 1,
// those of streaming 1 or 0; then, for lukv of kvpress, its own five the
// greatest of all of the layer + 1. O(entries).
std::vector<float> ParityScores(const ParityEviction& eviction,
                                const EntriesView& entries);

// Returns the entries that the published program keeps, each head's observation
// window among them. A policy without parity(..) keeps what SelectEntries
// (select.h) keeps. The function reads `external` for headkv and lukv only
// (ParityTableBudgets). O(entries). REQUIRES: CheckParity is OK; for critical,
// entries.value_norms.
KeepSets SelectParity(const ParityEviction& eviction,
                      const EntriesView& entries,
                      std::span<const int32_t> external);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PARITY_H_
