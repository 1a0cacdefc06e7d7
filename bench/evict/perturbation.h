// MeasurePerturbation: how far evictions move the output of attention, measured
// on tensors. The quantities are those of blockmgr/eviction/diagnostics.h as
// means over queries.
#ifndef BENCH_EVICT_PERTURBATION_H_
#define BENCH_EVICT_PERTURBATION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/evict/tensors.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// Means over the queries, of one query head or of a layer. A layer's kept mass
// is the mean of its query heads', its bounds are the sums of theirs, and its
// outputs are the layer's: what heads change may cancel.
struct LossMeans {
  double kept_mass = 0.0;
  double ada_kv_bound = 0.0;
  double critical_kv_bound = 0.0;
  double perturbation = 0.0;  // |y - y^|_1
  double output_norm = 0.0;   // |y|_1

  // The mean perturbation over the mean norm; 0 where nothing changed.
  double relative() const {
    return perturbation == 0.0 ? 0.0 : perturbation / output_norm;
  }
};

struct PolicyLoss {
  std::vector<LossMeans> layers;   // [num_layers]
  std::vector<LossMeans> q_heads;  // [num_layers * num_q_heads]
  double kept_fraction = 0.0;      // of the entries of all heads
};

// Returns the mean of the layers' relative perturbations.
double MeanRelative(const PolicyLoss& loss);

// The default number of last queries that are measured: the observation
// window that scorers have by default, or all where there are fewer.
inline int32_t DefaultQueriesWindow(int32_t length) {
  return std::min(length, ScorerSpec().window);
}

struct PerturbationOptions {
  // The last so many queries; at most the length of the tensors.
  int32_t queries_window = 0;
  // Called after every layer.
  std::function<void(int32_t layers_done)> on_layer;
};

// Checks that there are queries, keys and values, that head_dim is what the
// kernels take, and that the window fits. Errors name the flag, what was
// expected and what came.
absl::Status CheckPerturbationInputs(const Tensors& tensors,
                                     const PerturbationOptions& options);

// One loss per keep set (ranks are positions, [num_layers, num_heads]). The
// query at position i attends entries <= i, before and after the eviction.
// Without output_projection, W_O counts as the identity: the output of a layer
// is its heads' side by side.
//
// |V_j W_O| is computed once for all keep sets, in fp32 products and double
// sums: length * num_q_heads * head_dim * model_dim multiply-adds per layer.
// The rest is in double and O(queries * num_q_heads * head_dim * (length +
// model_dim)) per keep set and layer. Memory: O(queries * model_dim) per keep
// set, and one head's V, W_O and attention.
absl::StatusOr<std::vector<PolicyLoss>> MeasurePerturbation(
    const Tensors& tensors, std::span<const KeepSets> keep,
    const PerturbationOptions& options);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PERTURBATION_H_
