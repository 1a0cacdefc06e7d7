// LU-KV's offline solver finds the budgets that lose the least measured utility
// (arXiv 2602.08585, section 3.3).
//
// Every head has gains: the importance of its entries, in the order in which a
// scorer would keep them. The budgets maximise the sum of the first b_h gains
// of every head under sum b_h = B. Isotonic regression makes the gains of a
// head non-increasing (pool adjacent violators). The solver takes whole blocks
// of equal slope, best first. This gives nested budgets for every B at once.
// The budgets are optimal whenever B ends on a block boundary.
//
// All functions are pure. The unit of a budget is the unit of the gains: an
// entry or a page.
#ifndef BLOCKMGR_EVICTION_LUKV_SOLVER_H_
#define BLOCKMGR_EVICTION_LUKV_SOLVER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

// `count` consecutive units of a head with gains that sum to `sum`.
struct GainBlock {
  double sum = 0.0;
  int32_t count = 0;
  friend bool operator==(const GainBlock&, const GainBlock&) = default;
};

// Sets `blocks` to the non-increasing isotonic regression of `gains`, left to
// right. Slopes strictly fall: equal neighbours are merged. Cost: O(n).
// REQUIRES: finite gains.
void PavaBlocks(std::span<const float> gains, std::vector<GainBlock>* blocks);

// Returns the sums of `unit` consecutive gains. The last sum may have fewer.
// Cost: O(n).
std::vector<float> SumUnits(std::span<const float> gains, int32_t unit);

// LuKvSolver sorts the gain blocks of all heads once. After that it computes
// the budgets for any total.
class LuKvSolver {
 public:
  // gains: per head (CSR), in the order in which entries are kept. Every head
  // keeps at least min_units[h] units, and the regression starts after them.
  // REQUIRES: min_units[h] is at most the number of the head's units. Cost:
  // O(units + K log K) for K blocks.
  LuKvSolver(std::span<const int64_t> offsets, std::span<const float> gains,
             std::span<const int32_t> min_units);

  int64_t min_total() const { return min_total_; }
  int64_t max_total() const { return max_total_; }

  // Returns budgets with the sum `total`. Whole blocks are taken by descending
  // slope, ties to the lower head. The last block is cut. Cost: O(K). REQUIRES:
  // min_total() <= total <= max_total().
  std::vector<int32_t> Budgets(int64_t total) const;
  // Returns Budgets of each total in one pass: [totals.size(), heads].
  // REQUIRES: `totals` ascend.
  std::vector<int32_t> BudgetsForAll(std::span<const int64_t> totals) const;

 private:
  struct Item {
    int32_t head = 0;
    int32_t count = 0;
  };
  std::vector<Item> path_;  // all blocks, in the order they are taken
  std::vector<int32_t> min_units_;
  int64_t min_total_ = 0;
  int64_t max_total_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_LUKV_SOLVER_H_
