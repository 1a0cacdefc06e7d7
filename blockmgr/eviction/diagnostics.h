// What an eviction does to the output of attention: the papers' bounds, and the
// truth they bound.
//
// One query of one query head pays n entries the attention A (a softmax, so it
// sums to 1) and adds sum_j A_j V_j to the layer's output, where V_j = v_j W_O
// with that head's rows of W_O. After eviction the weights of the kept entries
// are scaled up to sum to 1 again: A'_j = A_j / sigma with sigma the kept mass.
// Where no kept entry has any weight (sigma below the least normal double, so
// that 1 / sigma is not finite or not exact), the output counts as 0: A' = 0.
//
// All norms are L1, all arithmetic is in double, sums of what was lost are
// taken as such rather than as differences, so small losses stay accurate.
// Pure; safe from any thread. Spans that do not fit each other abort.
#ifndef BLOCKMGR_EVICTION_DIAGNOSTICS_H_
#define BLOCKMGR_EVICTION_DIAGNOSTICS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

// Sums over the entries that one query of one query head attends.
struct AttentionLoss {
  double kept_mass = 0.0;  // of A over the kept entries: sigma
  double lost_mass = 0.0;  // over the others: 1 - sigma
  double kept_size = 0.0;  // of A_j |V_j|_1
  double lost_size = 0.0;
};

// `attention`, `kept` (0: evicted) and `sizes` (|V_j|_1) are [n]. O(n).
AttentionLoss MeasureLoss(std::span<const double> attention,
                          std::span<const uint8_t> kept,
                          std::span<const double> sizes);

// Ada-KV (arXiv 2407.11550, theorem 3.1): |y - y^|_1 <= 2 C (1 - sigma), for
// the sum over a layer's heads as for each of them. `max_size` is C, the
// greatest |V_j|_1 of any entry of any head of the layer. It follows from
// |A - A'|_1 = 2 (1 - sigma).
double AdaKvBound(const AttentionLoss& loss, double max_size);

// CriticalKV (arXiv 2502.03805): with S = sum_j A_j |V_j|_1,
//   theta = S - (2 - 1 / sigma) sum_kept A_j |V_j|_1
// which is |A_j - A'_j| |V_j|_1 summed over the entries; S where sigma is 0.
// Never more than AdaKvBound.
double CriticalKvBound(const AttentionLoss& loss);

// What CriticalKV's second stage minimises (same paper): theta with the 1 /
// sigma of the first stage alone, `stage_one_mass`, which is at most sigma. So
// it is at least theta. For stage_one_mass > 1/2 and a given first stage,
// keeping the rest by A_j |V_j|_1 makes it least. It does not follow, nor is it
// always so, that theta itself gets smaller than by keeping the rest by A_j:
// sigma falls. REQUIRES: 0 < stage_one_mass <= kept_mass.
double CriticalKvRelaxedBound(const AttentionLoss& loss, double stage_one_mass);

// change[j] = A_j - A'_j, [n]: the weights of y - y^. All exactly 0 where
// nothing that has weight was evicted. O(n).
void AttentionChange(std::span<const double> attention,
                     std::span<const uint8_t> kept, std::span<double> change);

// sum[i] += sum_j weights[j] * rows[j, i]. weights: [n]; rows: [n, width],
// row-major; sum: [width]. With values as rows: what a head adds, before W_O.
// With W_O as rows and that as weights: after it. O(n * width), less where
// weights are 0.
void AddWeightedRows(std::span<const double> weights,
                     std::span<const float> rows, std::span<double> sum);

double L1Norm(std::span<const double> values);

// AdaKvBound of a layer whose heads keep their `budgets` best entries, summed
// over heads. attention: [budgets.size(), n] row-major, one row a head. Of all
// budgets of one total, those that count each head's entries among the best of
// the layer make it least (2407.11550); so where scores are the attention
// itself, Ada-KV's is never more than uniform's. Selects, not sorts:
// O(heads * n). REQUIRES: budgets >= 0, weights >= 0.
double AllocationBound(std::span<const double> attention,
                       std::span<const int32_t> budgets, double max_size);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_DIAGNOSTICS_H_
