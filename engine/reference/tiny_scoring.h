// What the tiny engine keeps of a sequence to score its entries by, and the
// scores themselves: queries of the last positions, attention summed up,
// statistics of the queries.
//
// Everything depends on the sequence's tokens and evictions alone, bit for bit:
// not on the batch, nor on how the prompt was cut into chunks.
#ifndef ENGINE_REFERENCE_TINY_SCORING_H_
#define ENGINE_REFERENCE_TINY_SCORING_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "engine/tables/tables.h"
#include "engine/reference/tiny_model.h"
#include "blockmgr/compaction.h"
#include "blockmgr/step_plan.h"
#include "kernels/backend.h"

namespace blockmgr {

// Of one sequence. A plain value; empty for a sequence nobody will score.
struct ScoringState {
  // Queries of the last positions, position p in row p % num_rows: of the last
  // query_window, and as many more as drafts may be rejected, whose rows are
  // not those of what is still wanted. [num_groups * num_layers, num_rows,
  // q_width].
  std::vector<float> queries;
  int32_t num_rows = 0;
  int32_t first_query = 0;  // queries before this position never existed
  ScorerState kind = ScorerState::kNone;
  int32_t begin = 0;  // the first position whose query is accumulated
  // kAttentionSums, by (layer, head) and position.
  std::vector<std::vector<float>> attention_sums;
  // kQueryStatistics, by layer.
  std::vector<QueryStatistics> statistics;
};

// Candidates of an eviction with what its policy reads. Empty: not read.
struct ScoredEntries {
  EntryIndex candidates;  // positions below the cut
  std::vector<float> scores;
  std::vector<float> value_norms;
  std::vector<float> products;
};

// Of the heads of one shard: queries, entries and scores are those of its
// heads, a layer is a slot of a layer group, group 0 unless another is named.
// Thread-compatible. Model and backend are borrowed.
class TinyScoring {
 public:
  // max_drafts: that a step may verify of a sequence. Nothing is accumulated
  // for one that has any. REQUIRES: backend->layout() is whole.ShardLayout().
  TinyScoring(const TinyModel* model, const ModelLayout& whole, int32_t shard,
              Backend* backend, int32_t max_drafts);

  void Start(const SequenceStart& start, ScoringState* state) const;

  // One layer of a step: rows of the queries at positions [begin, begin +
  // count), after and before RoPE, [count, q_width]. Keys of these positions
  // are in the cache; `entries` are all live entries up to the last of them,
  // and are read for kAttentionSums only.
  void Observe(int32_t layer, int32_t begin, int32_t count,
               const float* queries, const float* raw_queries,
               const EntryIndex& entries, ScoringState* state);

  // The same without what is accumulated. row: group * num_layers + layer.
  void KeepQueries(int32_t row, int32_t begin, int32_t count,
                   const float* queries, ScoringState* state) const;

  // `all`: every live entry of the order's group. FailedPrecondition when the
  // sequence was not started with what the policy needs.
  absl::Status Score(const EvictionOrder& order, const SequenceTable& table,
                     const ScoringState& state, const EntryIndex& all,
                     ScoredEntries* scored);

 private:
  // One layer's slice of an EntryIndex, with offsets from 0.
  struct LayerEntries {
    std::vector<int64_t> offsets;
    int64_t begin = 0;
    EntryList list;
  };
  LayerEntries SliceLayer(const EntryIndex& entries, int32_t layer) const;
  void AddAttention(int32_t layer, int32_t begin, int32_t count,
                    const float* queries, const EntryIndex& entries,
                    ScoringState* state);
  // The window's queries of one layer, oldest first.
  void CopyWindow(const ScoringState& state, int32_t layer, int32_t first,
                  int32_t count);
  absl::Status CheckState(const EvictionOrder& order,
                          const SequenceTable& table,
                          const ScoringState& state) const;
  // Sizes of values for a critical selector: into `whole`, or for products
  // into `batch`, which makes them.
  void AddValueNorms(const EvictionOrder& order, const LayerEntries& slice,
                     ScoreBatch* batch, ScoredEntries* whole);
  void ScoreLayer(const EvictionOrder& order, const SequenceTable& table,
                  const ScoringState& state, int32_t layer,
                  const EntryIndex& all, ScoredEntries* whole);

  size_t q_width() const {
    return static_cast<size_t>(layout_.num_q_heads) *
           static_cast<size_t>(layout_.head_dim);
  }

  const TinyModel& model_;
  Backend& backend_;
  const ModelLayout whole_;
  const int32_t shard_;
  const ModelLayout layout_;  // of the shard
  const float scale_;         // 1 / sqrt(head_dim)
  const int32_t max_drafts_;
  std::vector<double> inverse_frequencies_;
  std::vector<float> window_;  // scratch
  std::vector<float> sums_;    // scratch
  std::vector<float> norms_;   // scratch
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_SCORING_H_
