#ifndef SCHEDULER_SERVER_LIBRARY_LOGS_H_
#define SCHEDULER_SERVER_LIBRARY_LOGS_H_

namespace blockmgr {

// Sends what gRPC and protobuf log to the default logger, escaped, as debug
// messages and, of errors, a RateLimitedWarning for each library: both write a
// line to stderr for every malformed call, and there may be as many of these as
// a peer likes. Call before any other thread uses them.
void RouteLibraryLogs();

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_LIBRARY_LOGS_H_
