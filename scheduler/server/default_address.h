// Where a daemon listens, and where its clients and engines look for it, when
// nobody says otherwise.
#ifndef SCHEDULER_SERVER_DEFAULT_ADDRESS_H_
#define SCHEDULER_SERVER_DEFAULT_ADDRESS_H_

#include <string>

namespace blockmgr {

// unix:$XDG_RUNTIME_DIR/blockmgr.sock when the variable names a folder that
// exists, else unix:<temporary folder>/blockmgr-<user>.sock. A gRPC target.
// Thread-compatible: reads the environment.
std::string DefaultAddress();

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_DEFAULT_ADDRESS_H_
