// ParityPolicy is what blockmgr-evict runs: a policy of the library, or one
// that follows a published program to the letter.
//
// Written as the library's (policy.h), with parity(kvpress|released) as one
// more option: snapkv | adakv | round(token) | parity(released). parity.h has
// what the programs do.
#ifndef BENCH_EVICT_PARITY_POLICY_H_
#define BENCH_EVICT_PARITY_POLICY_H_

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// The programs that a policy follows; none: it is the library's own.
enum class Parity : uint8_t { kNone, kKvPress, kReleased };

struct ParityPolicy : EvictionPolicy {
  Parity parity = Parity::kNone;
  friend bool operator==(const ParityPolicy&, const ParityPolicy&) = default;
};

// That a published program does what the policy says; true without parity.
// InvalidArgument names stage, key, expected and got. REQUIRES:
// policy.Validate() is OK.
absl::Status CheckParity(const ParityPolicy& policy);

// As ParsePolicy and FormatPolicy. What parsing returns is valid, and
// CheckParity is OK.
absl::StatusOr<ParityPolicy> ParseParityPolicy(absl::string_view text);
std::string FormatParityPolicy(const ParityPolicy& policy);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PARITY_POLICY_H_
