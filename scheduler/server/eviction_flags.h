// Flags that describe an eviction. In a simulation or a load test, every
// request asks for this eviction. In the daemon, requests that ask for none get
// it.
#ifndef SCHEDULER_SERVER_EVICTION_FLAGS_H_
#define SCHEDULER_SERVER_EVICTION_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "program/flag_names.h"
#include "scheduler/request.h"

namespace blockmgr {

// The flags as the user has typed them. A text is empty if the flag is not
// given. ResolveEviction refuses flags that have no meaning together.
struct EvictionFlags {
  std::string policy = {};                  // --eviction
  std::string keep_ratio = {};              // decimal text
  std::optional<int32_t> keep_tokens = {};  // per head
  std::string window_keep_ratio = {};       // decimal text
  // --eviction-mode. If it is not given, the mode is every-chunk with a
  // compress_every, and after-prefill without one.
  std::optional<EvictionMode> mode = {};
  // The flags set the members that VisitRequestEviction shows. A member is 0 or
  // false if its flag is not given. A given --compress-every is at least 1.
  // ResolveEviction returns a copy with target, policy and mode.
  RequestEviction eviction = {};
};

// Adds the flags of EvictionFlags, under the heading `group`. `flags` is
// borrowed and must outlive the parsing.
void AddEvictionFlags(CLI::App* app, EvictionFlags* flags,
                      const std::string& group = "Eviction");

// Returns which flag sets which field of a RequestEviction.
FieldFlags EvictionFields();

// Returns the eviction that the flags ask for. --keep-ratio or --keep-tokens
// says how much to keep; without further flags, the policy is keydiff | adakv |
// topk, after the prompt. InvalidArgument names a flag that needs another one,
// or whose value is wrong.
absl::StatusOr<RequestEviction> ResolveEviction(const EvictionFlags& flags);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_EVICTION_FLAGS_H_
