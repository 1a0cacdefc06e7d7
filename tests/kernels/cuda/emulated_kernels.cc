// The kernels of EmulatedRuntime that take long to compile.
#include "kernels/cuda/attention/chunk_sequence.cuh"
#include "kernels/cuda/attention/decode_sequence.cuh"
#include "kernels/cuda/scores/entry_sequence.cuh"
#include "kernels/cuda/scores/expected_sequence.cuh"
#include "kernels/cuda/scores/window_sequence.cuh"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace blockmgr {

void EmulatedRuntime::PlanDecode(const DecodePlanParams& params) {
  Do(RunPlanDecode<EmulatedLauncher>, params);
}

void EmulatedRuntime::Decode(const DecodeParams& params,
                             const RowShape& shape) {
  Do(RunDecodeAttention<EmulatedLauncher>, params, shape);
}

void EmulatedRuntime::Chunk(const ChunkParams& params, const RowShape& shape,
                            int32_t num_blocks) {
  Do(RunChunkAttention<EmulatedLauncher>, params, shape, num_blocks);
}

void EmulatedRuntime::WindowStats(const WindowParams& params,
                                  const RowShape& shape) {
  Do(RunWindowStats<EmulatedLauncher>, params, shape);
}

void EmulatedRuntime::WindowColumns(const WindowParams& params,
                                    const RowShape& shape) {
  Do(RunWindowColumns<EmulatedLauncher>, params, shape);
}

void EmulatedRuntime::PoolWindow(const PoolParams& params) {
  Do(RunPoolWindowScores<EmulatedLauncher>, params);
}

void EmulatedRuntime::Tova(const TovaParams& params) {
  Do(RunTovaScores<EmulatedLauncher>, params);
}

void EmulatedRuntime::AddDecodeAttention(const DecodeSumParams& params) {
  Do(RunAddDecodeAttention<EmulatedLauncher>, params);
}

void EmulatedRuntime::FinishH2o(const H2oScoreParams& params) {
  Do(RunFinishH2oScores<EmulatedLauncher>, params);
}

void EmulatedRuntime::KeyScores(const KeyScoreParams& params,
                                const RowShape& shape) {
  Do(RunKeyScores<EmulatedLauncher>, params, shape);
}

void EmulatedRuntime::ExpectedScores(const ExpectedParams& params,
                                     const RowShape& shape) {
  Do(RunExpectedScores<EmulatedLauncher>, params, shape);
}

void EmulatedRuntime::ValueNorms(const ValueNormParams& params,
                                 const RowShape& shape) {
  Do(RunValueNorms<EmulatedLauncher>, params, shape);
}

}  // namespace blockmgr
