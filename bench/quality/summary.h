// Summary: figures with intervals, of samples.
#ifndef BENCH_QUALITY_SUMMARY_H_
#define BENCH_QUALITY_SUMMARY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/quality/bootstrap.h"
#include "bench/quality/samples.h"

namespace blockmgr {

// Below this KL nothing is said: rounding K and V to 16 bits is a KL of 0.0008
// on the model of scripts/fetch_model.sh.
inline constexpr double kMinTellingKl = 0.005;

// With fewer contexts no policy is called better. All differences of n contexts
// have one sign by chance alone in 1 of 2^(n - 1) experiments, and the interval
// then excludes 0: 1 of 32 for 6 contexts, 1 of 16 for 5.
inline constexpr size_t kMinTellingContexts = 6;

// A share of answers, by turn or by depth.
struct AnswerShare {
  int64_t num_answers = 0;
  double accuracy = 0.0;
};

// The parts into which a context is divided by depth.
inline constexpr int32_t kNumDepths = 5;

// One cell of one task and length. Values of a context with several questions
// are means over them, so intervals are those of independent contexts.
struct CellSummary {
  std::string target;  // "1" of the full cache
  std::string policy;  // "full" of the full cache
  Interval accuracy;
  Interval token_share;
  Interval kl;
  Interval nll;
  // Against the full cache on the same contexts.
  Interval accuracy_of_full;     // ratio; NaN if that one answers nothing
  Interval accuracy_difference;  // minus
  // Against the first policy at the same target. "": the intervals include 0,
  // there are too few contexts, or the cell is that policy's.
  Interval accuracy_gain;
  Interval kl_gain;  // negative: less loss
  std::string verdict;
  double kept_share = 0.0;
  double held_bytes = 0.0;
  double mean_entries = 0.0;
  double tokens_per_s = 0.0;
  std::vector<AnswerShare> by_turn;
  std::vector<AnswerShare> by_depth;  // [kNumDepths]
};

// All cells that were measured on the same contexts.
struct GroupSummary {
  std::string task;
  int32_t num_tokens = 0;
  std::string mode;
  int64_t num_contexts = 0;
  int64_t num_answers = 0;
  std::vector<CellSummary> cells = {};  // the full cache first
};

// Summarizes samples, in the order in which their groups first come. A sample
// must have the same cells as the first of its group; others are left out.
std::vector<GroupSummary> Summarize(std::span<const QualitySample> samples);

nlohmann::ordered_json SummaryToJson(std::span<const GroupSummary> groups);

// Returns the summary as a table in Markdown.
std::string SummaryTable(std::span<const GroupSummary> groups);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_SUMMARY_H_
