// What a service manager is told (systemd's notification protocol,
// sd_notify(3)).
#ifndef SCHEDULER_SERVER_SERVICE_MANAGER_H_
#define SCHEDULER_SERVER_SERVICE_MANAGER_H_

#include <absl/strings/string_view.h>

namespace blockmgr {

// Sends assignments like "READY=1", lines of one datagram, to the manager's
// socket at `path`: the value of NOTIFY_SOCKET, a path or @NAME; empty: there
// is none. A manager that does not listen is none of our troubles. Never waits.
// Thread-safe.
void NotifyServiceManager(absl::string_view path, absl::string_view state);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SERVICE_MANAGER_H_
