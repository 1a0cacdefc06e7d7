// Measures what compressing a prompt's cache does to the answers.
//
// The context of a prompt is computed once, with the full cache. The blocks
// stay in the prefix cache, so every cell starts with them. A cell is a request
// that is compressed at its end, and a fork of it that goes on with questions
// and known answers (teacher forcing). The fork starts on the compressed cache:
// the other blocks are free by then.
#ifndef BENCH_QUALITY_MEASURE_H_
#define BENCH_QUALITY_MEASURE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include <absl/status/statusor.h>

#include "bench/quality/cells.h"
#include "bench/quality/model_line.h"
#include "bench/quality/prompts.h"

namespace blockmgr {

// AnswerOutcome says how well one answer came out.
struct AnswerOutcome {
  bool correct = false;      // every token was the most likely one
  double token_share = 0.0;  // of the answer's tokens that were
  double nll = 0.0;          // negative log-likelihood, mean over tokens
  double kl = 0.0;           // from the full cache's distribution, likewise
  double depth = -1.0;       // QualityTurn::depth

  friend bool operator==(const AnswerOutcome&, const AnswerOutcome&) = default;
};

// CellOutcome is the result of one cell for one prompt.
struct CellOutcome {
  std::vector<AnswerOutcome> answers;
  double kept_share = 1.0;  // of the entries of the compressed tokens
  int64_t held_bytes = 0;   // of the blocks that hold them
  // Entries of a head, its own one included, when a token of a question or an
  // answer is computed: mean over these tokens and all heads.
  double mean_entries = 0.0;
  double tokens_per_s = 0.0;  // of questions and answers

  friend bool operator==(const CellOutcome&, const CellOutcome&) = default;
};

// Measures the full cache in a mode, and then each cell of that mode. REQUIRES:
// all cells have this mode. `on_cell` is called after each. The first outcome
// is that of the full cache.
absl::StatusOr<std::vector<CellOutcome>> MeasurePrompt(
    const QualityPrompt& prompt, std::span<const QualityCell> cells,
    ModelLine* line, const std::function<void()>& on_cell);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_MEASURE_H_
