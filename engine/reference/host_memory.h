// The memory of the machine, as far as this process may take it.
#ifndef ENGINE_REFERENCE_HOST_MEMORY_H_
#define ENGINE_REFERENCE_HOST_MEMORY_H_

#include <cstdint>
#include <string>

#include <absl/status/status.h>

#include "blockmgr/base/model_layout.h"

namespace blockmgr {

// Returns the least limit of the control groups that this process is in
// (version 1 or 2), bytes, or the largest number if none has a limit. `root` is
// the folder that has /proc and /sys.
int64_t GroupMemoryBytes(const std::string& root = "");
// Returns the bytes of the machine's memory, or GroupMemoryBytes() if they are
// fewer.
int64_t MemoryBytes();
// Returns the bytes of memory that this process has now.
int64_t ResidentBytes();

// Refuses more host blocks than fit into `memory_bytes` beside `used_bytes`.
// The error names num_host_blocks. REQUIRES: the layout is valid.
absl::Status CheckHostBlocks(const ModelLayout& layout, int32_t num_host_blocks,
                             int64_t memory_bytes, int64_t used_bytes);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_HOST_MEMORY_H_
