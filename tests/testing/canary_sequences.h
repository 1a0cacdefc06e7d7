// CanarySequences: the sequences of a CanaryEngine, and what their slots must
// hold.
//
// EngineTables say where each sequence has its entries. CanaryContents say what
// must be there. CanarySequences keeps the contents of the sequences in the
// tables, of those that were swapped out, and of regions that orders have
// named. It tells which blocks a sequence reads or holds.
//
// A layer group with a window reads no more than its queries attend to. What a
// table names before that may be another sequence's.
//
// Thread-compatible.
#ifndef TESTS_TESTING_CANARY_SEQUENCES_H_
#define TESTS_TESTING_CANARY_SEQUENCES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/ragged_region.h"
#include "blockmgr/region_layout.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables.h"

namespace blockmgr {

// Returns the hash of a list that goes on with `value`. `hash` is that of the
// list before.
inline uint64_t ExtendHash(uint64_t hash, uint64_t value) {
  return SplitMix64(hash ^ (value + 0x1000));
}

// An eviction that was carried out.
struct CanaryEviction {
  int32_t length = 0;
  int32_t cut = 0;
  friend bool operator==(const CanaryEviction&,
                         const CanaryEviction&) = default;
};

// CanaryContents is what the slots of a sequence must hold.
struct CanaryContents {
  bool is_open = false;
  uint64_t incarnation = 0;  // unique for every start of a sequence
  std::shared_ptr<const RequestInfo> info;
  int32_t num_cached = 0;
  std::vector<uint64_t> chain;    // hash of the tokens up to each position
  std::vector<uint64_t> content;  // what each computed position must hold
  // The step that computed each position. Step 0 stands for a cached position,
  // which another sequence may have computed.
  std::vector<StepId> steps;
  uint64_t history = 0;  // hash of the evictions so far
  std::vector<CanaryEviction> evictions;
  std::vector<std::vector<int32_t>> positions;  // in regions, by group
  int32_t first_query = 0;                      // of the last run
  // Whether the sequence has computed with lost content. What follows from that
  // stays wrong, even if the window has left the lost content behind.
  bool is_tainted = false;

  int32_t length() const { return static_cast<int32_t>(content.size()); }
  // Computes the next position in `step`. REQUIRES: its token is in the chain.
  void Compute(StepId step) {
    content.push_back(ExtendHash(chain[length()], history));
    steps.push_back(step);
  }
  // Forgets everything behind the first `length` tokens.
  void Cut(int32_t length);
};

// CanaryView is what a group of a sequence has from a position on.
struct CanaryView {
  std::optional<RaggedRegion> region;
  std::span<const BlockId> tail;
  int32_t tail_begin = 0;

  CacheView cache() const {
    return {.region = region.has_value() ? &*region : nullptr,
            .tail_blocks = tail,
            .tail_begin = tail_begin};
  }
};

class CanarySequences {
 public:
  // Borrows the tables. Slots are below `max_sequences`.
  CanarySequences(const EngineTables& tables, int32_t max_sequences)
      : tables_(tables), layout_(tables.layout()), contents_(max_sequences) {}

  const SequenceTable& row(SequenceSlot slot) const {
    return tables_.row(slot);
  }
  CanaryContents& contents(SequenceSlot slot) { return contents_[Index(slot)]; }
  const CanaryContents& contents(SequenceSlot slot) const {
    return contents_[Index(slot)];
  }
  // Returns the evictions that made a region. REQUIRES: the region is kept.
  const std::vector<CanaryEviction>& evictions(RegionId id) const {
    return regions_.at(id).contents.evictions;
  }

  // Follows a plan that the tables have applied: swaps, ends, starts and
  // dropped regions.
  absl::Status Apply(const StepPlan& plan);
  // Makes the chain as long as the tokens that the tables know.
  void ExtendChain(SequenceSlot slot);
  // Follows an order that the tables have committed. `ranks` are the entries
  // that it kept, and `positions` are those of the new region.
  void Evict(const EvictionOrder& order, std::span<const int32_t> ranks,
             std::vector<int32_t> positions);
  // Forgets everything. Incarnations stay unique.
  void Clear();

  // Returns the first position that the token after `length` attends to.
  int32_t FirstAttended(int32_t group, int32_t length) const;
  // Returns the region of a group if one of its positions from `first` on may
  // be in the region, or else null.
  const RegionLayout* RegionFrom(SequenceSlot slot, int32_t group,
                                 int32_t first) const;
  // Returns what the group has of the positions [first, end).
  CanaryView ViewOf(SequenceSlot slot, int32_t group, int32_t first,
                    int32_t end) const;
  // Returns the entries that an order may keep.
  CanaryView ViewBelow(const EvictionOrder& order) const;
  // Returns the blocks of all groups that the next token attends to.
  std::vector<BlockId> LiveBlocks(SequenceSlot slot) const {
    return BlocksFrom(slot, contents(slot).length());
  }
  // Returns the blocks of all groups that the last run has read or written.
  std::vector<BlockId> ReadBlocks(SequenceSlot slot) const {
    return BlocksFrom(slot, contents(slot).first_query);
  }
  // Returns the number of sequences that have each block among their live ones.
  std::vector<int32_t> CountHolders() const;
  // Returns the blocks of group 0 of all kept regions.
  std::vector<BlockId> KeptBlocks() const;

 private:
  // KeptRegion is what orders told to keep by one name.
  struct KeptRegion {
    CanaryContents contents;      // of the sequence that it was made of
    std::vector<BlockId> blocks;  // of group 0
  };

  absl::Status Start(const SequenceStart& start);
  // Gives the start what `past` has computed of its first `length` tokens.
  absl::Status GoOn(const CanaryContents& past, int32_t length,
                    const SequenceStart& start);
  // Returns the blocks of all groups from what the token after `length` attends
  // to.
  std::vector<BlockId> BlocksFrom(SequenceSlot slot, int32_t length) const;

  const EngineTables& tables_;
  const ModelLayout& layout_;
  std::vector<CanaryContents> contents_;  // by slot
  absl::flat_hash_map<RegionId, KeptRegion> regions_;
  absl::flat_hash_map<SwapId, CanaryContents> swaps_;
  uint64_t next_incarnation_ = 1;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_SEQUENCES_H_
