// SnapKV's reduction of attention to scores: pool along positions, reduce over
// the query heads of a group (arXiv 2404.14469; order as in Ada-KV or kvpress).
#include <algorithm>
#include <limits>
#include <vector>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/score_order.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

// Returns the value that a maximum, or else a sum, starts from.
float StartOf(bool max) {
  if (max) return -std::numeric_limits<float>::infinity();
  return 0.0f;
}

// Pools with stride 1 and padding kernel / 2. An average counts the padding as
// zeros, a maximum ignores it. There is one pass for each tap, in ascending
// order of position.
void Pool(const ScorerSpec& scorer, std::span<const float> input,
          std::span<float> output) {
  const int64_t size = static_cast<int64_t>(input.size());
  const bool max = scorer.pool == PoolKind::kMax;
  std::fill(output.begin(), output.end(), StartOf(max));
  const int64_t reach = std::min<int64_t>(scorer.kernel / 2, size - 1);
  for (int64_t tap = -reach; tap <= reach; ++tap) {
    const int64_t begin = std::max<int64_t>(0, -tap);
    const int64_t end = std::min(size, size - tap);
    for (int64_t i = begin; i < end; ++i) {
      output[i] = max ? MaxOrNaN(output[i], input[i + tap])
                      : output[i] + input[i + tap];
    }
  }
  if (max) return;
  for (float& value : output) value /= static_cast<float>(scorer.kernel);
}

// Folds one more row of the group into `reduced`.
void Accumulate(GroupReduce group, std::span<const float> row,
                std::span<float> reduced) {
  for (size_t i = 0; i < row.size(); ++i) {
    reduced[i] = group == GroupReduce::kMax ? MaxOrNaN(reduced[i], row[i])
                                            : reduced[i] + row[i];
  }
}

}  // namespace

void ReduceSnapKv(const ScorerSpec& scorer, std::span<const float> attention,
                  int32_t group_size, std::span<float> scores) {
  BM_CHECK(group_size > 0);
  BM_CHECK(scorer.kernel % 2 == 1);
  BM_CHECK(attention.size() == scores.size() * group_size);
  if (scores.empty()) return;
  const size_t num_past = scores.size();
  const bool pool_first = scorer.order == PoolOrder::kKvPress;
  std::vector<float> pooled(num_past);
  std::vector<float> reduced(num_past,
                             StartOf(scorer.group == GroupReduce::kMax));
  for (int32_t row = 0; row < group_size; ++row) {
    const std::span<const float> weights =
        attention.subspan(row * num_past, num_past);
    if (pool_first) Pool(scorer, weights, pooled);
    Accumulate(scorer.group, pool_first ? pooled : weights, reduced);
  }
  if (scorer.group == GroupReduce::kMean) {
    for (float& value : reduced) value /= static_cast<float>(group_size);
  }
  if (pool_first) {
    std::copy(reduced.begin(), reduced.end(), scores.begin());
  } else {
    Pool(scorer, reduced, scores);
  }
}

}  // namespace blockmgr
