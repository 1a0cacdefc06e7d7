// Budgets as published programs compute them, to the letter: their float types,
// their roundings, totals that drift. What serving uses conserves totals
// (select.h, budget_table.h); these are for parity (parity_budgets.h).
//
// Pure. REQUIRES: arguments in the ranges said here.
#ifndef BENCH_EVICT_PUBLISHED_BUDGETS_H_
#define BENCH_EVICT_PUBLISHED_BUDGETS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

// PyramidKV (arXiv 2406.02069): budgets that fall on a line from the first
// layer to the last.
struct PyramidLine {
  int64_t length = 0;      // entries before eviction
  int32_t num_layers = 0;  // > 0
  int32_t window = 0;      // entries, 0 <= window <= length
  double beta = 20.0;      // >= 1
};

// Entries per head of every layer, the window included, when `kept` are on
// average: length * (1 - the fraction evicted), not rounded. In floats; every
// layer gets the rounded mean if the line leaves [window, length]. With one
// layer the program divides by zero; here it gets the mean.
std::vector<int64_t> PyramidKvPress(const PyramidLine& line, double kept);

// `base` entries per head on average, the window excluded, as it is from the
// result. In integers: totals overshoot, because slopes are rounded down. With
// one layer: `base`.
std::vector<int64_t> PyramidAdaKv(const PyramidLine& line, int64_t base);

// KVCache-Factory: like PyramidAdaKv, but every layer gets `base` if the
// context is shorter than twice the base. REQUIRES: base + window <= length; of
// a shorter context the program evicts nothing.
std::vector<int64_t> PyramidFactory(const PyramidLine& line, int64_t base);

// HeadKV: of `base` entries per head on average, base // beta form a pool that
// heads share by score to the power of temp; the others are equal shares.
// Scores >= 0 with a positive sum. Excludes the window; may exceed what a head
// holds. Where every power vanishes the program divides by zero; here powers
// are then of what is relative to the largest score.
std::vector<int64_t> HeadKvBudgetsReleased(std::span<const float> scores,
                                           int64_t base, double beta,
                                           double temp);

// LU-KV (arXiv 2602.08585), r[h] the fraction of head h to evict. The paper
// rounds every head down; kvpress shares the layer's rounded total out by
// largest remainder in float32, and keeps at least one entry.
std::vector<int64_t> LuKvBudgetsPaper(std::span<const float> r, int64_t length);
std::vector<int64_t> LuKvBudgetsKvPress(std::span<const float> r,
                                        int64_t length);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PUBLISHED_BUDGETS_H_
