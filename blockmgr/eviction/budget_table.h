// Budgets that come from a table and not from scores: headkv, lukv and duo.
// Each divides one total over all layers and heads by the table. The table is
// measured offline, and a policy names it. The manager turns policy, target,
// range and table into budgets before it orders an eviction. The engine gets
// BudgetKind::kExternal and needs no table.
#ifndef BLOCKMGR_EVICTION_BUDGET_TABLE_H_
#define BLOCKMGR_EVICTION_BUDGET_TABLE_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/eviction/head_scores.h"
#include "blockmgr/eviction/lukv_profile.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

using BudgetTable = std::variant<HeadScores, LuKvProfile>;

// Decodes a budget table from the content of a file: an LU-KV profile, head
// scores as JSON, or retention counts as .npy. The content decides which; the
// file's name does not matter. All programs read tables with this function.
// Errors name the field, what was expected and what came.
absl::StatusOr<BudgetTable> DecodeBudgetTable(absl::string_view bytes);

// Returns a text that identifies the content of the table: 128 bits (XXH3). The
// name of the table does not matter. Cost: O(table).
std::string TableFingerprint(const BudgetTable& table);

// Checks that the table is of the policy's kind and for a model of this shape.
absl::Status CheckTable(const EvictionPolicy& policy, const HeadShape& shape,
                        const BudgetTable& table);

// Returns the budgets in entries per (layer, head), [num_layers * num_heads].
// The table gives ideal amounts. They are scaled to the target's total by
// largest remainder over all layers and heads (ties: the lower index). Every
// budget is at least the minimum and at most range.cut. The budgets sum to the
// total.
//
//   round(token)  The total is layers * heads * B entries. The minimum is
//                 max(1, the protected positions), or B if B is less.
//   round(page)   CountScopePages (page_math.h) of all heads is the total.
//                 Budgets are whole pages. Only a head that keeps everything
//                 may end in a page that is not full.
//
// with B = target.TokensPerHead(cut). The ideal amounts are:
//
//   headkv  p_h * (B / share) * layers * heads + B - B / share, of the
//           positions that are not protected (released code)
//   lukv    (1 - r_h) * cut, with r interpolated at the ratio 1 - B / cut
//   duo     cut for the heads with the best scores (ties: the lower index), as
//           far as the total goes, and the minimum for others. One head may
//           get an amount between these. Nothing is scaled.
//
// Cost: O(layers * heads). REQUIRES: CheckTable is OK, policy.needs_table().
std::vector<int32_t> TableBudgets(const EvictionPolicy& policy,
                                  const EvictionTarget& target,
                                  const HeadShape& shape,
                                  const EvictionRange& range,
                                  const BudgetTable& table);

// Returns the ideal amounts, before they are scaled, limited and rounded. The
// amount of a head never falls when the target grows, exactly; so its floor
// never falls either. For analysis. Cost: O(layers * heads). REQUIRES: as
// TableBudgets.
std::vector<double> IdealTableBudgets(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range,
                                      const BudgetTable& table);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_BUDGET_TABLE_H_
