// Records of the simulator's ledger: requests, tables, swaps, steps in flight,
// blocks and regions. LedgerBooks has all of them.
#ifndef TESTS_SIM_LEDGER_RECORDS_H_
#define TESTS_SIM_LEDGER_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "scheduler/request.h"
#include "tests/testing/books.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr::sim {

// LedgerRequest is a request that the scheduler has accepted.
struct LedgerRequest {
  Request request;  // a fork has the eviction that it inherits
  // Whether neither the request nor a parent of it was evicted so far.
  bool is_plain = false;
  // Tokens of the prompt that the request's own evictions are about. A fork
  // has the number of its parent.
  int32_t num_own = 0;
  std::vector<int32_t> tokens;  // the prompt and the settled outputs
  // Outputs that the steps in flight sample, drafts included.
  int32_t num_placeholders = 0;
  int32_t num_ready = 0;  // drafts that the engine has for the next run
  bool live = true;
  SequenceSlot slot = kNoSequenceSlot;
  // Blocks at the request's peak. The peak is 0 if it depends on evictions.
  int32_t peak = 0;
  int32_t num_preemptions = 0;
  // Cached tokens at the first admission. The number is -1 before it.
  int32_t num_cached = -1;
  // Evictions that took effect. A recomputation must replay them.
  std::vector<CanaryEviction> recorded;
  std::vector<CanaryEviction> issued;  // since the last start
  // Whether a replay may leave out evictions of the record. There are two
  // reasons. The engine has kept less than it was allowed: how many blocks
  // that takes depends on where the region before lay, so that the next
  // compression may free nothing in a replay (docs/limits.md). Or the engine
  // has refused in a replay an eviction that it had carried out before.
  bool kept_less = false;
  // Lengths of the request's own evictions that the engine has refused. They
  // must not be ordered again.
  std::set<int32_t> refused;
  // The lowest of these lengths, those of the parents included. Regions made
  // behind it are not shared.
  int32_t refused_at = INT32_MAX;

  int32_t num_prompt() const {
    return static_cast<int32_t>(request.prompt.size());
  }
  int32_t num_outputs() const {
    return static_cast<int32_t>(tokens.size()) - num_prompt();
  }
};

// LedgerContexts has one entry for each eviction of a sequence: the number of
// tokens at the eviction, and a text that names all evictions so far. Tokens
// from that number on are computed after these evictions.
using LedgerContexts = std::vector<std::pair<int32_t, std::string>>;

// LedgerGroup is one layer group of a sequence.
struct LedgerGroup : GroupBook {
  // Pages that the sequence has from the prefix cache at its start. Pages left
  // behind by the window count. Pages from the host tier do not.
  int32_t num_shared = 0;
};

// LedgerTable is a sequence in a slot.
struct LedgerTable {
  RequestId request{0};
  // An answer to a run of another stay in the slot counts for nothing.
  uint64_t stay = 0;
  std::vector<LedgerGroup> groups;
  int32_t num_reserved = 0;  // tokens of all runs, and those at the start
  int32_t num_settled = 0;   // tokens whose steps are answered
  // Whether the engine accumulates scores. Then tokens cannot be taken back.
  bool has_scores = false;
  LedgerContexts contexts;
  // Positions that a loss of blocks has left. TakeCuts clears them.
  std::optional<int32_t> num_sound;
  bool restart_due = false;  // the next plan must restart the sequence
  // Whether the sequence may take more blocks than it was promised. It has lost
  // blocks, a command has compressed it, or the engine has refused to.
  bool takes_more = false;
  // Whether the sequence may have left its slot: what it needs without the
  // eviction may be more than its tenant has left.
  bool may_leave = false;

  int32_t cut() const { return groups[0].region.cut; }
  // Returns the number of tokens at the last eviction.
  int32_t last_length() const {
    return contexts.empty() ? 0 : contexts.back().first;
  }
  // Returns whether an eviction is under way. Each one begins with group 0.
  bool has_order() const { return groups[0].pending.has_value(); }
  // Returns the blocks of all groups.
  std::set<BlockId> Blocks() const;
};

// LedgerSwap is a sequence in the host tier.
struct LedgerSwap {
  LedgerTable table;  // when it was swapped out; its blocks are void
  std::vector<CanaryEviction> issued;
  std::vector<HostBlockId> blocks;
  bool is_due = false;  // the next plan must drop the swap
};

// LedgerReturn is a block that a region comes back to from the host tier.
struct LedgerReturn {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t group = 0;
  BlockId block{0};
};

// LedgerStep is a step in flight.
struct LedgerStep {
  struct Run {
    SequenceSlot slot = kNoSequenceSlot;
    uint64_t stay = 0;
    RequestId request{0};
    int32_t num_tokens = 0;
    int32_t num_drafts = 0;
    bool samples = false;
  };
  // An eviction from one layer group.
  struct Order {
    size_t run = 0;
    int32_t group = 0;
    RegionId region = kNoRegion;
  };

  StepId id{0};
  std::vector<Run> runs;
  // Orders as in the plan. The orders of a run follow each other.
  std::vector<Order> orders;
};

// LedgerBlock is what the ledger knows of a block.
struct LedgerBlock {
  uint64_t fence = 0;  // the newest step that may touch the block
  // All tokens up to the end of the block. No tokens: unknown content.
  std::vector<int32_t> content;
  ContentScope scope;   // of the content
  std::string context;  // the evictions before the content was computed
  int32_t group = 0;    // the layer group of the content
};

// LedgerRegion is a region that the prefix cache keeps for later starts.
struct LedgerRegion {
  ContentScope scope;
  std::string plan;  // see PlanOf
  std::vector<int32_t> tokens;
  LedgerContexts contexts;                // of tokens computed over the region
  std::vector<BookRegion> regions;        // by group
  std::set<int32_t> gone;                 // groups that have lost their region
  std::vector<CanaryEviction> evictions;  // that made the region
};

// LedgerPeaks bounds the blocks that a request has at its peak.
struct LedgerPeaks {
  int32_t least = 0;  // without evictions
  int32_t most = 0;   // without evictions, or with those in windows alone
};

// Returns a text for what the first num_tokens tokens depend on besides
// themselves: tenant, adapter and salt, and all media that begin there.
std::string ScopeOf(const ContentScope& scope, int32_t num_tokens);

// Returns a text for what requests that share compressed prefixes agree on. The
// text is empty if the request shares none.
std::string PlanOf(const LedgerRequest& served);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_RECORDS_H_
