// The device code of token_draws.h.
#ifndef KERNELS_CUDA_LAYERS_TOKEN_DRAWS_CUH_
#define KERNELS_CUDA_LAYERS_TOKEN_DRAWS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/layers/token_draws.h"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Grid: {a thread for each edit}.
SIMT_KERNEL(kEditThreads, 4)
void EditLogits(EditParams params) {
  simt::AwaitEarlierKernels();
  const int64_t index = int64_t{simt::BlockX()} * kEditThreads + Thread();
  if (index >= params.num_edits) return;
  const LogitEdit& edit = params.edits[index];
  float* const logit =
      params.logits + int64_t{edit.row} * params.vocabulary + edit.token;
  float x = *logit + edit.bias;
  x = x > 0.0f ? x / edit.repetition : x * edit.repetition;
  *logit = x - edit.penalty;
}

// The most likely of some tokens.
struct BestToken {
  float logit = -INFINITY;
  int32_t token = INT32_MAX;

  // NaN is never the best.
  SIMT_DEVICE void Add(float other_logit, int32_t other_token) {
    if (other_logit > logit || (other_logit == logit && other_token < token)) {
      logit = other_logit;
      token = other_token;
    }
  }
  // C.
  SIMT_DEVICE void AddLanes() {
    for (uint32_t mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
      const float other_logit = simt::ShuffleXor(logit, mask);
      const int32_t other_token = simt::ShuffleXor(token, mask);
      Add(other_logit, other_token);
    }
  }
};

// The shared memory: the sum of each warp, then its best token.
inline constexpr uint32_t kDrawWarps = kDrawThreads / simt::kWarpThreads;
inline constexpr uint32_t kDrawLogits = kDrawWarps * sizeof(double);
inline constexpr uint32_t kDrawTokens = kDrawLogits + kDrawWarps * 4;
inline constexpr uint32_t kDrawSharedBytes = kDrawTokens + kDrawWarps * 4;

// The row that a block draws from.
struct DrawnRow {
  const float* logits = nullptr;
  int32_t vocabulary = 0;
  float max = 0.0f;
  float scale = 0.0f;  // of exponents of e
  float floor = 0.0f;

  // Returns a token's weight.
  SIMT_DEVICE float Weight(int32_t token) const {
    if (token >= vocabulary) return 0.0f;
    const float x = (logits[token] - max) * scale;
    return x >= floor ? simt::Exp2(x * kLog2E) : 0.0f;
  }
};

// Returns the best token of the row. All threads call it.
SIMT_DEVICE BestToken FindBest(const DrawnRow& row) {
  const uint32_t num_warps = simt::num_threads() / simt::kWarpThreads;
  const auto logits = simt::Shared<float>(kDrawLogits, num_warps);
  const auto tokens = simt::Shared<int32_t>(kDrawTokens, num_warps);
  BestToken best;
  const auto step = static_cast<int32_t>(simt::num_threads());
  for (int32_t token = Thread(); token < row.vocabulary; token += step) {
    best.Add(row.logits[token], token);
  }
  best.AddLanes();
  if (simt::Lane() == 0) {
    logits.Store(simt::Warp(), best.logit);
    tokens.Store(simt::Warp(), best.token);
  }
  simt::SyncBlock();
  for (uint32_t warp = 0; warp < num_warps; ++warp) {
    best.Add(logits.Load(warp), tokens.Load(warp));
  }
  if (best.token == INT32_MAX) best.token = 0;
  return best;
}

// C. Returns the token of [begin, end) in which `left` ends, or the last one
// with a weight if rounding runs past them.
SIMT_DEVICE int32_t FindToken(const DrawnRow& row, int32_t begin, int32_t end,
                              double left) {
  int32_t last = begin;
  for (int32_t first = begin; first < end; first += 32) {
    const int32_t token = first + LaneIndex();
    const float weight = token < end ? row.Weight(token) : 0.0f;
    const double sum = WarpPrefix(static_cast<double>(weight));
    const uint32_t weighed = simt::Ballot(weight > 0.0f);
    const uint32_t reached = simt::Ballot(weight > 0.0f && left < sum);
    if (reached != 0) return first + simt::FirstBit(reached);
    if (weighed != 0) last = first + 31 - simt::LeadingZeros(weighed);
    left -= simt::Shuffle(sum, 31);
  }
  return last;
}

// Grid: {num_draws}. Shared memory: kDrawSharedBytes. Each warp has a part of
// the vocabulary.
SIMT_KERNEL(kDrawThreads, 2)
void DrawRowTokens(DrawParams params) {
  simt::AwaitEarlierKernels();
  const RowDraw& draw = params.draws[simt::BlockX()];
  DrawnRow row;
  row.logits = params.logits + int64_t{draw.row} * params.vocabulary;
  row.vocabulary = params.vocabulary;
  row.scale = draw.inverse_temperature;
  row.floor = draw.min_exponent;
  const BestToken best = FindBest(row);
  row.max = best.logit;
  int32_t* const result = params.tokens + simt::BlockX();
  if (row.scale == 0.0f || !(fabsf(row.max) < INFINITY)) {
    if (simt::ThreadIndex() == 0) *result = best.token;
    return;
  }
  const auto num_warps =
      static_cast<int32_t>(simt::num_threads() / simt::kWarpThreads);
  const int32_t part = (row.vocabulary + num_warps - 1) / num_warps;
  const int32_t begin = part * WarpIndex();
  const int32_t end =
      begin + part < row.vocabulary ? begin + part : row.vocabulary;
  double sum = 0.0;
  for (int32_t token = begin + LaneIndex(); token < end; token += 32) {
    sum += static_cast<double>(row.Weight(token));
  }
  sum = WarpSum(sum);
  const auto sums = simt::Shared<double>(0, static_cast<uint32_t>(num_warps));
  if (simt::Lane() == 0) sums.Store(simt::Warp(), sum);
  simt::SyncBlock();
  double total = 0.0;
  for (int32_t warp = 0; warp < num_warps; ++warp) {
    total += sums.Load(static_cast<uint32_t>(warp));
  }
  // The warp in whose part the place is, or the last one that weighs anything.
  double left = draw.uniform * total;
  double left_there = left;
  int32_t found = 0;
  for (int32_t warp = 0; warp < num_warps; ++warp) {
    const double weight = sums.Load(static_cast<uint32_t>(warp));
    if (weight == 0.0) continue;
    found = warp;
    left_there = left;
    if (left < weight) break;
    left -= weight;
  }
  if (found != WarpIndex()) return;
  const int32_t token = FindToken(row, begin, end, left_there);
  if (simt::Lane() == 0) *result = token;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_TOKEN_DRAWS_CUH_
