// From scores to keep sets: page totals, budgets per (layer, head), selection.
//
// Everything here is pure: arrays in, keep sets out; safe from any thread. One
// call handles all layers and heads of one sequence. Shapes, ranges and arrays
// that break what is said below are a bug of the caller and abort. The manager
// (through PageTotal) and the engine (through SelectEntries) must agree on how
// many pages a region may have; both get it from here.
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

// What one eviction covers: the entries with positions in [0, cut) of a
// sequence of `length` tokens. Entries at or after `cut` are not candidates.
// REQUIRES: 0 < cut <= length. (Managers ask for more: whole pages, and a token
// left in the tail.)
struct EvictionRange {
  int32_t cut = 0;
  int32_t length = 0;
};

// Candidates of every (layer, head), in strictly ascending position order per
// head. Heads may hold different numbers, after an earlier eviction. Scores are
// of any float value.
struct EntriesView {
  std::span<const int64_t> offsets;    // [num_layers * num_heads + 1], CSR
  std::span<const int32_t> positions;  // [offsets.back()]
  // [offsets.back()]; empty: streaming, the score is the position.
  std::span<const float> scores;
  // critical only, [offsets.back()]: the sizes of the values, || v W_O ||; or,
  // with gqa_product, scores times sizes per query head (kernels/backend.h).
  std::span<const float> value_norms;
  std::span<const float> products;
};

// What survives, as ascending ranks into each head's candidates.
struct KeepSets {
  std::vector<int64_t> offsets;  // [num_layers * num_heads + 1], CSR
  std::vector<int32_t> ranks;    // [offsets.back()]
  int64_t num_nan = 0;           // candidates whose score was NaN
};

// The most pages a region made by this policy may have, over all layers and
// heads: the reservation is CeilDiv(PageTotal, layers * heads) blocks. Depends
// on the arguments alone, never on scores or on what heads hold. O(1), and
// O(layers * heads) for external budgets.
//
// With B = target.TokensPerHead(cut), at least 1 (the cut when the length is at
// most protected_recent(): nothing is evicted), and min_pages = max(1,
// ceil(protected positions below the cut / page_size)):
//   round(page)   a scope of n heads gets max(floor(n * B / page_size), n *
//                 min_pages), or all pages when B is the cut; scopes are the
//                 layers; of global the model; under (ada_)pyramid layers share
//                 the model's total in proportion to the formula's budgets
//   round(token)  floor(layers * heads * (B + page_size - 1) / page_size)
//   external      sum of ceil(budget / page_size), under round(page) at least
//                 the protected positions' pages each. 0 keeps nothing, and a
//                 negative budget counts as 0.
// and never more than ceil(cut / page_size) pages per (layer, head).
// REQUIRES: PageTotal: budgets that need neither a table nor a caller;
// PageTotalExternal: one budget per (layer, head).
int64_t PageTotal(const EvictionPolicy& policy, const EvictionTarget& target,
                  const HeadShape& shape, const EvictionRange& range);
int64_t PageTotalExternal(std::span<const int32_t> budgets,
                          const EvictionPolicy& policy, const HeadShape& shape,
                          const EvictionRange& range);

// Budgets in entries per (layer, head), [num_layers * num_heads], never more
// than the head holds. The sum of ceil(budget / page_size) never exceeds
// PageTotal(External), whatever the heads hold.
//
// A scope's total is shared out in proportion to what each of its heads should
// get, by largest remainder (ties: the lower head); a head takes at most what
// it holds, the excess goes to the others in the same proportion:
//   uniform, pyramid    equal shares
//   adakv, ada_pyramid  protected_h + f_h * (1 - alpha) + C_h * alpha, where M
//            is the scope's mean budget, C_h = max(0, M - protected_h) and f_h
//            of the scope's sum(C_h) best unprotected entries are head h's
//            (arXiv 2407.11550, released code). protected_h is what the head
//            still holds of the protected set, at most M. mode=floor:
//            protected_h + f_h, after each head took its floor(C_h * alpha)
//            best
//   global   protected_h + f_h over the whole model
//            where f_h alone counts (alpha = 0, floor, global), a head with
//            nothing protected first takes its best entry
//   round(page)   the scope's pages as in PageTotal; every head gets at least
//                 min_pages; budget = min(pages * page_size, held).
//   round(token)  heads * B entries (pyramid: moved between layers like the
//                 pages); every head gets at least 1.
// external: the caller's budgets; under round(page) filled up to whole pages,
// at least the protected positions' pages; as they are under round(token).
// headkv and lukv take TableBudgets (budget_table.h) as `external`.
// `external` is read for these three only, `target` for the others.
// O(entries).
std::vector<int32_t> AllocateBudgets(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     const EntriesView& entries,
                                     std::span<const int32_t> external);

// Whether an allocator divides a scope's budget by the scores of its entries:
// adakv, ada_pyramid and global do.
bool IsAdaptive(BudgetKind kind);

// Returns budgets as AllocateBudgets does, but without scores, for simulations:
// only the number of entries of each (layer, head) is known (`held`). Adaptive
// allocators (IsAdaptive) divide in proportion to `weights`, of any unit, what
// they would divide by scores; other allocators do not read `weights`, which
// may be empty then. REQUIRES: no negative weight; `held` and `weights` have
// one value per (layer, head). O(layers * heads).
std::vector<int32_t> BudgetsByWeight(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     std::span<const int32_t> held,
                                     std::span<const double> weights,
                                     std::span<const int32_t> external);

// What heads should get, before remainders and what heads hold bound it; sums
// to the total. Never falls for any head when the target grows (uniform, adakv,
// global). For analysis. REQUIRES: as PageTotal.
std::vector<double> IdealBudgets(const EvictionPolicy& policy,
                                 const EvictionTarget& target,
                                 const HeadShape& shape,
                                 const EvictionRange& range,
                                 const EntriesView& entries);

// The budgets above, then the entries of each head: protected positions (below
// protected_sinks(), or at least length - protected_recent()), then the best
// scores. NaN of any sign is best, then descending, -0 == +0, ties to the lower
// head, then position. A budget below the protected set keeps the first
// min(sinks, budget) of them, then the most recent. A head whose budget covers
// its entries keeps everything. O(entries); nothing is sorted.
//
// critical (arXiv 2502.03805, algorithm 1): of the k unprotected entries a head
// may keep, floor(k * first) are its best scores; the others are the best of
// the rest by (score + eps) * value_norm, or by `products`.
KeepSets SelectEntries(const EvictionPolicy& policy,
                       const EvictionTarget& target, const HeadShape& shape,
                       const EvictionRange& range, const EntriesView& entries,
                       std::span<const int32_t> external);

// Ascending ranks of the k best scores in the order above. O(n). Replaces `out`
// by min(max(k, 0), n) ranks.
void TopK(std::span<const float> scores, int64_t k, std::vector<int32_t>* out);

// SnapKV's last steps for one KV head: attention of the group's query heads
// over the past, already averaged over the window, -> one score per past entry.
// By scorer.order either the group's mean or maximum is pooled (adakv), or each
// query head's row is (kvpress). Pooling has stride 1 and kernel / 2 of
// padding, zeros that count for the average. NaN is passed on by every step.
// attention: [group_size, num_past] row-major; scores: [num_past]. fp32.
// O(group_size * num_past * kernel). REQUIRES: scorer is valid.
void ReduceSnapKv(const ScorerSpec& scorer, std::span<const float> attention,
                  int32_t group_size, std::span<float> scores);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_SELECT_H_
