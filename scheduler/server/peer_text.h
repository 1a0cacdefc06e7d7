// Text that comes in part from peers, in messages to clients and in the log.
//
// Thread-safe: pure functions. Cost: O(kMaxTextBytes).
#ifndef SCHEDULER_SERVER_PEER_TEXT_H_
#define SCHEDULER_SERVER_PEER_TEXT_H_

#include <cstddef>
#include <string>

#include <absl/strings/string_view.h>

namespace blockmgr {

inline constexpr size_t kMaxTextBytes = 2048;

// Returns `text`, cut after kMaxTextBytes if it is longer. A character of
// UTF-8 is never cut in two. Clients may have limits.
std::string Shorten(absl::string_view text);

// Returns `text` as one line of the log: shortened, with control characters
// escaped, so that a peer can neither forge lines nor drive a terminal.
std::string ForLog(absl::string_view text);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_PEER_TEXT_H_
