// Attention under a window, against a dense float64 softmax.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

// The sequence as it is when its last num_queries tokens are computed: blocks
// that none of them attends to are gone.
TestSequence WithoutPastBlocks(const AttentionCase& test,
                               const TestSequence& sequence,
                               int32_t tail_length, int32_t num_queries) {
  // An id outside the pool: to look at it is to crash.
  constexpr BlockId kStale{1 << 30};
  TestSequence result = sequence;
  const int32_t first_page =
      test.FirstPosition(tail_length, num_queries) / test.layout().page_size;
  for (int32_t i = 0; i < first_page; ++i) {
    result.tail_blocks[i] = i % 2 == 0 ? kNullBlock : kStale;
  }
  return result;
}

// What is before `position` becomes NaN.
void PoisonBefore(int32_t position, const TestSequence& sequence,
                  PoolModel* model) {
  for (int32_t head = 0; head < model->layout().num_heads; ++head) {
    const std::vector<SlotIndex> slots = sequence.Slots(model->layout(), head);
    for (int32_t i = 0; i < position; ++i) {
      std::ranges::fill(model->key(slots[i]), std::nanf(""));
      std::ranges::fill(model->value(slots[i]), std::nanf(""));
    }
  }
}

class AttentionWindowsTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionWindowsTest, WindowsMatchDenseReference) {
  for (uint64_t seed = 200; seed < 200 + SlowCases(24); ++seed) {
    SCOPED_TRACE(seed);
    Rng shape_rng(seed);
    AttentionCase test(RandomLayout(shape_rng, GetParam(), 700), seed);
    test.window = RandomInt(test.rng, 1, RandomInt(test.rng, 1, 200));
    PagePicker picker(test.layout(), 650, test.rng);
    std::vector<TestSequence> whole;
    std::vector<TestSequence> sequences;
    std::vector<std::vector<float>> queries;
    for (int32_t i = 0; i < 3; ++i) {
      whole.push_back(picker.MakeSequence(0, 0, RandomInt(test.rng, 1, 210),
                                          &test.model, test.rng));
      const int32_t length = whole[i].tail_length;
      const int32_t num_queries = i == 0 ? 1 : RandomInt(test.rng, 1, length);
      PoisonBefore(test.FirstPosition(length, num_queries), whole[i],
                   &test.model);
      sequences.push_back(
          WithoutPastBlocks(test, whole[i], length, num_queries));
      queries.push_back(
          RandomFloats(test.rng, num_queries * test.token_floats()));
    }
    test.ExpectBatchDense(0, sequences, whole, queries);
    test.sinks = RandomFloats(test.rng, test.layout().num_q_heads);
    test.ExpectBatchDense(0, sequences, whole, queries);
  }
}

TEST_P(AttentionWindowsTest, WithAWindowTheResultIsIndependentOfChunks) {
  for (uint64_t seed = 300; seed < 300 + SlowCases(12); ++seed) {
    SCOPED_TRACE(seed);
    Rng shape_rng(seed);
    AttentionCase test(RandomLayout(shape_rng, GetParam(), 300), seed);
    test.window = RandomInt(test.rng, 1, 150);
    PagePicker picker(test.layout(), 290, test.rng);
    const TestSequence sequence = picker.MakeSequence(
        0, 0, RandomInt(test.rng, 1, 280), &test.model, test.rng);
    const int64_t token = test.token_floats();
    const std::vector<float> queries =
        RandomFloats(test.rng, sequence.tail_length * token);
    const auto backend = test.model.MakeBackend();
    const Query whole{&sequence, sequence.tail_length, queries};
    const std::vector<float> expected = test.Run(*backend, 0, {&whole, 1});
    test.ExpectDense(whole, expected, 2e-6);
    for (const int32_t max_chunk : {1, 5, 40}) {
      std::vector<float> output;
      for (int32_t begin = 0; begin < sequence.tail_length;) {
        const int32_t end = std::min(begin + RandomInt(test.rng, 1, max_chunk),
                                     sequence.tail_length);
        const TestSequence now =
            WithoutPastBlocks(test, sequence, end, end - begin);
        const Query chunk{
            &now, end,
            std::span(queries).subspan(begin * token, (end - begin) * token)};
        const std::vector<float> part = test.Run(*backend, 0, {&chunk, 1});
        output.insert(output.end(), part.begin(), part.end());
        begin = end;
      }
      EXPECT_TRUE(SameBits(output, expected)) << "chunks up to " << max_chunk;
    }
    // Nobody has a token more behind than this.
    test.window = sequence.tail_length;
    const std::vector<float> all = test.Run(*backend, 0, {&whole, 1});
    test.window = 0;
    EXPECT_TRUE(SameBits(test.Run(*backend, 0, {&whole, 1}), all));
  }
}

// Sequences with a region, none of whose rows has fallen out of the window of
// the first query, or some, or all; and one without.
std::vector<TestSequence> SequencesUnderWindow(AttentionCase* test,
                                               PagePicker* picker) {
  std::vector<TestSequence> sequences;
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t max_region = i == 3 ? 0 : RandomInt(test->rng, 1, 60);
    sequences.push_back(picker->MakeSequence(
        0, max_region, RandomInt(test->rng, 1, 70), &test->model, test->rng));
    if (max_region == 0) continue;
    sequences[i].TakePositions(
        test->layout(), max_region + RandomInt(test->rng, 0, 80), test->rng);
  }
  return sequences;
}

TEST_P(AttentionWindowsTest, RegionsUnderAWindowMatchDenseReference) {
  for (uint64_t seed = 400; seed < 400 + SlowCases(24); ++seed) {
    SCOPED_TRACE(seed);
    Rng shape_rng(seed);
    AttentionCase test(RandomLayout(shape_rng, GetParam(), 700), seed);
    test.window = RandomInt(test.rng, 1, RandomInt(test.rng, 1, 250));
    PagePicker picker(test.layout(), 350, test.rng);
    const std::vector<TestSequence> sequences =
        SequencesUnderWindow(&test, &picker);
    std::vector<std::vector<float>> queries;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int32_t num_queries =
          i == 0 ? 1 : RandomInt(test.rng, 1, sequences[i].tail_length);
      queries.push_back(
          RandomFloats(test.rng, num_queries * test.token_floats()));
    }
    const std::vector<float> output =
        test.ExpectBatchDense(0, sequences, sequences, queries);
    const std::unique_ptr<Backend> backend = test.model.MakeBackend();
    int64_t begin = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int64_t size = std::ssize(queries[i]);
      // Whatever it is cut into.
      const int64_t token = test.token_floats();
      const auto num_queries = static_cast<int32_t>(size / token);
      for (int32_t j = 0; j < num_queries; j += 7) {
        const Query alone{&sequences[i],
                          sequences[i].tail_length - num_queries + j + 1,
                          std::span(queries[i]).subspan(j * token, token)};
        EXPECT_TRUE(
            SameBits(test.Run(*backend, 0, {&alone, 1}),
                     std::span(output).subspan(begin + j * token, token)))
            << "sequence " << i << " query " << j;
      }
      begin += size;
    }
  }
}

TEST_P(AttentionWindowsTest, AbortsOnARegionWithoutPositionsUnderAWindow) {
  Rng shape_rng(1);
  AttentionCase test(RandomLayout(shape_rng, GetParam(), 40), 1);
  PagePicker picker(test.layout(), 20, test.rng);
  const TestSequence sequence =
      picker.MakeSequence(0, 4, 5, &test.model, test.rng);
  const std::vector<float> queries =
      RandomFloats(test.rng, test.token_floats());
  const Query query{&sequence, sequence.tail_length, queries};
  const auto backend = test.model.MakeBackend();
  test.window = 3;
  EXPECT_DEATH(test.Run(*backend, 0, {&query, 1}), "positions");
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionWindowsTest,
                         testing::ValuesIn(kEveryDType), DTypeParamName);

}  // namespace
}  // namespace blockmgr
