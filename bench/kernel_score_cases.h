// Cases of the kernels that evictions launch first: scores and the selection.
//
// Every function whose name begins with Add adds its cases to the builder.
#ifndef BENCH_KERNEL_SCORE_CASES_H_
#define BENCH_KERNEL_SCORE_CASES_H_

#include <cstdint>
#include <functional>

#include "bench/kernel_case.h"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// The part of the entries that cases keep.
inline constexpr double kBenchKeepRatio = 0.2;
// adakv's default, in multiples of 10^-9.
inline constexpr int64_t kBenchAdaKvAlpha = 200'000'000;

void AddSnapKv(CaseBuilder& builder);
void AddTova(CaseBuilder& builder);
void AddExpectedAttention(CaseBuilder& builder);
void AddKeyScores(CaseBuilder& builder);
void AddValueNorms(CaseBuilder& builder);
// Fills in what MakeSelection does, and random scores.
void AddSelection(const char* name, SelectProblem select, int32_t scope_heads,
                  CaseBuilder& builder);

// Returns a launch that scores the entries by snapkv.
std::function<void(int32_t copy)> MakeSnapKv(const EntryLists& entries,
                                             CaseBuilder& builder);
// Makes all parameters but the pool.
KeyScoreParams MakeKeyScores(const EntryLists& entries, CaseBuilder& builder);
// Fills in everything but the scores and the method. `scope_heads` heads share
// a scope, which keeps kBenchKeepRatio of its entries.
SelectProblem MakeSelection(SelectProblem select, int32_t scope_heads,
                            CaseBuilder& builder);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_SCORE_CASES_H_
