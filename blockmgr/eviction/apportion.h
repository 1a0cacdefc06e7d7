// Divides a whole number of units in proportion to weights.
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

// Divides `total` by largest remainder (Hamilton's method) under bounds. The
// quota of a claim is lambda * weight, clamped to [min, max]. There is one
// lambda for which the quotas use up `total`. Quotas are rounded down. The
// remaining units go to the largest fractions, ties to the lower index.
//
// The units that a claim at its maximum cannot take thus go to the other claims
// in proportion to their weights. Claims of weight 0 share the excess equally,
// but only after all other claims are full. All arithmetic is exact, in
// integers.
//
// The result sums to min(total, sum of max). Cost: O(claims^2), usually
// O(claims). REQUIRES: 0 <= weight, 0 <= min <= max < 2^40, fewer than 2^16
// claims, sum of min <= total.
std::vector<int64_t> Apportion(int64_t total, std::span<const Claim> claims);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_APPORTION_H_
