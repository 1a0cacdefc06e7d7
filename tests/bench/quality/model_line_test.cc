#include "bench/quality/model_line.h"

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/quality/quality_testing.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<ModelLine> MakeLine(int32_t num_blocks) {
  auto line = ModelLine::Create({.model = ByteModel(3),
                                 .dtype = DType::kFloat32,
                                 .page_size = 16,
                                 .num_blocks = num_blocks,
                                 .num_threads = 1});
  EXPECT_OK(line);
  return *std::move(line);
}

Request RequestOf(const char* id, std::vector<int32_t> prompt,
                  int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

// The reference computes one token at a time, in float64.
TEST(ModelLineTest, LogitsOfAPromptAreTheReferences) {
  std::mt19937_64 random(1);
  const std::vector<int32_t> prompt = RandomBytes(50, &random);
  const auto line = MakeLine(32);
  std::vector<int32_t> positions;
  std::vector<std::vector<float>> rows;
  LogitsReader reader;
  reader.positions = {3, 4, 30, 49};
  reader.read = [&](int32_t position, std::span<const float> logits) {
    positions.push_back(position);
    rows.emplace_back(logits.begin(), logits.end());
  };
  ASSERT_OK_AND_ASSIGN(const RequestId id,
                       line->Submit(RequestOf("a", prompt, 1), reader));
  ASSERT_OK_AND_ASSIGN(const LineOutcome outcome, line->RunUntilEnd(id));
  EXPECT_EQ(outcome.finish.reason, FinishReason::kLength);
  EXPECT_EQ(outcome.num_tokens, 1);
  ASSERT_THAT(positions, ElementsAre(3, 4, 30, 49));
  const auto model = ByteModel(3);
  DenseReference reference(model.get());
  size_t row = 0;
  for (int32_t i = 0; i < 50; ++i) {
    const std::vector<double> expected =
        reference.Forward(prompt[static_cast<size_t>(i)]);
    if (row == positions.size() || positions[row] != i) continue;
    for (size_t token = 0; token < expected.size(); ++token) {
      EXPECT_NEAR(rows[row][token], expected[token], 1e-3) << i;
    }
    ++row;
  }
}

TEST(ModelLineTest, ARequestLivesOnBehindItsFirstToken) {
  std::mt19937_64 random(2);
  const std::vector<int32_t> prompt = RandomBytes(40, &random);
  const auto line = MakeLine(32);
  ASSERT_OK_AND_ASSIGN(const RequestId parent,
                       line->Submit(RequestOf("parent", prompt, 8)));
  ASSERT_OK_AND_ASSIGN(const LineOutcome begun, line->RunUntilToken(parent));
  EXPECT_EQ(begun.num_tokens, 1);
  std::vector<int32_t> longer = prompt;
  longer.push_back(7);
  Request fork = RequestOf("fork", longer, 1);
  fork.fork_of = "parent";
  ASSERT_OK_AND_ASSIGN(const RequestId id, line->Submit(std::move(fork)));
  ASSERT_OK_AND_ASSIGN(const LineOutcome ended, line->RunUntilEnd(id));
  EXPECT_EQ(ended.finish.num_cached_tokens, 40);
  EXPECT_GT(ended.seconds, 0.0);
  EXPECT_OK(line->Cancel(parent));
  EXPECT_EQ(
      line->stats().blocks.free_blocks + line->stats().blocks.cached_blocks,
      31);
}

TEST(ModelLineTest, RefusesWhatCannotFit) {
  std::mt19937_64 random(3);
  const auto line = MakeLine(4);
  EXPECT_THAT(line->Submit(RequestOf("a", RandomBytes(100, &random), 1)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace blockmgr
