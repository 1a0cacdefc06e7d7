// The launches of layers; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_LAYERS_LAYER_SEQUENCE_CUH_
#define KERNELS_CUDA_LAYERS_LAYER_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/layers/block_sums.cuh"
#include "kernels/cuda/layers/layer_rows.cuh"
#include "kernels/cuda/layers/layer_rows.h"
#include "kernels/cuda/layers/row_products.cuh"
#include "kernels/cuda/layers/token_draws.cuh"
#include "kernels/cuda/layers/token_draws.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns the threads of a block for so many elements, some of them for each
// thread. Whole warps, at most `most`.
inline int64_t ThreadsFor(int64_t elements, int64_t most) {
  constexpr int64_t kPerThread = 8;
  const int64_t warps = CeilDivide(elements, kPerThread * 32);
  return warps * 32 < most ? warps * 32 : most;
}

// Returns run(T()) for the element type.
template <typename Run>
bool ForElement(ElementType type, const Run& run) {
  return type == ElementType::kHalf ? run(simt::Half()) : run(simt::BFloat16());
}

template <typename Launcher>
bool RunEmbed(const EmbedParams& params, ElementType type, Launcher& launch) {
  return ForElement(type, [&](auto element) {
    return launch(
        SizeOf(params.num_rows, 1, ThreadsFor(params.width, kLayerThreads)),
        kKernel<EmbedLayerRows<decltype(element)>>, params);
  });
}

template <typename Launcher>
bool RunNormalize(const NormParams& params, ElementType type,
                  Launcher& launch) {
  return ForElement(type, [&](auto element) {
    return launch(
        SizeOf(params.num_rows, 1, ThreadsFor(params.width, kLayerThreads),
               kBlockSumBytes),
        kKernel<NormalizeLayerRows<decltype(element)>>, params);
  });
}

// `shape` is that of the pool's rows.
template <typename Launcher>
bool RunPrepareHeads(const HeadParams& params, const RowShape& shape,
                     Launcher& launch) {
  const int64_t heads =
      int64_t{params.num_rows} * (params.num_q_heads + 2 * params.num_heads);
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return launch(SizeOf(CeilDivide(heads, kHeadThreads / 32), 1, kHeadThreads),
                  kKernel<PrepareHeadRows<T, kDim>>, params);
  });
}

template <typename Launcher>
bool RunMergeAttention(const MergeParams& params, ElementType type,
                       ElementType pool_type, Launcher& launch) {
  const int64_t chunks = int64_t{params.num_rows} * (params.width / 8);
  return ForElement(type, [&](auto element) {
    return ForElement(pool_type, [&](auto pool_element) {
      return launch(
          SizeOf(CeilDivide(chunks, kMergeThreads), 1, kMergeThreads),
          kKernel<
              MergeAttentionRows<decltype(element), decltype(pool_element)>>,
          params);
    });
  });
}

template <typename Launcher>
bool RunGate(const GateParams& params, ElementType type, Launcher& launch) {
  return ForElement(type, [&](auto element) {
    return launch(
        SizeOf(params.num_rows, 1, ThreadsFor(params.width, kLayerThreads),
               kBlockSumBytes),
        kKernel<GateLayerRows<decltype(element)>>, params);
  });
}

template <typename Launcher>
bool RunMultiply(const ProductParams& params, ElementType type,
                 Launcher& launch) {
  return ForElement(type, [&](auto element) {
    return launch(SizeOf(CeilDivide(params.out, kRowProductOuts),
                         CeilDivide(params.num_rows, kRowProductRows),
                         kRowProductThreads),
                  kKernel<MultiplyRows<decltype(element)>>, params);
  });
}

template <typename Launcher>
bool RunEditLogits(const EditParams& params, Launcher& launch) {
  return launch(
      SizeOf(CeilDivide(params.num_edits, kEditThreads), 1, kEditThreads),
      kKernel<EditLogits>, params);
}

template <typename Launcher>
bool RunDrawTokens(const DrawParams& params, Launcher& launch) {
  return launch(
      SizeOf(params.num_draws, 1, ThreadsFor(params.vocabulary, kDrawThreads),
             kDrawSharedBytes),
      kKernel<DrawRowTokens>, params);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_LAYER_SEQUENCE_CUH_
