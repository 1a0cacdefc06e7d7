#include "scheduler/server/budget_tables.h"

#include <algorithm>
#include <utility>

#include <absl/strings/string_view.h>

#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/table_files.h"

namespace blockmgr {
absl::StatusOr<BudgetTables> LoadBudgetTables(
    const std::vector<std::string>& arguments) {
  BudgetTables tables;
  BM_RETURN_IF_ERROR(ReadTableFiles(
      "budget_table", arguments,
      [&tables](const std::string& name, absl::string_view bytes) {
        absl::StatusOr<BudgetTable> table = DecodeBudgetTable(bytes);
        if (!table.ok()) return table.status();
        tables[name] = std::make_shared<const BudgetTable>(*std::move(table));
        return absl::OkStatus();
      }));
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
  return NoSuchTable("policy: profile", "loaded budget table", names,
                     policy.budget.profile);
}

}  // namespace blockmgr
