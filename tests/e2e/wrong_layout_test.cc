// An engine that derives page lists by a rule of its own, over real gRPC: its
// first eviction tells.

#include <atomic>
#include <cstdint>
#include <random>
#include <span>

#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"
#include "tests/testing/fresh_layout.h"

namespace blockmgr {
namespace {

constexpr int32_t kPageTokens = 16;

// The example of docs/engine.md: which head has which page of layer 1 depends
// on the outer loop.
v1::EvictRequest UnevenEviction() {
  v1::EvictRequest request;
  request.set_request_id("r");
  *request.mutable_policy() = SnapKvAdaKv(8);
  request.mutable_policy()->mutable_external_budgets();
  request.mutable_target()->set_keep_ratio("0.5");
  for (const int32_t pages : {6, 1, 1, 4}) {
    request.add_budgets(pages * kPageTokens);
  }
  return request;
}

class WrongLayoutTest : public ::testing::Test {
 protected:
  // Answers with the checksum of the lists that this outer loop gives.
  void Answer(const StepPlan& plan, OuterLoop outer_loop, StepResult* result) {
    ModelLayout layout = MakeLayout(options_.model->shape(), kPageTokens,
                                    DType::kFloat32, options_.num_blocks);
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      const EvictionOrder& order = plan.evictions[i];
      EvictionOutcome& outcome = result->evictions[i];
      ASSERT_TRUE(outcome.ok) << outcome.error;
      const auto destinations =
          std::span(plan.destinations)
              .subspan(static_cast<size_t>(order.destination_begin),
                       static_cast<size_t>(order.num_destinations));
      const auto checksum_by = [&](OuterLoop loop) {
        return ChecksumOf(
            FreshLayout(layout, destinations, outcome.counts, loop),
            outcome.counts);
      };
      EXPECT_EQ(outcome.layout_checksum, checksum_by(OuterLoop::kHeads));
      EXPECT_NE(outcome.layout_checksum, checksum_by(OuterLoop::kStages));
      outcome.layout_checksum = checksum_by(outer_loop);
      ++num_answers_;
    }
  }
  // Runs a request and evicts from it.
  grpc::Status Evict(Line* line) {
    std::mt19937_64 random(31);
    line->Open();
    EXPECT_TRUE(
        line->Submit(Line::MakeRequest("r", RandomTokens(200, &random), 400))
            .ok());
    line->WaitForTokens("r", 3);
    v1::EvictResponse response;
    return line->Evict(UnevenEviction(), &response);
  }

  LineOptions options_{.model = SmallModel(31),
                       .num_blocks = 64,
                       .page_size = kPageTokens,
                       .scheduler = SmallScheduler(false, 2)};
  std::atomic<int32_t> num_answers_ = 0;
};

TEST_F(WrongLayoutTest, EndsTheEnginesStream) {
  options_.spoils = [this](const StepPlan& plan, StepResult* result) {
    Answer(plan, OuterLoop::kStages, result);
  };
  options_.engine_error =
      "evictions\\[0\\] \\(request \"r\", layer group 0\\): layout_checksum: "
      "expected 0x[0-9a-f]{16}, got 0x[0-9a-f]{16}: .* a region of cut .* on 3 "
      "destinations, .* without a region before; docs/engine.md has the rule .*"
      "docs/region_layout_vectors.json";
  Line line(options_);
  const grpc::Status status = Evict(&line);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED)
      << status.error_message();
  EXPECT_EQ(num_answers_, 1);
  EXPECT_FALSE(line.GetStats().engine_attached());
  EXPECT_EQ(line.GetStats().num_evictions(), 0u);
  line.Close();
}

TEST_F(WrongLayoutTest, TheRightOneAndNoneAreTaken) {
  for (const bool has_checksum : {true, false}) {
    SCOPED_TRACE(has_checksum);
    options_.spoils = [&](const StepPlan& plan, StepResult* result) {
      if (has_checksum) return Answer(plan, OuterLoop::kHeads, result);
      for (EvictionOutcome& outcome : result->evictions) {
        outcome.layout_checksum.reset();
        ++num_answers_;
      }
    };
    num_answers_ = 0;
    Line line(options_);
    const grpc::Status status = Evict(&line);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(num_answers_, 1);
    line.Close();
  }
}

}  // namespace
}  // namespace blockmgr
