// The budget tables that policies name: headkv(profile=NAME), lukv(profile=
// NAME). Loaded when the daemon starts, unchanged afterwards.
#ifndef SCHEDULER_SERVER_BUDGET_TABLES_H_
#define SCHEDULER_SERVER_BUDGET_TABLES_H_

#include <memory>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include "blockmgr/eviction/budget_table.h"

namespace blockmgr {

using BudgetTables =
    absl::flat_hash_map<std::string, std::shared_ptr<const BudgetTable>>;

// Reads "NAME=FILE" arguments, whose files DecodeBudgetTable reads.
// InvalidArgument for a name given twice or a malformed file, NotFound for one
// that cannot be read; both say which.
absl::StatusOr<BudgetTables> LoadBudgetTables(
    const std::vector<std::string>& arguments);

// The table that `policy` names, null when it names none. NotFound lists the
// tables there are.
absl::StatusOr<std::shared_ptr<const BudgetTable>> FindBudgetTable(
    const BudgetTables& tables, const EvictionPolicy& policy);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_BUDGET_TABLES_H_
