// Shapes in which other schedulers stood still, and the edge of what fits.
// Tests are named after the thread that describes the shape.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/sim/scripted.h"
#include "tests/testing/case_count.h"

namespace blockmgr::sim {
namespace {

constexpr int32_t kPageSize = 4;

Scenario Pool(int32_t num_usable, int32_t steps_in_flight = 2) {
  return {.name = "pool",
          .layout = ScriptLayout(kPageSize, num_usable, 1, 1),
          .options = ScriptOptions(steps_in_flight),
          .script = ""};
}

Request Blocks(const std::string& name, int32_t num_prompt_blocks,
               int32_t num_output_blocks, int32_t topic) {
  return MakeRequest(name, num_prompt_blocks * kPageSize,
                     num_output_blocks * kPageSize, topic);
}

void ExpectEnded(const Scripted& scripted,
                 const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const FinishEffect* finish = scripted.FinishOf(name);
    ASSERT_NE(finish, nullptr) << name;
    EXPECT_EQ(finish->reason, FinishReason::kLength) << name;
  }
}

// Runs the script until nothing is left to do. The requests of these names must
// have ended; others may wait for ever.
void DrainAll(Scripted* scripted, const std::vector<std::string>& names) {
  scripted->Drain();
  EXPECT_EQ(scripted->report().message(), "");
  ExpectEnded(*scripted, names);
}

// How many requests run, and how many blocks they hold.
BlockManagerStats BlocksOf(Scripted& scripted) {
  return scripted.scheduler().stats().blocks;
}

// Both shapes of ai-dynamo/dynamo 11015: those that run hold `active` blocks,
// the head of the queue needs more than is left, and what runs may need more
// itself before it ends.
struct Shape {
  int32_t active = 0;
  int32_t head = 0;
  int32_t usable = 0;
};

class TwoShapes : public testing::TestWithParam<Shape> {};

// The pool of a shape, where all prompts of those that run are computed in one
// step and are compressed in place.
Scenario PoolOfShape(const Shape& shape, AdmissionPolicy admission,
                     int32_t in_flight) {
  Scenario scenario = Pool(shape.usable, in_flight);
  scenario.options.admission = admission;
  scenario.options.max_num_batched_tokens = 1024;
  scenario.options.long_prefill_token_threshold = 256;
  scenario.options.compaction = CompactionPreference::kInPlace;
  return scenario;
}

void ServeShape(const Shape& shape, AdmissionPolicy admission, const char* mode,
                int32_t in_flight) {
  Scripted scripted(PoolOfShape(shape, admission, in_flight));
  // Seven that run. They grow; where nobody may be preempted, no further than
  // there are blocks.
  constexpr int32_t kNumActive = 7;
  const int32_t growth =
      admission == AdmissionPolicy::kGuaranteed
          ? std::min(12, (shape.usable - shape.active) / kNumActive)
          : 12;
  std::vector<std::string> names;
  for (int32_t i = 0; i < kNumActive; ++i) {
    names.push_back(absl::StrCat("active", i));
    const int32_t num_blocks = (shape.active + i) / kNumActive;
    Request request = Blocks(names.back(), num_blocks, growth, i + 1);
    request.eviction = Eviction(mode, kPageSize);
    scripted.Submit(std::move(request));
  }
  ASSERT_TRUE(scripted.Issue());
  ASSERT_EQ(BlocksOf(scripted).used_blocks, shape.active);
  // The head of the queue does not fit now.
  ASSERT_LT(shape.usable - shape.active, shape.head);
  names.push_back("head");
  Request head = Blocks("head", shape.head - 1, 1, 20);
  head.eviction = Eviction(mode, kPageSize);
  scripted.Submit(std::move(head));
  names.push_back("behind");
  scripted.Submit(Blocks("behind", 2, 1, 21));
  DrainAll(&scripted, names);
}

const std::vector<int32_t> kInFlight =
    kBrief ? std::vector<int32_t>{2} : std::vector<int32_t>{1, 2, 4};

TEST_P(TwoShapes, Dynamo11015HeadNeedsMoreThanIsLeft) {
  for (const AdmissionPolicy admission :
       {AdmissionPolicy::kWatermark, AdmissionPolicy::kGuaranteed,
        AdmissionPolicy::kMaxUtilization}) {
    for (const char* mode : {"plain", "after", "pressure"}) {
      for (const int32_t in_flight : kInFlight) {
        SCOPED_TRACE(absl::StrCat("admission ", static_cast<int>(admission),
                                  ", ", mode, ", ", in_flight, " in flight"));
        ServeShape(GetParam(), admission, mode, in_flight);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dynamo11015, TwoShapes,
    testing::Values(Shape{.active = 77, .head = 200, .usable = 77 + 179},
                    Shape{.active = 221, .head = 76, .usable = 221 + 35}));

// vllm 45388: several that wait, each of which fits alone and no two together,
// next to many small ones.
TEST(LivenessTest, Vllm45388NoTwoFitTogether) {
  for (const int32_t in_flight : {1, 3}) {
    Scripted scripted(Pool(20, in_flight));
    std::vector<std::string> names;
    for (int32_t i = 0; i < 6; ++i) {
      names.push_back(absl::StrCat("large", i));
      scripted.Submit(Blocks(names.back(), 11, 2, i + 1));
      names.push_back(absl::StrCat("small", i));
      scripted.Submit(Blocks(names.back(), 1, 3, i + 10));
    }
    DrainAll(&scripted, names);
  }
}

enum class EdgeLayout : uint8_t { kPlain, kShards, kWindow };

// The pools whose edges are met: the layout, whether prefixes are cached, and
// who is admitted.
class EdgeOfThePool : public testing::TestWithParam<
                          std::tuple<EdgeLayout, bool, AdmissionPolicy>> {
 protected:
  // `num_full` blocks for the layers that attend to everything. A window of 8
  // tokens takes 4 more, wherever in its page the first of them is: chunks are
  // as small as a page where the pool asks for it.
  static Scenario EdgePool(int32_t num_full, int32_t in_flight) {
    const auto [layout, caches, admission] = GetParam();
    const bool has_window = layout == EdgeLayout::kWindow;
    Scenario scenario = Pool(num_full + (has_window ? 4 : 0), in_flight);
    if (layout == EdgeLayout::kShards) {
      scenario.layout.num_heads = scenario.layout.num_q_heads = 2;
      scenario.layout.num_shards = 2;
    }
    if (has_window) scenario.layout.group_windows = {2 * kPageSize};
    scenario.options.enable_prefix_caching = caches;
    scenario.options.admission = admission;
    return scenario;
  }

  // The request ends if it fits, and is refused if not; so ends another one.
  static void ServeAtTheEdge(const Scenario& scenario, Request edge,
                             bool fits) {
    Scripted scripted(scenario);
    scripted.Submit(std::move(edge));
    scripted.Submit(MakeRequest("later", 5, 3, 2));
    DrainAll(&scripted, {"later"});
    if (fits) {
      ExpectEnded(scripted, {"edge"});
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(scripted.SubmitStatus("edge")));
    }
  }
};

std::string NameOfPool(
    const testing::TestParamInfo<EdgeOfThePool::ParamType>& info) {
  static constexpr const char* kLayouts[] = {"Plain", "Shards", "Window"};
  static constexpr const char* kAdmissions[] = {"Watermark", "Guaranteed",
                                                "MaxUtilization"};
  const auto [layout, caches, admission] = info.param;
  return absl::StrCat(kLayouts[static_cast<size_t>(layout)],
                      caches ? "Cached" : "Uncached",
                      kAdmissions[static_cast<size_t>(admission)]);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, EdgeOfThePool,
    testing::Combine(testing::Values(EdgeLayout::kPlain, EdgeLayout::kShards,
                                     EdgeLayout::kWindow),
                     testing::Bool(),
                     testing::Values(AdmissionPolicy::kWatermark,
                                     AdmissionPolicy::kGuaranteed,
                                     AdmissionPolicy::kMaxUtilization)),
    NameOfPool);

// vllm 39734, RBLN 957, vllm PR 52530: what needs one token less than the pool,
// the whole pool, and one more; by a long prompt and by a long output. The null
// block is not usable.
TEST_P(EdgeOfThePool, Vllm39734AndRbln957AtTheEdgeOfThePool) {
  constexpr int32_t kUsable = 9;
  constexpr int32_t kTokens = kUsable * kPageSize;
  for (const int32_t in_flight : {1, 2, 4}) {
    for (const int32_t num_prompt : {1, 3, kTokens / 2, kTokens - 1}) {
      for (const int32_t excess : {-1, 0, 1}) {
        SCOPED_TRACE(absl::StrCat(in_flight, " in flight, prompt ", num_prompt,
                                  ", excess ", excess));
        // The last output is never an input: it needs no slot.
        const int32_t num_output = kTokens + excess - num_prompt + 1;
        ServeAtTheEdge(EdgePool(kUsable, in_flight),
                       MakeRequest("edge", num_prompt, num_output, 1),
                       excess <= 0);
      }
    }
  }
}

// The same with an eviction after the prompt: only the prompt, and what is kept
// of it with the output, have to fit.
TEST_P(EdgeOfThePool, CompressedAtTheEdgeOfThePool) {
  constexpr int32_t kUsable = 9;
  for (const int32_t in_flight : {1, 2, 4}) {
    for (const int32_t excess : {-1, 0, 1}) {
      SCOPED_TRACE(absl::StrCat(in_flight, " in flight, excess ", excess));
      Request request = MakeRequest("edge", kUsable * kPageSize + excess, 8, 1);
      request.eviction = Eviction("after", kPageSize);
      ServeAtTheEdge(EdgePool(kUsable, in_flight), std::move(request),
                     excess <= 0);
    }
  }
}

// The same of compressions on the way, every eight tokens down to one block:
// what is kept, and three blocks behind it before the next one.
TEST_P(EdgeOfThePool, CompressedOnTheWayAtTheEdgeOfThePool) {
  constexpr int32_t kLeast = 4;
  for (const char* mode : {"every", "decode"}) {
    const bool is_decode = mode == std::string("decode");
    for (const int32_t in_flight : {1, 2, 4}) {
      for (const int32_t usable : {kLeast - 1, kLeast, kLeast + 1}) {
        SCOPED_TRACE(absl::StrCat(mode, ", ", in_flight, " in flight, ", usable,
                                  " usable"));
        Request request =
            MakeRequest("edge", is_decode ? 4 : 80, is_decode ? 80 : 8, 1);
        request.eviction = Eviction(mode, kPageSize);
        ServeAtTheEdge(EdgePool(usable, in_flight), std::move(request),
                       usable >= kLeast);
      }
    }
  }
}

// vllm PR 52530: at the last block the request would preempt itself, compute
// everything again, and come to the same place.
TEST(LivenessTest, Vllm52530DecodesIntoTheLastBlock) {
  Scripted scripted(Pool(10));
  scripted.Submit(MakeRequest("a", 20, 21, 1));
  DrainAll(&scripted, {"a"});
  EXPECT_EQ(scripted.FinishOf("a")->num_preemptions, 0);
}

// vllm PR 11 (review): a watermark that keeps more than half the pool free does
// not keep the only request out.
TEST(LivenessTest, VllmPr11LargeWatermark) {
  Scenario scenario = Pool(10);
  scenario.options.watermark = 0.9;
  Scripted scripted(scenario);
  scripted.Submit(Blocks("a", 8, 2, 1));
  scripted.Submit(Blocks("b", 8, 2, 2));
  DrainAll(&scripted, {"a", "b"});
}

// vllm PR 41180, 49674: all blocks are fenced, and everybody sleeps.
TEST(LivenessTest, Vllm49674AllBlocksAreFenced) {
  Scripted scripted(Pool(8, 4));
  scripted.Submit(Blocks("a", 7, 1, 1));
  for (const char* word : {"issue:3", "cancel:a"}) scripted.Do(word);
  const BlockManagerStats blocks = BlocksOf(scripted);
  EXPECT_GE(blocks.fenced_blocks, 7);
  scripted.Submit(Blocks("b", 7, 1, 2));
  EXPECT_FALSE(scripted.Issue());  // nothing is free before the answers come
  DrainAll(&scripted, {"b"});
}

// vllm 31731: a large request at the head neither starves nor stops the queue.
TEST(LivenessTest, Vllm31731LargeHeadIsBypassedNotStarved) {
  Scripted scripted(Pool(20));
  scripted.Submit(Blocks("running", 4, 12, 1));
  for (const char* word : {"issue", "answer"}) scripted.Do(word);
  scripted.Submit(Blocks("large", 17, 2, 2));
  std::vector<std::string> names = {"running", "large"};
  for (int32_t i = 0; i < 40; ++i) {
    names.push_back(absl::StrCat("small", i));
    scripted.Submit(Blocks(names.back(), 1, 1, i + 3));
  }
  int64_t small_before_large = 0;
  while (scripted.FinishOf("large") == nullptr && scripted.report().ok()) {
    small_before_large = 0;
    for (const std::string& name : names) {
      const bool is_small = name.substr(0, 5) == "small";
      small_before_large +=
          is_small && scripted.FinishOf(name) != nullptr ? 1 : 0;
    }
    scripted.Issue();
    scripted.Answer();
  }
  EXPECT_GT(small_before_large, 0);
  EXPECT_LT(small_before_large, 40);
  DrainAll(&scripted, names);
}

}  // namespace
}  // namespace blockmgr::sim
