// Attention against a dense float64 softmax, and its bit-for-bit promises.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

class AttentionTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionTest, MatchesDenseReference) {
  for (uint64_t seed = 0; seed < SlowCases(24); ++seed) {
    SCOPED_TRACE(seed);
    Rng shape_rng(seed);
    const ModelLayout layout = RandomLayout(shape_rng, GetParam(), 260);
    AttentionCase test(layout, seed);
    const int32_t layer = RandomInt(test.rng, 0, layout.num_layers - 1);
    PagePicker picker(layout, 200, test.rng);
    std::vector<TestSequence> sequences;
    std::vector<std::vector<float>> queries;
    for (int32_t i = 0; i < 3; ++i) {
      const int32_t max_region = i == 1 ? 0 : RandomInt(test.rng, 1, 20);
      sequences.push_back(picker.MakeSequence(layer, max_region,
                                              RandomInt(test.rng, 1, 66),
                                              &test.model, test.rng));
      const int32_t num_queries =
          i == 0 ? 1 : RandomInt(test.rng, 1, sequences[i].tail_length);
      queries.push_back(
          RandomFloats(test.rng, num_queries * test.token_floats()));
    }
    test.ExpectBatchDense(layer, sequences, sequences, queries);
    test.sinks = RandomFloats(test.rng, layout.num_q_heads);
    test.ExpectBatchDense(layer, sequences, sequences, queries);
  }
}

TEST_P(AttentionTest, LongListsMatchDenseReference) {
  ModelLayout layout{.num_layers = 1,
                     .num_heads = 2,
                     .num_q_heads = 6,
                     .head_dim = 64,
                     .page_size = 16,
                     .dtype = GetParam(),
                     .num_blocks = 400};
  AttentionCase test(layout, 7);
  PagePicker picker(layout, 200, test.rng);
  const TestSequence sequence =
      picker.MakeSequence(0, 3000, 3000, &test.model, test.rng);
  const std::vector<float> queries =
      RandomFloats(test.rng, 2 * test.token_floats());
  const Query query{&sequence, sequence.tail_length, queries};
  const auto backend = test.model.MakeBackend();
  test.ExpectDense(query, test.Run(*backend, 0, {&query, 1}), 4e-6);
}

TEST_P(AttentionTest, ResultIsIndependentOfChunksBatchAndThreads) {
  ThreadPool threads(3);
  for (uint64_t seed = 100; seed < 112; ++seed) {
    SCOPED_TRACE(seed);
    Rng shape_rng(seed);
    const ModelLayout layout = RandomLayout(shape_rng, GetParam(), 500);
    AttentionCase test(layout, seed);
    PagePicker picker(layout, 420, test.rng);
    const TestSequence sequence =
        picker.MakeSequence(0, RandomInt(test.rng, 0, 20),
                            RandomInt(test.rng, 1, 200), &test.model, test.rng);
    const TestSequence other = picker.MakeSequence(
        0, 20, RandomInt(test.rng, 1, 150), &test.model, test.rng);
    const int64_t token = test.token_floats();
    const std::vector<float> queries =
        RandomFloats(test.rng, sequence.tail_length * token);
    const std::vector<float> other_queries = RandomFloats(
        test.rng, RandomInt(test.rng, 1, other.tail_length) * token);
    const auto backend = test.model.MakeBackend();
    const Query whole{&sequence, sequence.tail_length, queries};
    const std::vector<float> expected = test.Run(*backend, 0, {&whole, 1});

    const Query neighbour{&other, other.tail_length, other_queries};
    for (const int32_t max_chunk : {1, 5, 40}) {
      test.threads = max_chunk == 1 ? nullptr : &threads;
      std::vector<float> output;
      for (int32_t begin = 0; begin < sequence.tail_length;) {
        const int32_t end = std::min(begin + RandomInt(test.rng, 1, max_chunk),
                                     sequence.tail_length);
        const Query chunk{
            &sequence, end,
            std::span(queries).subspan(begin * token, (end - begin) * token)};
        std::vector<Query> batch = {chunk};
        const bool before = RandomInt(test.rng, 0, 1) == 0;
        const bool with_neighbour = RandomInt(test.rng, 0, 7) == 0;
        if (with_neighbour) {
          batch.insert(before ? batch.begin() : batch.end(), neighbour);
        }
        const std::vector<float> part = test.Run(*backend, 0, batch);
        const int64_t skip =
            with_neighbour && before ? std::ssize(other_queries) : 0;
        output.insert(output.end(), part.begin() + skip,
                      part.begin() + skip + (end - begin) * token);
        begin = end;
      }
      EXPECT_TRUE(SameBits(output, expected)) << "chunks up to " << max_chunk;
    }
  }
}

// The list alone counts: the same rows on other pages, in a region instead of
// the tail, give the same bits.
TEST_P(AttentionTest, RegionThatKeepsEverythingGivesTheBitsOfTheTail) {
  ModelLayout layout{.num_layers = 2,
                     .num_heads = 3,
                     .num_q_heads = 9,
                     .head_dim = 48,
                     .page_size = 4,
                     .dtype = GetParam(),
                     .num_blocks = 160};
  AttentionCase test(layout, 11);
  PagePicker picker(layout, 80, test.rng);
  const TestSequence tail =
      picker.MakeSequence(1, 0, 150, &test.model, test.rng);
  TestSequence compact = picker.MakeSequence(1, 1, 11, &test.model, test.rng);
  // Pages of layer 0 serve layer 1 here.
  constexpr int32_t kCut = 139;
  compact.region_pages.clear();
  compact.region_offsets = {0};
  compact.region_lengths.assign(layout.num_heads, kCut);
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    for (int32_t i = 0; i < CeilDiv(kCut, layout.page_size); ++i) {
      compact.region_pages.push_back(
          layout.page_id(0, BlockId{layout.num_blocks - 1 - i}, head));
    }
    compact.region_offsets.push_back(
        static_cast<int32_t>(compact.region_pages.size()));
    const std::vector<SlotIndex> from = tail.Slots(layout, head);
    const std::vector<SlotIndex> to = compact.Slots(layout, head);
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      test.model.CopyRow(test.model, from[i], to[i]);
    }
  }
  const std::vector<float> queries =
      RandomFloats(test.rng, 3 * test.token_floats());
  const auto backend = test.model.MakeBackend();
  const Query from{&tail, tail.tail_length, queries};
  const Query to{&compact, compact.tail_length, queries};
  const std::vector<float> expected = test.Run(*backend, 1, {&from, 1});
  test.ExpectDense(from, expected, 2e-6);
  EXPECT_TRUE(SameBits(test.Run(*backend, 1, {&to, 1}), expected));
}

TEST_P(AttentionTest, LargeLogitsDoNotOverflow) {
  ModelLayout layout{.num_layers = 1,
                     .num_heads = 1,
                     .num_q_heads = 2,
                     .head_dim = 16,
                     .page_size = 16,
                     .dtype = GetParam(),
                     .num_blocks = 20};
  AttentionCase test(layout, 13);
  PagePicker picker(layout, 10, test.rng);
  const TestSequence sequence =
      picker.MakeSequence(0, 0, 150, &test.model, test.rng);
  std::vector<float> queries = RandomFloats(test.rng, test.token_floats());
  for (float& x : queries) x *= 1e4f;
  const Query query{&sequence, sequence.tail_length, queries};
  const auto backend = test.model.MakeBackend();
  // One weight is near 1: its logit's rounding does not matter.
  test.ExpectDense(query, test.Run(*backend, 0, {&query, 1}), 1e-2);
}

// No sink changes no bit, and beside a sink far above all logits nothing is
// left.
TEST_P(AttentionTest, SinksMayBeAnywhere) {
  Rng shape_rng(19);
  AttentionCase test(RandomLayout(shape_rng, GetParam(), 40), 19);
  PagePicker picker(test.layout(), 30, test.rng);
  const TestSequence sequence =
      picker.MakeSequence(0, 0, 25, &test.model, test.rng);
  const std::vector<float> queries =
      RandomFloats(test.rng, 3 * test.token_floats());
  const Query query{&sequence, sequence.tail_length, queries};
  const auto backend = test.model.MakeBackend();
  const std::vector<float> without = test.Run(*backend, 0, {&query, 1});
  test.sinks.assign(test.layout().num_q_heads,
                    -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(SameBits(test.Run(*backend, 0, {&query, 1}), without));
  std::ranges::fill(test.sinks, 1e4f);
  for (const float x : test.Run(*backend, 0, {&query, 1})) EXPECT_EQ(x, 0.0f);
}

TEST_P(AttentionTest, SequenceWithoutQueriesIsSkipped) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 1,
                           .num_q_heads = 1,
                           .head_dim = 8,
                           .page_size = 2,
                           .dtype = GetParam(),
                           .num_blocks = 4};
  const AttentionCase test(layout, 17);
  const auto backend = test.model.MakeBackend();
  const TestSequence empty;
  const Query query{&empty, 0, {}};
  EXPECT_TRUE(test.Run(*backend, 0, {&query, 1}).empty());
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest, testing::ValuesIn(kEveryDType),
                         DTypeParamName);

}  // namespace
}  // namespace blockmgr
