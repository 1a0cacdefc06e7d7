#include "bench/evict/policy_runner.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "bench/evict/layer_scorer.h"
#include "bench/evict/parity.h"
#include "bench/evict/parity_budgets.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {
namespace {

// Candidates by (layer, head), CSR; positions ascend per head.
struct Candidates {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> positions;
};

// A policy's input, by entry of the candidates; empty: the policy needs none.
struct EntryData {
  std::vector<float> scores;
  std::vector<float> value_norms;
  std::vector<float> products;
};

// One call of RunPolicy or RunPolicyByBlocks.
class Runner {
 public:
  Runner(const ParityPolicy& policy, const EvictionTarget& target,
         const Tensors& tensors, const PolicyRunOptions& options)
      : policy_(policy), target_(target), tensors_(tensors), options_(options) {
    if (tensors.length > 0) ResolveRecent(target, tensors.length, &policy_);
    shape_.num_layers = tensors.num_layers();
    shape_.num_heads = tensors.num_heads;
    shape_.page_size = options.page_size;
  }

  absl::Status Check() const {
    BM_RETURN_IF_ERROR(policy_.Validate());
    BM_RETURN_IF_ERROR(CheckParity(policy_));
    // Published programs may keep nothing.
    if (policy_.parity == Parity::kNone) {
      BM_RETURN_IF_ERROR(target_.Validate());
    }
    if (options_.page_size < 1 || options_.page_size > kMaxRunPageSize) {
      return Invalid("page_size: expected a number in [1, ", kMaxRunPageSize,
                     "], got ", options_.page_size);
    }
    if (tensors_.layers.empty() || tensors_.length < 1) {
      return absl::InvalidArgumentError(
          "tensors: expected at least one layer "
          "and position, got none");
    }
    BM_RETURN_IF_ERROR(CheckTensors(policy_, tensors_));
    const size_t heads =
        Unsigned(shape_.num_layers) * Unsigned(shape_.num_heads);
    if (policy_.budget.kind == BudgetKind::kExternal &&
        options_.budgets.size() != heads) {
      return Invalid("budgets: expected ", heads,
                     ", one per (layer, head), got ", options_.budgets.size());
    }
    const auto& [layers, heads_each] = options_.budgets_shape;
    if (layers != 0 &&
        (layers != shape_.num_layers || heads_each != shape_.num_heads)) {
      return Invalid("budgets: expected [", shape_.num_layers, ", ",
                     shape_.num_heads, "], layers and KV heads, got [", layers,
                     ", ", heads_each, "]");
    }
    BM_RETURN_IF_ERROR(CheckQueryStats());
    if (!policy_.needs_table()) return absl::OkStatus();
    if (options_.table == nullptr) {
      return Invalid("table: expected one, for ", EnumName(policy_.budget.kind),
                     " reads it, got none");
    }
    return CheckTable(policy_, shape_, *options_.table);
  }

  absl::StatusOr<PolicyRun> Run() {
    const Candidates all = Prefix(tensors_.length);
    EntryData data = MakeData(all);
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      BM_ASSIGN_OR_RETURN(const auto scorer, MakeScorer(layer));
      WithLayer(*scorer, layer, all, [&](const EntryList& entries) {
        scorer->Observe(0, tensors_.length, entries);
      });
      ScoreLayer(*scorer, layer, tensors_.length, all, &data);
    }
    PolicyRun run;
    run.keep = Select(tensors_.length, all, data);
    SetBudgets(&run);
    run.scores = std::move(data.scores);
    run.value_norms = std::move(data.value_norms);
    run.products = std::move(data.products);
    return run;
  }

  absl::StatusOr<PolicyRun> RunByBlocks(int32_t block) {
    std::vector<std::unique_ptr<LayerScorer>> scorers;
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      BM_ASSIGN_OR_RETURN(scorers.emplace_back(), MakeScorer(layer));
    }
    int32_t begin = 0;
    int32_t end = std::min(target_.tokens, tensors_.length);
    Candidates held = Prefix(end);
    int64_t num_nan = 0;
    while (true) {
      for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
        LayerScorer& scorer = *scorers[Unsigned(layer)];
        WithLayer(scorer, layer, held, [&](const EntryList& entries) {
          scorer.Observe(begin, end, entries);
        });
      }
      if (begin > 0) num_nan += EvictOnce(scorers, end, &held);
      if (end == tensors_.length) break;
      begin = end;
      end += std::min(block, tensors_.length - end);
      Extend(begin, end, &held);
    }
    PolicyRun run;
    run.keep.offsets = std::move(held.offsets);
    run.keep.ranks = std::move(held.positions);
    run.keep.num_nan = num_nan;
    SetBudgets(&run);
    return run;
  }

 private:
  absl::Status CheckQueryStats() const {
    if (!policy_.needs_query_stats()) return absl::OkStatus();
    if (options_.query_stats == nullptr) {
      return absl::InvalidArgumentError(
          "table: expected query statistics, for expected_attention reads "
          "them, got none");
    }
    // Keys and values do not tell the number of query heads.
    const LayerTensors& layer = tensors_.layers.front();
    const bool has_q_heads = !layer.queries.empty() ||
                             !layer.raw_queries.empty() ||
                             !layer.output_projection.empty();
    const QueryStatsTable& table = *options_.query_stats;
    const bool fits = table.num_q_heads % tensors_.num_heads == 0;
    return table.CheckShape(
        shape_.num_layers,
        has_q_heads || !fits ? tensors_.num_q_heads : table.num_q_heads,
        tensors_.head_dim);
  }

  int64_t num_heads() const {
    return int64_t{shape_.num_layers} * shape_.num_heads;
  }

  absl::StatusOr<std::unique_ptr<LayerScorer>> MakeScorer(int32_t layer) const {
    return LayerScorer::Create(
        policy_, tensors_, layer, options_.page_size, options_.dtype,
        policy_.needs_query_stats() ? options_.query_stats : nullptr);
  }

  // Positions [0, end) of every head.
  Candidates Prefix(int32_t end) const {
    Candidates all;
    for (int64_t head = 0; head < num_heads(); ++head) {
      all.offsets.push_back(all.offsets.back());
    }
    Extend(0, end, &all);
    return all;
  }

  // Adds positions [begin, end) to every head.
  void Extend(int32_t begin, int32_t end, Candidates* candidates) const {
    Candidates longer;
    for (size_t head = 0; head < Unsigned(num_heads()); ++head) {
      longer.positions.insert(
          longer.positions.end(),
          candidates->positions.begin() + candidates->offsets[head],
          candidates->positions.begin() + candidates->offsets[head + 1]);
      for (int32_t position = begin; position < end; ++position) {
        longer.positions.push_back(position);
      }
      longer.offsets.push_back(static_cast<int64_t>(longer.positions.size()));
    }
    *candidates = std::move(longer);
  }

  EntryData MakeData(const Candidates& candidates) const {
    const size_t count = candidates.positions.size();
    EntryData data;
    if (policy_.score_source() != ScoreSource::kPosition) {
      data.scores.resize(count);
    }
    if (policy_.selector.kind == SelectorKind::kCritical) {
      auto& sizes =
          policy_.selector.gqa_product ? data.products : data.value_norms;
      sizes.resize(count);
    }
    return data;
  }

  // Calls use with one layer's candidates as the kernels want them.
  template <typename Use>
  void WithLayer(const LayerScorer& scorer, int32_t layer,
                 const Candidates& candidates, Use use) const {
    const size_t first = Unsigned(layer) * Unsigned(shape_.num_heads);
    const int64_t begin = candidates.offsets[first];
    std::vector<int64_t> offsets;
    for (size_t head = 0; head <= Unsigned(shape_.num_heads); ++head) {
      offsets.push_back(candidates.offsets[first + head] - begin);
    }
    const auto positions =
        std::span(candidates.positions)
            .subspan(Unsigned(begin), Unsigned(offsets.back()));
    std::vector<SlotIndex> slots;
    slots.reserve(positions.size());
    for (int32_t head = 0; head < shape_.num_heads; ++head) {
      for (int64_t i = offsets[Unsigned(head)]; i < offsets[Unsigned(head) + 1];
           ++i) {
        slots.push_back(scorer.SlotOf(head, positions[Unsigned(i)]));
      }
    }
    use(EntryList{.offsets = offsets, .slots = slots, .positions = positions});
  }

  void ScoreLayer(LayerScorer& scorer, int32_t layer, int32_t length,
                  const Candidates& candidates, EntryData* data) const {
    const size_t begin = Unsigned(
        candidates.offsets[Unsigned(layer) * Unsigned(shape_.num_heads)]);
    WithLayer(scorer, layer, candidates, [&](const EntryList& entries) {
      const auto part = [&](std::vector<float>& values) {
        return values.empty()
                   ? std::span<float>()
                   : std::span(values).subspan(begin, entries.positions.size());
      };
      scorer.Score(length, entries, part(data->scores), part(data->value_norms),
                   part(data->products));
    });
  }

  KeepSets Select(int32_t length, const Candidates& candidates,
                  const EntryData& data) const {
    const EvictionRange range{length, length};
    std::vector<int32_t> external = options_.budgets;
    if (policy_.needs_table()) {
      external = ParityTableBudgets({policy_, target_, shape_, range},
                                    *options_.table);
    }
    const EntriesView view{.offsets = candidates.offsets,
                           .positions = candidates.positions,
                           .scores = data.scores,
                           .value_norms = data.value_norms,
                           .products = data.products};
    return SelectParity({policy_, target_, shape_, range}, view, external);
  }

  // Evicts from `held`, which ends at position `length`. Returns the NaNs.
  int64_t EvictOnce(std::span<const std::unique_ptr<LayerScorer>> scorers,
                    int32_t length, Candidates* held) const {
    EntryData data = MakeData(*held);
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      ScoreLayer(*scorers[Unsigned(layer)], layer, length, *held, &data);
    }
    KeepSets keep = Select(length, *held, data);
    std::vector<int32_t> positions;
    positions.reserve(keep.ranks.size());
    for (size_t head = 0; head < Unsigned(num_heads()); ++head) {
      for (int64_t i = keep.offsets[head]; i < keep.offsets[head + 1]; ++i) {
        positions.push_back(held->positions[Unsigned(held->offsets[head] +
                                                     keep.ranks[Unsigned(i)])]);
      }
    }
    held->offsets = std::move(keep.offsets);
    held->positions = std::move(positions);
    return keep.num_nan;
  }

  // A head keeps exactly its budget.
  void SetBudgets(PolicyRun* run) const {
    for (size_t head = 0; head < Unsigned(num_heads()); ++head) {
      run->budgets.push_back(static_cast<int32_t>(run->keep.offsets[head + 1] -
                                                  run->keep.offsets[head]));
    }
  }

  ParityPolicy policy_;
  const EvictionTarget& target_;
  const Tensors& tensors_;
  const PolicyRunOptions& options_;
  HeadShape shape_;
};

}  // namespace

absl::StatusOr<PolicyRun> RunPolicy(const ParityPolicy& policy,
                                    const EvictionTarget& target,
                                    const Tensors& tensors,
                                    const PolicyRunOptions& options) {
  Runner runner(policy, target, tensors, options);
  BM_RETURN_IF_ERROR(runner.Check());
  return runner.Run();
}

absl::StatusOr<PolicyRun> RunPolicyByBlocks(const ParityPolicy& policy,
                                            const EvictionTarget& target,
                                            const Tensors& tensors,
                                            int32_t block,
                                            const PolicyRunOptions& options) {
  Runner runner(policy, target, tensors, options);
  BM_RETURN_IF_ERROR(runner.Check());
  if (target.kind != EvictionTarget::Kind::kTokens || target.tokens < 1) {
    return absl::InvalidArgumentError(
        "target: expected a number of tokens for processing by blocks, got a "
        "ratio or none");
  }
  if (block < 1) {
    return Invalid("block: expected at least 1, got ", block);
  }
  return runner.RunByBlocks(block);
}

double KeptFraction(const KeepSets& keep, int32_t length) {
  return static_cast<double>(keep.ranks.size()) /
         (static_cast<double>(keep.offsets.size() - 1) * length);
}

}  // namespace blockmgr