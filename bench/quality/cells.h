// Cells: what is measured of each prompt. A cell is a policy, how much it
// keeps, and when the cache is compressed.
#ifndef BENCH_QUALITY_CELLS_H_
#define BENCH_QUALITY_CELLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "scheduler/request.h"
#include "scheduler/server/budget_tables.h"

namespace blockmgr {

// When a cache is compressed, and what is asked then.
struct QualityMode {
  enum class Kind : uint8_t {
    kAware,       // at the end of the prompt, which has the question
    kAgnostic,    // at the end of the context; all questions are turns after it
    kEveryChunk,  // as kAgnostic, but after every `every` tokens, too
    kDecode,      // as kAgnostic, and after every `every` tokens of the turns
  };
  Kind kind = Kind::kAgnostic;
  int32_t every = 0;  // tokens, for kEveryChunk and kDecode

  // Parses "aware", "agnostic", "every-chunk=128" or "decode=64". An
  // InvalidArgument names --modes, what was expected and what came.
  static absl::StatusOr<QualityMode> Parse(absl::string_view text);
  std::string ToString() const;

  friend bool operator==(const QualityMode&, const QualityMode&) = default;
};

struct QualityCell {
  QualityMode mode;
  std::string target;  // "0.2", or "64 tokens"
  std::string policy;  // its canonical text
  RequestEviction eviction;

  // "agnostic/0.2/keydiff | adakv | topk".
  std::string name() const;
};

struct CellFlags {
  std::vector<std::string> modes;
  std::vector<std::string> policies;
  std::vector<std::string> keep_ratios;
  std::vector<int32_t> keep_tokens;
};

// Returns all combinations: modes, then targets, then policies. Errors name the
// flag, what was expected and what came.
absl::StatusOr<std::vector<QualityCell>> MakeCells(const CellFlags& flags,
                                                   const BudgetTables& tables);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_CELLS_H_
