// What crosses between the scheduler and a host engine: one step, as flat
// arrays and deltas, and what the engine answers. Plain data, immutable once
// issued.
//
// The engine keeps per sequence slot a table: region (if any), tail blocks and
// length. It applies a plan in this order: `dropped_swaps`, `swap_outs`,
// `released`, `starts`, `dropped_regions`, `copies`, new blocks, compute,
// evictions. A change holds
// for the engine from the step after the one that carries it (evictions) or at
// once (the others). Steps are executed and acknowledged in order of id.
//
// A model with window groups (ModelLayout) has a block table for each of them
// as well: its block i has page i of the sequence, from position 0 on, or is
// void, below the cut of a region of the group's own. kNullBlock stands for a
// page that has fallen out of the window; so also in the tail of a model whose
// only group has a window. A region whose cut is not above the page of the
// first token that the next one attends to means nothing any more, but to a
// sequence that goes back after a loss. What a table still names before
// FirstPage of the tokens computed means nothing either; nor does that page in
// a sequence that goes on from one token before what was computed: no query
// will attend to it. Wherever the tail's blocks are named, those of the window
// groups follow, group by group.
#ifndef BLOCKMGR_STEP_PLAN_H_
#define BLOCKMGR_STEP_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// What an engine may have to know of a request besides its tokens: the same in
// every start of it.
struct RequestInfo {
  std::string id;                 // the frontend's, unique among live requests
  int32_t num_prompt_tokens = 0;  // the tokens behind them are outputs
  std::string lora;               // adapter; empty: none
  std::vector<MediaItem> media;   // inputs that are not text, ascending
  std::string engine_data;        // from the frontend; means nothing here
};

// A sequence that enters a slot (first admission or resumption), or starts
// again in its own. Its table starts without tail blocks and region, but for
// those that `region` or `source` names.
struct SequenceStart {
  SequenceSlot slot = kNoSequenceSlot;
  RequestId request{0};
  // Tokens known so far (prompt, and outputs when resumed):
  // start_tokens[token_begin .. token_begin + num_tokens).
  int64_t token_begin = 0;
  int32_t num_tokens = 0;
  // Tokens whose KV is in a shared region and shared blocks already (prefix
  // hit); the blocks, of the positions from the region's cut on, come first in
  // this step's new blocks, and those of the window groups, from position 0 on,
  // in its new window blocks (null before FirstPage, and below the cut of a
  // region that it takes there). If it is no multiple of page_size (and there
  // is no source), the last of them are the first rows of a cached block: a
  // copy of this step brings them into the block that comes next, the
  // sequence's own.
  int32_t num_cached_tokens = 0;
  // The sequence that has computed the cached tokens (which are its own first
  // ones, too), or kNoSequenceSlot. The start takes over its region, if any,
  // and the tail blocks that they are in, as its table was after the plan
  // before; nothing of them is among the new blocks. It may be the slot itself,
  // which is not `released` then: the sequence starts again after its first
  // num_cached_tokens, because the rest is lost.
  SequenceSlot source = kNoSequenceSlot;
  // The shared regions, which an earlier order told to keep, at a length that
  // num_cached_tokens is not below: group 0's, and of every window group the
  // one kept by this name, if its cut is above the page FirstPage of
  // num_cached_tokens. With `swap`, group 0's alone: the others come back.
  RegionId region = kNoRegion;
  // The sequence that was swapped out, whose first num_cached_tokens these are
  // and whose past this one has; the engine forgets it. What is not in shared
  // blocks comes back: plan.transfers_in[transfer_begin .. + num_transfers),
  // before this step computes anything. First, unless `region` stands for it,
  // its region, which is on these blocks from now on, in the order of those
  // before; then the last of its tail, whose blocks are among this step's new
  // ones; then, of every window group, its region's, and all pages behind it
  // or from FirstPage on.
  SwapId swap = kNoSwap;
  int64_t transfer_begin = 0;
  int32_t num_transfers = 0;
  // Queries before the end of each step to keep for scoring (0: none). Those of
  // rejected drafts do not count, and take no other's place.
  int32_t query_window = 0;
  // What to accumulate for scoring, from the query at position state_begin on.
  ScorerState scorer_state = ScorerState::kNone;
  int32_t state_begin = 0;
  // Never null in a scheduler's plan.
  std::shared_ptr<const RequestInfo> info = nullptr;
};

// A sequence that leaves its slot, which is among the `released` ones, and
// whose KV is copied to the host tier: of its first num_tokens tokens, as the
// plans before have left them. plan.transfers_out[transfer_begin ..
// + num_transfers) names the blocks of its region that have pages of it, in
// order, then of its tail, then the same of every window group: of its region,
// if its cut is above the page FirstPage of num_tokens, and of the pages behind
// it, else from FirstPage on. The blocks may be written by this very step: they
// are copied (to where they are safe) before.
struct SwapOut {
  SequenceSlot slot = kNoSequenceSlot;
  SwapId swap = kNoSwap;  // names it until it starts again or is dropped
  int32_t num_tokens = 0;
  int64_t transfer_begin = 0;
  int32_t num_transfers = 0;
};

// Evict: replace the entries of positions [0, cut) of a layer group by a region
// on `destinations` after this step has been computed. Of a window group, which
// has an order of its own after that of group 0, these are the entries that the
// token at position `length` attends to: see WindowEviction.
struct EvictionOrder {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t group = 0;
  int32_t cut = 0;     // a multiple of page_size, below length
  int32_t length = 0;  // tokens of the sequence after this step
  EvictionPolicy policy;
  EvictionTarget target;
  // plan.destinations[destination_begin .. + num_destinations)
  int64_t destination_begin = 0;
  int32_t num_destinations = 0;
  // The engine may not use more pages, in any shard.
  int64_t page_total = 0;
  // Where shards differ (budgets per head), what each of them may use instead,
  // [num_shards]; page_total is the largest. Else empty.
  std::vector<int64_t> shard_page_totals;
  // The name under which the engine keeps the regions that the sequence has in
  // all layer groups when the orders of this step are carried out, as long as
  // it is not dropped, for other sequences to start with: the one made here,
  // and of every window group the one that an order of this step makes there,
  // or an older one, if its cut is above the page FirstPage of `length`. Lists
  // and positions, not the blocks, which stay where they are; those of window
  // groups may become others' before the name is dropped, and nobody starts
  // with them then. kNoRegion: they are for this sequence alone. Orders of
  // window groups have no name.
  RegionId region = kNoRegion;
  // Caller's own scores or budgets (ScorerKind/BudgetKind::kExternal), else
  // null. Scores: [num_layers, num_heads, cut] indexed by position; budgets:
  // [num_layers, num_heads] entries.
  std::shared_ptr<const std::vector<float>> scores;
  std::shared_ptr<const std::vector<int32_t>> budgets;

  int64_t page_total_of(int32_t shard) const {
    return shard_page_totals.empty()
               ? page_total
               : shard_page_totals[static_cast<size_t>(shard)];
  }
};

struct StepPlan {
  StepId id{0};
  // Swapped-out sequences that will not come back.
  std::vector<SwapId> dropped_swaps;
  std::vector<SwapOut> swap_outs;
  std::vector<BlockTransfer> transfers_out;
  std::vector<SequenceSlot> released;
  std::vector<SequenceStart> starts;
  std::vector<BlockTransfer> transfers_in;
  std::vector<int32_t> start_tokens;
  // Kept regions that no sequence will start with any more.
  std::vector<RegionId> dropped_regions;
  // Of scheduled sequences, each at most once, by group. No block is both a
  // source and a destination.
  std::vector<CopyOnWrite> copies;

  // Scheduled sequences, struct of arrays: compute positions
  // [positions[i], positions[i] + num_tokens[i]) of slots[i].
  std::vector<SequenceSlot> slots;
  std::vector<int32_t> positions;
  std::vector<int32_t> num_tokens;
  // 1: the last position is the last known token: sample the next one. In
  // decode the input token is the one the engine sampled last for this slot.
  std::vector<uint8_t> samples;
  // Speculative decoding: the last num_drafts[i] of those positions, behind the
  // last known token, are for the first of the drafts that the engine has ready
  // for the sequence (StepResult::num_drafts): sample after the known token and
  // after every draft, and accept drafts from the first on as long as they are
  // what would have been sampled. The positions of the others are void, with
  // the tail blocks wholly behind the last accepted one; the next step of the
  // sequence computes them anew. Such a run samples, is alone in flight of its
  // sequence and has no eviction. [slots.size()], or empty: no drafts.
  std::vector<int32_t> num_drafts;
  // Blocks appended to each tail before computing, CSR.
  std::vector<int64_t> block_offsets;  // [slots.size() + 1]
  std::vector<BlockId> blocks;
  // The same for the window groups: run i, group 1 + j has
  // [i * num_window_groups + j]. Empty without such groups.
  std::vector<int64_t> window_offsets;  // [slots.size() * groups + 1]
  std::vector<BlockId> window_blocks;

  std::vector<EvictionOrder> evictions;
  std::vector<BlockId> destinations;

  // Empties every array and keeps their memory.
  void Clear();
  int64_t total_tokens() const;
};

// Outcome of plan.evictions[i]. Where it is not ok, nothing was moved, and the
// old table still holds: the request goes on without the eviction, or fails if
// it can never fit without. (An engine that fails when it has moved something
// names the blocks as lost, too.) If another group of the sequence was evicted
// from by this step, the request is computed again, without either.
struct EvictionOutcome {
  bool ok = true;
  std::string error;            // why not, if !ok
  std::vector<int32_t> counts;  // kept entries, [num_layers, num_heads]
  // The checksum of the page lists that the engine derived (layout_checksum.h).
  // An answer whose checksum is not the manager's is refused as a whole, since
  // the two no longer agree on what the pool holds. Not set: no check.
  std::optional<uint64_t> layout_checksum = std::nullopt;
};

struct StepResult {
  StepId id{0};
  // The token sampled last; -1 where samples[i] == 0. [slots.size()]
  std::vector<int32_t> sampled;
  // Of the drafts of every run, those that were accepted: they come before
  // `sampled`. [slots.size()], or empty: none.
  std::vector<int32_t> num_accepted;
  std::vector<int32_t> accepted;  // tokens, of one run after the other
  // Drafts that the engine has ready for the next step of every sequence that
  // samples; they hold until that step. While any running sequence has some,
  // no step is issued before what is in flight of it is answered: an engine
  // that has none reports 0, and steps are issued ahead. [slots.size()], or
  // empty: none.
  std::vector<int32_t> num_drafts;
  // For the frontends, of what each run has sampled, accepted drafts included:
  // log-probabilities, say. Any bytes, at most 16 KiB a run, handed on with the
  // first of these tokens; an empty string says nothing. [slots.size()], or
  // empty: none.
  std::vector<std::string> token_data;
  std::vector<EvictionOutcome> evictions;
  // Blocks that have lost their content, as far as it was written by this step
  // or before (a transfer that failed, memory that was taken away), copies that
  // were made of it included. Their memory is good. What this step and those in
  // flight answer for sequences that hold one is ignored; these go on from what
  // they have left, and the prefix cache forgets the blocks.
  std::vector<BlockId> lost_blocks;
  // Host blocks that do not hold what was copied to them by this step or
  // before: a copy that failed, or of lost content. Sequences that hold one are
  // computed again. Where one has been copied back already, that block is lost,
  // too, and named above.
  std::vector<HostBlockId> lost_host_blocks;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_STEP_PLAN_H_
