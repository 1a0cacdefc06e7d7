// Budgets that depend on no score: tables measured offline, looked up online.
//
// headkv and lukv share one total over all layers and heads by a table that a
// policy names. The manager turns policy, target, range and table into budgets
// before it orders an eviction, so an engine needs no table: it gets
// BudgetKind::kExternal.
#ifndef BLOCKMGR_EVICTION_BUDGET_TABLE_H_
#define BLOCKMGR_EVICTION_BUDGET_TABLE_H_

#include <cstdint>
#include <span>
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

// Names what the table says, whatever it is called: 128 bits of its content
// (XXH3), as text. O(table).
std::string TableFingerprint(const BudgetTable& table);

// That the table is of the policy's kind and for a model of this shape.
absl::Status CheckTable(const EvictionPolicy& policy, const HeadShape& shape,
                        const BudgetTable& table);

// Entries per (layer, head), [num_layers * num_heads]: the table's ideal
// amounts, scaled to the target's total by largest remainder over all layers
// and heads (ties: the lower index), at least the minimum and at most range.cut
// each; the total is conserved:
//   round(token)  layers * heads * B entries, minimum max(1, the protected
//                 positions), or B if that is less
//   round(page)   ScopePages (page_math.h) of all heads, budgets in whole
//                 pages; only a head that keeps everything may end in a
//                 shorter one
// with B = target.TokensPerHead(cut). Ideals: headkv p_h * (B / share) * layers
// * heads + B - B / share of what is not protected (released code); lukv
// (1 - r_h) * cut, r interpolated at the target's ratio 1 - B / cut.
// O(layers * heads). REQUIRES: CheckTable is OK, policy.needs_table().
std::vector<int32_t> TableBudgets(const EvictionPolicy& policy,
                                  const EvictionTarget& target,
                                  const HeadShape& shape,
                                  const EvictionRange& range,
                                  const BudgetTable& table);

// The ideals above, before they are scaled, bounded and rounded. Never falls
// for any head when the target grows, exactly: so neither does its floor. For
// analysis. O(layers * heads). REQUIRES: as TableBudgets.
std::vector<double> IdealTableBudgets(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range,
                                      const BudgetTable& table);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_BUDGET_TABLE_H_
