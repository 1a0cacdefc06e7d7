// The kernels of EmulatedRuntime that take long to compile.
#include "kernels/cuda/attention/chunk_sequence.cuh"
#include "kernels/cuda/attention/decode_sequence.cuh"
#include "kernels/cuda/scores/entry_sequence.cuh"
#include "kernels/cuda/scores/expected_sequence.cuh"
#include "kernels/cuda/scores/window_sequence.cuh"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace blockmgr {

void EmulatedRuntime::PlanDecode(const DecodePlanParams& params) {
  Do([&](EmulatedLauncher& launch) { return RunPlanDecode(params, launch); });
}

void EmulatedRuntime::Decode(const DecodeParams& params,
                             const RowShape& shape) {
  Do([&](EmulatedLauncher& launch) {
    return RunDecodeAttention(params, shape, launch);
  });
}

void EmulatedRuntime::Chunk(const ChunkParams& params, const RowShape& shape,
                            int32_t num_blocks) {
  Do([&](EmulatedLauncher& launch) {
    return RunChunkAttention(params, shape, num_blocks, launch);
  });
}

void EmulatedRuntime::WindowStats(const WindowParams& params,
                                  const RowShape& shape) {
  Do([&](EmulatedLauncher& launch) {
    return RunWindowStats(params, shape, launch);
  });
}

void EmulatedRuntime::WindowColumns(const WindowParams& params,
                                    const RowShape& shape) {
  Do([&](EmulatedLauncher& launch) {
    return RunWindowColumns(params, shape, launch);
  });
}

void EmulatedRuntime::PoolWindow(const PoolParams& params) {
  Do([&](EmulatedLauncher& launch) {
    return RunPoolWindowScores(params, launch);
  });
}

void EmulatedRuntime::Tova(const TovaParams& params) {
  Do([&](EmulatedLauncher& launch) { return RunTovaScores(params, launch); });
}

void EmulatedRuntime::AddDecodeAttention(const DecodeSumParams& params) {
  Do([&](EmulatedLauncher& launch) {
    return RunAddDecodeAttention(params, launch);
  });
}

void EmulatedRuntime::FinishH2o(const H2oScoreParams& params) {
  Do([&](EmulatedLauncher& launch) {
    return RunFinishH2oScores(params, launch);
  });
}

void EmulatedRuntime::KeyScores(const KeyScoreParams& params,
                                const RowShape& shape) {
  Do([&](EmulatedLauncher& launch) {
    return RunKeyScores(params, shape, launch);
  });
}

void EmulatedRuntime::ExpectedScores(const ExpectedParams& params,
                                     const RowShape& shape) {
  Do([&](EmulatedLauncher& launch) {
    return RunExpectedScores(params, shape, launch);
  });
}

void EmulatedRuntime::ValueNorms(const ValueNormParams& params,
                                 const RowShape& shape) {
  Do([&](EmulatedLauncher& launch) {
    return RunValueNorms(params, shape, launch);
  });
}

}  // namespace blockmgr
