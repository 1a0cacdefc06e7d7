#include "engine/reference/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include <unistd.h>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {

int64_t GroupMemoryBytes(const std::string& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // Number, controllers and path. Version 2 has no list of controllers.
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    const bool is_v2 = parts.size() == 3 && parts[1].empty();
    const bool is_v1 = parts.size() == 3 && parts[1] == "memory";
    if (!is_v1 && !is_v2) continue;
    // In a container, the path may be one of the host, which is not there. The
    // root is then the container's group.
    for (std::string path = parts[2] == "/" ? "" : parts[2];;
         path.resize(path.rfind('/'))) {
      std::ifstream file(
          is_v2 ? absl::StrCat(root, "/sys/fs/cgroup", path, "/memory.max")
                : absl::StrCat(root, "/sys/fs/cgroup/memory", path,
                               "/memory.limit_in_bytes"));
      std::string text;
      int64_t bytes = 0;
      if (file >> text && absl::SimpleAtoi(text, &bytes)) {
        least = std::min(least, bytes);
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

int64_t MemoryBytes() {
  return std::min(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE),
                  GroupMemoryBytes());
}

int64_t ResidentBytes() {
  int64_t num_pages = 0;
  int64_t num_resident = 0;
  std::ifstream("/proc/self/statm") >> num_pages >> num_resident;
  return num_resident * sysconf(_SC_PAGESIZE);
}

absl::Status CheckHostBlocks(const ModelLayout& layout, int32_t num_host_blocks,
                             int64_t memory_bytes, int64_t used_bytes) {
  const int64_t left = std::max<int64_t>(0, memory_bytes - used_bytes);
  const int64_t most = left / layout.block_bytes();
  if (num_host_blocks <= most) return absl::OkStatus();
  return Invalid("num_host_blocks: expected at most ", most, ", as ",
                 memory_bytes, " bytes of memory have room for ", left,
                 " beside weights and pool, and a block has ",
                 layout.block_bytes(), "; got ", num_host_blocks);
}

}  // namespace blockmgr
