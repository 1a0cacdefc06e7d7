// An eviction as flags of a program: what every request of a run asks for, or
// what those have that ask for none.
#ifndef SCHEDULER_SERVER_EVICTION_FLAGS_H_
#define SCHEDULER_SERVER_EVICTION_FLAGS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <CLI/CLI.hpp>

#include "blockmgr/eviction/policy_fields.h"
#include "program/flag_names.h"
#include "scheduler/request.h"

namespace blockmgr {

// The names of modes in flags and reports.
inline constexpr std::array<absl::string_view, 5> kEvictionModeNames = {
    "none", "after-prefill", "every-chunk", "decode", "pressure"};
template <>
constexpr std::span<const absl::string_view> EnumNames<EvictionMode>() {
  return kEvictionModeNames;
}

// As typed. Flags without a meaning together are errors.
struct EvictionFlags {
  std::string policy = {};      // --eviction; empty: none or the default
  std::string keep_ratio = {};  // decimal text; empty: not given
  std::optional<int32_t> keep_tokens = {};  // per head
  std::string window_keep_ratio = {};       // likewise; empty: not given
  // --eviction-mode. Unset: every-chunk if there is a compress_every, else
  // after-prefill.
  std::optional<EvictionMode> mode = {};
  int32_t compress_every = 0;  // tokens; 0: not given
  bool share_prefix = false;   // compressed ones, between requests
  int32_t share_multiple = 0;  // tokens; 0: the page size
};

// Adds a flag per field, under a heading. `flags` is borrowed and must outlive
// the parsing.
void AddEvictionFlags(CLI::App* app, EvictionFlags* flags,
                      const std::string& group = "Eviction");

// Returns the fields of a RequestEviction that these flags set.
FieldFlags EvictionFields();

// The eviction that they ask for. A keep ratio or number alone means
// keydiff | adakv | topk after the prompt; any other flag without one of the
// two is an error that names it.
absl::StatusOr<RequestEviction> ResolveEviction(const EvictionFlags& flags);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_EVICTION_FLAGS_H_
