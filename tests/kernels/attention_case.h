// Attention of a backend next to a dense float64 softmax.
#ifndef TESTS_KERNELS_ATTENTION_CASE_H_
#define TESTS_KERNELS_ATTENTION_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {

// One q_head's query over the given slots, in float64. The sink is one more
// logit, of a value of zeros.
inline std::vector<double> DenseAttention(const PoolModel& model,
                                          std::span<const SlotIndex> slots,
                                          std::span<const float> query,
                                          double scale, double sink) {
  std::vector<double> logits;
  for (const SlotIndex slot : slots) {
    double dot = 0.0;
    for (std::size_t i = 0; i < query.size(); ++i) {
      dot += double{query[i]} * double{model.key(slot)[i]};
    }
    logits.push_back(dot * scale);
  }
  const double max = std::max(sink, *std::ranges::max_element(logits));
  double sum = std::exp(sink - max);
  std::vector<double> output(query.size());
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const double weight = std::exp(logits[s] - max);
    sum += weight;
    for (std::size_t i = 0; i < query.size(); ++i) {
      output[i] += weight * double{model.value(slots[s])[i]};
    }
  }
  for (double& x : output) x /= sum;
  return output;
}

// A sequence of a batch and its queries, the last tokens of its tail.
struct Query {
  const TestSequence* sequence = nullptr;
  int32_t tail_length = 0;         // of this call
  std::span<const float> queries;  // [tokens, num_q_heads, head_dim]
};

struct AttentionCase {
  AttentionCase(const ModelLayout& layout, uint64_t seed)
      : rng(seed), model(layout) {}

  int64_t token_floats() const {
    return int64_t{layout().num_q_heads} * layout().head_dim;
  }
  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(layout().head_dim));
  }

  std::vector<float> Run(Backend& backend, int32_t layer,
                         std::span<const Query> batch) const {
    std::vector<SequenceKv> sequences;
    std::vector<int32_t> offsets = {0};
    std::vector<float> queries;
    for (const Query& query : batch) {
      sequences.push_back(query.sequence->View(query.tail_length));
      queries.insert(queries.end(), query.queries.begin(), query.queries.end());
      offsets.push_back(static_cast<int32_t>(
          static_cast<int64_t>(queries.size()) / token_floats()));
    }
    std::vector<float> output(queries.size(), std::nanf(""));
    backend.Attention({.layer = layer,
                       .sequences = sequences,
                       .query_offsets = offsets,
                       .queries = queries.data(),
                       .output = output.data(),
                       .scale = scale(),
                       .window = window,
                       .sinks = sinks.empty() ? nullptr : sinks.data(),
                       .threads = threads});
    return output;
  }

  // Whether `output` is within `tolerance` of the dense reference, in the norm
  // of one q_head's row.
  void ExpectDense(const Query& query, std::span<const float> output,
                   double tolerance) const {
    const int64_t num_tokens =
        static_cast<int64_t>(query.queries.size()) / token_floats();
    for (int32_t head = 0; head < layout().num_heads; ++head) {
      const std::vector<SlotIndex> slots =
          query.sequence->Slots(layout(), head);
      const std::vector<int32_t> positions =
          query.sequence->Positions(layout(), head);
      const int64_t unseen = query.sequence->tail_length - query.tail_length;
      for (int64_t j = 0; j < num_tokens; ++j) {
        const std::size_t num_before =
            slots.size() - unseen - (num_tokens - 1 - j);
        std::vector<SlotIndex> visible;
        for (std::size_t i = 0; i < num_before; ++i) {
          const int32_t age = positions[num_before - 1] - positions[i];
          if (window == 0 || age < window) visible.push_back(slots[i]);
        }
        for (int32_t g = 0; g < layout().group_size(); ++g) {
          const int64_t begin =
              j * token_floats() +
              (head * layout().group_size() + g) * int64_t{layout().head_dim};
          const double sink =
              sinks.empty() ? -std::numeric_limits<double>::infinity()
                            : double{sinks[head * layout().group_size() + g]};
          const std::vector<double> expected = DenseAttention(
              model, visible, query.queries.subspan(begin, layout().head_dim),
              scale(), sink);
          double error = 0.0;
          double norm = 0.0;
          for (int32_t i = 0; i < layout().head_dim; ++i) {
            error += std::pow(output[begin + i] - expected[i], 2);
            norm += std::pow(expected[i], 2);
          }
          // Written so that NaN fails.
          ASSERT_TRUE(std::sqrt(error) <= tolerance * std::sqrt(norm))
              << "head " << head << " token " << j << " q_head " << g << ": "
              << std::sqrt(error / norm);
        }
      }
    }
  }

  // Runs the last tokens of every sequence in one batch and returns the output.
  // Expects what the dense reference makes of `whole`: the same sequences, with
  // all of their blocks.
  std::vector<float> ExpectBatchDense(
      int32_t layer, std::span<const TestSequence> sequences,
      std::span<const TestSequence> whole,
      std::span<const std::vector<float>> queries) const {
    std::vector<Query> batch;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      batch.push_back({&sequences[i], sequences[i].tail_length, queries[i]});
    }
    std::vector<float> output = Run(*model.MakeBackend(), layer, batch);
    int64_t begin = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      batch[i].sequence = &whole[i];
      ExpectDense(batch[i], std::span(output).subspan(begin, queries[i].size()),
                  2e-6);
      begin += std::ssize(queries[i]);
    }
    return output;
  }

  const ModelLayout& layout() const { return model.layout(); }
  // Of the last num_queries tokens of a tail of this length, the first
  // position that one attends to.
  int32_t FirstPosition(int32_t tail_length, int32_t num_queries) const {
    return window == 0 ? 0
                       : std::max(0, tail_length - num_queries + 1 - window);
  }

  Rng rng;
  PoolModel model;
  int32_t window = 0;
  std::vector<float> sinks = {};  // of all query heads, or none
  ThreadPool* threads = nullptr;  // of Run
};

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_ATTENTION_CASE_H_
