#include "tests/sim/event.h"

#include <algorithm>
#include <array>

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace blockmgr::sim {
namespace {

constexpr std::array<absl::string_view, kNumEventKinds> kNames = {
    "advance",      "submit", "resubmit", "cancel",      "evict",
    "hang_up",      "slow",   "crash",    "corrupt",     "stale_open",
    "wrong_attach", "reset",  "stats",    "lose_blocks", "hold_plans"};

}  // namespace

absl::string_view EventName(EventKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

std::string FormatEvents(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) {
    absl::StrAppend(&text, EventName(event.kind), " ", absl::Hex(event.noise),
                    "\n");
  }
  return text;
}

absl::StatusOr<std::vector<Event>> ParseEvents(absl::string_view text) {
  std::vector<Event> events;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    const auto name = words.empty()
                          ? kNames.end()
                          : std::find(kNames.begin(), kNames.end(), words[0]);
    Event event;
    if (words.size() != 2 || name == kNames.end() ||
        !absl::SimpleHexAtoi(words[1], &event.noise)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "event: expected a kind and its noise in hex, got '", line, "'"));
    }
    event.kind = static_cast<EventKind>(name - kNames.begin());
    events.push_back(event);
  }
  return events;
}

}  // namespace blockmgr::sim
