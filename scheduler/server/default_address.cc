#include "scheduler/server/default_address.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <pwd.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>

namespace blockmgr {
namespace {

std::string UserName() {
  const uid_t uid = geteuid();
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr) {
    return found->pw_name;
  }
  return absl::StrCat(uid);  // containers may run users without a name
}

}  // namespace

std::string DefaultAddress() {
  std::error_code error;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here changes the environment
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0' &&
      std::filesystem::is_directory(runtime, error)) {
    return absl::StrCat("unix:", runtime, "/blockmgr.sock");
  }
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) folder = "/tmp";
  return absl::StrCat("unix:",
                      (folder / ("blockmgr-" + UserName() + ".sock")).string());
}

}  // namespace blockmgr
