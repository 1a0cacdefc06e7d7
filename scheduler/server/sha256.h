// The SHA-256 of bytes, as others compute it, to name a file by its content.
#ifndef SCHEDULER_SERVER_SHA256_H_
#define SCHEDULER_SERVER_SHA256_H_

#include <string>

#include <absl/strings/string_view.h>

namespace blockmgr {

// Returns 64 hexadecimal digits in lower case. Thread-safe.
std::string Sha256Hex(absl::string_view bytes);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SHA256_H_
