// A ParityPolicy is the policy that blockmgr-evict runs: a policy of the
// library, or a policy that follows a published program to the letter.
//
// Its text is that of policy.h with one more option, parity(kvpress|released):
// snapkv | adakv | round(token) | parity(released). parity.h describes the
// programs.
#ifndef BENCH_EVICT_PARITY_POLICY_H_
#define BENCH_EVICT_PARITY_POLICY_H_

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// The programs that a policy follows. kNone: the library's own rules.
enum class Parity : uint8_t { kNone, kKvPress, kReleased };

struct ParityPolicy : EvictionPolicy {
  Parity parity = Parity::kNone;
  friend bool operator==(const ParityPolicy&, const ParityPolicy&) = default;
};

// One eviction by a policy. Policy and target are borrowed.
struct ParityEviction {
  const ParityPolicy& policy;
  const EvictionTarget& target;
  HeadShape shape;
  EvictionRange range;
};

// Checks that a published program does what the policy says. OK without parity.
// An InvalidArgument names the stage, the key, what was expected and what came.
// REQUIRES: policy.Validate() is OK.
absl::Status CheckParity(const ParityPolicy& policy);

// ParsePolicy and FormatPolicy with the option parity. A parsed policy is valid
// and passes CheckParity.
absl::StatusOr<ParityPolicy> ParseParityPolicy(absl::string_view text);
std::string FormatParityPolicy(const ParityPolicy& policy);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PARITY_POLICY_H_
