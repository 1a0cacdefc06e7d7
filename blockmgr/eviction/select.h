// Turns scores into keep sets: page totals, budgets per (layer, head),
// selection.
//
// All functions are pure: they read arrays and return keep sets. They are safe
// to call from any thread. One call handles all layers and heads of one
// sequence. A shape, range or array that breaks the rules below is a bug in the
// caller and aborts.
//
// The manager (PageTotal) and the engine (SelectEntries) must agree on the
// number of pages of a region. Both use the functions of this header.
#ifndef BLOCKMGR_EVICTION_SELECT_H_
#define BLOCKMGR_EVICTION_SELECT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/eviction/policy.h"

namespace blockmgr {

struct HeadShape {
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t page_size = 16;
};

// One eviction covers the entries with positions in [0, cut) of a sequence of
// `length` tokens. Entries at or after `cut` are not candidates. REQUIRES: 0 <
// cut <= length. (A manager also requires that `cut` ends a whole page and
// leaves a token in the tail.)
struct EvictionRange {
  int32_t cut = 0;
  int32_t length = 0;
};

// The candidates of every (layer, head), in strictly ascending position order
// per head. After an earlier eviction, heads may hold different numbers of
// entries. A score may be any float.
struct EntriesView {
  std::span<const int64_t> offsets;    // [num_layers * num_heads + 1], CSR
  std::span<const int32_t> positions;  // [offsets.back()]
  // [offsets.back()]. Empty for streaming, whose score is the position.
  std::span<const float> scores;
  // critical only, [offsets.back()]: the sizes of the values, || v W_O ||. With
  // gqa_product, `products` holds scores times sizes per query head instead
  // (kernels/backend.h).
  std::span<const float> value_norms;
  std::span<const float> products;
};

// The surviving entries, as ascending ranks into each head's candidates.
struct KeepSets {
  std::vector<int64_t> offsets;  // [num_layers * num_heads + 1], CSR
  std::vector<int32_t> ranks;    // [offsets.back()]
  int64_t num_nan = 0;           // candidates whose score was NaN
};

// Returns the largest number of pages that a region made by this policy may
// have, over all layers and heads. A manager reserves CeilDiv(PageTotal, layers
// * heads) blocks. The result depends on the arguments alone, never on scores
// or on what heads hold. Cost: O(1), and O(layers * heads) for external
// budgets.
//
// B is target.TokensPerHead(cut), at least 1. If the length is at most
// protected_recent(), B is the cut and nothing is evicted. min_pages is max(1,
// ceil(protected positions below the cut / page_size)).
//
//   round(page)   A scope of n heads gets max(floor(n * B / page_size),
//                 n * min_pages) pages, or all pages if B is the cut. Each
//                 layer is a scope. global has one scope, the model. Under
//                 pyramid and ada_pyramid the layers share the model's total in
//                 proportion to the budgets of the formula.
//   round(token)  floor(layers * heads * (B + page_size - 1) / page_size)
//   external      The sum of ceil(budget / page_size). Under round(page) a head
//                 has at least the pages of the protected positions. A budget
//                 of 0 keeps nothing. A negative budget counts as 0.
//
// A (layer, head) never has more than ceil(cut / page_size) pages.
//
// REQUIRES of PageTotal: a budget that needs neither a table nor a caller.
// REQUIRES of PageTotalExternal: one budget per (layer, head).
int64_t PageTotal(const EvictionPolicy& policy, const EvictionTarget& target,
                  const HeadShape& shape, const EvictionRange& range);
int64_t PageTotalExternal(std::span<const int32_t> budgets,
                          const EvictionPolicy& policy, const HeadShape& shape,
                          const EvictionRange& range);

// Returns the budgets per (layer, head), in entries: [num_layers * num_heads].
// A budget never exceeds what the head holds. The sum of ceil(budget /
// page_size) never exceeds PageTotal or PageTotalExternal.
//
// The total of a scope is divided by largest remainder, in proportion to an
// ideal amount per head (ties: the lower head). A head takes at most what it
// holds. The excess goes to the other heads in the same proportion. The ideal
// amounts are:
//
//   uniform, pyramid    equal shares
//   adakv, ada_pyramid  (arXiv 2407.11550, released code)
//                       protected_h + f_h * (1 - alpha) + C_h * alpha. M is the
//                       mean budget of the scope, C_h = max(0, M -
//                       protected_h), and f_h is the number of head h's entries
//                       among the sum(C_h) best unprotected entries of the
//                       scope. protected_h is the part of the protected set
//                       that the head still holds, at most M.
//   mode=floor          protected_h + f_h, after each head took its
//                       floor(C_h * alpha) best entries
//   global              protected_h + f_h over the whole model
//
// If f_h alone counts (alpha = 0, mode=floor, global), a head without protected
// entries first takes its best entry.
//
//   round(page)   divides the pages of the scope as PageTotal counts them.
//                 Every head gets at least min_pages.
//                 budget = min(pages * page_size, held)
//   round(token)  divides heads * B entries. pyramid moves entries between
//                 layers as it moves pages. Every head gets at least 1.
//   external      takes the caller's budgets. round(page) fills them up to
//                 whole pages, at least the pages of the protected positions.
//                 round(token) leaves them unchanged.
//
// headkv, lukv and duo take the result of TableBudgets (budget_table.h) as
// `external`. Only external, headkv, lukv and duo read `external`. Only the
// other budgets read `target`. Cost: O(entries).
std::vector<int32_t> AllocateBudgets(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     const EntriesView& entries,
                                     std::span<const int32_t> external);

// Returns whether a budget kind divides the total of a scope by the scores of
// its entries: adakv, ada_pyramid and global do.
bool IsAdaptive(BudgetKind kind);

// Returns budgets as AllocateBudgets does, but without scores, for simulations.
// `held` is the number of entries of each (layer, head). Adaptive budgets
// (IsAdaptive) divide in proportion to `weights`, of any unit, where
// AllocateBudgets divides by scores. Other budgets do not read `weights`, which
// may be empty then. REQUIRES: no negative weight; `held` and `weights` have
// one value per (layer, head). Cost: O(layers * heads).
std::vector<int32_t> BudgetsByWeight(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     std::span<const int32_t> held,
                                     std::span<const double> weights,
                                     std::span<const int32_t> external);

// Returns the ideal amounts per head, before they are rounded and limited to
// what heads hold. The amounts sum to the total. For uniform, adakv and global
// the amount of a head never falls when the target grows. For analysis.
// REQUIRES: as PageTotal.
std::vector<double> IdealBudgets(const EvictionPolicy& policy,
                                 const EvictionTarget& target,
                                 const HeadShape& shape,
                                 const EvictionRange& range,
                                 const EntriesView& entries);

// Allocates budgets as AllocateBudgets does, then selects the entries of each
// head: first the protected positions (below protected_sinks(), or at least
// length - protected_recent()), then the best scores.
//
// Scores are ordered descending. NaN of any sign is best. -0 equals +0. Ties go
// to the lower head, then to the lower position. If the budget is smaller than
// the protected set, the head keeps the first min(sinks, budget) positions,
// then the most recent. A head whose budget covers its entries keeps all of
// them. Cost: O(entries); nothing is sorted.
//
// critical (arXiv 2502.03805, algorithm 1): a head may keep k unprotected
// entries. floor(k * first) of them are its best scores. The others are the
// best remaining entries by (score + eps) * value_norm, or by `products`.
KeepSets SelectEntries(const EvictionPolicy& policy,
                       const EvictionTarget& target, const HeadShape& shape,
                       const EvictionRange& range, const EntriesView& entries,
                       std::span<const int32_t> external);

// Sets `out` to the ascending ranks of the k best scores in the order above:
// min(max(k, 0), n) ranks. Cost: O(n).
void TopK(std::span<const float> scores, int64_t k, std::vector<int32_t>* out);

// Computes the last steps of SnapKV for one KV head. `attention` is the
// attention of the group's query heads to the past entries, already averaged
// over the window: [group_size, num_past], row-major. `scores` gets one score
// per past entry, [num_past].
//
// With scorer.order = adakv the mean or maximum over the group is pooled. With
// kvpress each query head's row is pooled, then the group is reduced. Pooling
// has stride 1 and kernel / 2 zeros of padding on each side. The average counts
// these zeros. NaN passes through every step. Arithmetic is fp32. Cost:
// O(group_size * num_past * kernel). REQUIRES: scorer is valid.
void ReduceSnapKv(const ScorerSpec& scorer, std::span<const float> attention,
                  int32_t group_size, std::span<float> scores);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_SELECT_H_
