// The files of tables that policies name, as flags of programs give them.
#ifndef BLOCKMGR_EVICTION_TABLE_FILES_H_
#define BLOCKMGR_EVICTION_TABLE_FILES_H_

#include <string>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// Reads "NAME=FILE" arguments in their order and calls `add` with each name and
// the content of the file. InvalidArgument if an argument has no such form, the
// name is no name that a policy could give (IsTableName), a name comes twice,
// or `add` fails. NotFound if a file cannot be read. Errors begin with `field`
// and name the argument or the file.
absl::Status ReadTableFiles(
    absl::string_view field, const std::vector<std::string>& arguments,
    absl::FunctionRef<absl::Status(const std::string& name,
                                   absl::string_view bytes)>
        add);

// Returns what a lookup of a table found: NotFound that begins with `field`,
// says what was looked for ("budget table") and lists the names that exist, in
// their order.
absl::Status NoSuchTable(absl::string_view field, absl::string_view what,
                         const std::vector<std::string>& names,
                         absl::string_view name);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_TABLE_FILES_H_
