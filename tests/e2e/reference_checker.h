// Watches a TinyEngine and compares everything it computes with a dense float64
// model: the logits after every sampled token, and the kept set of every
// eviction with the policy run on dense tensors.
//
// Requests are told apart by RequestId, so that a sequence that is preempted
// and recomputed in another slot is held against the same reference. A position
// computed again must give the logits of the reference again; an eviction done
// again must keep the same positions again.
//
// Costs a dense forward pass per position. Thread-compatible: the engine's
// thread calls it; read the results when that thread is done.
#ifndef TESTS_E2E_REFERENCE_CHECKER_H_
#define TESTS_E2E_REFERENCE_CHECKER_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <absl/base/thread_annotations.h>

#include "engine/reference/tiny_engine.h"
#include "scheduler/server/mutex.h"
#include "tests/e2e/dense_scores.h"
#include "tests/engine/reference/shard_merger.h"
#include "tests/testing/dense_reference.h"

namespace blockmgr {

// How far an engine's results may be from those of the dense model.
struct ReferenceMargins {
  double logits = 1e-3;
  // 0: an engine keeps what the policy keeps by the dense scores, but for
  // entries whose scores are equal but for rounding. Else it keeps what the
  // policy keeps by the engine's own scores, value norms and products, which
  // are, layer by layer, as near the dense ones:
  // ||own - dense|| <= scores * ||dense||.
  double scores = 0;
};

// Counts of what has been compared.
struct ReferenceCounts {
  int64_t logits = 0;
  int64_t evictions = 0;
  int64_t window_evictions = 0;  // those of layer groups with a window
  int64_t replays = 0;  // those of sequences that had been through them before
  // Regions of groups with a window that sequences have begun with, as parts of
  // compressed prefixes.
  int64_t window_regions_taken = 0;
};

class ReferenceChecker {
 public:
  // Logits of a request by position: as the engine computed them.
  using LogitsByPosition = std::map<int32_t, std::vector<float>>;

  // Borrows the engine and becomes its observer.
  ReferenceChecker(TinyEngine* engine,
                   std::shared_ptr<const LanguageModel> model,
                   const ReferenceMargins& margins = {});

  const ReferenceCounts& counts() const { return counts_; }
  // By prompt, for comparing runs whose request ids differ.
  const std::map<std::vector<int32_t>, LogitsByPosition>& logits() const {
    return logits_;
  }
  // Tells how many prompt tokens a request has: its logits are filed under
  // them. Any thread.
  void ExpectPrompt(std::vector<int32_t> prompt) {
    const MutexLock lock(&mutex_);
    prompts_.push_back(std::move(prompt));
  }

 private:
  // Of one layer group.
  struct Point {
    int32_t length = 0;
    int32_t cut = 0;
    int32_t group = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
    friend auto operator<=>(const Point&, const Point&) = default;
  };
  // Kept positions per head.
  using Evictions = std::map<Point, std::vector<std::vector<int32_t>>>;
  struct Sequence {
    std::unique_ptr<DenseReference> reference;
    std::map<int32_t, std::vector<double>> expected;  // logits by position
    Evictions kept;
    // Of its last order of group 0.
    RegionId name = kNoRegion;
    int32_t name_length = 0;
  };

  // A sequence begins with what others have evicted, or comes back to it, or
  // to more than that.
  void OnStart(const SequenceStart& start);
  void OnLogits(SequenceSlot slot, int32_t position,
                std::span<const float> logits);
  void OnEviction(const EvictionOrder& order, const ScoredEntries& scored,
                  const KeepSets& keep);
  void ExpectNear(const std::vector<int64_t>& offsets,
                  const std::vector<float>& own,
                  const std::vector<float>& dense) const;
  // What the policy keeps by these scores, shard by shard.
  KeepSets SelectDensely(const EvictionOrder& order,
                         const EntryIndex& candidates,
                         const DenseScores& dense) const;
  Sequence& Find(SequenceSlot slot);
  // Feeds known tokens up to `length`.
  void Advance(SequenceSlot slot, Sequence* sequence, int32_t length);
  // The candidates are what the reference's heads attend.
  void ExpectAttended(const EvictionOrder& order, const Sequence& sequence,
                      const EntryIndex& candidates) const;
  void Keep(const std::vector<std::vector<int32_t>>& kept, const Point& point,
            DenseReference* reference) const;
  // Notes what an order, which sequence->kept has, made for the name of its
  // step, if there is one.
  void NoteName(const EvictionOrder& order, Sequence* sequence);
  // The first position that an order's group attends to.
  int32_t FirstOf(const EvictionOrder& order) const;
  void FileLogits(SequenceSlot slot, int32_t position,
                  std::span<const float> logits);
  // The longest expected prompt that these tokens go on from and is no
  // longer than `length`; empty if there is none.
  std::vector<int32_t> PromptOf(const std::vector<int32_t>& tokens,
                                int32_t length);

  TinyEngine* const engine_;
  const std::shared_ptr<const LanguageModel> model_;
  const ReferenceMargins margins_;
  ShardMerger merger_;
  std::map<RequestId, Sequence> sequences_;
  std::map<RegionId, Evictions> regions_;  // that made those that are kept
  Mutex mutex_;
  std::vector<std::vector<int32_t>> prompts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::vector<int32_t>, LogitsByPosition> logits_;
  ReferenceCounts counts_;
};

}  // namespace blockmgr

#endif  // TESTS_E2E_REFERENCE_CHECKER_H_
