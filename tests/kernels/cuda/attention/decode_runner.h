// Runs decode attention on an AttentionCase.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_DECODE_RUNNER_H_
#define TESTS_KERNELS_CUDA_ATTENTION_DECODE_RUNNER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

struct DecodeOptions {
  int32_t num_ctas = 1;
  int32_t chunk_tiles = 0;
  bool with_logits = false;
  // Of the case; -1: all from the first on.
  int32_t first_sequence = 0;
  int32_t num_sequences = -1;
  // Fewer than there are: told, not given.
  int32_t lacking_tiles = 0;
  simt::Schedule schedule = {};
};

template <typename T>
class DecodeRunner {
 public:
  using Options = DecodeOptions;

  DecodeRunner(const AttentionShape& shape, uint64_t seed)
      : test_(shape, seed),
        queries_(test_.RandomQueries(test_.num_sequences())) {}

  // Both kernels; returns what went wrong, or "". Outputs, workspace and
  // logits are poisoned before.
  std::string Run(const DecodeOptions& options);
  AttentionError Error() const;
  // Of the last run, output and lse.
  std::vector<uint32_t> Bits(int32_t first_sequence, int32_t count) const;
  std::vector<uint32_t> Bits() const { return Bits(0, test_.num_sequences()); }
  // The part of Bits() that is one sequence's.
  std::vector<uint32_t> Slice(const std::vector<uint32_t>& bits,
                              int32_t sequence) const {
    const int64_t size = std::ssize(bits) / test_.num_sequences();
    return {bits.begin() + sequence * size,
            bits.begin() + (sequence + 1) * size};
  }
  void CheckLogits() const;
  // Whether all that the last run was to write is as it was before.
  bool WroteNothing() const;

  AttentionCase<T>& test() { return test_; }
  const SharedVector<T>& queries() const { return queries_; }
  const SharedVector<T>& output() const { return output_; }
  const SharedVector<float>& lse() const { return lse_; }
  const SharedVector<float>& logits() const { return logits_; }
  const SharedVector<int32_t>& tile_offsets() const { return tile_offsets_; }
  uint32_t error_word() const { return error_word_[0]; }
  int64_t bank_conflicts() const { return bank_conflicts_; }
  // For one launch; its arrays are the runner's.
  DecodeParams Params(const DecodeOptions& options);

 private:
  AttentionCase<T> test_;
  SharedVector<T> queries_;
  SharedVector<T> output_;
  SharedVector<float> lse_;
  SharedVector<float> logits_;
  SharedVector<int32_t> tile_offsets_;
  SharedVector<float> partial_output_;
  SharedVector<float> partial_stats_;
  SharedVector<uint32_t> merge_counters_;
  SharedVector<uint32_t> error_word_ = {0};
  int64_t bank_conflicts_ = 0;
};

template <typename T>
DecodeParams DecodeRunner<T>::Params(const DecodeOptions& options) {
  const AttentionShape& shape = test_.shape();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  DecodeParams params;
  params.lists = test_.Lists();
  params.pool = test_.Pool();
  const int32_t first = options.first_sequence;
  if (options.num_sequences >= 0) {
    params.lists.num_sequences = options.num_sequences;
  }
  params.lists.sequence_slots += first;
  const int32_t num_lists = params.lists.num_sequences * shape.num_heads;
  tile_offsets_ = {0};
  for (int32_t list = 0; list < num_lists; ++list) {
    const int32_t i = first * shape.num_heads + list;
    tile_offsets_.push_back(
        tile_offsets_.back() +
        CountDecodeTiles(test_.region_length(i),
                         shape.tail_lengths[i / shape.num_heads],
                         shape.page_size, shape.window));
  }
  params.tile_offsets = tile_offsets_.data();
  output_.assign(queries_.size(), T{0x7FFF});
  lse_.assign(queries_.size() / shape.head_dim, kNan);
  const int64_t q_heads_before = int64_t{first} * test_.num_q_heads();
  params.sinks = test_.SinkPointer();
  params.queries = queries_.data() + q_heads_before * shape.head_dim;
  params.output = output_.data() + q_heads_before * shape.head_dim;
  params.lse = lse_.data() + q_heads_before;
  const int32_t num_tiles = tile_offsets_.back();
  logits_.assign(int64_t{num_tiles} * kDecodeTileRanks * shape.group_size,
                 kNan);
  if (options.with_logits) params.logits = logits_.data();
  const int64_t slots = CountDecodeWorkspaceSlots(
      num_tiles, num_lists, options.num_ctas, options.chunk_tiles);
  const int32_t q_rows = shape.group_size > 8 ? 16 : 8;
  partial_output_.assign(slots * q_rows * shape.head_dim, kNan);
  partial_stats_.assign(slots * q_rows * 2, kNan);
  params.partial_output = partial_output_.data();
  params.partial_stats = partial_stats_.data();
  merge_counters_.assign(int64_t{num_lists} * shape.group_size, 0xFFFFFFFFu);
  params.merge_counters = merge_counters_.data();
  params.group_size = shape.group_size;
  params.num_ctas = options.num_ctas;
  params.chunk_tiles = options.chunk_tiles;
  params.scale = test_.scale();
  params.max_tiles = num_tiles - options.lacking_tiles;
  error_word_[0] = 0;
  params.error = error_word_.data();
  return params;
}

template <typename T>
std::string DecodeRunner<T>::Run(const DecodeOptions& options) {
  const DecodeParams params = Params(options);
  const KernelReport report = RunKernel(
      options.schedule, &DeviceRuntime::Decode, params, test_.row_shape());
  bank_conflicts_ = report.bank_conflicts;
  return report.error;
}

template <typename T>
AttentionError DecodeRunner<T>::Error() const {
  const int32_t group_size = test_.shape().group_size;
  ErrorSum sum;
  for (int32_t list = 0; list < test_.num_lists(); ++list) {
    const ListRows rows = test_.Rows(list);
    for (int32_t g = 0; g < group_size; ++g) {
      const int64_t row = int64_t{list} * group_size + g;
      const int64_t begin = row * test_.shape().head_dim;
      sum.Add(test_.Reference(rows, list, g, std::ssize(test_.slots(list)),
                              &queries_[begin]),
              &output_[begin], lse_[row]);
    }
  }
  return sum.Get();
}

template <typename T>
bool DecodeRunner<T>::WroteNothing() const {
  const auto is_nan = [](float x) { return std::isnan(x); };
  return std::ranges::all_of(logits_, is_nan) &&
         std::ranges::all_of(partial_output_, is_nan) &&
         std::ranges::all_of(partial_stats_, is_nan) &&
         std::ranges::all_of(lse_, is_nan) &&
         std::ranges::all_of(output_, [](T x) { return x.bits == 0x7FFF; });
}

template <typename T>
std::vector<uint32_t> DecodeRunner<T>::Bits(int32_t first_sequence,
                                            int32_t count) const {
  const int64_t rows = test_.num_q_heads();
  const int64_t head_dim = test_.shape().head_dim;
  std::vector<uint32_t> bits;
  for (int64_t row = first_sequence * rows;
       row < (first_sequence + count) * rows; ++row) {
    bits.push_back(simt::FloatBits(lse_[row]));
    for (int64_t i = 0; i < head_dim; ++i) {
      bits.push_back(output_[row * head_dim + i].bits);
    }
  }
  return bits;
}

template <typename T>
void DecodeRunner<T>::CheckLogits() const {
  const AttentionShape& shape = test_.shape();
  for (int32_t list = 0; list < test_.num_lists(); ++list) {
    const int32_t region = test_.region_length(list);
    const int32_t region_slots =
        (region + shape.page_size - 1) / shape.page_size * shape.page_size;
    const int32_t tail = shape.tail_lengths[list / shape.num_heads];
    const int64_t first = int64_t{tile_offsets_[list]} * kDecodeTileRanks;
    const int64_t end = int64_t{tile_offsets_[list + 1]} * kDecodeTileRanks;
    for (int64_t rank = 0; rank < end - first; ++rank) {
      const bool in_tail = rank >= region_slots && rank < region_slots + tail;
      const bool live = rank < region || in_tail;
      for (int32_t g = 0; g < shape.group_size; ++g) {
        const float got = logits_[(first + rank) * shape.group_size + g];
        ASSERT_EQ(std::isnan(got), !live) << "list " << list << " " << rank;
        if (!live) continue;
        const SlotIndex slot =
            test_.slots(list)[in_tail ? rank - region_slots + region : rank];
        const T* query =
            &queries_[(int64_t{list} * shape.group_size + g) * shape.head_dim];
        double dot = 0.0;
        for (int32_t i = 0; i < shape.head_dim; ++i) {
          dot += double{simt::ToFloat(query[i])} *
                 double{test_.Value(slot, false, i)};
        }
        ASSERT_NEAR(got, dot * test_.scale(), 1e-5);
      }
    }
  }
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ATTENTION_DECODE_RUNNER_H_
