// LU-KV's profile: how much of each head to evict at every ratio, as measured
// offline (arXiv 2602.08585, section 4 and appendix E).
#ifndef BLOCKMGR_EVICTION_LUKV_PROFILE_H_
#define BLOCKMGR_EVICTION_LUKV_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// rho is the fraction evicted of the whole model (1 - keep ratio), r the
// fraction evicted of one head. A plain value; thread-compatible.
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

  // Finite, in [0, 1], r monotone in rho, mean of r within 1e-3 of rho, r(0) =
  // 0, sizes that fit. Errors name the field, expected and got. O(r).
  absl::Status Validate() const;

  // r of every (layer, head) at `rho`, linear between grid points.
  // REQUIRES: valid, 0 <= rho <= 1.
  std::vector<double> EvictedFractions(double at) const;
  friend bool operator==(const LuKvProfile&, const LuKvProfile&) = default;
};

// The file: little-endian, magic "LUKVPHI1", then the fields (lukv_profile.cc
// has the layout), closed by an FNV-1a 64 of everything before. Encode REQUIRES
// a valid profile. Decode(Encode(p)) == p; what Decode returns is valid, and it
// allocates no more than the file's own size, whatever the file says.
bool IsLuKvProfile(absl::string_view bytes);  // by the magic
std::string EncodeLuKvProfile(const LuKvProfile& profile);
absl::StatusOr<LuKvProfile> DecodeLuKvProfile(absl::string_view bytes);

// From kvpress's array [99, num_layers, num_heads] of r at rho = 0.01 .. 0.99:
// adds the rows for 0 and 1. The result is valid.
absl::StatusOr<LuKvProfile> LuKvProfileFromKvPress(std::span<const float> curve,
                                                   int32_t num_layers,
                                                   int32_t num_heads);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_LUKV_PROFILE_H_
