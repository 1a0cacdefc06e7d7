#include "blockmgr/eviction/table_files.h"

#include <cstddef>
#include <set>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {

absl::Status ReadTableFiles(
    absl::string_view field, const std::vector<std::string>& arguments,
    absl::FunctionRef<absl::Status(const std::string& name,
                                   absl::string_view bytes)>
        add) {
  std::set<std::string> names;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (equals == 0 || equals == std::string::npos) {
      return Invalid(field, ": expected NAME=FILE, got '", argument, "'");
    }
    if (!IsTableName(name)) {
      return Invalid(field, ": expected ", kTableNameText, ", got '", name,
                     "'");
    }
    if (!names.insert(name).second) {
      return Invalid(field, ": expected every name once, got '", name,
                     "' twice");
    }
    const std::string path = argument.substr(equals + 1);
    const absl::StatusOr<std::string> bytes = ReadFile(path);
    if (!bytes.ok()) {
      return absl::Status(bytes.status().code(),
                          absl::StrCat(field, ": ", bytes.status().message()));
    }
    const absl::Status added = add(name, *bytes);
    if (!added.ok()) {
      return Invalid(field, ": ", path, ": ", added.message());
    }
  }
  return absl::OkStatus();
}

absl::Status NoSuchTable(absl::string_view field, absl::string_view what,
                         const std::vector<std::string>& names,
                         absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat(field, ": expected the name of a ", what, " (",
                   names.empty() ? "there is none" : absl::StrJoin(names, ", "),
                   "), got '", name, "'"));
}

}  // namespace blockmgr
