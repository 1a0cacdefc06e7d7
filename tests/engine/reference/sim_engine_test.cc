#include "engine/reference/sim_engine.h"

#include <algorithm>
#include <numeric>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/eviction/window_eviction.h"
#include "engine/reference/sim_flags.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr SequenceSlot kSlot{0};
constexpr int32_t kNumHeads = 256;

class SimEngineTest : public ::testing::Test {
 protected:
  explicit SimEngineTest(const SimModel& model = {})
      : model_(model),
        layout_(MakeLayout(model, 4096)),
        engine_(layout_, model, 1) {}

  // Prefills `length` tokens of a request in one step; returns its seconds.
  double Prefill(SimEngine* engine, SequenceSlot slot, uint64_t request,
                 int32_t length) {
    StepPlan plan;
    plan.starts = {
        {.slot = slot, .request = RequestId{request}, .num_tokens = length}};
    plan.start_tokens.assign(static_cast<size_t>(length), 1);
    const int32_t blocks = CeilDiv(length, 16);
    AddSequence(slot, 0, length, blocks, &plan);
    return engine->Run(plan, &result_);
  }

  void AddSequence(SequenceSlot slot, int32_t position, int32_t num_tokens,
                   int32_t num_blocks, StepPlan* plan) {
    if (plan->block_offsets.empty()) plan->block_offsets.push_back(0);
    plan->slots.push_back(slot);
    plan->positions.push_back(position);
    plan->num_tokens.push_back(num_tokens);
    plan->samples.push_back(1);
    for (int32_t i = 0; i < num_blocks; ++i) {
      plan->blocks.push_back(BlockId{next_block_++});
    }
    plan->block_offsets.push_back(static_cast<int64_t>(plan->blocks.size()));
  }

  // One decode step with an eviction of [0, cut).
  StepPlan EvictionPlan(SequenceSlot slot, int32_t position, int32_t cut,
                        const char* policy, const char* keep) {
    StepPlan plan;
    AddSequence(slot, position, 1, position % 16 == 0 ? 1 : 0, &plan);
    EvictionOrder& order = plan.evictions.emplace_back();
    order.slot = slot;
    order.cut = cut;
    order.length = position + 1;
    order.policy = *ParsePolicy(policy);
    order.target.ratio = *KeepRatio::Parse(keep);
    order.page_total =
        PageTotal(order.policy, order.target, {32, 8, 16}, {cut, position + 1});
    order.num_destinations =
        static_cast<int32_t>(CeilDiv<int64_t>(order.page_total, kNumHeads));
    for (int32_t i = 0; i < order.num_destinations; ++i) {
      plan.destinations.push_back(BlockId{next_block_++});
    }
    return plan;
  }

  SimModel model_;
  ModelLayout layout_;
  SimEngine engine_;
  StepResult result_;
  int32_t next_block_ = 1;
};

int64_t Pages(const std::vector<int32_t>& counts) {
  int64_t pages = 0;
  for (const int32_t count : counts) pages += CeilDiv(count, 16);
  return pages;
}

TEST_F(SimEngineTest, LayoutIsThatOfTheModel) {
  ASSERT_OK(layout_.Validate());
  EXPECT_EQ(layout_.token_bytes(), 131072);
}

// By hand: 2 * (6.98e9 * 4096 + 0.525e9) flops of products and
// 4 * 128 * 4 * 256 * (4096 * 4097 / 2) of attention, at 400e12 per second. The
// bytes take far less.
TEST_F(SimEngineTest, PrefillIsComputeBound) {
  EXPECT_NEAR(Prefill(&engine_, kSlot, 1, 4096),
              (57181210000000.0 + 4399120252928.0) / 400e12, 1e-12);
}

// By hand: 15.01e9 bytes of weights and 131072 per live token at 3e12 per
// second.
TEST_F(SimEngineTest, DecodeIsMemoryBound) {
  Prefill(&engine_, kSlot, 1, 1000);
  Prefill(&engine_, SequenceSlot{1}, 2, 500);
  StepPlan plan;
  AddSequence(kSlot, 1000, 1, 0, &plan);
  AddSequence(SequenceSlot{1}, 500, 1, 0, &plan);
  EXPECT_NEAR(engine_.Run(plan, &result_), (15.01e9 + 1502 * 131072.0) / 3e12,
              1e-12);
}

TEST_F(SimEngineTest, AttentionHasItsOwnRates) {
  SimModel model;
  model.attention_flops = 100e12;
  model.attention_bandwidth = 1e12;
  SimEngine engine(layout_, model, 1);
  EXPECT_NEAR(Prefill(&engine, kSlot, 1, 4096),
              57181210000000.0 / 400e12 + 4399120252928.0 / 100e12, 1e-12);
  StepPlan plan;
  AddSequence(kSlot, 4096, 1, 1, &plan);
  EXPECT_NEAR(engine.Run(plan, &result_),
              15.01e9 / 3e12 + 4097 * 131072.0 / 1e12, 1e-12);
}

// By hand: a chunk of 512 tokens that samples nothing, beside a sequence of
// 60,000 that decodes. The products are bound by arithmetic, attention by the
// 60,513 tokens that it reads.
TEST_F(SimEngineTest, ProductsAndAttentionAddUp) {
  Prefill(&engine_, kSlot, 1, 60'000);
  StepPlan plan;
  plan.starts = {
      {.slot = SequenceSlot{1}, .request = RequestId{2}, .num_tokens = 512}};
  plan.start_tokens.assign(512, 1);
  AddSequence(kSlot, 60'000, 1, 1, &plan);
  AddSequence(SequenceSlot{1}, 0, 512, 32, &plan);
  plan.samples[1] = 0;
  const double products = 2 * (6.98e9 * 513 + 0.525e9) / 400e12;
  EXPECT_NEAR(engine_.Run(plan, &result_), products + 60'513 * 131072.0 / 3e12,
              1e-12);
}

// By hand: logits of the last token and of its three drafts in one step, none
// in the other, which does not read the output layer either.
TEST_F(SimEngineTest, TheOutputLayerServesTokensThatAreSampledFrom) {
  SimModel model;
  model.bandwidth = 1e24;
  model.attention_bandwidth = 1e24;
  model.num_drafts = 3;
  SimEngine engine(layout_, model, 1);
  Prefill(&engine, kSlot, 1, 100);
  StepPlan drafts;
  AddSequence(kSlot, 100, 4, 0, &drafts);
  drafts.num_drafts = {3};
  const double attended = 4 * 104 - 6;
  EXPECT_NEAR(
      engine.Run(drafts, &result_),
      (2 * 4 * (6.98e9 + 0.525e9) + 4.0 * 128 * 4 * 256 * attended) / 400e12,
      1e-12);
  StepPlan chunk;
  chunk.starts = {
      {.slot = SequenceSlot{1}, .request = RequestId{2}, .num_tokens = 1}};
  chunk.start_tokens = {1};
  AddSequence(SequenceSlot{1}, 0, 1, 1, &chunk);
  chunk.samples = {0};
  SimEngine slow_memory(layout_, SimModel{}, 1);
  EXPECT_NEAR(slow_memory.Run(chunk, &result_), (2 * 6.98e9 + 131072.0) / 3e12,
              1e-12);
}

TEST_F(SimEngineTest, EvictedEntriesAreNotRead) {
  Prefill(&engine_, kSlot, 1, 1000);
  // 992 positions become exactly 196 * 256 / 16 pages; 9 tokens stay.
  engine_.Run(
      EvictionPlan(kSlot, 1000, 992, "snapkv() | adakv() | topk", "0.2"),
      &result_);
  ASSERT_EQ(result_.evictions[0].error, "");
  const int32_t num_pages = 32 * (8 * 198 / 16);
  EXPECT_EQ(Pages(result_.evictions[0].counts), num_pages);
  StepPlan plan;
  AddSequence(kSlot, 1001, 1, 0, &plan);
  const double entries = num_pages * 16 + 10.0 * kNumHeads;
  EXPECT_NEAR(engine_.Run(plan, &result_), (15.01e9 + entries * 512) / 3e12,
              1e-12);
}

// By hand: as many tokens as there are, up to the window, for every query.
TEST_F(SimEngineTest, NoMoreThanTheWindowsIsRead) {
  const auto seconds = [this](const SimModel& model, int32_t num_tables) {
    SimEngine engine(MakeLayout(model, 4096), model, 1);
    StepPlan plan;
    plan.starts = {{.slot = kSlot, .num_tokens = 2000}};
    plan.start_tokens.assign(2000, 1);
    next_block_ = 1;
    AddSequence(kSlot, 0, 2000, 125, &plan);
    const std::vector<BlockId> blocks = plan.blocks;
    for (int32_t i = 1; i < num_tables; ++i) {
      plan.blocks.insert(plan.blocks.end(), blocks.begin(), blocks.end());
      plan.block_offsets.push_back(std::ssize(plan.blocks));
    }
    return engine.Run(plan, &result_);
  };
  const auto expected = [](double attended) {
    return (2 * (6.98e9 * 2000 + 0.525e9) + 4 * 128 * 4 * 256 * attended) /
           400e12;
  };
  SimModel model;
  model.window = 1000;
  EXPECT_NEAR(seconds(model, 1), expected(1000 * 1001 / 2.0 + 1000.0 * 1000),
              1e-12);
  model.window = 0;
  model.group_windows = {100, 4000};
  EXPECT_NEAR(seconds(model, 3),
              expected(2000 * 2001.0 + 100 * 101 / 2.0 + 1900.0 * 100), 1e-12);
}

// By hand: an eighth of the weights, and of the heads' entries, for each of
// eight GPUs; the one with most entries is waited for.
TEST_F(SimEngineTest, AStepTakesAsLongAsItsSlowestShard) {
  SimModel model;
  model.num_shards = 8;
  const ModelLayout layout = MakeLayout(model, 4096);
  ASSERT_OK(layout.Validate());
  SimEngine engine(layout, model, 1);
  Prefill(&engine, kSlot, 1, 1000);
  StepPlan plan = EvictionPlan(kSlot, 1000, 992, "streaming | uniform", "0.1");
  EvictionOrder& order = plan.evictions[0];
  order.policy = *ParsePolicy("streaming(sinks=0) | external | topk");
  // Head 5 keeps 320 entries, the others 16; every head is a shard of its own.
  std::vector<int32_t> budgets(kNumHeads, 16);
  for (size_t layer = 0; layer < 32; ++layer) budgets[layer * 8 + 5] = 320;
  order.budgets = std::make_shared<std::vector<int32_t>>(budgets);
  order.page_total = int64_t{32} * 20;
  order.shard_page_totals.assign(8, 32);
  order.shard_page_totals[5] = int64_t{32} * 20;
  order.num_destinations = 20;
  for (int32_t i = 0; i < 20; ++i) {
    plan.destinations.push_back(BlockId{next_block_++});
  }
  engine.Run(plan, &result_);
  ASSERT_EQ(result_.evictions[0].error, "");
  EXPECT_EQ(result_.evictions[0].counts, budgets);
  StepPlan decode;
  AddSequence(kSlot, 1001, 1, 0, &decode);
  EXPECT_NEAR(engine.Run(decode, &result_),
              (15.01e9 / 8 + 32 * (320 + 10) * 512.0) / 3e12, 1e-12);
}

// The sequence has 1,000 tokens when the order comes. Its window has tokens 489
// to 999.
TEST_F(SimEngineTest, AnOrderOfAWindowGroupKeepsItsTotal) {
  SimModel model;
  model.group_windows = {512};
  SimEngine engine(MakeLayout(model, 4096), model, 1);
  StepPlan plan;
  plan.starts = {{.slot = kSlot, .num_tokens = 1000}};
  plan.start_tokens.assign(1000, 1);
  AddSequence(kSlot, 0, 1000, 63, &plan);
  for (int32_t i = 0; i < 63; ++i) {
    plan.blocks.push_back(BlockId{next_block_++});
  }
  plan.block_offsets.push_back(std::ssize(plan.blocks));
  EvictionOrder& order = plan.evictions.emplace_back();
  order.slot = kSlot;
  order.group = 1;
  order.cut = 992;
  order.length = 1000;
  order.policy = *ParsePolicy("keydiff | adakv");
  order.target.ratio = *KeepRatio::Parse("0.3");
  const WindowEviction eviction =
      WindowEviction::Of(order.policy, 512, order.cut, order.length);
  order.page_total =
      PageTotal(eviction.policy, order.target, {32, 8, 16}, eviction.range);
  order.num_destinations =
      static_cast<int32_t>(CeilDiv<int64_t>(order.page_total, kNumHeads));
  for (int32_t i = 0; i < order.num_destinations; ++i) {
    plan.destinations.push_back(BlockId{next_block_++});
  }
  const int64_t page_total = order.page_total;
  ASSERT_OK(engine.TryRun(plan, &result_));
  ASSERT_EQ(result_.evictions[0].error, "");
  EXPECT_EQ(Pages(result_.evictions[0].counts), page_total);
  EXPECT_EQ(engine.tables().row(kSlot).groups[0].region.cut, 0);
  EXPECT_EQ(engine.tables().row(kSlot).groups[1].region.cut, 992);
}

TEST_F(SimEngineTest, AStepWithoutTokensCostsTheOverhead) {
  SimModel model;
  model.step_overhead_s = 0.25;
  SimEngine engine(layout_, model, 1);
  EXPECT_EQ(engine.Run(StepPlan(), &result_), 0.25);
}

TEST_F(SimEngineTest, PagesSumToTheOrdersTotal) {
  for (const char* policy :
       {"snapkv() | adakv() | topk", "snapkv() | uniform | topk",
        "streaming() | adakv() | topk"}) {
    for (const char* keep : {"0.05", "0.2", "0.73"}) {
      SCOPED_TRACE(absl::StrCat(policy, " keep ", keep));
      SimEngine engine(layout_, model_, 1);
      next_block_ = 1;
      Prefill(&engine, kSlot, 1, 3001);
      const StepPlan plan = EvictionPlan(kSlot, 3001, 2992, policy, keep);
      engine.Run(plan, &result_);
      ASSERT_EQ(result_.evictions[0].error, "");
      const std::vector<int32_t>& counts = result_.evictions[0].counts;
      ASSERT_EQ(counts.size(), 256u);
      EXPECT_EQ(Pages(counts), plan.evictions[0].page_total);
      EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 2992);
      EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 16);
    }
  }
}

TEST_F(SimEngineTest, ATotalBeyondWhatThereIsKeepsEverything) {
  Prefill(&engine_, kSlot, 1, 100);
  StepPlan plan =
      EvictionPlan(kSlot, 100, 96, "snapkv() | adakv() | topk", "1");
  plan.evictions[0].page_total += 64;
  engine_.Run(plan, &result_);
  EXPECT_THAT(result_.evictions[0].counts, Each(96));
}

TEST_F(SimEngineTest, TokenRoundingStaysInsideThePageTotal) {
  Prefill(&engine_, kSlot, 1, 2000);
  const StepPlan plan = EvictionPlan(
      kSlot, 2000, 1984, "snapkv() | adakv() | topk | round(token)", "0.2");
  engine_.Run(plan, &result_);
  ASSERT_EQ(result_.evictions[0].error, "");
  const std::vector<int32_t>& counts = result_.evictions[0].counts;
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 396 * kNumHeads);
  EXPECT_LE(Pages(counts), plan.evictions[0].page_total);
}

TEST_F(SimEngineTest, ASecondEvictionTakesNoMoreThanIsLeft) {
  Prefill(&engine_, kSlot, 1, 1000);
  engine_.Run(
      EvictionPlan(kSlot, 1000, 992, "snapkv() | adakv() | topk", "0.2"),
      &result_);
  const std::vector<int32_t> first = result_.evictions[0].counts;
  const StepPlan plan =
      EvictionPlan(kSlot, 1001, 992, "snapkv() | adakv() | topk", "0.3");
  engine_.Run(plan, &result_);
  ASSERT_EQ(result_.evictions[0].error, "");
  EXPECT_EQ(result_.evictions[0].counts, first);
}

// Of lognormal shares with sigma 0.55 the largest of 256 is 4.1 times the mean,
// and the largest is 3.2 times the mean of its eight.
TEST_F(SimEngineTest, HeadsDifferByAboutFourToOneAndInLayersByThree) {
  const auto largest = [this](const char* policy) {
    double sum = 0;
    for (uint64_t request = 1; request <= 20; ++request) {
      SimEngine engine(layout_, model_, 1);
      next_block_ = 1;
      Prefill(&engine, kSlot, request, 20001);
      engine.Run(EvictionPlan(kSlot, 20001, 20000, policy, "0.2"), &result_);
      const std::vector<int32_t>& counts = result_.evictions[0].counts;
      const double mean =
          std::accumulate(counts.begin(), counts.end(), 0.0) / kNumHeads;
      sum += *std::max_element(counts.begin(), counts.end()) / mean;
    }
    return sum / 20;
  };
  EXPECT_NEAR(largest("snapkv() | global | topk"), 4.1, 0.6);
  EXPECT_NEAR(largest("snapkv() | adakv() | topk"), 3.2, 0.5);
}

TEST_F(SimEngineTest, EqualSeedsGiveEqualRunsWhateverTheBatch) {
  const auto run = [this](uint64_t seed, bool crowded) {
    SimEngine engine(layout_, model_, seed);
    next_block_ = 1;
    if (crowded) Prefill(&engine, SequenceSlot{5}, 99, 300);
    Prefill(&engine, kSlot, 1, 1000);
    std::vector<int32_t> seen = result_.sampled;
    engine.Run(
        EvictionPlan(kSlot, 1000, 992, "snapkv() | adakv() | topk", "0.2"),
        &result_);
    seen.insert(seen.end(), result_.sampled.begin(), result_.sampled.end());
    seen.insert(seen.end(), result_.evictions[0].counts.begin(),
                result_.evictions[0].counts.end());
    return seen;
  };
  EXPECT_EQ(run(1, false), run(1, false));
  EXPECT_EQ(run(1, false), run(1, true));
  EXPECT_NE(run(1, false), run(2, false));
}

// Drafts are right as often as the model says, one after the other, and what
// is put out does not depend on them.
TEST_F(SimEngineTest, DraftsAreAcceptedAsOftenAsAsked) {
  constexpr int32_t kDrafts = 3;
  const auto run = [this](double draft_acceptance, int32_t num_drafts,
                          std::vector<int32_t>* outputs, double* seconds) {
    SimModel model = model_;
    model.num_drafts = num_drafts;
    model.draft_acceptance = draft_acceptance;
    SimEngine engine(layout_, model, 1);
    next_block_ = 1;
    Prefill(&engine, kSlot, 1, 100);
    std::vector<int64_t> accepted(kDrafts + 1);  // steps, by how many
    while (outputs->size() < 3000) {
      const SequenceTable& table = engine.tables().row(kSlot);
      StepPlan plan;
      const int32_t end = table.num_computed + 1 + num_drafts;
      AddSequence(kSlot, table.num_computed, 1 + num_drafts,
                  CeilDiv(end, 16) -
                      static_cast<int32_t>(table.groups[0].blocks.size()),
                  &plan);
      if (num_drafts > 0) plan.num_drafts = {num_drafts};
      *seconds += engine.Run(plan, &result_);
      outputs->insert(outputs->end(), result_.accepted.begin(),
                      result_.accepted.end());
      outputs->push_back(result_.sampled[0]);
      if (num_drafts == 0) continue;
      EXPECT_EQ(result_.num_drafts[0], num_drafts);
      ++accepted[static_cast<size_t>(result_.num_accepted[0])];
    }
    outputs->resize(3000);
    return accepted;
  };
  std::vector<int32_t> plain;
  double plain_seconds = 0;
  run(0.7, 0, &plain, &plain_seconds);
  std::vector<int32_t> speculated;
  double seconds = 0;
  const std::vector<int64_t> accepted =
      run(0.7, kDrafts, &speculated, &seconds);
  EXPECT_EQ(speculated, plain);
  const auto steps = static_cast<double>(
      std::accumulate(accepted.begin(), accepted.end(), int64_t{0}));
  EXPECT_NEAR(accepted[0] / steps, 0.3, 0.03);
  EXPECT_NEAR(accepted[1] / steps, 0.7 * 0.3, 0.03);
  EXPECT_NEAR(accepted[3] / steps, 0.7 * 0.7 * 0.7, 0.03);
  // Bound by memory: a step takes as long, and there are fewer.
  const double tokens_per_step = 1 + 0.7 + 0.7 * 0.7 + 0.7 * 0.7 * 0.7;
  EXPECT_NEAR(plain_seconds / seconds, tokens_per_step, 0.15);
  for (const double sure : {0.0, 1.0}) {
    std::vector<int32_t> outputs;
    const std::vector<int64_t> all = run(sure, kDrafts, &outputs, &seconds);
    EXPECT_EQ(outputs, plain);
    EXPECT_EQ(all[sure == 0.0 ? 0 : kDrafts], sure == 0.0 ? 3000 : 750);
  }
}

TEST_F(SimEngineTest, ABadPlanOrOrderIsReported) {
  StepPlan plan;
  plan.slots = {kSlot};
  EXPECT_THAT(engine_.TryRun(plan, &result_),
              StatusIs(absl::StatusCode::kInvalidArgument));
  Prefill(&engine_, kSlot, 1, 100);
  plan = EvictionPlan(kSlot, 100, 96, "snapkv() | adakv() | topk", "0.5");
  plan.evictions[0].page_total = 300;
  ASSERT_OK(engine_.TryRun(plan, &result_));
  EXPECT_THAT(result_.evictions[0].error, HasSubstr("page_total"));
  EXPECT_TRUE(result_.evictions[0].counts.empty());
}

TEST(SimModelTest, NamesTheBadField) {
  const auto refuses = [](const SimModel& model, const char* field) {
    EXPECT_THAT(model.Validate(), IsInvalid(field));
  };
  EXPECT_OK(SimModel().Validate());
  refuses({.layer_params = 0}, "layer_params");
  refuses({.output_params = -1}, "output_params");
  refuses({.weight_bytes = 0}, "weight_bytes");
  refuses({.flops = -1}, "flops");
  refuses({.attention_flops = 0}, "attention_flops");
  refuses({.bandwidth = 0}, "bandwidth");
  refuses({.attention_bandwidth = 0}, "attention_bandwidth");
  refuses({.step_overhead_s = -1}, "step_overhead_s");
  refuses({.head_concentration = 5}, "head_concentration");
  refuses({.num_drafts = -1}, "num_drafts");
  refuses({.draft_acceptance = 1.5}, "draft_acceptance");
}

TEST(SimFlagsTest, FillTheModel) {
  SimModel model;
  CLI::App app;
  AddSimModelFlags(&app, &model);
  app.parse(
      "--sim-layers 80 --sim-layer-params 68e9 --sim-output-params 1e9 "
      "--head-concentration 0 "
      "--sim-drafts 4 --sim-draft-acceptance 0.5 --sim-window 0 "
      "--sim-group-windows 512,1024");
  EXPECT_EQ(model.window, 0);
  EXPECT_THAT(model.group_windows, ::testing::ElementsAre(512, 1024));
  EXPECT_EQ(model.num_drafts, 4);
  EXPECT_EQ(model.draft_acceptance, 0.5);
  EXPECT_EQ(model.num_layers, 80);
  EXPECT_EQ(model.layer_params, 68e9);
  EXPECT_EQ(model.output_params, 1e9);
  EXPECT_EQ(model.head_concentration, 0);
  EXPECT_EQ(model.num_heads, 8);
  EXPECT_THROW(app.parse("--sim-layers 0"), CLI::ValidationError);
}

}  // namespace
}  // namespace blockmgr
