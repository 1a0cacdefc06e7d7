#include "scheduler/server/budget_tables.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "blockmgr/base/read_file.h"

namespace blockmgr {
absl::StatusOr<BudgetTables> LoadBudgetTables(
    const std::vector<std::string>& arguments) {
  BudgetTables tables;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "budget_table: expected NAME=FILE, got '", argument, "'"));
    }
    std::string name = argument.substr(0, equals);
    const std::string path = argument.substr(equals + 1);
    const absl::StatusOr<std::string> bytes = ReadFile(path);
    if (!bytes.ok()) {
      return absl::Status(
          bytes.status().code(),
          absl::StrCat("budget_table: ", bytes.status().message()));
    }
    absl::StatusOr<BudgetTable> table = DecodeBudgetTable(*bytes);
    if (!table.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("budget_table: ", path, ": ", table.status().message()));
    }
    const bool is_new =
        tables
            .emplace(name,
                     std::make_shared<const BudgetTable>(*std::move(table)))
            .second;
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "budget_table: expected every name once, got '", name, "' twice"));
    }
  }
  return tables;
}

absl::StatusOr<std::shared_ptr<const BudgetTable>> FindBudgetTable(
    const BudgetTables& tables, const EvictionPolicy& policy) {
  if (!policy.needs_table()) return nullptr;
  const auto found = tables.find(policy.budget.profile);
  if (found != tables.end()) return found->second;
  std::vector<std::string> names;
  names.reserve(tables.size());
  for (const auto& [name, table] : tables) names.push_back(name);
  std::sort(names.begin(), names.end());
  return absl::NotFoundError(absl::StrCat(
      "policy: profile: expected the name of a loaded budget table (",
      names.empty() ? "there is none" : absl::StrJoin(names, ", "), "), got '",
      policy.budget.profile, "'"));
}

}  // namespace blockmgr
