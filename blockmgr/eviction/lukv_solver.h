// LU-KV's offline solver: which budgets lose the least measured utility (arXiv
// 2602.08585, section 3.3).
//
// Every head has gains: the importance of its entries in the order in which a
// scorer would keep them. Budgets maximise the sum of the first b_h gains under
// sum b_h = B. Isotonic regression makes the gains of a head non-increasing
// (pool adjacent violators); taking whole blocks of equal slope, best first,
// gives nested budgets for every B at once. Optimal whenever B ends on a block
// boundary.
//
// Pure. The unit is whatever the gains are summed over: an entry or a page.
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

// The non-increasing isotonic regression of `gains`, left to right; slopes
// strictly fall, equal neighbours are merged. O(n). REQUIRES: finite.
void PavaBlocks(std::span<const float> gains, std::vector<GainBlock>* blocks);

// Sums of `unit` consecutive gains, the last one shorter. O(n).
std::vector<float> SumUnits(std::span<const float> gains, int32_t unit);

// The budgets of every total, from one sort of all blocks.
class LuKvSolver {
 public:
  // gains: per head (CSR) in the order in which entries are kept; min_units[h]
  // <= its units are kept whatever happens, and the regression starts behind
  // them. O(units + K log K) for K blocks.
  LuKvSolver(std::span<const int64_t> offsets, std::span<const float> gains,
             std::span<const int32_t> min_units);

  int64_t min_total() const { return min_total_; }
  int64_t max_total() const { return max_total_; }

  // Budgets with sum `total`, by whole blocks, slope descending, ties to the
  // lower head; the last one is cut. O(K).
  // REQUIRES: min_total() <= total <= max_total().
  std::vector<int32_t> Budgets(int64_t total) const;
  // The same for ascending totals, [totals.size(), heads], in one pass.
  std::vector<int32_t> BudgetsForAll(std::span<const int64_t> totals) const;
  // Budgets(total) without its cut block; what that leaves goes, head by head,
  // to the prefix of the greatest average raw gain, if that gains more than the
  // cut. Never worse in value than Budgets, but not nested in `total`. O(K +
  // heads * units left), times the number of prefixes where few fit.
  // REQUIRES: as Budgets; `offsets` and `gains` as given to the constructor.
  std::vector<int32_t> RepairedBudgets(int64_t total,
                                       std::span<const int64_t> offsets,
                                       std::span<const float> gains) const;

 private:
  struct Item {
    int32_t head = 0;
    int32_t count = 0;
  };
  std::vector<Item> path_;  // all blocks, in the order of taking
  std::vector<int32_t> min_units_;
  int64_t min_total_ = 0;
  int64_t max_total_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_LUKV_SOLVER_H_
