// The scores of one layer of a sequence, by the CPU kernels: its K and V in an
// arena of their own, and what a scorer keeps of the queries that came by.
#ifndef BENCH_EVICT_LAYER_SCORER_H_
#define BENCH_EVICT_LAYER_SCORER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/evict/tensors.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "kernels/backend.h"

namespace blockmgr {

// Checks that the tensors hold all that scorer and selector read. Errors name
// the tensor, its reader, what was expected and what came.
absl::Status CheckTensors(const EvictionPolicy& policy, const Tensors& tensors);

// Policy, table and tensors are borrowed. Memory: K and V of one layer once
// more. Thread-compatible.
class LayerScorer {
 public:
  // `query_stats` is the table that the policy names, or null if it names none.
  // REQUIRES: CheckTensors is OK, and the table is for the shape of the
  // tensors. Errors are those of ModelLayout::Validate and of the arena.
  static absl::StatusOr<std::unique_ptr<LayerScorer>> Create(
      const EvictionPolicy& policy, const Tensors& tensors, int32_t layer,
      int32_t page_size, DType dtype,
      const QueryStatsTable* query_stats = nullptr);

  // Takes in the queries at positions [begin, end), which saw `entries` up to
  // themselves. Calls go on where the last one ended.
  void Observe(int32_t begin, int32_t end, const EntryList& entries);

  // Scores of a sequence of `length` tokens, all of whose queries were
  // observed. Each span is [entries.offsets.back()] or empty: not wanted.
  // value_norms and products are for critical (kernels/backend.h).
  void Score(int32_t length, const EntryList& entries, std::span<float> scores,
             std::span<float> value_norms, std::span<float> products);

  SlotIndex SlotOf(int32_t head, int32_t position) const;

 private:
  LayerScorer(const EvictionPolicy& policy, const QueryStatsTable* query_stats,
              const Tensors& tensors, int32_t layer, const ModelLayout& layout,
              std::unique_ptr<Backend> backend);

  const LayerTensors& tensors() const;
  // Appends all K and V; what was not given is zero, and nobody reads it.
  void Store();
  void ValueNorms(const EntryList& entries, bool per_query_head,
                  std::span<float> norms);
  // Calls use(entry, index into [num_heads, length]) for every entry.
  template <typename Use>
  void ForEach(const EntryList& entries, Use use) const;
  void GatherSums(const EntryList& entries, std::vector<float>* sums) const;
  void ScatterSums(const EntryList& entries, std::span<const float> sums);
  void MakeRandomScores(const EntryList& entries,
                        std::span<float> scores) const;

  const EvictionPolicy& policy_;
  const Tensors& all_;
  const int32_t layer_;
  const ModelLayout layout_;
  const float scale_;                       // of attention logits
  const std::unique_ptr<Backend> backend_;  // null: nothing reads K or V
  std::vector<double> inverse_frequencies_;
  QueryStatistics statistics_;
  std::vector<float> sums_;     // [num_heads, length], by position
  std::vector<float> queries_;  // scratch
};

}  // namespace blockmgr

#endif  // BENCH_EVICT_LAYER_SCORER_H_
