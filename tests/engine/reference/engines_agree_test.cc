// One suite for both engines: what a scheduler orders they carry out alike. How
// many entries heads keep is the same wherever scores have no say in it; where
// they have, every group of heads that shares a total keeps all of it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "engine/reference/sim_engine.h"
#include "engine/reference/tiny_engine.h"
#include "kernels/backend.h"
#include "scheduler/scheduler.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kPageSize = 16;

// Carries a plan out.
using Engine = std::function<absl::Status(const StepPlan&, StepResult*)>;

struct Asked {
  std::string policy;
  std::string keep = "0.3";
  std::vector<int32_t> budgets = {};
};

EvictionCommand CommandOf(const Asked& asked) {
  EvictionCommand command;
  command.policy = *ParsePolicy(asked.policy);
  command.target.ratio = *KeepRatio::Parse(asked.keep);
  if (!asked.budgets.empty()) {
    command.budgets =
        std::make_shared<const std::vector<int32_t>>(asked.budgets);
  }
  return command;
}

// Two layers of two heads, which are of as many shards.
class EnginesAgreeTest : public testing::TestWithParam<int32_t> {
 protected:
  EnginesAgreeTest() {
    layout_ = MakeLayout(model_->shape(), kPageSize, DType::kFloat32, 64);
    layout_.num_shards = GetParam();
  }

  Engine Tiny() const {
    auto backends = CreateCpuShards(layout_);
    EXPECT_THAT(backends, IsOk());
    auto engine = std::make_shared<TinyEngine>(
        model_, layout_, *std::move(backends),
        TinyEngineOptions{.max_sequences = kMaxSequenceSlots});
    return [engine](const StepPlan& plan, StepResult* result) {
      return engine->Run(plan, result);
    };
  }
  Engine Sim() const {
    auto engine = std::make_shared<SimEngine>(layout_, SimModel(), 1);
    return [engine](const StepPlan& plan, StepResult* result) {
      return engine->TryRun(plan, result).status();
    };
  }

  // A request with a prompt of 193 tokens, evicted from as often as is asked, a
  // page after each other; how that ended.
  std::vector<EvictionEffect> Serve(const Engine& engine,
                                    const std::vector<Asked>& all) const {
    SchedulerOptions options = PlainOptions();
    options.query_window = 32;
    options.max_num_batched_tokens = 512;
    const std::unique_ptr<Scheduler> scheduler =
        *Scheduler::Create(layout_, options);
    Request request = MakeRequest("r", 0, 30);
    request.prompt.assign(193, 5);
    const RequestId id = *scheduler->Submit(std::move(request));
    Effects effects;
    const auto step = [&] {
      StepPlan plan;
      StepResult result;
      return scheduler->Schedule(&plan) && engine(plan, &result).ok() &&
             scheduler->Update(result, &effects).ok();
    };
    EXPECT_TRUE(step());
    for (const Asked& asked : all) {
      const size_t before = effects.evictions.size();
      for (int32_t i = 0; before > 0 && i < kPageSize; ++i) {
        EXPECT_TRUE(step());
      }
      EXPECT_THAT(scheduler->Evict(id, CommandOf(asked)), IsOk());
      EXPECT_TRUE(step());
      EXPECT_EQ(effects.evictions.size(), before + 1);
      if (testing::Test::HasFailure()) break;
    }
    return effects.evictions;
  }

  // What the last of them has kept, of both engines; none, if an engine has not
  // done it.
  std::vector<std::vector<int32_t>> KeptByBoth(
      const std::vector<Asked>& all) const {
    std::vector<std::vector<int32_t>> kept;
    for (const Engine& engine : {Tiny(), Sim()}) {
      const std::vector<EvictionEffect> ends = Serve(engine, all);
      for (const EvictionEffect& end : ends) EXPECT_OK(end.status);
      kept.push_back(ends.empty() ? std::vector<int32_t>()
                                  : ends.back().kept_entries);
    }
    return kept;
  }

  const std::shared_ptr<const LanguageModel> model_ = SmallModel(1);
  ModelLayout layout_;
};

INSTANTIATE_TEST_SUITE_P(Shards, EnginesAgreeTest, testing::Values(1, 2));

TEST_P(EnginesAgreeTest, BudgetsOfACallerMayBeZero) {
  const std::string policy = "streaming(sinks=0) | external";
  for (const std::vector<int32_t>& kept :
       KeptByBoth({{.policy = policy, .budgets = {192, 0, 0, 0}}})) {
    EXPECT_THAT(kept, ElementsAre(192, 0, 0, 0));
  }
  // Whole pages.
  for (const std::vector<int32_t>& kept :
       KeptByBoth({{.policy = policy, .budgets = {0, 0, 0, 1}}})) {
    EXPECT_THAT(kept, ElementsAre(0, 0, 0, 16));
  }
  for (const std::vector<int32_t>& kept :
       KeptByBoth({{.policy = policy + " | topk | round(token)",
       .budgets = {0, 17, 0, 1}}})) {
    EXPECT_THAT(kept, ElementsAre(0, 17, 0, 1));
  }
}

TEST_P(EnginesAgreeTest, BudgetsOfACallerKeepWhatIsProtected) {
  const Asked asked{
      .policy =
          "streaming(sinks=0) | external | topk | protect(sinks=4,recent=20)",
      .budgets = {192, 0, 0, 1}};
  // Positions 0 to 3, and 174 to 191: 22 entries, two pages.
  for (const std::vector<int32_t>& kept : KeptByBoth({asked})) {
    EXPECT_THAT(kept, ElementsAre(192, 32, 32, 32));
  }
}

// Heads that hold different numbers: what the first has kept, and the 16 of
// positions 192 to 207.
TEST_P(EnginesAgreeTest, BudgetsOfACallerAreBoundedByWhatIsHeld) {
  const std::string policy = "streaming(sinks=0) | external";
  for (const std::vector<int32_t>& kept :
       KeptByBoth({{.policy = policy, .budgets = {0, 16, 64, 32}},
                   {.policy = policy, .budgets = {16, 64, 48, 0}}})) {
    EXPECT_THAT(kept, ElementsAre(16, 32, 48, 0));
  }
}

TEST_P(EnginesAgreeTest, ScoresHaveNoSayInEqualBudgetsNorInLayers) {
  for (const char* policy :
       {"snapkv | uniform", "keydiff | uniform | topk | round(token)",
        "snapkv | pyramid", "keydiff | pyramid(beta=3)",
        "keydiff | pyramid(beta=3) | topk | round(token)",
        "streaming(sinks=40) | uniform"}) {
    for (const char* keep : {"0.05", "0.3", "0.77"}) {
      SCOPED_TRACE(absl::StrCat(policy, ", keep ", keep));
      const std::vector<std::vector<int32_t>> kept =
          KeptByBoth({{.policy = policy, .keep = keep}});
      EXPECT_FALSE(kept[0].empty());
      EXPECT_EQ(kept[0], kept[1]);
      // Again, when heads hold different numbers.
      const std::vector<std::vector<int32_t>> again =
          KeptByBoth({{.policy = "streaming(sinks=0) | external",
                       .budgets = {16, 192, 64, 160}},
                      {.policy = policy, .keep = "0.2"}});
      EXPECT_EQ(again[0], again[1]);
    }
  }
}

TEST_P(EnginesAgreeTest, ScoresDivideTheTotalOfALayerOrOfTheModel) {
  const int32_t own_heads = 2 / GetParam();
  for (const char* policy :
       {"snapkv | adakv", "keydiff | adakv(alpha=0)",
        "keydiff | ada_pyramid(beta=3)", "keydiff | global",
        "keydiff | adakv | topk | protect(sinks=4,recent=16)"}) {
    for (const char* keep : {"0.05", "0.3", "0.77"}) {
      SCOPED_TRACE(absl::StrCat(policy, ", keep ", keep));
      const bool is_global = std::string(policy).ends_with("global");
      const std::vector<std::vector<int32_t>> kept =
          KeptByBoth({{.policy = policy, .keep = keep}});
      // By shard, and layer.
      std::vector<std::vector<int32_t>> pages(2);
      for (size_t engine = 0; engine < 2; ++engine) {
        ASSERT_EQ(kept[engine].size(), 4u);
        pages[engine].resize(4);
        for (int32_t head = 0; head < 4; ++head) {
          const int32_t layer = is_global ? 0 : head / 2;
          pages[engine]
               [static_cast<size_t>(head % 2 / own_heads * 2 + layer)] +=
              CeilDiv(kept[engine][static_cast<size_t>(head)], kPageSize);
        }
      }
      EXPECT_EQ(pages[0], pages[1]);
    }
  }
}

}  // namespace
}  // namespace blockmgr
