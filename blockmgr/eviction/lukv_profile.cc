// The file, little-endian, without padding:
//
//   8 bytes  "LUKVPHI1"
//   u32      num_layers, num_heads, rho.size(), calibration_length, sinks,
//            window, num_queries
//   text     scorer
//   f32      min_keep
//   text     model
//   f32      rho[rho.size()]
//   f32      r[rho.size()][num_layers][num_heads]
//   u64      FNV-1a 64 of all bytes before
//
// where a text is a u32 count of bytes and the bytes.
#include "blockmgr/eviction/lukv_profile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/table_bytes.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kProfile = "LU-KV profile";
constexpr absl::string_view kProfileMagic = "LUKVPHI1";
// The most by which the mean of a row may differ from the row's rho, because
// budgets are rounded while a profile is solved for.
constexpr double kMaxMeanError = 1e-3;

absl::Status BadProfile(absl::string_view field, absl::string_view expected,
                        absl::string_view got) {
  return Invalid(kProfile, ": ", field, ": expected ", expected, ", got ", got);
}

// Returns num_rows * num_layers * num_heads, or -1 if no file could hold an
// array of that size.
int64_t CountRates(int64_t num_rows, int64_t num_layers, int64_t num_heads) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t heads = num_layers * num_heads;  // of int32: no overflow
  if (heads > kMax || num_rows > kMax / std::max<int64_t>(heads, 1)) return -1;
  return num_rows * heads;
}

absl::Status CheckNumber(absl::string_view field, int32_t value, int32_t min) {
  if (value >= min) return absl::OkStatus();
  return BadProfile(field, absl::StrCat("at least ", min), absl::StrCat(value));
}

absl::Status CheckSizes(const LuKvProfile& profile) {
  BM_RETURN_IF_ERROR(CheckNumber("num_layers", profile.num_layers, 1));
  BM_RETURN_IF_ERROR(CheckNumber("num_heads", profile.num_heads, 1));
  BM_RETURN_IF_ERROR(
      CheckNumber("calibration_length", profile.calibration_length, 0));
  BM_RETURN_IF_ERROR(CheckNumber("sinks", profile.sinks, 0));
  BM_RETURN_IF_ERROR(CheckNumber("window", profile.window, 0));
  BM_RETURN_IF_ERROR(CheckNumber("num_queries", profile.num_queries, 0));
  for (const std::string* text : {&profile.scorer, &profile.model}) {
    if (text->size() > kMaxTableText) {
      return BadProfile(text == &profile.scorer ? "scorer" : "model",
                        absl::StrCat("at most ", kMaxTableText, " bytes"),
                        absl::StrCat(text->size()));
    }
  }
  // The condition is also false for NaN.
  if (!(profile.min_keep >= 0.0f && profile.min_keep <= 1.0f)) {
    return BadProfile("min_keep", "0 to 1", absl::StrCat(profile.min_keep));
  }
  const int64_t expected = CountRates(std::ssize(profile.rho),
                                      profile.num_layers, profile.num_heads);
  if (expected < 0) return BadProfile("r", "less than 2^31 values", "more");
  if (std::ssize(profile.r) != expected) {
    return BadProfile("r", absl::StrCat(expected, " values"),
                      absl::StrCat(profile.r.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckGrid(const std::vector<float>& rho) {
  if (rho.size() < 2) {
    return BadProfile("rho", "at least 2 values", absl::StrCat(rho.size()));
  }
  if (rho.front() != 0.0f) {
    return BadProfile("rho[0]", "0", absl::StrCat(rho.front()));
  }
  for (size_t i = 1; i < rho.size(); ++i) {
    if (!(rho[i] > rho[i - 1])) {
      return BadProfile(absl::StrCat("rho[", i, "]"),
                        absl::StrCat("more than ", rho[i - 1]),
                        absl::StrCat(rho[i]));
    }
  }
  if (rho.back() != 1.0f) {
    return BadProfile(absl::StrCat("rho[", rho.size() - 1, "]"), "1",
                      absl::StrCat(rho.back()));
  }
  return absl::OkStatus();
}

// Checks one row of r against the row before it.
absl::Status CheckRow(size_t row, float rho, std::span<const float> before,
                      std::span<const float> rates) {
  double sum = 0.0;
  for (size_t head = 0; head < rates.size(); ++head) {
    const float rate = rates[head];
    const auto field = [&] { return absl::StrCat("r[", row, "][", head, "]"); };
    if (!(rate >= 0.0f && rate <= 1.0f)) {
      return BadProfile(field(), "0 to 1", absl::StrCat(rate));
    }
    if (row == 0 && rate != 0.0f) {
      return BadProfile(field(), "0: nothing evicted at rho 0",
                        absl::StrCat(rate));
    }
    if (row > 0 && rate < before[head]) {
      return BadProfile(
          field(), absl::StrCat("at least ", before[head], ", as at lower rho"),
          absl::StrCat(rate));
    }
    sum += rate;
  }
  const double mean = sum / static_cast<double>(rates.size());
  if (std::abs(mean - rho) <= kMaxMeanError) return absl::OkStatus();
  return BadProfile(absl::StrCat("mean of r[", row, "]"),
                    absl::StrCat(rho, " within ", kMaxMeanError),
                    absl::StrCat(mean));
}

}  // namespace

absl::Status LuKvProfile::Validate() const {
  BM_RETURN_IF_ERROR(CheckGrid(rho));
  BM_RETURN_IF_ERROR(CheckSizes(*this));
  const size_t heads = r.size() / rho.size();
  const std::span<const float> rates = r;
  for (size_t row = 0; row < rho.size(); ++row) {
    const std::span<const float> before =
        rates.subspan(row == 0 ? 0 : (row - 1) * heads, heads);
    BM_RETURN_IF_ERROR(
        CheckRow(row, rho[row], before, rates.subspan(row * heads, heads)));
  }
  return absl::OkStatus();
}

std::vector<double> LuKvProfile::EvictedFractions(double at) const {
  BM_CHECK(at >= 0.0);
  BM_CHECK(at <= 1.0);
  // The first grid point after `at`, or the last one.
  const auto after = std::upper_bound(rho.begin() + 1, rho.end() - 1, at);
  const auto high = static_cast<size_t>(after - rho.begin());
  const size_t low = high - 1;
  const double weight = (at - rho[low]) / (double{rho[high]} - rho[low]);
  const size_t heads = r.size() / rho.size();
  std::vector<double> fractions(heads);
  for (size_t head = 0; head < heads; ++head) {
    const double from = r[low * heads + head];
    const double to = r[high * heads + head];
    fractions[head] = from + (to - from) * weight;
  }
  return fractions;
}

bool IsLuKvProfile(absl::string_view bytes) {
  return absl::StartsWith(bytes, kProfileMagic);
}

std::string EncodeLuKvProfile(const LuKvProfile& profile) {
  BM_CHECK(profile.Validate().ok());
  std::string bytes(kProfileMagic);
  for (const int32_t count :
       {profile.num_layers, profile.num_heads,
        static_cast<int32_t>(profile.rho.size()), profile.calibration_length,
        profile.sinks, profile.window, profile.num_queries}) {
    AppendNumber(static_cast<uint32_t>(count), &bytes);
  }
  AppendText(profile.scorer, &bytes);
  AppendFloat(profile.min_keep, &bytes);
  AppendText(profile.model, &bytes);
  for (const float value : profile.rho) AppendFloat(value, &bytes);
  for (const float value : profile.r) AppendFloat(value, &bytes);
  AppendChecksum(&bytes);
  return bytes;
}

absl::StatusOr<LuKvProfile> DecodeLuKvProfile(absl::string_view bytes) {
  BM_ASSIGN_OR_RETURN(TableReader reader,
                      OpenTable(kProfile, kProfileMagic, bytes));
  LuKvProfile profile;
  profile.num_layers = reader.Count();
  profile.num_heads = reader.Count();
  const int32_t num_rows = reader.Count();
  profile.calibration_length = reader.Count();
  profile.sinks = reader.Count();
  profile.window = reader.Count();
  profile.num_queries = reader.Count();
  profile.scorer = reader.Text();
  profile.min_keep = reader.Float();
  profile.model = reader.Text();
  BM_RETURN_IF_ERROR(CheckNumber("num_layers", profile.num_layers, 1));
  BM_RETURN_IF_ERROR(CheckNumber("num_heads", profile.num_heads, 1));
  BM_RETURN_IF_ERROR(CheckNumber("size of rho", num_rows, 2));
  // The size is checked before anything is allocated.
  const int64_t rates =
      CountRates(num_rows, profile.num_layers, profile.num_heads);
  if (rates < 0) return BadProfile("r", "less than 2^31 values", "more");
  const int64_t expected =
      (num_rows + rates) * static_cast<int64_t>(sizeof(float));
  if (!reader.ok() || static_cast<int64_t>(reader.remaining()) != expected) {
    return BadProfile(
        "file", absl::StrCat(expected, " bytes of rho and r after the texts"),
        reader.ok() ? absl::StrCat(reader.remaining()) : "too few");
  }
  profile.rho = reader.Floats(static_cast<size_t>(num_rows));
  profile.r = reader.Floats(static_cast<size_t>(rates));
  BM_RETURN_IF_ERROR(profile.Validate());
  return profile;
}

absl::StatusOr<LuKvProfile> LuKvProfileFromKvPress(std::span<const float> curve,
                                                   int32_t num_layers,
                                                   int32_t num_heads) {
  constexpr int32_t kRows = 99;
  LuKvProfile profile;
  profile.num_layers = num_layers;
  profile.num_heads = num_heads;
  BM_RETURN_IF_ERROR(CheckNumber("num_layers", num_layers, 1));
  BM_RETURN_IF_ERROR(CheckNumber("num_heads", num_heads, 1));
  const int64_t expected = CountRates(kRows, num_layers, num_heads);
  if (std::ssize(curve) != expected) {
    return BadProfile(
        "kvpress array",
        absl::StrCat(kRows, " * ", num_layers, " * ", num_heads, " values"),
        absl::StrCat(curve.size()));
  }
  for (int32_t row = 0; row <= kRows + 1; ++row) {
    profile.rho.push_back(static_cast<float>(row) / 100.0f);
  }
  const size_t heads = curve.size() / kRows;
  profile.r.assign(heads, 0.0f);
  profile.r.insert(profile.r.end(), curve.begin(), curve.end());
  profile.r.insert(profile.r.end(), heads, 1.0f);
  BM_RETURN_IF_ERROR(profile.Validate());
  return profile;
}

}  // namespace blockmgr
