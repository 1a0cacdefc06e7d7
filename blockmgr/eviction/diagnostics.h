// Measures what an eviction changes in the output of attention, and the bounds
// that papers give for this change.
//
// One query of one query head pays n entries the attention A. A is a softmax,
// so it sums to 1. The head adds sum_j A_j V_j to the layer's output, where V_j
// = v_j W_O with the rows of W_O that belong to the head. After an eviction the
// weights of the kept entries are scaled up to sum to 1 again: A'_j = A_j /
// sigma, where sigma is the kept mass. If sigma is below the least normal
// double, 1 / sigma is not exact or not finite. The output then counts as 0: A'
// = 0.
//
// All norms are L1. All arithmetic is in double. The lost sums are added up
// directly, not computed as differences, so small losses stay accurate. All
// functions are pure and safe to call from any thread. Spans of sizes that do
// not fit abort.
#ifndef BLOCKMGR_EVICTION_DIAGNOSTICS_H_
#define BLOCKMGR_EVICTION_DIAGNOSTICS_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// Sums over the entries that one query of one query head attends to.
struct AttentionLoss {
  double kept_mass = 0.0;  // sum of A over the kept entries (sigma)
  double lost_mass = 0.0;  // sum of A over the others (1 - sigma)
  double kept_size = 0.0;  // sum of A_j |V_j|_1 over the kept entries
  double lost_size = 0.0;  // sum of A_j |V_j|_1 over the others
};

// Returns the sums. `attention`, `kept` (0 means evicted) and `sizes` (|V_j|_1)
// are [n]. Cost: O(n).
AttentionLoss MeasureLoss(std::span<const double> attention,
                          std::span<const uint8_t> kept,
                          std::span<const double> sizes);

// Returns Ada-KV's bound (arXiv 2407.11550, theorem 3.1): |y - y^|_1 <= 2 C (1
// - sigma). The bound holds for each head and for the sum over the heads of a
// layer. `max_size` is C, the greatest |V_j|_1 of any entry of any head of the
// layer. The bound follows from |A - A'|_1 = 2 (1 - sigma).
double AdaKvBound(const AttentionLoss& loss, double max_size);

// Returns CriticalKV's bound (arXiv 2502.03805). With S = sum_j A_j |V_j|_1 the
// bound is
//
//   theta = S - (2 - 1 / sigma) sum_kept A_j |V_j|_1
//
// theta is the sum of |A_j - A'_j| |V_j|_1 over the entries, or S if sigma is
// 0. theta is never more than AdaKvBound.
double CriticalKvBound(const AttentionLoss& loss);

// Returns the bound that CriticalKV's second stage minimises (same paper):
// theta with the 1 / sigma of the first stage alone, `stage_one_mass`. Because
// stage_one_mass is at most sigma, this bound is at least theta. For
// stage_one_mass > 1/2 and a given first stage, keeping the rest by A_j |V_j|_1
// minimises this bound. Keeping the rest by A_j may still give a smaller theta,
// because sigma is then larger. REQUIRES: 0 < stage_one_mass <= kept_mass.
double CriticalKvRelaxedBound(const AttentionLoss& loss, double stage_one_mass);

// Sets change[j] = A_j - A'_j, [n]: the weights of y - y^. All values are
// exactly 0 if no entry with weight was evicted. Cost: O(n).
void AttentionChange(std::span<const double> attention,
                     std::span<const uint8_t> kept, std::span<double> change);

// Adds sum_j weights[j] * rows[j, i] to sum[i]. weights: [n]; rows: [n, width],
// row-major; sum: [width]. With values as rows, the result is what a head adds
// before W_O. With W_O as rows and that result as weights, it is what the head
// adds after W_O. Cost: O(n * width), less where weights are 0.
void AddWeightedRows(std::span<const double> weights,
                     std::span<const float> rows, std::span<double> sum);

double L1Norm(std::span<const double> values);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_DIAGNOSTICS_H_
