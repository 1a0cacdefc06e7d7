// Runs chunk attention on an AttentionCase.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_CHUNK_RUNNER_H_
#define TESTS_KERNELS_CUDA_ATTENTION_CHUNK_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

template <typename T>
class ChunkRunner {
 public:
  using Options = simt::Schedule;

  // num_queries: per sequence, the last tokens of its tail.
  ChunkRunner(const AttentionShape& shape, std::vector<int32_t> num_queries,
              uint64_t seed)
      : test_(shape, seed), num_queries_(std::move(num_queries)) {
    for (const int32_t count : num_queries_) {
      query_offsets_.push_back(query_offsets_.back() + count);
    }
    queries_ = test_.RandomQueries(query_offsets_.back());
    output_.assign(queries_.size(), T{0x7FFF});
    lse_.assign(queries_.size() / shape.head_dim,
                std::numeric_limits<float>::quiet_NaN());
  }

  // All queries. Returns what went wrong, or "". Outputs are poisoned before.
  std::string Run(const simt::Schedule& schedule) {
    std::ranges::fill(output_, T{0x7FFF});
    std::ranges::fill(lse_, std::numeric_limits<float>::quiet_NaN());
    std::vector<int32_t> starts(num_queries_.size(), 0);
    return RunPart(starts, num_queries_, schedule);
  }
  // Queries [begins[i], ends[i]) of every sequence, when its tail ends with the
  // last of them. Other outputs stay.
  std::string RunPart(const std::vector<int32_t>& begins,
                      const std::vector<int32_t>& ends,
                      const simt::Schedule& schedule);
  AttentionError Error() const;
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits;
    for (const T x : output_) bits.push_back(x.bits);
    for (const float x : lse_) bits.push_back(simt::FloatBits(x));
    return bits;
  }

  AttentionCase<T>& test() { return test_; }
  const SharedVector<T>& queries() const { return queries_; }
  const std::vector<T>& output() const { return output_; }
  const std::vector<float>& lse() const { return lse_; }
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  AttentionCase<T> test_;
  std::vector<int32_t> num_queries_;
  std::vector<int32_t> query_offsets_ = {0};
  SharedVector<T> queries_;
  std::vector<T> output_;
  std::vector<float> lse_;
  int64_t bank_conflicts_ = 0;
};

template <typename T>
std::string ChunkRunner<T>::RunPart(const std::vector<int32_t>& begins,
                                    const std::vector<int32_t>& ends,
                                    const simt::Schedule& schedule) {
  const AttentionShape& shape = test_.shape();
  const int64_t token_size = int64_t{test_.num_q_heads()} * shape.head_dim;
  ChunkParams params;
  params.lists = test_.Lists();
  params.pool = test_.Pool();
  // Tails that end with the last query of the part; queries side by side.
  const int32_t num_slots = test_.num_sequences() + 1;
  SharedVector<int32_t> tail_lengths(params.lists.tail_lengths,
                                     params.lists.tail_lengths + num_slots);
  SharedVector<int32_t> offsets = {0};
  SharedVector<int32_t> block_offsets = {0};
  SharedVector<T> queries;
  for (int32_t s = 0; s < test_.num_sequences(); ++s) {
    tail_lengths[params.lists.sequence_slots[s]] -= num_queries_[s] - ends[s];
    const int32_t count = ends[s] - begins[s];
    offsets.push_back(offsets.back() + count);
    block_offsets.push_back(block_offsets.back() +
                            CountChunkBlocks(count, shape.group_size));
    const auto first =
        queries_.begin() + (query_offsets_[s] + begins[s]) * token_size;
    queries.insert(queries.end(), first, first + count * token_size);
  }
  SharedVector<T> output(queries.size(), T{0x7FFF});
  SharedVector<float> lse(queries.size() / shape.head_dim,
                          std::numeric_limits<float>::quiet_NaN());
  params.lists.tail_lengths = tail_lengths.data();
  params.query_offsets = offsets.data();
  params.block_offsets = block_offsets.data();
  params.sinks = test_.SinkPointer();
  params.queries = queries.data();
  params.output = output.data();
  params.lse = lse.data();
  params.group_size = shape.group_size;
  params.scale = test_.scale();
  const KernelReport report =
      RunKernel(schedule, &DeviceRuntime::Chunk, params, test_.row_shape(),
                block_offsets.back());
  bank_conflicts_ = report.bank_conflicts;
  for (int32_t s = 0; s < test_.num_sequences(); ++s) {
    const int64_t to = query_offsets_[s] + begins[s];
    std::copy(output.begin() + offsets[s] * token_size,
              output.begin() + offsets[s + 1] * token_size,
              output_.begin() + to * token_size);
    std::copy(lse.begin() + int64_t{offsets[s]} * test_.num_q_heads(),
              lse.begin() + int64_t{offsets[s + 1]} * test_.num_q_heads(),
              lse_.begin() + to * test_.num_q_heads());
  }
  return report.error;
}

template <typename T>
AttentionError ChunkRunner<T>::Error() const {
  const AttentionShape& shape = test_.shape();
  ErrorSum sum;
  for (int32_t list = 0; list < test_.num_lists(); ++list) {
    const int32_t s = list / shape.num_heads;
    const int32_t first_q_head = list % shape.num_heads * shape.group_size;
    const ListRows rows = test_.Rows(list);
    for (int32_t j = 0; j < num_queries_[s]; ++j) {
      for (int32_t g = 0; g < shape.group_size; ++g) {
        const int64_t row =
            int64_t{query_offsets_[s] + j} * test_.num_q_heads() +
            first_q_head + g;
        const int64_t num_rows =
            std::ssize(test_.slots(list)) - num_queries_[s] + j + 1;
        sum.Add(test_.Reference(rows, list, g, num_rows,
                                &queries_[row * shape.head_dim]),
                &output_[row * shape.head_dim], lse_[row]);
      }
    }
  }
  return sum.Get();
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ATTENTION_CHUNK_RUNNER_H_
