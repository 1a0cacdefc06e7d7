// Evictions of the tiny engine against dense tensors and naive policies.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "engine/reference/tiny_engine.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int32_t kNumLayers = 2;
constexpr int32_t kTinyHeads = 2;
constexpr int32_t kGroup = 2;
constexpr int32_t kWindow = 32;

// SnapKV with its defaults (max pool of 7, group mean, then pool), float64:
// one score per position, of the entries below the window that a head attends.
std::vector<double> NaiveSnapKv(const DenseReference& reference, int32_t layer,
                                int32_t head, int32_t num_queries) {
  const int32_t length = reference.length();
  const int32_t past_end = length - num_queries;
  const std::vector<int32_t> entries = reference.Attended(layer, head, length);
  std::vector<int32_t> past;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(past),
               [=](int32_t position) { return position < past_end; });
  std::vector<double> mean(past.size(), 0.0);
  for (int32_t q_head = head * kGroup; q_head < (head + 1) * kGroup; ++q_head) {
    for (int32_t query = past_end; query < length; ++query) {
      std::vector<double> weights;
      double sum = 0;
      for (const int32_t position : entries) {
        if (position > query) break;
        double logit = 0;
        for (size_t d = 0; d < 16; ++d) {
          logit += reference.Query(layer, q_head, query)[d] *
                   reference.Key(layer, head, position)[d] / 4.0;
        }
        weights.push_back(std::exp(logit));
        sum += weights.back();
      }
      for (size_t i = 0; i < past.size(); ++i) {
        mean[i] += weights[i] / sum / num_queries / kGroup;
      }
    }
  }
  std::vector<double> scores(static_cast<size_t>(length),
                             std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < past.size(); ++i) {
    const size_t first = i < 3 ? 0 : i - 3;
    const size_t last = std::min(i + 4, past.size());
    scores[static_cast<size_t>(past[i])] =
        *std::max_element(mean.begin() + static_cast<ptrdiff_t>(first),
                          mean.begin() + static_cast<ptrdiff_t>(last));
  }
  return scores;
}

// The `budget` best of `candidates`: protected ones first, then by score, then
// by position.
std::vector<int32_t> NaiveKeep(const std::vector<int32_t>& candidates,
                               const std::vector<double>& scores, int32_t sinks,
                               int32_t recent_begin, size_t budget) {
  std::vector<int32_t> order = candidates;
  const auto rank = [&](int32_t position) {
    const bool is_protected = position < sinks || position >= recent_begin;
    return is_protected ? std::numeric_limits<double>::infinity()
                        : scores[static_cast<size_t>(position)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
  order.resize(std::min(order.size(), budget));
  std::sort(order.begin(), order.end());
  return order;
}

// Entries per head under a uniform budget in whole pages, nobody capped:
// floor(heads * floor(ratio * cut) / 16) pages a layer, evenly, the first heads
// one more.
size_t UniformBudget(int32_t tokens_per_head, int32_t head) {
  const int32_t pages = kTinyHeads * tokens_per_head / 16;
  const int32_t extra = head < pages % kTinyHeads ? 1 : 0;
  return size_t{16} * static_cast<size_t>(pages / kTinyHeads + extra);
}

class TinyEvictionTest : public ::testing::Test {
 protected:
  // A sequence of `length` prompt tokens in slot 0, computed here and in the
  // reference.
  void Begin(uint64_t seed, int32_t length, int32_t query_window = kWindow) {
    model_ = SmallModel(seed);
    random_.seed(seed);
    host_ = std::make_unique<EngineHarness>(model_, DType::kFloat32);
    reference_ = std::make_unique<DenseReference>(model_.get());
    host_->Start(0, RandomTokens(length, 64, &random_), query_window);
    // The last chunk comes with the eviction.
    const std::vector<int32_t> chunks = {length / 2};
    host_->Prefill(0, chunks);
    host_->Schedule(0, length - length / 2);
    reference_->Forward(std::span(host_->tokens(0)).first(length));
  }

  // Runs the plan with its one eviction and masks what it evicted.
  void RunEviction() {
    ASSERT_OK(host_->Run());
    ASSERT_EQ(host_->result().evictions.size(), 1u);
    ASSERT_EQ(host_->result().evictions[0].error, "");
    const EngineHarness::Eviction& eviction = host_->evictions()[0];
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      for (int32_t head = 0; head < kTinyHeads; ++head) {
        const auto index =
            static_cast<size_t>(layer) * kTinyHeads + static_cast<size_t>(head);
        const std::vector<int32_t> kept = eviction.KeptPositions(index);
        EXPECT_EQ(eviction.outcome.counts[index],
                  static_cast<int32_t>(kept.size()));
        EXPECT_THAT(CandidatePositions(eviction, index),
                    ElementsAreArray(
                        reference_->Attended(layer, head, eviction.order.cut)));
        reference_->Keep(layer, head, eviction.order.cut, kept);
      }
    }
  }

  static std::vector<int32_t> CandidatePositions(
      const EngineHarness::Eviction& eviction, size_t head_index) {
    const std::vector<int32_t>& positions = eviction.candidates.positions;
    return {positions.begin() + eviction.candidates.offsets[head_index],
            positions.begin() + eviction.candidates.offsets[head_index + 1]};
  }

  // Decodes in both and compares.
  void DecodeAndCompare(int32_t num_tokens) {
    for (int32_t i = 0; i < num_tokens; ++i) {
      const std::vector<double> expected = reference_->Forward(
          host_->tokens(0)[static_cast<size_t>(reference_->length())]);
      SCOPED_TRACE(absl::StrCat("token ", i));
      ExpectLogits(host_->Decode(0), expected);
    }
  }

  std::shared_ptr<const LanguageModel> model_;
  std::mt19937_64 random_;
  std::unique_ptr<EngineHarness> host_;
  std::unique_ptr<DenseReference> reference_;
};

class TinyEvictionPlaceTest
    : public TinyEvictionTest,
      public ::testing::WithParamInterface<DestinationKind> {};

INSTANTIATE_TEST_SUITE_P(Places, TinyEvictionPlaceTest,
                         ::testing::Values(DestinationKind::kFresh,
                                           DestinationKind::kOwn,
                                           DestinationKind::kMixed),
                         [](const auto& param) -> std::string {
                           if (param.param == DestinationKind::kFresh) {
                             return "Fresh";
                           }
                           return param.param == DestinationKind::kOwn
                                      ? "Own"
                                      : "Mixed";
                         });

TEST_P(TinyEvictionPlaceTest, SnapKvKeepsWhatDenseTensorsSay) {
  for (const uint64_t seed : {11, 12, 13}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Begin(seed, 200);
    std::vector<std::vector<int32_t>> expected;
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      for (int32_t head = 0; head < kTinyHeads; ++head) {
        expected.push_back(
            NaiveKeep(reference_->Attended(layer, head, 192),
                      NaiveSnapKv(*reference_, layer, head, kWindow), 0,
                      200 - kWindow, UniformBudget(72, head)));
      }
    }
    host_->Evict(0, 192, "snapkv() | uniform | topk", KeepTokens(72),
                 GetParam());
    RunEviction();
    for (size_t head = 0; head < expected.size(); ++head) {
      EXPECT_EQ(host_->evictions()[0].KeptPositions(head), expected[head]);
    }
    DecodeAndCompare(20);
  }
}

TEST_P(TinyEvictionPlaceTest, SecondEvictionTakesRegionAndTail) {
  for (const uint64_t seed : {21, 22}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Begin(seed, 150);
    const size_t free_before = host_->num_free();
    host_->Evict(0, 144, "snapkv() | adakv(alpha=0.2) | topk", Keep("0.5"),
                 GetParam());
    RunEviction();
    // 9 blocks became at most 5, and one tail block stayed.
    EXPECT_GE(host_->num_free(), free_before + 4);
    DecodeAndCompare(80);
    host_->Schedule(0, 1);
    reference_->Forward(
        host_->tokens(0)[static_cast<size_t>(reference_->length())]);
    // 231 tokens now; the policy sees what the first eviction left.
    std::vector<std::vector<double>> scores;
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      for (int32_t head = 0; head < kTinyHeads; ++head) {
        scores.push_back(NaiveSnapKv(*reference_, layer, head, kWindow));
      }
    }
    const DenseReference before = *reference_;
    host_->Evict(0, 224, "snapkv() | adakv(alpha=0.2) | topk", Keep("0.4"),
                 GetParam());
    RunEviction();
    const EngineHarness::Eviction& eviction = host_->evictions()[0];
    for (size_t index = 0; index < scores.size(); ++index) {
      const auto layer = static_cast<int32_t>(index) / kTinyHeads;
      const auto head = static_cast<int32_t>(index) % kTinyHeads;
      EXPECT_EQ(eviction.KeptPositions(index),
                NaiveKeep(before.Attended(layer, head, 224), scores[index], 0,
                          231 - kWindow,
                          static_cast<size_t>(eviction.outcome.counts[index])));
    }
    DecodeAndCompare(20);
    host_->Release(0);
    ASSERT_OK(host_->Run());
    EXPECT_EQ(host_->num_free(), 511u);
  }
}

TEST_P(TinyEvictionPlaceTest, StreamingKeepsSinksAndTheMostRecent) {
  Begin(31, 160);
  host_->Evict(0, 144, "streaming(sinks=4) | uniform | topk", KeepTokens(48),
               GetParam());
  RunEviction();
  std::vector<int32_t> expected = {0, 1, 2, 3};
  for (int32_t position = 100; position < 144; ++position) {
    expected.push_back(position);
  }
  for (size_t head = 0; head < 4; ++head) {
    EXPECT_EQ(host_->evictions()[0].KeptPositions(head), expected);
  }
  DecodeAndCompare(20);
}

TEST_P(TinyEvictionPlaceTest, ExternalScoresArriveByPosition) {
  Begin(41, 160);
  std::normal_distribution<float> normal;
  auto scores = std::make_shared<std::vector<float>>();
  for (int i = 0; i < 4 * 128; ++i) scores->push_back(normal(random_));
  host_->Evict(0, 128, "external | uniform | topk | protect(sinks=2,recent=40)",
               KeepTokens(32), GetParam());
  host_->plan().evictions[0].scores = scores;
  RunEviction();
  for (size_t head = 0; head < 4; ++head) {
    const auto first = scores->begin() + static_cast<ptrdiff_t>(head) * 128;
    EXPECT_EQ(host_->evictions()[0].KeptPositions(head),
              NaiveKeep(CandidatePositions(host_->evictions()[0], head),
                        std::vector<double>(first, first + 128), 2, 120, 32));
  }
  DecodeAndCompare(20);
}

TEST_P(TinyEvictionPlaceTest, RandomEvictionsNeverChangeWhatIsAttended) {
  for (const uint64_t seed : {51, 52, 53}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Begin(seed, 130);
    const std::vector<std::string> policies = {
        "snapkv(window=8,pool=avg,kernel=5) | adakv(alpha=0.1) | topk",
        "snapkv(window=16) | adakv(alpha=0) | topk | round(token)",
        "streaming(sinks=3) | uniform | topk | round(token)",
        "snapkv(window=4) | uniform | topk | protect(sinks=1,recent=20)"};
    for (int round = 0; round < 4; ++round) {
      const int32_t length = reference_->length();
      const int32_t cut = (length - 1) / 16 * 16;
      host_->Evict(0, cut, policies[random_() % policies.size()],
                   Keep(round % 2 == 0 ? "0.3" : "0.6"), GetParam());
      RunEviction();
      if (HasFatalFailure()) return;
      DecodeAndCompare(static_cast<int32_t>(random_() % 30 + 1));
      host_->Schedule(0, 1);
      reference_->Forward(
          host_->tokens(0)[static_cast<size_t>(reference_->length())]);
    }
  }
}

TEST_F(TinyEvictionTest, SharedSourceBlocksAreNotWritten) {
  const auto model = SmallModel(61);
  std::mt19937_64 random(61);
  const std::vector<int32_t> prompt = RandomTokens(120, 64, &random);
  // What slot 0 decodes while slot 1, on the same first blocks, evicts or not.
  const auto decode_other = [&](bool evict) {
    EngineHarness host(model, DType::kFloat32);
    host.Start(0, prompt);
    host.Prefill(0, std::vector{120});
    host.Start(1, prompt, 32, std::span(host.blocks(0)).first(7));
    host.Schedule(1, 8);
    if (evict) {
      host.Evict(1, 112, "snapkv(window=8) | adakv() | topk", Keep("0.3"),
                 DestinationKind::kFresh);
    }
    EXPECT_OK(host.Run());
    if (evict) {
      EXPECT_EQ(host.result().evictions[0].error, "");
    }
    std::vector<std::vector<float>> trace;
    for (int i = 0; i < 10; ++i) {
      host.Schedule(1, 1);
      trace.push_back(host.Decode(0));
    }
    return trace;
  };
  EXPECT_EQ(decode_other(true), decode_other(false));
}

TEST_F(TinyEvictionTest, WhoStartsOnARegionComputesWhatItsMakerDoes) {
  std::mt19937_64 random(17);
  const std::vector<int32_t> prompt = RandomTokens(90, 64, &random);
  EngineHarness harness(SmallModel(3), DType::kFloat32);
  harness.Start(0, prompt);
  harness.Schedule(0, 64);
  harness.Evict(0, 48, "snapkv | adakv | topk", Keep("0.3"),
                DestinationKind::kFresh);
  harness.plan().evictions.back().region = RegionId{5};
  ASSERT_OK(harness.Run());
  ASSERT_TRUE(harness.evictions().back().outcome.ok);
  harness.Schedule(0, 26);
  ASSERT_OK(harness.Run());
  const std::vector<float> expected = harness.logits(0);

  harness.StartOnRegion(1, prompt, 0, RegionId{5});
  harness.Schedule(1, 26);
  harness.plan().dropped_regions = {RegionId{5}};
  ASSERT_OK(harness.Run());
  EXPECT_EQ(harness.logits(1), expected);
  EXPECT_EQ(harness.tokens(1), harness.tokens(0));
  // What one evicts later, the other still has.
  harness.Schedule(0, 1);
  harness.Evict(0, 80, "streaming | uniform | topk", Keep("0.3"),
                DestinationKind::kFresh);
  harness.Schedule(1, 1);
  ASSERT_OK(harness.Run());
  EXPECT_EQ(harness.logits(1), harness.logits(0));
  harness.Schedule(1, 1);
  ASSERT_OK(harness.Run());
  EXPECT_EQ(harness.engine().tables().row(SequenceSlot{1}).groups[0].region.cut,
            48);
}

TEST_F(TinyEvictionTest, ABadOrderLeavesTheOldTable) {
  struct BadOrder {
    const char* policy;
    int32_t missing_pages;  // of the order's total
    const char* error;
  };
  for (const BadOrder& bad :
       {BadOrder{"external | uniform", 0, "scores: expected 384 values, got 0"},
        BadOrder{"streaming() | uniform", 1, "page_total"},
        BadOrder{"snapkv() | uniform", 0, "query_window"},
        BadOrder{"expected_attention(stats=other)", 0, "got 'other'"}}) {
    SCOPED_TRACE(bad.policy);
    Begin(71, 100, /*query_window=*/0);
    host_->Evict(0, 96, bad.policy, Keep("0.5"), DestinationKind::kFresh);
    host_->plan().evictions[0].page_total -= bad.missing_pages;
    ASSERT_OK(host_->Run());
    EXPECT_FALSE(host_->result().evictions[0].ok);
    EXPECT_THAT(host_->result().evictions[0].error, HasSubstr(bad.error));
    EXPECT_THAT(host_->result().evictions[0].counts, ::testing::IsEmpty());
    EXPECT_TRUE(host_->evictions().empty());
    DecodeAndCompare(5);
  }
  // With a table of query statistics nothing needs to have been observed.
  host_->Evict(0, 96, "expected_attention(stats=measured) | uniform",
               Keep("0.5"), DestinationKind::kFresh);
  RunEviction();
  DecodeAndCompare(5);
}

TEST_F(TinyEvictionTest, TheObservationWindowIsWhatWasKept) {
  Begin(74, 200, /*query_window=*/12);
  std::vector<std::vector<int32_t>> expected;
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    for (int32_t head = 0; head < kTinyHeads; ++head) {
      expected.push_back(NaiveKeep(reference_->Attended(layer, head, 192),
                                   NaiveSnapKv(*reference_, layer, head, 12), 0,
                                   200 - kWindow, 64));
    }
  }
  host_->Evict(0, 192, "snapkv() | uniform | topk", KeepTokens(64),
               DestinationKind::kFresh);
  RunEviction();
  for (size_t head = 0; head < expected.size(); ++head) {
    EXPECT_EQ(host_->evictions()[0].KeptPositions(head), expected[head]);
  }
  DecodeAndCompare(10);
}

}  // namespace
}  // namespace blockmgr
