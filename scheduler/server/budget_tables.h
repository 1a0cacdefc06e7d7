// The budget tables that policies name, as in headkv(profile=NAME) and
// lukv(profile=NAME). The daemon loads them when it starts and does not change
// them afterwards.
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

// Reads the files of "NAME=FILE" arguments with DecodeBudgetTable.
// InvalidArgument if a name comes twice or a file is malformed; NotFound if a
// file cannot be read. Both name the argument.
absl::StatusOr<BudgetTables> LoadBudgetTables(
    const std::vector<std::string>& arguments);

// Returns the table that `policy` names, or null if it names none. NotFound
// lists the tables that exist.
absl::StatusOr<std::shared_ptr<const BudgetTable>> FindBudgetTable(
    const BudgetTables& tables, const EvictionPolicy& policy);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_BUDGET_TABLES_H_
