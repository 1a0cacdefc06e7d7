// An exact decimal fraction. "Keep 29 %" of 100 entries must keep 29 entries.
// In doubles 0.29 * 100 is 28.999999999999996, whose floor is 28.
#ifndef BLOCKMGR_EVICTION_KEEP_RATIO_H_
#define BLOCKMGR_EVICTION_KEEP_RATIO_H_

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// numerator / denominator, with 0 < ratio <= 1. The denominator is the smallest
// power of ten (at most 10^9) that is exact. Equal ratios therefore compare
// equal. A plain value; thread-compatible; every operation is O(1).
struct KeepRatio {
  int64_t numerator = 1;
  int64_t denominator = 1;

  // Parses decimal text such as "0.2" or "1": no exponent, at most 9 decimals
  // after trailing zeros are dropped. Errors name what was expected.
  static absl::StatusOr<KeepRatio> Parse(absl::string_view text);
  // Returns the multiple of 10^-9 that is nearest to `value`: 0.2 means 2/10,
  // and so does 1 - 0.8. Errors: NaN, a value outside (0, 1], or a value below
  // half of 10^-9.
  static absl::StatusOr<KeepRatio> FromDouble(double value);

  // Returns floor(tokens * ratio), exactly. REQUIRES: 0 <= tokens < 2^31.
  int64_t Floor(int64_t tokens) const {
    return tokens * numerator / denominator;
  }
  double value() const {
    return static_cast<double>(numerator) / static_cast<double>(denominator);
  }
  // Returns the decimal text. Parse(ToString()) == *this.
  std::string ToString() const;
  friend bool operator==(const KeepRatio&, const KeepRatio&) = default;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_KEEP_RATIO_H_
