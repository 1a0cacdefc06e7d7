// LU-KV's profile: the fraction of each head to evict at every ratio, measured
// offline (arXiv 2602.08585, section 4 and appendix E).
#ifndef BLOCKMGR_EVICTION_LUKV_PROFILE_H_
#define BLOCKMGR_EVICTION_LUKV_PROFILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// rho is the fraction that is evicted of the whole model (1 - keep ratio). r is
// the fraction that is evicted of one head. A plain value; thread-compatible.
struct LuKvProfile {
  int32_t num_layers = 0;
  int32_t num_heads = 0;  // KV heads
  int32_t calibration_length = 0;
  int32_t sinks = 0;
  int32_t window = 0;
  int32_t num_queries = 0;  // calibration queries averaged
  std::string scorer;       // policy text of the scorer it was measured with
  std::string model;        // free text
  float min_keep = 0.0f;    // least kept fraction of a head while solving
  std::vector<float> rho;   // ascending, the first 0, the last 1
  std::vector<float> r;     // [rho.size(), num_layers, num_heads]

  // Checks that all values are finite and in [0, 1], that r never falls when
  // rho grows, that the mean of r is within 1e-3 of rho, that r(0) = 0, and
  // that the sizes fit. Errors name the field, what was expected and what came.
  // Cost: O(r).
  absl::Status Validate() const;

  // Returns r of every (layer, head) at rho = `at`, linear between grid points.
  // REQUIRES: valid, 0 <= at <= 1.
  std::vector<double> EvictedFractions(double at) const;
  friend bool operator==(const LuKvProfile&, const LuKvProfile&) = default;
};

// The file is little-endian. It begins with the magic "LUKVPHI1", then has the
// fields (lukv_profile.cc has the layout), and ends with an FNV-1a 64 of all
// bytes before. EncodeLuKvProfile REQUIRES a valid profile. DecodeLuKvProfile
// returns a valid profile and allocates no more than the size of the file.
// IsLuKvProfile looks at the magic alone.
bool IsLuKvProfile(absl::string_view bytes);
std::string EncodeLuKvProfile(const LuKvProfile& profile);
absl::StatusOr<LuKvProfile> DecodeLuKvProfile(absl::string_view bytes);

// Converts kvpress's array [99, num_layers, num_heads] of r at rho = 0.01 ..
// 0.99. Adds the rows for 0 and 1. The result is valid.
absl::StatusOr<LuKvProfile> LuKvProfileFromKvPress(std::span<const float> curve,
                                                   int32_t num_layers,
                                                   int32_t num_heads);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_LUKV_PROFILE_H_
