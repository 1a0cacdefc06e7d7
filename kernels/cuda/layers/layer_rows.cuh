// The device code of layer_rows.h, except for the products.
#ifndef KERNELS_CUDA_LAYERS_LAYER_ROWS_CUH_
#define KERNELS_CUDA_LAYERS_LAYER_ROWS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/layers/block_sums.cuh"
#include "kernels/cuda/layers/layer_rows.h"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Calls use(i) for the elements i of a row that are this thread's.
template <typename Use>
SIMT_DEVICE void ForRowElements(int32_t width, const Use& use) {
  const auto step = static_cast<int32_t>(simt::num_threads());
  for (int32_t i = Thread(); i < width; i += step) use(i);
}

// Grid: {num_rows}.
template <typename T>
SIMT_KERNEL(kLayerThreads, 4)
void EmbedLayerRows(EmbedParams params) {
  simt::AwaitEarlierKernels();
  const int64_t row = simt::BlockX();
  const T* const from = static_cast<const T*>(params.embedding) +
                        int64_t{params.tokens[row]} * params.width;
  float* const to = params.residual + row * params.width;
  ForRowElements(params.width, [&](int32_t i) {
    to[i] = params.scale * simt::ToFloat(from[i]);
  });
}

// Adds a row of delta to the residual. The thread's elements are the same ones
// later.
SIMT_DEVICE void AddDeltaRow(const NormParams& params, int64_t row,
                             float* residual) {
  const float* const delta = params.delta + row * params.width;
  float scale =
      params.delta_scales == nullptr ? 1.0f : params.delta_scales[row];
  if (params.delta_gains == nullptr) {
    ForRowElements(params.width,
                   [&](int32_t i) { residual[i] += scale * delta[i]; });
    return;
  }
  float sum = 0.0f;
  ForRowElements(params.width, [&](int32_t i) {
    const float x = scale * delta[i];
    sum += x * x;
  });
  const float mean = BlockSum(sum) / static_cast<float>(params.width);
  scale *= simt::ReverseSqrt(mean + params.epsilon);
  ForRowElements(params.width, [&](int32_t i) {
    residual[i] += scale * delta[i] * params.delta_gains[i];
  });
}

// Grid: {num_rows}. Shared memory: kBlockSumBytes.
template <typename T>
SIMT_KERNEL(kLayerThreads, 4)
void NormalizeLayerRows(NormParams params) {
  simt::AwaitEarlierKernels();
  const int64_t row = simt::BlockX();
  const int64_t place = params.places == nullptr ? row : params.places[row];
  float* const residual = params.residual + place * params.width;
  if (params.delta != nullptr) AddDeltaRow(params, row, residual);
  if (params.normalized == nullptr) return;
  float sum = 0.0f;
  ForRowElements(params.width,
                 [&](int32_t i) { sum += residual[i] * residual[i]; });
  const float mean = BlockSum(sum) / static_cast<float>(params.width);
  const float scale = simt::ReverseSqrt(mean + params.epsilon);
  T* const to = static_cast<T*>(params.normalized) + row * params.width;
  ForRowElements(params.width, [&](int32_t i) {
    to[i] = simt::FromFloat<T>(residual[i] * scale * params.gains[i]);
  });
}

// A head of a row, held by a warp: lane l has the pairs l, l + 32, ..
template <int kDim>
struct HeadPairs {
  static constexpr int kPairs = kDim / 64;
  static constexpr int kHalf = kDim / 2;
  float low[kPairs];
  float high[kPairs];

  static SIMT_DEVICE int Place(int pair) { return LaneIndex() + 32 * pair; }

  SIMT_DEVICE void Load(const float* row, const float* bias) {
    SIMT_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      const int i = Place(k);
      low[k] = row[i] + (bias == nullptr ? 0.0f : bias[i]);
      high[k] = row[kHalf + i] + (bias == nullptr ? 0.0f : bias[kHalf + i]);
    }
  }
  // C.
  SIMT_DEVICE void Normalize(const float* gains, float epsilon) {
    float sum = 0.0f;
    SIMT_UNROLL
    for (int k = 0; k < kPairs; ++k) sum += low[k] * low[k] + high[k] * high[k];
    const float scale =
        simt::ReverseSqrt(WarpSum(sum) / static_cast<float>(kDim) + epsilon);
    SIMT_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      low[k] *= scale * gains[Place(k)];
      high[k] *= scale * gains[kHalf + Place(k)];
    }
  }
  SIMT_DEVICE void Rotate(const float* cosines, const float* sines) {
    SIMT_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      const float cosine = cosines[Place(k)];
      const float sine = sines[Place(k)];
      const float x = low[k];
      low[k] = x * cosine - high[k] * sine;
      high[k] = high[k] * cosine + x * sine;
    }
  }
  SIMT_DEVICE void Store(float* row) const {
    SIMT_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      row[Place(k)] = low[k];
      row[kHalf + Place(k)] = high[k];
    }
  }
  template <typename T>
  SIMT_DEVICE void StoreRounded(T* row) const {
    SIMT_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      row[Place(k)] = simt::FromFloat<T>(low[k]);
      row[kHalf + Place(k)] = simt::FromFloat<T>(high[k]);
    }
  }
};

// Returns where a head of a row goes, in the pool's elements.
template <typename T, int kDim>
SIMT_DEVICE T* HeadPlace(const HeadParams& params, int64_t row, int32_t head) {
  if (head < params.num_q_heads) {
    const int32_t own = params.num_q_heads / params.num_shards;
    const int32_t shard = head / own;
    return static_cast<T*>(params.queries) +
           ((shard * int64_t{params.num_rows} + row) * own + head -
            shard * own) *
               kDim;
  }
  const int32_t key = head - params.num_q_heads;
  const bool is_key = key < params.num_heads;
  return static_cast<T*>(is_key ? params.keys : params.values) +
         (row * params.num_heads + key - (is_key ? 0 : params.num_heads)) *
             kDim;
}

// Grid: {a warp for each head of each row}.
template <typename T, int kDim>
SIMT_KERNEL(kHeadThreads, 4)
void PrepareHeadRows(HeadParams params) {
  simt::AwaitEarlierKernels();
  const int32_t heads = params.num_q_heads + 2 * params.num_heads;
  const int64_t index =
      int64_t{simt::BlockX()} * (kHeadThreads / 32) + WarpIndex();
  const int64_t row = index / heads;
  if (row >= params.num_rows) return;
  const auto head = static_cast<int32_t>(index - row * heads);
  const bool is_query = head < params.num_q_heads;
  const bool is_value = head >= params.num_q_heads + params.num_heads;
  float* const projected = params.projected + index * kDim;
  HeadPairs<kDim> pairs;
  pairs.Load(projected, params.bias == nullptr
                            ? nullptr
                            : params.bias + int64_t{head} * kDim);
  const float* const gains = is_query   ? params.query_gains
                             : is_value ? nullptr
                                        : params.key_gains;
  if (gains != nullptr) pairs.Normalize(gains, params.epsilon);
  if (is_query && (params.bias != nullptr || gains != nullptr)) {
    pairs.Store(projected);
  }
  if (!is_value) {
    pairs.Rotate(params.cosines + row * (kDim / 2),
                 params.sines + row * (kDim / 2));
  }
  pairs.StoreRounded(HeadPlace<T, kDim>(params, row, head));
}

// Grid: {a thread for 8 elements}.
template <typename T, typename PoolElement>
SIMT_KERNEL(kMergeThreads, 4)
void MergeAttentionRows(MergeParams params) {
  simt::AwaitEarlierKernels();
  const int32_t chunks = params.width / 8;
  const int64_t index = int64_t{simt::BlockX()} * kMergeThreads + Thread();
  const int64_t row = index / chunks;
  if (row >= params.num_rows) return;
  const auto chunk = static_cast<int32_t>(index - row * chunks);
  const int32_t own = chunks / params.num_shards;
  const int32_t shard = chunk / own;
  const PoolElement* const from =
      static_cast<const PoolElement*>(params.attention) +
      ((shard * int64_t{params.num_rows} + row) * own + chunk - shard * own) *
          8;
  const simt::Vector16 in = simt::LoadGlobal16(from);
  simt::Vector16 out;
  SIMT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = in.words[i];
    out.words[i] = simt::Pack2<T>(
        simt::ToFloat(PoolElement{static_cast<uint16_t>(word)}),
        simt::ToFloat(PoolElement{static_cast<uint16_t>(word >> 16)}));
  }
  simt::StoreGlobal16(static_cast<T*>(params.merged) + index * 8, out);
}

// Returns x / (1 + exp(-t)).
SIMT_DEVICE float TimesSigmoid(float x, float t) {
  return x / (1.0f + simt::Exp2(-t * kLog2E));
}

// gelu(x) is x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x +
// 0.044715 x^3).
SIMT_DEVICE float Gated(bool gelu, float gate, float up) {
  constexpr float kTwiceLinear = 1.59576912f;
  constexpr float kTwiceCubic = 0.0713548163f;
  const float t =
      gelu ? gate * (kTwiceLinear + kTwiceCubic * gate * gate) : gate;
  return TimesSigmoid(gate, t) * up;
}

// Returns 2^exponent. REQUIRES: -126 <= exponent <= 127.
SIMT_DEVICE float PowerOfTwo(int32_t exponent) {
  return simt::BitsToFloat(static_cast<uint32_t>(exponent + 127) << 23);
}

// Grid: {num_rows}. Shared memory: kBlockSumBytes.
template <typename T>
SIMT_KERNEL(kLayerThreads, 4)
void GateLayerRows(GateParams params) {
  simt::AwaitEarlierKernels();
  const int64_t row = simt::BlockX();
  const float* const gate = params.gate_up + row * 2 * params.width;
  const float* const up = gate + params.width;
  float largest = 0.0f;
  ForRowElements(params.width, [&](int32_t i) {
    largest = fmaxf(largest, fabsf(Gated(params.gelu, gate[i], up[i])));
  });
  largest = BlockMax(largest);
  // The largest element is below 2^(exponent + 1). Zeros are multiplied by any
  // number, infinities stay what they are.
  int32_t exponent =
      static_cast<int32_t>(simt::FloatBits(largest) >> 23 & 255) - 127;
  exponent = exponent < -100 ? -100 : exponent > 127 ? 127 : exponent;
  const float factor = PowerOfTwo(13 - exponent);
  T* const to = static_cast<T*>(params.gated) + row * params.width;
  ForRowElements(params.width, [&](int32_t i) {
    to[i] = simt::FromFloat<T>(Gated(params.gelu, gate[i], up[i]) * factor);
  });
  if (simt::ThreadIndex() == 0) params.scales[row] = PowerOfTwo(exponent - 13);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_LAYER_ROWS_CUH_
