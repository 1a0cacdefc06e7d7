// TinyScoring: scores the entries of a sequence. ScoringState is what the tiny
// engine keeps for this: the queries of the last positions, sums of attention,
// and statistics of the queries.
//
// All of it depends on the sequence's tokens and evictions only, bit for bit,
// not on the batch or on the chunks of the prompt.
#ifndef ENGINE_REFERENCE_TINY_SCORING_H_
#define ENGINE_REFERENCE_TINY_SCORING_H_

#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/compaction.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/step_plan.h"
#include "engine/reference/tiny_model.h"
#include "engine/tables/tables.h"
#include "kernels/backend.h"

namespace blockmgr {

// The scoring state of one sequence, a plain value. Empty if the sequence will
// not be scored.
struct ScoringState {
  // A ring of the last queries: position p is in row p % num_rows. num_rows is
  // query_window + max_drafts, so that the rows of rejected drafts overwrite no
  // query that is still needed. [num_groups * num_layers, num_rows, q_width]
  std::vector<float> queries;
  int32_t num_rows = 0;
  int32_t first_query = 0;  // the first position whose query was computed here
  ScorerState kind = ScorerState::kNone;
  int32_t begin = 0;  // the first position whose query is accumulated
  // For kAttentionSums, by (layer, head) and position.
  std::vector<std::vector<float>> attention_sums;
  // For kQueryStatistics, by layer.
  std::vector<QueryStatistics> statistics;
};

// The candidates of an eviction, and what its policy reads of them. A vector
// that the policy does not read is empty.
struct ScoredEntries {
  EntryIndex candidates;  // positions below the cut
  std::vector<float> scores;
  std::vector<float> value_norms;
  std::vector<float> products;
};

// TinyScoring works on the heads of one shard: queries, entries and scores are
// those of its heads. A layer is a slot of a layer group, of group 0 unless
// another group is named. Model and backend are borrowed. Thread-compatible.
class TinyScoring {
 public:
  // max_drafts is the most drafts that a step verifies of a sequence. Nothing
  // is accumulated for a sequence with drafts. REQUIRES: backend->layout() is
  // whole.ShardLayout().
  TinyScoring(const LanguageModel* model, const ModelLayout& whole,
              int32_t shard, Backend* backend, int32_t max_drafts);

  // Sets the tables that orders may name. They are borrowed. REQUIRES: they are
  // for a model of this shape.
  void set_query_stats(const QueryStatsTables* tables) {
    query_stats_ = tables;
  }

  void Start(const SequenceStart& start, ScoringState* state) const;

  // Adds the queries of one layer and step to the state: positions [begin,
  // begin + count), after and before RoPE, [count, q_width]. The keys of these
  // positions are in the cache. `entries` are all live entries up to the last
  // position, and are read for kAttentionSums only.
  void Observe(int32_t layer, int32_t begin, int32_t count,
               const float* queries, const float* raw_queries,
               const EntryIndex& entries, ScoringState* state);

  // Stores the queries, but accumulates nothing. `row` is group * num_layers +
  // layer.
  void KeepQueries(int32_t row, int32_t begin, int32_t count,
                   const float* queries, ScoringState* state) const;

  // Scores the entries that an order covers. `all` has every live entry of the
  // order's group. FailedPrecondition if the sequence was not started with the
  // scorer state or the query window that the policy needs. NotFound if there
  // is no table of query statistics that the policy names.
  absl::Status Score(const EvictionOrder& order, const SequenceTable& table,
                     const ScoringState& state, const EntryIndex& all,
                     ScoredEntries* scored);

 private:
  // The slice of an EntryIndex for one layer, with offsets from 0.
  struct LayerEntries {
    std::vector<int64_t> offsets;
    int64_t begin = 0;
    EntryList list;
  };
  LayerEntries SliceLayer(const EntryIndex& entries, int32_t layer) const;
  void AddAttention(int32_t layer, int32_t begin, int32_t count,
                    const float* queries, const EntryIndex& entries,
                    ScoringState* state);
  // Copies `count` queries of one layer from position `first` on to window_.
  void CopyWindow(const ScoringState& state, int32_t layer, int32_t first,
                  int32_t count);
  absl::Status CheckState(const EvictionOrder& order,
                          const SequenceTable& table,
                          const ScoringState& state) const;
  // Computes the norms of values for a critical selector. They go to `whole`,
  // or to `batch` if the selector reads products, which the batch computes.
  void AddValueNorms(const EvictionOrder& order, const LayerEntries& slice,
                     ScoreBatch* batch, ScoredEntries* whole);
  // Sets what the scorer of a policy reads of the queries of a layer: sums of
  // attention, or statistics.
  void AddQueryState(const EvictionPolicy& policy, const ScoringState& state,
                     int32_t model_layer, const LayerEntries& slice,
                     ScoreBatch* batch);
  void ScoreLayer(const EvictionOrder& order, const SequenceTable& table,
                  const ScoringState& state, int32_t layer,
                  const EntryIndex& all, ScoredEntries* whole);

  size_t q_width() const {
    return static_cast<size_t>(layout_.num_q_heads) *
           static_cast<size_t>(layout_.head_dim);
  }

  const LanguageModel& model_;
  Backend& backend_;
  const ModelLayout whole_;
  const int32_t shard_;
  const ModelLayout layout_;  // of the shard
  const float scale_;         // of attention logits
  const int32_t max_drafts_;
  const QueryStatsTables* query_stats_ = nullptr;  // null means none
  std::vector<float> window_;                      // scratch
  std::vector<float> sums_;                        // scratch
  std::vector<float> norms_;                       // scratch
  QueryStatistics statistics_;                     // scratch, of a table
  // W_O of one layer for the shard's heads, [num_q_heads, head_dim, hidden].
  // Unpacked anew for every use: all layers of a large model would take
  // gigabytes, and the norms of a few entries cost more than unpacking.
  std::vector<float> output_projection_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_SCORING_H_
