// Dividing a whole number of units in proportion to weights.
#ifndef BLOCKMGR_EVICTION_APPORTION_H_
#define BLOCKMGR_EVICTION_APPORTION_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

struct Claim {
  int64_t weight = 0;
  int64_t min = 0;  // units
  int64_t max = 0;  // units
};

// Largest remainder (Hamilton's method) under bounds: the quota of a claim is
// lambda * weight clamped to [min, max], with the one lambda that uses up
// `total`; quotas are rounded down and the units left go to the largest
// fractions, ties to the lower index. So what a capped claim cannot take goes
// to the others in proportion to their weights, and to claims of weight 0, in
// equal parts, only when all others are full. Exact: integers throughout.
//
// The result sums to min(total, sum of max). O(claims^2), usually O(claims).
// REQUIRES: 0 <= weight, 0 <= min <= max < 2^40, fewer than 2^16 claims,
// sum of min <= total.
std::vector<int64_t> Apportion(int64_t total, std::span<const Claim> claims);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_APPORTION_H_
