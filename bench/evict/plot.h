// blockmgr-evict plot: budgets and perturbations of policies as SVG pictures.
#ifndef BENCH_EVICT_PLOT_H_
#define BENCH_EVICT_PLOT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "bench/evict/policy_flags.h"
#include "bench/evict/tensor_flags.h"

namespace blockmgr {

struct PlotFlags {
  TensorFlags tensors;
  PolicyFlags policies;
  std::string kind = "budgets";  // --kind budgets|loss|curve|recall
  // --keep-ratio, of budgets and loss; none: 0.2
  std::optional<std::string> keep_ratio;
  // --keep-ratios, of curve and recall
  std::vector<std::string> keep_ratios = {"0.05", "0.1", "0.2", "0.4", "0.8"};
  // --queries-window; none: DefaultQueriesWindow
  std::optional<int32_t> queries_window;
  bool log_y = false;         // --log-y
  int32_t query_tokens = 64;  // --query-tokens, of recall
  std::string output;         // --output
};

// The picture, an SVG document. Errors name the flag, expected and got.
absl::StatusOr<std::string> MakePlot(const PlotFlags& flags);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PLOT_H_
