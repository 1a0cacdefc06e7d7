// Notifications to a service manager, by systemd's protocol (sd_notify(3)).
#ifndef SCHEDULER_SERVER_SERVICE_MANAGER_H_
#define SCHEDULER_SERVER_SERVICE_MANAGER_H_

#include <absl/strings/string_view.h>

namespace blockmgr {

// Sends assignments like "READY=1", the lines of one datagram, to the manager's
// socket. `path` is the value of NOTIFY_SOCKET: a path, @NAME, or empty if
// there is no manager. Errors are ignored. Never waits. Thread-safe.
void NotifyServiceManager(absl::string_view path, absl::string_view state);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SERVICE_MANAGER_H_
