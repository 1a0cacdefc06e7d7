// Selection on the device: from scores to budgets, survivors and moves. This
// header has the parameters of the kernels in select_budgets.cuh,
// select_scopes.cuh, select_heads.cuh, select_divided.cuh and select_moves.cuh.
// Plain data, C++17. All pointers are device memory.
//
// The device selects what SelectEntries of eviction/select.h selects, bit for
// bit: the same order of scores, the same ties, the same largest remainders.
// One call takes any number of sequences that share a policy. The heads of all
// sequences follow one another. They are divided into scopes. The heads of a
// scope share a total.
#ifndef KERNELS_CUDA_SELECTION_SELECT_H_
#define KERNELS_CUDA_SELECTION_SELECT_H_

#include <cstdint>

#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/simt_types.h"

namespace blockmgr {

// The heads [first_head, first_head + num_heads) share `entries` or `pages`
// (BudgetScope of eviction/page_math.h).
struct SelectScope {
  int64_t entries;
  int64_t pages;
  int32_t first_head;
  int32_t num_heads;
  int32_t min_pages;  // every head may keep this many
  // Positions in [0, sinks_end) and from recent_begin on are protected.
  int32_t sinks_end;
  int32_t recent_begin;
  // Entries at or after this position are no candidates and no survivors. They
  // may have scores, because the last block of a sequence may be partial.
  int32_t cut;
};

enum class SelectBudget : int32_t {
  kEqual,  // uniform, pyramid
  kBlend,  // adakv, ada_pyramid; global is kBlend with alpha 0
  kFloor,  // adakv(mode=floor)
  kGiven,  // external and tables
};

// The state of a radix select between its passes.
struct RadixSearch {
  enum Mode : int32_t { kNone, kAll, kSearch };
  // The number of best keys that are still wanted among the keys with this
  // prefix. At the end: the number of wanted keys that equal the threshold. If
  // all keys equal to the threshold are wanted, the threshold is the number
  // below it and `wanted` is 0.
  int64_t wanted;
  // The highest digits that are known. After the last digit, this is the
  // threshold.
  uint32_t prefix;
  int32_t mode;  // kNone takes no key, kAll takes every key
};

// The state of one head between the kernels; see HeadSplit of
// eviction/protection.h.
struct SelectHead {
  int64_t offset;  // the first of the head's entries
  int32_t num_sinks;
  int32_t num_past;
  int32_t num_recent;
  // The entries of the past that the head takes before the pool of its scope is
  // made: its best.
  int64_t floor_count;
  uint32_t floor_key;  // of the last of these, its digits known so far
  // The entries of the head's past: above the scope's threshold, and equal to
  // the threshold.
  int64_t above;
  int64_t equal;
  int64_t fixed;   // entries that the head gets at any weight
  int64_t weight;  // in multiples of 10^-9 entries
  // A claim of Apportion and its quota: whole units, and the fraction that is
  // left.
  int64_t claim_weight;
  int64_t min;
  int64_t max;
  int64_t units;
  uint64_t fraction;
  int32_t open;
  // The survivors: the first and the last entries, and the best entries of the
  // past between them (critical: by a second key).
  int32_t take_first;
  int32_t take_last;
  int32_t second_wanted;
};

inline constexpr uint32_t kSelectThreads = 256;
inline constexpr uint32_t kSelectHeadThreads = 1024;  // one head per block
inline constexpr uint32_t kRadixBins = 2048;
inline constexpr uint32_t kLastRadixBins = 1024;  // bins of the last digit
// A block keeps the keys of up to 32,768 entries of a head. From about this
// many entries on, division is expected to save more than its four launches
// take. The number is not timed on a GPU yet.
inline constexpr int32_t kDividedHeadEntries = 49152;

struct SelectProblem {
  int32_t num_heads = 0;
  int32_t num_scopes = 0;
  const SelectScope* scopes = nullptr;  // [num_scopes], covering all heads
  const int64_t* offsets = nullptr;     // [num_heads + 1], CSR of entries,
                                        // fewer than 2^30 of a head
  const int32_t* positions = nullptr;   // [entries], ascending per head
  // [entries]. Null if positions are the scores.
  const float* scores = nullptr;
  // [entries]. Null unless the selector is critical.
  const float* value_norms = nullptr;
  // [entries]. Null without gqa_product.
  const float* products = nullptr;
  // [num_heads]. Read with kGiven only.
  const int32_t* given = nullptr;
  SelectBudget budget = SelectBudget::kEqual;
  int64_t alpha = 0;  // in multiples of 10^-9
  int32_t page_size = 0;
  bool by_page = true;    // round(page)
  bool critical = false;  // CriticalKV's two stages
  // The first stage's share of the budget (critical), in multiples of 10^-9.
  int64_t first_share = 0;
  float eps = 0.0f;  // critical
  // The entries that one block reads in searches of scopes and of divided
  // heads: a multiple of kSelectThreads. A block has this many reads under way
  // at once, and eight heads of 32,000 entries fill a large device.
  int32_t chunk_entries = 2048;
  // Chunks of chunk_entries entries. A head without entries has one chunk, too.
  ListSplits chunks = {};
  // Heads of at least this many entries are divided: many blocks search such a
  // head together. INT32_MAX if no head is as long, which saves launches. See
  // DivideFrom.
  int32_t divide_from = INT32_MAX;

  // Workspace. The first elements are those of scopes, then follow those of
  // heads. histograms and counters must be zero. They are zero again at the
  // end.
  SelectHead* heads = nullptr;      // [num_heads]
  RadixSearch* searches = nullptr;  // [num_scopes + num_heads]
  uint32_t* histograms = nullptr;   // [num_scopes + num_heads, kRadixBins]
  uint32_t* counters = nullptr;     // [num_scopes + num_heads]
  // The entries at the threshold, as bits like those of survivors.
  uint32_t* ties = nullptr;

  // The results. The survivors of head h are bits of the words from
  // SurvivorWord(h) on. The bit of entry i is bit i % 32 of word i / 32.
  int32_t* budgets = nullptr;     // [num_heads], entries kept
  uint32_t* survivors = nullptr;  // [SurvivorWords(entries, num_heads)]
  int64_t* num_nan = nullptr;     // += the candidates whose score is NaN
};

// Returns whether heads take some of their past before the pool of their scope
// is made.
SIMT_HOST_DEVICE bool HasFloors(const SelectProblem& p) {
  return p.budget == SelectBudget::kFloor ||
         (p.budget == SelectBudget::kBlend && p.alpha == 0);
}

// Returns SelectProblem::divide_from for heads that begin at offsets[0 ..
// num_heads]. Host code.
inline int32_t DivideFrom(const int64_t* offsets, int64_t num_heads) {
  return LongestList(offsets, num_heads) >= kDividedHeadEntries
             ? kDividedHeadEntries
             : INT32_MAX;
}

// Returns the first word of a head. It depends on the head's number and offset
// alone.
SIMT_HOST_DEVICE int64_t SurvivorWord(int64_t offset, int64_t head) {
  return offset / 32 + head;
}
SIMT_HOST_DEVICE int64_t SurvivorWords(int64_t num_entries, int64_t num_heads) {
  return num_entries / 32 + num_heads + 1;
}

// The entries whose moves a block plans in one turn.
inline constexpr int32_t kMovesTurnEntries = 32 * int32_t{kSelectThreads};

// Turns survivors into moves by the rule of PlaceSurvivors
// (blockmgr/eviction/compaction_moves.h): the i-th survivor of a head goes to
// the i-th slot of the head's new list.
//
// One block plans the moves of a head, or of a chunk of a head. The block of a
// chunk counts all survivors before the chunk. These are words of 32 entries,
// so the counts of a million entries read 32 MB in all, most of it from the
// second-level cache.
//
// Every survivor gets a move, also a survivor that stays where it is. Moves of
// slots outside the pool are written like others; the kernels of row_mover.h
// refuse them. The host decides how they are executed (MoveRows): at once
// where all destinations are fresh blocks; else by staging, whole heads at a
// time, the heads that borrow no page first.
//
// A head gets no moves and *error gets kOffsetsOutOfLists if its pages are not
// among `pages` or too few for `kept`, or if its moves do not fit into `moves`.
// The moves and positions of such a head stay as they were. Execute the moves
// only if *error is 0. See RowError. REQUIRES: error is not null; `offsets`
// ascend and are within the entries.
struct SelectMoves {
  int32_t num_heads = 0;
  int32_t page_size = 0;
  const int64_t* offsets = nullptr;     // [num_heads + 1], CSR of entries
  const int64_t* slots = nullptr;       // [entries], where they are now
  const int32_t* positions = nullptr;   // [entries]; read for
                                        // region_positions only
  const uint32_t* survivors = nullptr;  // SelectProblem::survivors
  // Null, or the chunks that blocks take, of chunk_entries entries, a multiple
  // of 32. Worth it if a head has more than kMovesTurnEntries entries.
  ListSplits chunks = {};
  int32_t chunk_entries = 2048;
  // The new region: its page lists, and how many slots of each list are in use.
  // Laid out by the host from `budgets`. Survivors beyond `kept` are left out.
  const int32_t* page_offsets = nullptr;  // [num_heads + 1]
  const int32_t* pages = nullptr;         // [num_pages]
  int64_t num_pages = 0;
  const int32_t* kept = nullptr;  // [num_heads]
  // The index in `moves` at which the moves of each head begin. Heads may
  // follow one another in any order.
  const int64_t* move_offsets = nullptr;  // [num_heads]

  // Results.
  RowMove* moves = nullptr;  // [num_moves]
  int64_t num_moves = 0;     // at least the sum of kept
  // Null, or the position of every entry of the new region, as AttentionLists
  // has them: page_size for each of `pages`. Those behind a head's last are
  // left as they are.
  int32_t* region_positions = nullptr;
  uint32_t* error = nullptr;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_H_
