// Learned sinks: one logit per query head that joins the denominator of the
// softmax and has no value (gpt-oss).
#ifndef KERNELS_CUDA_ATTENTION_SINK_LOGITS_CUH_
#define KERNELS_CUDA_ATTENTION_SINK_LOGITS_CUH_

#include <cmath>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Adds a sink to the sum of all weights of a row. The weights are relative to
// 2^max. Returns the factor of the weights and of the output. A row gets its
// sink once, when nothing else is added to it any more: a sink far above the
// logits then costs the weights no precision.
SIMT_DEVICE float AddSink(float sink, float* max, float* sum) {
  const float sink_log2 = sink * kLog2E;
  const float joint = fmaxf(*max, sink_log2);
  const float base = FiniteMax(joint);
  const float shrink = simt::Exp2(*max - base);
  *sum = *sum * shrink + simt::Exp2(sink_log2 - base);
  *max = joint;
  return shrink;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_SINK_LOGITS_CUH_
