// Runs sums of decode attention on lists whose entries all get 1.
#ifndef TESTS_KERNELS_CUDA_SCORES_DECODE_SUM_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_DECODE_SUM_RUNNER_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

class DecodeSumRunner {
 public:
  // Of sequences that are tails only. Room is made for so much, and no more.
  DecodeSumRunner(int32_t num_heads, const std::vector<int32_t>& tail_lengths)
      : num_heads_(num_heads) {
    for (const int32_t length : tail_lengths) {
      for (int32_t head = 0; head < num_heads; ++head) {
        sum_offsets_.push_back(sum_offsets_.back() + length);
      }
    }
    SetTails(tail_lengths);
    max_tiles_ = tile_offsets_.back();
  }

  // What the device knows from now on, its plan of decode attention included.
  void SetTails(const std::vector<int32_t>& tail_lengths) {
    tail_lengths_ = Shared(tail_lengths);
    tile_offsets_ = {0};
    for (const int32_t length : tail_lengths) {
      for (int32_t head = 0; head < num_heads_; ++head) {
        tile_offsets_.push_back(tile_offsets_.back() +
                                CountDecodeTiles(0, length, 16));
      }
    }
  }

  // Says that there are fewer sums than the offsets say.
  void set_num_sums(int64_t num_sums) { num_sums_ = num_sums; }
  void set_sum_offset(int32_t list, int64_t offset) {
    sum_offsets_[list] = offset;
  }

  // Returns what went wrong, or "". Sums are 0 before.
  std::string Run(const simt::Schedule& schedule) {
    const SharedVector<float> logits(
        int64_t{tile_offsets_.back()} * kDecodeTileRanks, 1.0f);
    const SharedVector<float> lse(sum_offsets_.size() - 1, 1.0f);
    sums_.assign(sum_offsets_.back(), 0.0f);
    error_word_[0] = 0;
    DecodeSumParams params;
    params.lists.num_sequences = static_cast<int32_t>(tail_lengths_.size());
    params.lists.num_heads = num_heads_;
    params.lists.tail_lengths = tail_lengths_.data();
    params.num_heads = MakeDivider(static_cast<uint32_t>(num_heads_));
    params.tile_offsets = tile_offsets_.data();
    params.logits = logits.data();
    params.lse = lse.data();
    params.max_tiles = max_tiles_;
    params.sum_offsets = sum_offsets_.data();
    params.sums = sums_.data();
    params.num_sums = num_sums_.value_or(std::ssize(sums_));
    params.error = error_word_.data();
    return RunKernel(schedule, &DeviceRuntime::AddDecodeAttention, params)
        .error;
  }

  // Of the last run.
  bool AllSumsAre(float value) const {
    return CountSums(value) == std::ssize(sums_);
  }
  int64_t CountSums(float value) const {
    return std::ranges::count(sums_, value);
  }
  uint32_t error_word() const { return error_word_[0]; }

 private:
  const int32_t num_heads_;
  int32_t max_tiles_ = 0;
  std::optional<int64_t> num_sums_;
  SharedVector<int64_t> sum_offsets_ = {0};
  SharedVector<int32_t> tail_lengths_;
  SharedVector<int32_t> tile_offsets_;
  SharedVector<float> sums_;
  SharedVector<uint32_t> error_word_ = {0};
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_DECODE_SUM_RUNNER_H_
