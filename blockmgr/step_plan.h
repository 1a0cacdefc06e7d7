// StepPlan and StepResult: what crosses between the scheduler and a host
// engine.
//
// A plan is one step, as flat arrays and changes to the engine's tables. The
// result is the engine's answer. Both are plain data, immutable once issued.
//
// The engine keeps a table per sequence slot: the tokens and, for every layer
// group of the model (ModelLayout), a region and a block table. The region
// stands for the positions [0, cut) of its group; the cut of a group without a
// region is 0. The blocks of the table, one per page_size tokens, have the
// positions from the cut on. Two groups of one sequence may have different
// cuts:
//
//   position  0           cut of 0          computed  reserved
//   group 0   |  region   |block|block|block|blo..|.....|
//   group 1   |null |null |block|block|block|blo..|.....|   with a window
//   group 2   |     region      |block|block|blo..|.....|   with a window
//
// A window group attends to the last tokens only. kNullBlock stands in its
// table for a page that left the window before the sequence started.
//
// The engine applies a plan in this order: `dropped_swaps`, `swap_outs`,
// `released`, `starts`, `dropped_regions`, `copies`, new blocks, compute,
// evictions. An eviction changes the table for the steps after the one that
// carries it. Every other change holds at once. Steps are executed and answered
// in the order of their ids.
//
// Wherever a plan names blocks of a sequence, the blocks of group 0 come first,
// then the blocks of group 1, and so on.
//
// Two things in the table of a window group have no meaning, because no query
// will attend to them: entries before FirstPage of the computed tokens, and a
// region whose cut is not above the page of the first token that the next token
// attends to. A sequence that is cut back after a loss may need such a region
// again.
#ifndef BLOCKMGR_STEP_PLAN_H_
#define BLOCKMGR_STEP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/sampling_params.h"

namespace blockmgr {

// RequestInfo is what an engine may need of a request besides its tokens. Every
// start of the request carries the same RequestInfo.
struct RequestInfo {
  std::string id;                 // the frontend's, unique among live requests
  int32_t num_prompt_tokens = 0;  // the tokens behind them are outputs
  // The name of the adapter. Empty if there is none.
  std::string lora;
  std::vector<MediaItem> media;  // inputs that are not text, ascending
  // The frontend's bytes for the engine, which this library does not read.
  std::string engine_data;
  // Without a value, tokens are chosen greedily. The seed is set.
  std::optional<SamplingParams> sampling = std::nullopt;
  // With sampling->min_tokens: the tokens that the first min_tokens outputs are
  // none of, ascending. Stop tokens and the engine's end tokens, even with
  // ignore_eos. Empty without min_tokens.
  std::vector<int32_t> stop_token_ids = {};
};

// A sequence that enters a slot, because it is admitted or resumed, or that
// starts again in its own slot. Its table begins empty, except for what
// `region`, `source` and `swap` name.
struct SequenceStart {
  SequenceSlot slot = kNoSequenceSlot;
  RequestId request{0};
  // The known tokens (the prompt, and the outputs so far of a resumed request)
  // are start_tokens[token_begin .. token_begin + num_tokens).
  int64_t token_begin = 0;
  int32_t num_tokens = 0;
  // The first num_cached_tokens have their KV already, in shared regions and
  // shared blocks (a prefix hit). In every group the shared blocks cover the
  // positions from the cut of the region on that the sequence takes there. They
  // come first among the group's new blocks of this step. Before FirstPage of
  // num_cached_tokens they are null. If the number is no multiple of page_size
  // and there is no source, the last of these tokens are the first rows of a
  // cached block. A copy of this step brings the rows into the next block,
  // which is the sequence's own.
  int32_t num_cached_tokens = 0;
  // The slot of the sequence that has computed the cached tokens, or
  // kNoSequenceSlot. This start is a fork of that sequence: it takes over the
  // source's regions, if any, and the blocks of the cached tokens, as the
  // source's table was after the plan before. These blocks are not among the
  // new ones. The source may be the slot itself. Then the slot is not
  // `released`, and the sequence starts again after its first
  // num_cached_tokens, because the rest is lost.
  SequenceSlot source = kNoSequenceSlot;
  // The name of shared regions, which an earlier order (EvictionOrder::region)
  // told the engine to keep at a length of at most num_cached_tokens. In every
  // group the sequence takes the region of this name if its cut is above the
  // page FirstPage of num_cached_tokens, which is page 0 without a window. With
  // `swap` it takes group 0's region only, because the others come back.
  RegionId region = kNoRegion;
  // The swapped-out sequence that comes back here, to its first
  // num_cached_tokens; the engine then forgets the swap. What is not in shared
  // blocks is copied back before this step computes anything:
  // plan.transfers_in[transfer_begin .. + num_transfers). The transfers are,
  // for one group after the other:
  //  1. the blocks of the region. The region lies on these blocks from now on,
  //     in the order of the old ones. If `region` names a shared region of
  //     group 0, these transfers of group 0 are left out.
  //  2. the blocks of the pages behind the region that were copied out. They
  //     are among this step's new blocks. Of group 0, the first of these pages
  //     may be in shared blocks, and their transfers are left out.
  SwapId swap = kNoSwap;
  int64_t transfer_begin = 0;
  int32_t num_transfers = 0;
  // The number of queries before the end of each step that the engine keeps for
  // scoring. Queries of rejected drafts are not kept, and displace no other
  // query.
  int32_t query_window = 0;
  // The state that the engine accumulates for scoring, from the query at
  // position state_begin on.
  ScorerState scorer_state = ScorerState::kNone;
  int32_t state_begin = 0;
  // Never null in a scheduler's plan.
  std::shared_ptr<const RequestInfo> info = nullptr;
};

// A sequence whose KV is copied to the host tier while it leaves its slot. The
// slot is among the `released` ones. The first num_tokens tokens are copied, as
// the plans before have left them.
//
// The copies are plan.transfers_out[transfer_begin .. + num_transfers), for one
// group after the other: the blocks of the region that hold pages of it, then
// the blocks of the pages behind the region. A region counts if its cut is
// above the page FirstPage of num_tokens. The pages before FirstPage are not
// copied. This very step may write to the blocks, so the engine copies them
// before.
struct SwapOut {
  SequenceSlot slot = kNoSequenceSlot;
  SwapId swap = kNoSwap;  // names it until it starts again or is dropped
  int32_t num_tokens = 0;
  int64_t transfer_begin = 0;
  int32_t num_transfers = 0;
};

// Orders an eviction: after this step is computed, the engine replaces the
// entries of positions [0, cut) of one layer group by a region on
// `destinations`. A window group has an order of its own, which follows that of
// group 0 and covers the entries that the token at position `length` attends to
// (see WindowEviction).
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
  // The most pages that the region may have, in each shard.
  int64_t page_total = 0;
  // The most pages of each shard, [num_shards], where shards differ because of
  // budgets per head; page_total is the largest of them. Empty otherwise.
  std::vector<int64_t> shard_page_totals;
  // A name under which the engine keeps regions for other sequences to start
  // with, until a plan drops the name. kNoRegion: no other sequence will start
  // with them. Orders of window groups have no name of their own.
  //
  // The engine keeps the region of every group, as it is after the orders of
  // this step, whose cut is above the page FirstPage of `length`: in group 0
  // the region made here. It keeps page lists and positions; the blocks stay
  // where they are. The blocks of window groups may be handed to other
  // sequences before the name is dropped. No sequence starts with those regions
  // then.
  RegionId region = kNoRegion;
  // The caller's own scores (ScorerKind::kExternal), [num_layers, num_heads,
  // cut], indexed by position, and budgets (BudgetKind::kExternal),
  // [num_layers, num_heads] entries. Null for other policies.
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
  // Copies of shared blocks that scheduled sequences are about to write to: at
  // most one per sequence and group. No block is both a source and a
  // destination. The engine copies, and replaces the source by the destination
  // in the block table (CopyOnWrite).
  std::vector<CopyOnWrite> copies;

  // Scheduled sequences, struct of arrays: compute positions
  // [positions[i], positions[i] + num_tokens[i]) of slots[i].
  std::vector<SequenceSlot> slots;
  std::vector<int32_t> positions;
  std::vector<int32_t> num_tokens;
  // 1 if the engine samples a token for slots[i]: the last position is that of
  // the last known token. In decode the input token is the one that the engine
  // sampled last for this slot.
  std::vector<uint8_t> samples;
  // Speculative decoding, [slots.size()], or empty without drafts. The last
  // num_drafts[i] positions of run i, behind the last known token, are for the
  // first of the drafts that the engine has ready for the sequence
  // (StepResult::num_drafts). The engine samples after the known token and
  // after every draft. It accepts drafts from the first on, as long as each
  // equals the token that was sampled before it. The positions of rejected
  // drafts are void, as are blocks wholly behind the last accepted draft. The
  // next step of the sequence computes these positions anew. A run with drafts
  // samples, has no eviction, and is the only run of its sequence in flight.
  std::vector<int32_t> num_drafts;
  // The blocks appended to the block tables before computing (CSR). Row
  // r = i * num_groups + g has the blocks of group g of run i:
  // blocks[block_offsets[r] .. block_offsets[r + 1]).
  std::vector<int64_t> block_offsets;  // [slots.size() * num_groups + 1]
  std::vector<BlockId> blocks;

  std::vector<EvictionOrder> evictions;
  std::vector<BlockId> destinations;

  // Empties every array and keeps their memory.
  void Clear();
  int64_t total_tokens() const;
  // Returns the blocks appended to the table of a layer group of a run.
  // REQUIRES: the arrays have the sizes that they say.
  std::span<const BlockId> NewBlocks(const ModelLayout& layout, size_t run,
                                     int32_t group = 0) const {
    const size_t row = run * static_cast<size_t>(layout.num_groups()) +
                       static_cast<size_t>(group);
    return std::span(blocks).subspan(
        static_cast<size_t>(block_offsets[row]),
        static_cast<size_t>(block_offsets[row + 1] - block_offsets[row]));
  }
};

// The outcome of plan.evictions[i].
//
// If it is not ok, the engine has moved nothing and the old table still holds.
// The request goes on without the eviction, or fails if it can never fit
// without. An engine that fails after it has moved something must name the
// blocks as lost, too. If this step evicted from another group of the same
// sequence, the request is computed again, without either eviction.
struct EvictionOutcome {
  bool ok = true;
  // The reason if ok is false.
  std::string error;
  std::vector<int32_t> counts;  // kept entries, [num_layers, num_heads]
  // The checksum of the page lists that the engine derived (layout_checksum.h).
  // The manager refuses the whole answer if its own checksum is another one:
  // the two no longer agree on what the pool holds. Without a value nothing is
  // checked.
  std::optional<uint64_t> layout_checksum = std::nullopt;
};

// The log-probabilities that one run brought. TokenLogProbs::first_index is not
// looked at.
struct RunLogProbs {
  int32_t run = 0;  // index into plan.slots
  // For a request with prompt_logprobs: a row for every token of the prompt
  // behind the run's first position, up to the one after its last position.
  TokenLogProbs prompt = {};
  // For a request with logprobs: a row for every accepted draft, and one for
  // the sampled token.
  TokenLogProbs outputs = {};
};

// The text of a run's request contains one of its stop strings, and the string
// ends in the token that the run sampled last (StepResult::sampled). The
// request ends with this token.
struct StopMatch {
  int32_t run = 0;   // index into plan.slots
  int32_t stop = 0;  // index into SamplingParams::stop
};

struct StepResult {
  StepId id{0};
  // The token that each run sampled last, -1 where samples[i] is 0.
  // [slots.size()]
  std::vector<int32_t> sampled;
  // The number of accepted drafts of each run, [slots.size()], or empty without
  // drafts. Accepted tokens come before `sampled`.
  std::vector<int32_t> num_accepted;
  std::vector<int32_t> accepted;  // tokens, of one run after the other
  // The number of drafts that the engine has ready for the next step of each
  // sequence that sampled, [slots.size()], or empty without drafts. The drafts
  // hold until that step. While a running sequence has drafts, the scheduler
  // issues no step before the steps in flight of that sequence are answered. So
  // an engine without drafts reports 0, and steps are issued ahead.
  std::vector<int32_t> num_drafts;
  // Bytes for the frontend about the tokens that each run sampled, accepted
  // drafts included. At most 16 KiB a run. They are handed on with the first of
  // these tokens. [slots.size()], or empty without any; an empty string is
  // handed to nobody.
  std::vector<std::string> token_data;
  // The log-probabilities of runs whose requests ask for them, by ascending
  // run.
  std::vector<RunLogProbs> logprobs;
  // The runs whose requests end with a stop string, by ascending run. If the
  // string ends in a draft, the engine accepts only the drafts before that
  // token, and the token is the run's `sampled`.
  std::vector<StopMatch> stop_matches;
  std::vector<EvictionOutcome> evictions;
  // Blocks that have lost what this step or an earlier one wrote to them, for
  // example because a transfer failed. The engine names copies made of lost
  // content as well. The memory itself is good. Sequences that hold a lost
  // block go on from what they have left, and the answers of this step and of
  // steps in flight for them are ignored. The prefix cache forgets the blocks.
  std::vector<BlockId> lost_blocks;
  // Host blocks that do not hold what this step or an earlier one copied to
  // them, because the copy failed or its source was lost. Sequences that hold
  // one are computed again. If the host block was already copied back, the
  // engine names the block it was copied to in lost_blocks.
  std::vector<HostBlockId> lost_host_blocks;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_STEP_PLAN_H_
