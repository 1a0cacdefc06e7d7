// What happens to the simulated world, as plain data.
//
// An event says what kind of thing happens; everything else about it (which
// request, which prompt, which delay) is drawn from its own noise, looking at
// the world as it is then. So every list of events can be run, and leaving some
// out does not change what the others would do of themselves: what shrinking a
// failing run needs.
#ifndef TESTS_SIM_EVENT_H_
#define TESTS_SIM_EVENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr::sim {

enum class EventKind : uint8_t {
  kAdvance,      // time passes, messages arrive, the engine computes
  kSubmit,       // a new request
  kResubmit,     // the same request once more, live or ended
  kCancel,       // of any request ever made
  kEvict,        // of any request ever made
  kHangUp,       // a client's token stream breaks; it comes back later
  kSlowClient,   // a client's next tokens find its stream full
  kCrash,        // the engine dies and starts anew, with empty memory
  kCorrupt,      // the engine's next answer is wrong
  kStaleOpen,    // somebody opens a step stream with an old session or epoch
  kWrongAttach,  // an engine of another layout attaches
  kReset,        // an operator drops the prefix cache
  kStats,        // an operator asks for statistics
  kLoseBlocks,   // the engine's next answer names blocks that it has lost
  kHoldPlans,    // plans reach the engine much later, or not at all any more
};
inline constexpr int32_t kNumEventKinds = 15;

// As in the text form: "advance", "submit", ...
absl::string_view EventName(EventKind kind);

struct Event {
  EventKind kind = EventKind::kAdvance;
  uint64_t noise = 0;
  friend bool operator==(const Event&, const Event&) = default;
};

// One line per event: its name and its noise in hex. Errors name the line.
std::string FormatEvents(const std::vector<Event>& events);
absl::StatusOr<std::vector<Event>> ParseEvents(absl::string_view text);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_EVENT_H_
