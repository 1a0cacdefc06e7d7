// The size of what an entry adds to the output of its layer: the norm of its
// value after the output projection (CriticalKV, 2502.03805).
#ifndef KERNELS_CPU_VALUE_NORMS_H_
#define KERNELS_CPU_VALUE_NORMS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/packed_ops.h"

namespace blockmgr {

// ValueNormer computes the norm of v W, where W is [head_dim, model_dim], the
// rows of W_O of one query head. L1 is the sum over m of |sum over d of v_d
// W[d, m]|. L2 is the root of <v, G v> with G = W W^T. The norms of a value
// depend on the value and on W alone.
//
// Cost of L1: entries * head_dim * model_dim multiply-adds per query head.
// Nothing of size entries * model_dim is held. Cost of L2: head_dim^2 *
// model_dim per query head and call for G, then entries * head_dim^2. Scratch:
// W transposed and one row of norms. Thread-compatible.
class ValueNormer {
 public:
  explicit ValueNormer(const ModelLayout& layout);

  void Run(const KvArena& arena, const ValueNormBatch& batch);

 private:
  // Sets norms[j] = |v_j W|_1. weights: [head_dim, model_dim].
  void L1(const KvArena& arena, const float* weights, int32_t model_dim,
          std::span<const SlotIndex> slots, std::span<float> norms);
  void L2(const KvArena& arena, const float* weights, int32_t model_dim,
          std::span<const SlotIndex> slots, std::span<float> norms);
  // Sets gram_ = W W^T.
  void Gram(const float* weights, int32_t model_dim);

  const ModelLayout layout_;
  AlignedFloats packed_;            // kNormTiles tiles
  std::vector<float> columns_;      // W^T: [model_dim, head_dim]
  std::vector<const float*> rows_;  // rows of columns_, of gram_ or of a block
  std::vector<double> gram_sums_;   // [head_dim, head_dim]
  std::vector<float> gram_;         // [head_dim, head_dim]
  std::vector<float> dots_;         // [head_dim, kTileRows]
  std::vector<float> row_;          // one query head's norms
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_VALUE_NORMS_H_
