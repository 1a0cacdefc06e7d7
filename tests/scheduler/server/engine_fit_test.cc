#include "scheduler/server/engine_fit.h"

#include <string>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

class EngineFitTest : public ::testing::Test {
 protected:
  std::string Difference() const {
    return DescribeDifference(want_, had_, got_, has_);
  }

  ModelLayout want_;
  ModelLayout got_;
  EngineAbilities had_;
  EngineAbilities has_;
};

TEST_F(EngineFitTest, EqualEnginesFit) { EXPECT_EQ(Difference(), ""); }

TEST_F(EngineFitTest, AnEngineThatCanDoMoreFits) {
  has_.supports_window_evictions = true;
  has_.query_stats["chat"] = "1a2b";
  has_.sampling.fields = EngineSampling::kAllFields;
  EXPECT_EQ(Difference(), "");
}

TEST_F(EngineFitTest, AnEngineThatCanDoLessDoesNotFit) {
  had_.sampling.fields = EngineSampling::BitOf(SamplingField::kTopK);
  EXPECT_EQ(Difference(),
            "sampling_fields: live requests need an engine with 2, got an "
            "engine without it");
  had_.query_stats["chat"] = "1a2b";
  EXPECT_EQ(Difference(),
            "query_stats['chat']: live requests need 1a2b, got none");
  had_.supports_window_evictions = true;
  EXPECT_EQ(Difference(),
            "supports_window_evictions: live requests need 1, got 0");
}

TEST_F(EngineFitTest, TheFirstFieldOfAnotherGeometryIsNamed) {
  want_.num_blocks = 64;
  got_.num_blocks = 63;
  has_.num_host_blocks = had_.num_host_blocks + 5;
  EXPECT_EQ(Difference(), "layout.num_blocks: live requests need 64, got 63");
  got_.num_blocks = 64;
  EXPECT_EQ(Difference(), "num_host_blocks: live requests need 0, got 5");
}

TEST_F(EngineFitTest, TokensOfAnotherVocabularyDoNotFit) {
  had_.sampling.vocabulary_size = 10;
  has_.sampling.vocabulary_size = 9;
  EXPECT_EQ(Difference(), "vocabulary_size: live requests need 10, got 9");
}

TEST(DescribeOtherModelTest, ComparesFieldsThatBothModelsHave) {
  const ServedModel needed = {.name = "a", .context_tokens = 100};
  const auto describe = [&needed](const ServedModel& has) {
    return DescribeOtherModel(needed, &has);
  };
  EXPECT_EQ(DescribeOtherModel(needed, nullptr), "");
  EXPECT_EQ(describe({}), "");
  EXPECT_EQ(describe({.name = "a", .context_tokens = 101}), "");
  EXPECT_EQ(describe({.name = "b"}),
            "model.name: live requests need \"a\", got \"b\"");
  EXPECT_EQ(describe({.context_tokens = 99}),
            "model.context_tokens: live requests need 100, got 99");
  const ServedModel other = {.name = "b"};
  EXPECT_EQ(DescribeOtherModel({}, &other), "");
}

}  // namespace
}  // namespace blockmgr
