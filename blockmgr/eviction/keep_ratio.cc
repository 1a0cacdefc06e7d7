#include "blockmgr/eviction/keep_ratio.h"

#include <cmath>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {
namespace {

constexpr int kMaxDecimals = 9;
constexpr int64_t kMaxDenominator = 1'000'000'000;

absl::Status BadRatio(absl::string_view got) {
  return Invalid("expected a decimal in (0, 1] with at most ", kMaxDecimals,
                 " decimals, got '", got, "'");
}

bool AllDigits(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return true;
}

// REQUIRES: 0 < billionths <= 10^9.
KeepRatio FromBillionths(int64_t billionths) {
  KeepRatio ratio{billionths, kMaxDenominator};
  while (ratio.numerator % 10 == 0 && ratio.denominator > 1) {
    ratio.numerator /= 10;
    ratio.denominator /= 10;
  }
  return ratio;
}

}  // namespace

absl::StatusOr<KeepRatio> KeepRatio::Parse(absl::string_view text) {
  const size_t point = text.find('.');
  const absl::string_view whole = text.substr(0, point);
  absl::string_view decimals =
      point == absl::string_view::npos ? "" : text.substr(point + 1);
  if (whole.size() + decimals.size() == 0 || !AllDigits(whole) ||
      !AllDigits(decimals)) {
    return BadRatio(text);
  }
  while (!decimals.empty() && decimals.back() == '0') decimals.remove_suffix(1);
  int64_t units = 0;
  if (!whole.empty() && !absl::SimpleAtoi(whole, &units)) {
    return BadRatio(text);
  }
  if (units > 1 || decimals.size() > kMaxDecimals) return BadRatio(text);
  int64_t billionths = units * kMaxDenominator;
  int64_t place = kMaxDenominator;
  for (const char digit : decimals) {
    place /= 10;
    billionths += (digit - '0') * place;
  }
  if (billionths < 1 || billionths > kMaxDenominator) return BadRatio(text);
  return FromBillionths(billionths);
}

absl::StatusOr<KeepRatio> KeepRatio::FromDouble(double value) {
  // The condition is also false for NaN.
  if (!(value > 0.0 && value <= 1.0)) return BadRatio(absl::StrCat(value));
  // A double nearest to a decimal of 9 places is within 1e-16 of it, so the
  // rounding finds that decimal.
  const int64_t billionths = std::llround(value * kMaxDenominator);
  if (billionths < 1) return BadRatio(absl::StrCat(value));
  return FromBillionths(billionths);
}

std::string KeepRatio::ToString() const {
  if (denominator == 1) return absl::StrCat(numerator);
  int places = 0;
  for (int64_t d = denominator; d > 1; d /= 10) ++places;
  return absl::StrFormat("%d.%0*d", numerator / denominator, places,
                         numerator % denominator);
}

}  // namespace blockmgr
