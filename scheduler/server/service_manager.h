// What a service manager is told (systemd's notification protocol,
// sd_notify(3)).
#ifndef SCHEDULER_SERVER_SERVICE_MANAGER_H_
#define SCHEDULER_SERVER_SERVICE_MANAGER_H_

#include <absl/strings/string_view.h>

namespace blockmgr {

// Sends assignments like "READY=1", lines of one datagram, to the socket that
// NOTIFY_SOCKET names. Nothing happens where there is none, and a manager that
// does not listen is none of our troubles. Never waits. Thread-safe as long as
// nobody changes the environment.
void NotifyServiceManager(absl::string_view state);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SERVICE_MANAGER_H_
