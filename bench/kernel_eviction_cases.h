// Cases of all that an eviction does on a device whose tables are there: lists
// of entries, scores, a selection and moves. The lists, the plan of the moves
// and the moves are cases of their own, too.
//
// Every function adds its cases to the builder.
#ifndef BENCH_KERNEL_EVICTION_CASES_H_
#define BENCH_KERNEL_EVICTION_CASES_H_

#include "bench/kernel_case.h"

namespace blockmgr {

void AddIndex(CaseBuilder& builder);
// Plans moves in place that keep every fifth entry of a list.
void AddMovePlan(CaseBuilder& builder);
// Moves as many rows as a compaction of each list does: once straight to their
// destinations, and once by way of staging, as moves in place need it.
void AddMoves(CaseBuilder& builder);
// Whole evictions of the sequences of the problem. An eviction of as many
// layers of one sequence is the same.
void AddSnapKvEviction(CaseBuilder& builder);
void AddKeyDiffEviction(CaseBuilder& builder);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_EVICTION_CASES_H_
