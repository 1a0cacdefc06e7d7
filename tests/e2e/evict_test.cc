// What EvictionService answers when there is nothing to evict, or the engine
// refuses, over real gRPC.

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of two layers of two heads.
class EvictTest : public testing::Test {
 protected:
  void Open(LineOptions options = {}) {
    std::mt19937_64 random(31);
    options.model = SmallModel(31);
    options.num_blocks = 60;
    options.scheduler = SmallScheduler(true, 2);
    line_ = std::make_unique<Line>(std::move(options));
    line_->Open();
    // It runs until the line is closed: far longer than a test.
    ASSERT_TRUE(
        line_->Submit(Line::MakeRequest("r", RandomTokens(100, &random), 700))
            .ok());
    line_->WaitForTokens("r", 1);
  }

  static v1::EvictRequest Request(const char* keep_ratio, int32_t cut = 96) {
    v1::EvictRequest request;
    request.set_request_id("r");
    request.mutable_policy()->mutable_streaming()->set_sinks(0);
    request.mutable_target()->set_keep_ratio(keep_ratio);
    request.set_cut(cut);
    return request;
  }
  static v1::EvictRequest ByBudgets(const std::vector<int32_t>& budgets,
                                    int32_t cut = 96) {
    v1::EvictRequest request = Request("1", cut);
    request.mutable_policy()->mutable_external_budgets();
    request.mutable_budgets()->Assign(budgets.begin(), budgets.end());
    return request;
  }
  grpc::Status Evict(const v1::EvictRequest& request) {
    return line_->Evict(request, &response_);
  }
  grpc::Status EvictByScores(v1::EvictRequest request) {
    request.mutable_policy()->mutable_external_scores();
    const std::vector<float> scores(size_t{4} * request.cut());
    return line_->EvictByScores(request, scores, &response_);
  }
  // Of [0, cut).
  template <typename Kept>
  void ExpectNothingEvicted(const grpc::Status& status, int32_t cut,
                            const Kept& kept) {
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response_.cut(), cut);
    EXPECT_EQ(response_.evicted_entries(), 0);
    EXPECT_EQ(response_.freed_blocks(), 0);
    EXPECT_EQ(response_.freed_bytes(), 0);
    EXPECT_THAT(response_.kept_entries(), kept);
  }

  std::unique_ptr<Line> line_;
  v1::EvictResponse response_;
};

TEST_F(EvictTest, EveryWayToEvictNothingSaysWhatIsKept) {
  Open();
  const auto kept = ElementsAre(96, 96, 96, 96);
  ExpectNothingEvicted(Evict(Request("1")), 96, kept);
  ExpectNothingEvicted(EvictByScores(Request("1")), 96, kept);
  ExpectNothingEvicted(Evict(ByBudgets({96, 96, 96, 96})), 96, kept);
  // Six pages, too.
  ExpectNothingEvicted(Evict(ByBudgets({81, 96, 96, 96})), 96, kept);
}

// What the region keeps, and all that is behind it.
TEST_F(EvictTest, AfterAnEvictionItSaysWhatThatHasLeft) {
  Open();
  const grpc::Status status = Evict(ByBudgets({0, 48, 32, 64}));
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response_.kept_entries(), ElementsAre(0, 48, 32, 64));
  EXPECT_EQ(response_.evicted_entries(), 4 * 96 - 144);
  line_->WaitForTokens("r", 60);
  const auto kept = ElementsAre(48, 96, 80, 112);
  ExpectNothingEvicted(Evict(Request("1", 144)), 144, kept);
  ExpectNothingEvicted(EvictByScores(Request("1", 144)), 144, kept);
  ExpectNothingEvicted(Evict(ByBudgets({192, 192, 192, 192}, 144)), 144, kept);
}

// The same words as ever; what is planned goes on, see refusals_test.cc.
TEST_F(EvictTest, ARefusalIsAnErrorWithTheEnginesReason) {
  LineOptions options;
  options.refuses = [](const EvictionOrder&) { return true; };
  Open(std::move(options));
  const grpc::Status status = Evict(Request("0.5"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(),
              HasSubstr("the engine refused the eviction: length: "));
  EXPECT_EQ(line_->GetStats().num_refused_evictions(), 1u);
  line_->WaitForTokens("r", 5);
}

}  // namespace
}  // namespace blockmgr
