// Random selections on a device and on the CPU: bit for bit the same.
#ifndef TESTS_KERNELS_CUDA_SELECTION_SELECT_CHECKS_H_
#define TESTS_KERNELS_CUDA_SELECTION_SELECT_CHECKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/blockmgr/eviction/random_case.h"
#include "tests/kernels/cuda/selection/select_runner.h"
#include "tests/testing/random.h"

namespace blockmgr {

// Gives it heads of several chunks, some of them of about `cut` entries and one
// of next to none.
void MakeLong(Rng& rng, int32_t cut, EvictionCase* eviction);

// Heads of one layer with so many entries each, at positions from 0 on below
// the cut. No scores yet; budgets are given by token, zero.
EvictionCase GivenBudgets(const std::vector<int32_t>& sizes, int32_t page_size);

// What is wrong with what the device chose, or "".
std::string Difference(const EvictionCase& c, const SelectOutcome& got);

// One random selection; what is wrong, or "".
std::string CheckSelect(uint64_t seed, bool is_long, bool floors);

// The same of heads longer than a block looks at in a turn, some of them than
// it can keep, by one key or, odd seeds, in the two stages of CriticalKV.
std::string CheckManyTurns(uint64_t seed);

// The same of heads of as many entries as a block can keep (kCachedKeys), give
// or take a few.
std::string CheckCacheEdge(uint64_t seed);

// Floors of heads whose scores differ in some of their digits alone.
std::string CheckCloseFloors(uint64_t seed);

// Heads of several chunks, of which those from about the length of the first on
// are divided among blocks.
std::string CheckDivided(uint64_t seed);

// One scope of more heads than a warp has lanes: all of a layer's, or for
// kGlobal all of a model's, eight a layer. By token or by page, scores all
// equal or not, by `seed`.
std::string CheckManyHeads(BudgetKind kind, AdaKvMode mode, int32_t num_heads,
                           uint64_t seed);

// A head whose ties are in more words than a block takes in a turn, whole and
// divided.
std::string CheckManyTies(uint64_t seed);

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SELECTION_SELECT_CHECKS_H_
