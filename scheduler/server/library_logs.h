#ifndef SCHEDULER_SERVER_LIBRARY_LOGS_H_
#define SCHEDULER_SERVER_LIBRARY_LOGS_H_

namespace blockmgr {

// Sends what gRPC and protobuf log to the default logger, escaped, as debug
// messages. In addition, each library has a RateLimitedWarning for its errors.
// Without this call, both libraries write a line to stderr for every malformed
// call, and a peer can make as many of these as it likes. Call it before any
// other thread uses the libraries.
void RouteLibraryLogs();

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_LIBRARY_LOGS_H_
