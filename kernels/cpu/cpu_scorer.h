// The scorers that read the pool, on the CPU. docs/eviction.md says how to add
// a scorer.
#ifndef KERNELS_CPU_CPU_SCORER_H_
#define KERNELS_CPU_CPU_SCORER_H_

#include <memory>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cpu/kv_arena.h"

namespace blockmgr {

// A CpuScorer computes the scores of one ScorerKind for CpuBackend.
//
// A scorer may keep scratch memory between calls. The memory grows to the
// largest call. The result depends on the batch and on the rows alone, not on
// earlier calls. Thread-compatible.
class CpuScorer {
 public:
  virtual ~CpuScorer() = default;

  // Fills batch.scores, and batch.products if batch.q_head_norms is not empty.
  // Only a scorer whose row in policy_fields.h says has_products is given
  // q_head_norms. Higher scores are kept.
  //
  // CpuBackend has checked the layer, the entries, and that there are as many
  // scores as entries.
  virtual void Score(const KvArena& arena, const ScoreBatch& batch) = 0;
};

// Returns whether the CPU has a scorer of this kind.
bool HasCpuScorer(ScorerKind kind);

// Returns a new scorer for pools of this layout.
// REQUIRES: HasCpuScorer(kind).
std::unique_ptr<CpuScorer> MakeCpuScorer(ScorerKind kind,
                                         const ModelLayout& layout);

}  // namespace blockmgr

#endif  // KERNELS_CPU_CPU_SCORER_H_
