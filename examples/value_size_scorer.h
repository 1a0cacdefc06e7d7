// A scorer of your own, for the CPU backend: docs/eviction.md walks through it.
#ifndef EXAMPLES_VALUE_SIZE_SCORER_H_
#define EXAMPLES_VALUE_SIZE_SCORER_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_scorer.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/key_ops.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

// Keeps the entries with large values: s[j] = |v_j|. Cost: reads V once.
class ValueSizeScorer final : public CpuScorer {
 public:
  explicit ValueSizeScorer(const ModelLayout& /*layout*/) {}

  void Score(const KvArena& arena, const ScoreBatch& batch) override {
    std::array<float, kTileRows> squares;
    for (int32_t head = 0; head < arena.layout().num_heads; ++head) {
      const HeadEntries entries = EntriesOf(batch.entries, head);
      const std::span<float> scores = entries.Of(batch.scores);
      ForEachTile(arena, entries.slots, RowKind::kValues,
                  [&](const KvTile& tile, int64_t begin, int32_t num_rows) {
                    SquaredNorms(tile, num_rows, squares.data());
                    for (int32_t row = 0; row < num_rows; ++row) {
                      scores[begin + row] = std::sqrt(squares[row]);
                    }
                  });
    }
  }
};

}  // namespace blockmgr

#endif  // EXAMPLES_VALUE_SIZE_SCORER_H_
