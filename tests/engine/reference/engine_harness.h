// Drives a TinyEngine with hand-written plans: the smallest block manager that
// can. It allocates from a free list, never shares blocks by itself, and keeps
// per slot what a manager would. Blocks that fall out of a window, and regions
// there that it has passed, are free after the step, and the first to be taken
// again.
#ifndef TESTS_ENGINE_REFERENCE_ENGINE_HARNESS_H_
#define TESTS_ENGINE_REFERENCE_ENGINE_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/step_plan.h"
#include "engine/reference/tiny_engine.h"
#include "kernels/backend.h"
#include "tests/engine/reference/shard_merger.h"

namespace blockmgr {

// Where the destinations of an eviction come from.
enum class DestinationKind { kFresh, kOwn, kMixed };

// Logits after a prompt, and after each of the tokens that follow.
using LogitRows = std::vector<std::vector<float>>;

// Returns the positions that one (layer, head) keeps, ascending.
std::vector<int32_t> KeptPositions(const EntryIndex& candidates,
                                   const KeepSets& keep, size_t head_index);

class EngineHarness {
 public:
  // What one eviction did, as the observer saw it.
  struct Eviction {
    EvictionOrder order;
    EntryIndex candidates;
    std::vector<float> scores;
    KeepSets keep;
    EvictionOutcome outcome;
    std::vector<int32_t> KeptPositions(size_t head_index) const {
      return blockmgr::KeptPositions(candidates, keep, head_index);
    }
  };

  EngineHarness(const std::shared_ptr<const LanguageModel>& model, DType dtype,
                int32_t num_blocks = 512, int32_t num_shards = 1,
                int32_t num_host_blocks = 0);
  // On these, one for each shard, of pages of 16 tokens. The engine has a table
  // of query statistics, "measured".
  EngineHarness(std::shared_ptr<const LanguageModel> model,
                std::vector<std::unique_ptr<Backend>> backends,
                int32_t num_host_blocks = 0, bool captures_graphs = true);

  // These add to the next plan. `shared`: blocks of a cached prefix.
  void Start(int32_t slot, std::vector<int32_t> prompt,
             int32_t query_window = 32, std::span<const BlockId> shared = {});
  // Starts on the first num_pages pages of another slot that has not run much
  // further; that slot is released last.
  void StartOnPages(int32_t slot, std::vector<int32_t> prompt, int32_t source,
                    int32_t num_pages);
  // Starts on the regions that are kept by this name, and on so many pages
  // behind group 0's of another slot, which has not run much further; that slot
  // is released last.
  void StartOnRegion(int32_t slot, std::vector<int32_t> prompt, int32_t source,
                     RegionId region, int32_t num_pages = 1);
  void Schedule(int32_t slot, int32_t num_tokens);
  void Release(int32_t slot);
  void Evict(int32_t slot, int32_t cut, const std::string& policy,
             const EvictionTarget& target, DestinationKind kind);
  // The same in every layer group.
  void EvictEverywhere(int32_t slot, int32_t cut, const std::string& policy,
                       const EvictionTarget& target, DestinationKind kind);
  // The plan so far, to spoil.
  StepPlan& plan() { return plan_; }

  // Runs the plan and starts the next one. Samples whenever all known tokens
  // are computed.
  absl::Status Run();

  // Runs the whole prompt in chunks of the given sizes; returns the logits
  // after the last token.
  std::vector<float> Prefill(int32_t slot, std::span<const int32_t> chunks);
  // One decode step; returns its logits.
  std::vector<float> Decode(int32_t slot);
  // A prompt in chunks, and greedy tokens.
  LogitRows Generate(int32_t slot, std::span<const int32_t> chunks,
                     int32_t num_decodes);

  const StepResult& result() const { return result_; }
  // Of the last run; empty when the slot did not sample.
  const std::vector<float>& logits(int32_t slot) const {
    return logits_[static_cast<size_t>(slot)];
  }
  const std::vector<Eviction>& evictions() const { return evictions_; }
  // Prompt and sampled tokens.
  const std::vector<int32_t>& tokens(int32_t slot) const {
    return sequences_[static_cast<size_t>(slot)].tokens;
  }
  // A group's blocks from its cut on, as a manager has them: null before
  // FirstPage.
  const std::vector<BlockId>& blocks(int32_t slot, int32_t group = 0) const {
    return sequences_[static_cast<size_t>(slot)]
        .groups[static_cast<size_t>(group)]
        .blocks;
  }
  size_t num_free() const { return free_.size(); }
  const LanguageModel& model() const { return engine_->model(); }
  const ModelLayout& layout() const { return engine_->tables().layout(); }
  TinyEngine& engine() { return *engine_; }

 private:
  static constexpr size_t kNumSlots = 16;

  struct Group {
    int32_t cut = 0;
    std::vector<BlockId> region;  // the sequence's own
    std::vector<BlockId> blocks;  // from the cut on
  };
  struct Sequence {
    std::vector<int32_t> tokens;
    int32_t computed = 0;
    std::set<BlockId> shared;  // blocks that are not its own
    std::vector<Group> groups;
    std::optional<SequenceStart> start;  // not scheduled yet
  };

  BlockId Allocate();
  // Adds blocks to a table until it has num_pages, and says which are new.
  void Extend(int32_t num_pages, std::vector<BlockId>* table,
              std::vector<BlockId>* added);
  void FreeOwn(const Sequence& sequence, std::span<const BlockId> blocks);
  // Returns the blocks of a sequence for pages [begin, end) of a group, null
  // before FirstPage of so many pages.
  std::vector<BlockId> SharedPages(const Sequence& from, int32_t group,
                                   int32_t begin, int32_t end) const;
  // Frees what has fallen out of windows.
  void LeaveBehind(Sequence* sequence);
  // With slot, group, cut, policy and target; finds the rest.
  void AddOrder(EvictionOrder order, DestinationKind kind);
  void Commit(const EvictionOrder& order);
  // What an order's name stands for, once all orders of its step are committed.
  void Keep(const EvictionOrder& order);

  std::unique_ptr<TinyEngine> engine_;
  std::unique_ptr<ShardMerger> merger_;
  std::vector<BlockId> free_;
  std::vector<Sequence> sequences_;
  // Cuts by layer group, of what a name stands for.
  std::map<RegionId, std::vector<int32_t>> kept_;
  StepPlan plan_;
  StepResult result_;
  uint64_t num_steps_ = 0;
  std::vector<std::vector<float>> logits_;
  std::vector<Eviction> evictions_;
};

}  // namespace blockmgr

#endif  // TESTS_ENGINE_REFERENCE_ENGINE_HARNESS_H_
