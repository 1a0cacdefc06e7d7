#include "bench/workload.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

TEST(WorkloadTest, EqualSegmentsGiveEqualTokens) {
  const uint64_t shared = StreamOf(StreamKind::kHashId, 7, 1);
  const uint64_t other = StreamOf(StreamKind::kHashId, 8, 1);
  const auto a = SynthesizeTokens(
      std::vector<PromptSegment>{{shared, 512}, {other, 100}}, 256);
  const auto b =
      SynthesizeTokens(std::vector<PromptSegment>{{shared, 300}}, 256);
  ASSERT_EQ(a.size(), 612u);
  ASSERT_EQ(b.size(), 300u);
  EXPECT_TRUE(std::equal(b.begin(), b.end(), a.begin()));
}

TEST(WorkloadTest, DifferentStreamsGiveDifferentTokens) {
  const auto first_block = [](uint64_t stream) {
    return SynthesizeTokens(std::vector<PromptSegment>{{stream, 16}}, 256);
  };
  const std::vector<uint64_t> streams = {
      StreamOf(StreamKind::kHashId, 1, 0), StreamOf(StreamKind::kHashId, 2, 0),
      StreamOf(StreamKind::kHashId, 1, 1), StreamOf(StreamKind::kUnique, 1, 0),
      StreamOf(StreamKind::kSharedPrefix, 1, 0)};
  for (size_t i = 0; i < streams.size(); ++i) {
    for (size_t j = i + 1; j < streams.size(); ++j) {
      EXPECT_NE(first_block(streams[i]), first_block(streams[j]))
          << i << " and " << j;
    }
  }
}

TEST(WorkloadTest, TokensAreUniformBelowTheVocabulary) {
  constexpr int32_t kTokens = 100000;
  constexpr int32_t kVocabulary = 10;
  const auto tokens = SynthesizeTokens(
      std::vector<PromptSegment>{
          {StreamOf(StreamKind::kUnique, 3, 5), kTokens}},
      kVocabulary);
  EXPECT_THAT(tokens, Each(AllOf(Ge(0), Lt(kVocabulary))));
  for (int32_t token = 0; token < kVocabulary; ++token) {
    // Binomial: 10000 expected, standard deviation 95.
    EXPECT_NEAR(std::count(tokens.begin(), tokens.end(), token), 10000, 600);
  }
}

TEST(WorkloadTest, PromptTokensAreTheSumOfSegments) {
  WorkloadRequest request;
  request.prompt = {{1, 512}, {2, 512}, {3, 17}};
  EXPECT_EQ(request.prompt_tokens(), 1041);
}

}  // namespace
}  // namespace blockmgr
