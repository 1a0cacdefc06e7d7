// Attention against a dense float64 softmax, and its bit-for-bit promises.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/testing/sanitizers.h"

namespace blockmgr {
namespace {

// One q_head's query over the given slots, in float64.
std::vector<double> DenseAttention(const PoolModel& model,
                                   std::span<const SlotIndex> slots,
                                   std::span<const float> query, double scale) {
  std::vector<double> logits;
  for (const SlotIndex slot : slots) {
    double dot = 0.0;
    for (std::size_t i = 0; i < query.size(); ++i) {
      dot += double{query[i]} * double{model.key(slot)[i]};
    }
    logits.push_back(dot * scale);
  }
  const double max = *std::ranges::max_element(logits);
  double sum = 0.0;
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
                       .window = window});
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
          const std::vector<double> expected = DenseAttention(
              model, visible, query.queries.subspan(begin, layout().head_dim),
              scale());
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
};

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

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

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
    const std::unique_ptr<Backend> backend = test.model.MakeBackend();
    std::vector<Query> batch;
    batch.reserve(sequences.size());
    for (int32_t i = 0; i < 3; ++i) {
      batch.push_back({&sequences[i], sequences[i].tail_length, queries[i]});
    }
    const std::vector<float> output = test.Run(*backend, layer, batch);
    int64_t begin = 0;
    for (const Query& query : batch) {
      test.ExpectDense(
          query, std::span(output).subspan(begin, query.queries.size()), 2e-6);
      begin += static_cast<int64_t>(query.queries.size());
    }
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

TEST_P(AttentionTest, ResultIsIndependentOfChunksAndBatch) {
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

TEST_P(AttentionTest, WindowsMatchDenseReference) {
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
    const std::unique_ptr<Backend> backend = test.model.MakeBackend();
    std::vector<Query> batch;
    batch.reserve(sequences.size());
    for (int32_t i = 0; i < 3; ++i) {
      batch.push_back({&sequences[i], sequences[i].tail_length, queries[i]});
    }
    const std::vector<float> output = test.Run(*backend, 0, batch);
    int64_t begin = 0;
    for (int32_t i = 0; i < 3; ++i) {
      const int64_t size = std::ssize(queries[i]);
      const Query query{&whole[i], whole[i].tail_length, queries[i]};
      test.ExpectDense(query, std::span(output).subspan(begin, size), 2e-6);
      begin += size;
    }
  }
}

TEST_P(AttentionTest, WithAWindowTheResultIsIndependentOfChunks) {
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

TEST_P(AttentionTest, RegionsUnderAWindowMatchDenseReference) {
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
    const std::unique_ptr<Backend> backend = test.model.MakeBackend();
    std::vector<Query> batch;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      batch.push_back({&sequences[i], sequences[i].tail_length, queries[i]});
    }
    const std::vector<float> output = test.Run(*backend, 0, batch);
    int64_t begin = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const int64_t size = std::ssize(queries[i]);
      test.ExpectDense(batch[i], std::span(output).subspan(begin, size), 2e-6);
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

TEST_P(AttentionTest, AbortsOnARegionWithoutPositionsUnderAWindow) {
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
      std::ranges::copy(test.model.key(from[i]), test.model.key(to[i]).begin());
      std::ranges::copy(test.model.value(from[i]),
                        test.model.value(to[i]).begin());
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
