#include "blockmgr/eviction/apportion.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include <absl/numeric/int128.h>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// One call of Apportion. Each round gives claims whose quota breaks a bound
// that bound, and takes them out. The rounds end when the quotas of all other
// claims are within their bounds.
class Apportioner {
 public:
  Apportioner(int64_t total, std::span<const Claim> claims)
      : claims_(claims), units_(claims.size()), open_(claims.size()) {
    int64_t sum_min = 0;
    int64_t sum_max = 0;
    for (const Claim& claim : claims) {
      sum_min += claim.min;
      sum_max += claim.max;
    }
    BM_CHECK(sum_min <= total);
    rest_ = std::min(total, sum_max);
    std::iota(open_.begin(), open_.end(), size_t{0});
  }

  std::vector<int64_t> Run() {
    do {
      SumWeights();
    } while (SettleAtBounds());
    RoundQuotas();
    return std::move(units_);
  }

 private:
  absl::int128 Weight(size_t claim) const {
    return equal_weights_ ? 1 : claims_[claim].weight;
  }
  // Returns the quota times sum_weights_, which is a whole number.
  absl::int128 ScaledQuota(size_t claim) const { return Weight(claim) * rest_; }

  void SumWeights() {
    sum_weights_ = 0;
    for (const size_t claim : open_) sum_weights_ += claims_[claim].weight;
    equal_weights_ = sum_weights_ == 0;
    if (equal_weights_) sum_weights_ = static_cast<int64_t>(open_.size());
  }

  // Takes out claims whose quota breaks a bound, and returns whether there were
  // any. If the clamped quotas add up to more than the rest, later quotas can
  // only be smaller: claims below their minimum get it for good. If they add up
  // to less, claims above their maximum get it for good.
  bool SettleAtBounds() {
    absl::int128 excess = 0;  // of the clamped quotas, times sum_weights_
    for (const size_t claim : open_) {
      const absl::int128 quota = ScaledQuota(claim);
      const absl::int128 low = claims_[claim].min * sum_weights_;
      const absl::int128 high = claims_[claim].max * sum_weights_;
      excess += std::clamp(quota, low, high) - quota;
    }
    const int64_t rest = rest_;
    const auto settle = [&](size_t claim) {
      const absl::int128 quota = Weight(claim) * rest;
      const int64_t min = claims_[claim].min;
      const int64_t max = claims_[claim].max;
      const bool at_min = excess >= 0 && quota < min * sum_weights_;
      const bool at_max = excess <= 0 && quota > max * sum_weights_;
      if (!at_min && !at_max) return false;
      units_[claim] = at_min ? min : max;
      rest_ -= units_[claim];
      return true;
    };
    return std::erase_if(open_, settle) > 0;
  }

  void RoundQuotas() {
    std::vector<absl::int128> fractions(claims_.size());
    int64_t left = rest_;
    for (const size_t claim : open_) {
      const absl::int128 quota = ScaledQuota(claim);
      units_[claim] = static_cast<int64_t>(quota / sum_weights_);
      fractions[claim] = quota % sum_weights_;
      left -= units_[claim];
    }
    BM_CHECK(left >= 0);
    BM_CHECK(left <= static_cast<int64_t>(open_.size()));
    std::stable_sort(open_.begin(), open_.end(), [&](size_t a, size_t b) {
      return fractions[a] > fractions[b];
    });
    for (int64_t i = 0; i < left; ++i) ++units_[open_[i]];
  }

  std::span<const Claim> claims_;
  std::vector<int64_t> units_;
  std::vector<size_t> open_;  // claims not settled, ascending
  int64_t rest_ = 0;          // units for the open claims
  absl::int128 sum_weights_ = 0;
  bool equal_weights_ = false;
};

}  // namespace

std::vector<int64_t> Apportion(int64_t total, std::span<const Claim> claims) {
  return Apportioner(total, claims).Run();
}

}  // namespace blockmgr
