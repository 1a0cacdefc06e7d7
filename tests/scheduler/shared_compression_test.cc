// Compressed prefixes that requests share.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/test_requests.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A request whose compressed prefix is shared. The prefix is compressed when 40
// of its 41 tokens are computed.
Request Sharer(const char* id, int32_t num_prompt = 41, int32_t tokens = 8) {
  Request request = MakeRequest(id, num_prompt, 9);
  request.eviction = Recency(tokens);
  request.eviction.share_prefix = true;
  return request;
}

// A Sharer in another mode of eviction. Mode every_chunk compresses every 16
// tokens.
Request SharerIn(EvictionMode mode, const char* id, int32_t num_prompt) {
  Request request = Sharer(id, num_prompt);
  request.eviction.mode = mode;
  if (mode == EvictionMode::kEveryChunk) request.eviction.compress_every = 16;
  return request;
}

class SharedCompressionTest : public testing::TestWithParam<int32_t> {
 protected:
  // Runs a request to its end; how it started is in start_.
  RequestId Serve(Request request) {
    const RequestId id = Submit(&driver_, std::move(request));
    start_ = SequenceStart();
    driver_.RunFull([&] {
      if (!driver_.plan().starts.empty()) start_ = driver_.plan().starts.back();
    });
    return id;
  }

  const ModelLayout layout_ = SmallLayout(4, 60, 2, 2);
  SchedulerDriver driver_{layout_, CachingOptions(GetParam())};
  SequenceStart start_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SharedCompressionTest,
                         testing::Values(1, 4));

// Every compression of a prompt is published; what they stand for is
// remembered once.
TEST_P(SharedCompressionTest, MemoryIsLinearInThePrompt) {
  const auto bytes_of = [&](int32_t num_prompt) {
    SchedulerOptions options = CachingOptions(GetParam());
    options.max_model_len = 1 << 16;
    SchedulerDriver driver(SmallLayout(4, 12000, 2, 2), options);
    Request request = MakeRequest("a", num_prompt, 2);
    request.eviction = Recency(8);
    request.eviction.mode = EvictionMode::kEveryChunk;
    request.eviction.compress_every = 8;
    request.eviction.share_prefix = true;
    const int64_t before = driver.scheduler().metadata_bytes();
    Submit(&driver, request);
    while (driver.scheduler().has_unfinished_requests()) driver.Step();
    return driver.scheduler().metadata_bytes() - before;
  };
  const int64_t half = bytes_of(1000);
  const int64_t whole = bytes_of(2000);
  EXPECT_LE(whole, 2 * half + half / 4);
}

// The same first tokens after one that was compressed, up to another block: the
// tail is its own, not the other's that is about to go.
TEST_P(SharedCompressionTest, DependsOnNoBlockOfOthers) {
  Serve(Sharer("a", 100));
  Request b = Sharer("b", 100);
  for (int32_t i = 41; i < 100; ++i) b.prompt[i] = 5000 + i;
  b.prompt.resize(41);
  Serve(b);
  // What "a" was compressed from is reclaimed first.
  Request plain = MakeRequest("c", 120, 2, 7);
  Serve(plain);
  Request d = b;
  d.id = "d";
  Serve(d);
  EXPECT_NE(start_.region, kNoRegion);
}

TEST(SharedCompressionSubmitTest, NeedsAMode) {
  SchedulerDriver driver(SmallLayout(4, 60, 2, 2), CachingOptions(1));
  Request request = MakeRequest("a", 20, 2);
  request.eviction.share_prefix = true;
  EXPECT_THAT(driver.Submit(request),
              IsInvalid("eviction.share_prefix: expected a mode"));
}

TEST_P(SharedCompressionTest, IsFoundByWhoGoesOnAlike) {
  const RequestId a = Serve(Sharer("a"));
  EXPECT_THAT(driver_.served(a).recorded,
              ElementsAre(CanaryEviction{.length = 40, .cut = 36}));
  const RequestId b = Serve(Sharer("b", 70));
  EXPECT_NE(start_.region, kNoRegion);
  EXPECT_EQ(driver_.served(b).finish->num_cached_tokens, 40);
  EXPECT_EQ(driver_.scheduler().stats().num_cached_region_tokens, 36u);
  // The compression found is its own from now on.
  EXPECT_THAT(driver_.served(b).recorded,
              ElementsAre(CanaryEviction{.length = 40, .cut = 36},
                          CanaryEviction{.length = 68, .cut = 64}));
  // The same prompt again: up to its own last compression.
  const RequestId c = Serve(Sharer("c", 70));
  EXPECT_EQ(driver_.served(c).finish->num_cached_tokens, 68);
  EXPECT_EQ(driver_.served(c).recorded, driver_.served(b).recorded);
  EXPECT_EQ(driver_.served(c).evictions.size(), 0u);
  driver_.CheckQuiescent();
}

TEST_P(SharedCompressionTest, OutputsComputedOverItAreFoundWithIt) {
  Request request = Sharer("a");
  request.max_tokens = 24;
  const RequestId a = Serve(request);
  Request next = Sharer("b");
  next.prompt.insert(next.prompt.end(), driver_.served(a).outputs.begin(),
                     driver_.served(a).outputs.end());
  for (int32_t i = 0; i < 20; ++i) next.prompt.push_back(7000 + i);
  const RequestId b = Serve(next);
  EXPECT_NE(start_.region, kNoRegion);
  // 41 + 23 positions were computed: 16 whole pages.
  EXPECT_EQ(driver_.served(b).finish->num_cached_tokens, 64);
}

TEST_P(SharedCompressionTest, IsNotFoundByOthers) {
  Serve(Sharer("a"));
  // Not asked for: plain blocks are found instead.
  Request plain = MakeRequest("plain", 70, 4);
  Serve(plain);
  EXPECT_EQ(start_.region, kNoRegion);
  EXPECT_GT(start_.num_cached_tokens, 0);
  // Another budget, another policy, another mode.
  const std::vector<std::pair<const char*, std::function<void(Request*)>>>
      others = {
          {"unshared", [](auto* r) { r->eviction.share_prefix = false; }},
          {"budget", [](auto* r) { r->eviction.target.tokens = 12; }},
          {"policy",
           [](auto* r) {
             r->eviction.policy.scorer.kind = ScorerKind::kKnorm;
           }},
          {"chunks",
           [](auto* r) {
             r->eviction.mode = EvictionMode::kEveryChunk;
             r->eviction.compress_every = 16;
           }},
      };
  for (const auto& [id, change] : others) {
    Request other = Sharer(id, 70);
    change(&other);
    Serve(other);
    EXPECT_EQ(start_.region, kNoRegion) << id;
  }
  // Another tenant finds nothing at all.
  Request tenant = Sharer("tenant", 70);
  tenant.scope.tenant = "other";
  Serve(tenant);
  EXPECT_EQ(start_.region, kNoRegion);
  EXPECT_EQ(start_.num_cached_tokens, 0);
}

TEST_P(SharedCompressionTest, EveryChunkGoesOnFromTheLastChunk) {
  const auto chunks = [](const char* id, int32_t num_prompt) {
    return SharerIn(EvictionMode::kEveryChunk, id, num_prompt);
  };
  const RequestId a = Serve(chunks("a", 41));
  EXPECT_THAT(driver_.served(a).recorded, SizeIs(3));  // at 16, 32 and 40
  const RequestId b = Serve(chunks("b", 70));
  EXPECT_NE(start_.region, kNoRegion);
  EXPECT_EQ(driver_.served(b).finish->num_cached_tokens, 40);
  EXPECT_THAT(driver_.served(b).recorded,
              ElementsAre(CanaryEviction{.length = 16, .cut = 12},
                          CanaryEviction{.length = 32, .cut = 28},
                          CanaryEviction{.length = 40, .cut = 36},
                          CanaryEviction{.length = 48, .cut = 44},
                          CanaryEviction{.length = 64, .cut = 60},
                          CanaryEviction{.length = 68, .cut = 64}));
}

// A prefix that was compressed where its sharer would not have been: by a table
// it may be larger than what the sharer was let in for.
TEST_P(SharedCompressionTest, WhatIsFoundFitsWhereItsSharerDoes) {
  ModelLayout layout = SmallLayout(4, 64, 1, 8);
  layout.num_shards = 8;
  const auto sharer = [&](const char* id, int32_t num_prompt,
                          int32_t max_tokens, int32_t share_multiple) {
    Request request = MakeRequest(id, num_prompt, max_tokens);
    request.eviction.mode = EvictionMode::kAfterPrefill;
    request.eviction.policy.scorer.kind = ScorerKind::kStreaming;
    request.eviction.policy.scorer.sinks = 20;
    request.eviction.target.ratio = *KeepRatio::Parse("0.5");
    UseTable(HeadScores{.num_layers = 1,
                        .num_heads = 8,
                        .scores = {1, 0, 0, 0, 0, 0, 0, 0}},
             &request.eviction);
    request.eviction.policy.budget.share = 1.0;
    request.eviction.share_prefix = true;
    request.eviction.share_multiple = share_multiple;
    return request;
  };
  int32_t num_served = 0;
  for (int32_t num_blocks = 14; num_blocks < 40; ++num_blocks) {
    SCOPED_TRACE(num_blocks);
    layout.num_blocks = num_blocks;
    SchedulerDriver driver(layout, CachingOptions(GetParam()),
                           {.keeps_all = true});
    if (!driver.Submit(sharer("a", 49, 1, 0)).ok()) continue;
    driver.Drain();
    if (!driver.Submit(sharer("b", 50, 60, 44)).ok()) continue;
    driver.Finish();
    ++num_served;
  }
  EXPECT_GT(num_served, 10);
}

// Budgets by a table are those of each length, whoever's prompt goes on: the
// canary engine keeps the counts that it is told.
TEST_P(SharedCompressionTest, TablesAreSharedByTheirContent) {
  int32_t topic = 0;
  for (const BudgetTable& table : {BudgetTable(SkewedScores(layout_, 1)),
                                   BudgetTable(PairedProfile(layout_, 1))}) {
    for (const EvictionMode mode :
         {EvictionMode::kAfterPrefill, EvictionMode::kEveryChunk}) {
      SCOPED_TRACE(++topic);
      const auto serve = [&](const char* id, int32_t num_prompt,
                             const BudgetTable& used) {
        Request request = SharerIn(mode, id, num_prompt);
        UseTable(used, &request.eviction);
        for (int32_t& token : request.prompt) token += 1000 * topic;
        return Serve(std::move(request));
      };
      const RequestId a = serve("a", 41, table);
      EXPECT_EQ(driver_.served(a).recorded.back(),
                (CanaryEviction{.length = 40, .cut = 36}));
      const RequestId b = serve("b", 70, table);
      EXPECT_NE(start_.region, kNoRegion);
      EXPECT_EQ(driver_.served(b).finish->num_cached_tokens, 40);
      const RequestId c = serve("c", 70, table);
      EXPECT_EQ(driver_.served(c).finish->num_cached_tokens, 68);
      EXPECT_EQ(driver_.served(c).recorded, driver_.served(b).recorded);
      // Another table of the same name.
      HeadScores other = SkewedScores(layout_, 1);
      other.scores.back() += 100.0f;
      serve("d", 70, other);
      EXPECT_EQ(start_.region, kNoRegion);
    }
  }
  driver_.CheckQuiescent();
}

// Several at once: one computes, the others wait for the region that it makes,
// whether they begin together, or go on together from another one.
TEST_P(SharedCompressionTest, IsComputedOnceForThoseWhoComeTogether) {
  for (const EvictionMode mode :
       {EvictionMode::kAfterPrefill, EvictionMode::kEveryChunk}) {
    for (const bool has_turn : {false, true}) {
      for (const int32_t count : {2, 3}) {
        SCOPED_TRACE(testing::Message()
                     << "every chunk " << (mode == EvictionMode::kEveryChunk)
                     << ", turn " << has_turn << ", " << count << " requests");
        SchedulerOptions options = CachingOptions(GetParam());
        options.long_prefill_token_threshold = 12;
        options.min_prefix_wait_tokens = 4;
        SchedulerDriver driver(SmallLayout(4, 200, 2, 2), options);
        const auto submit = [&](int32_t number, int32_t num_prompt) {
          return Submit(&driver, SharerIn(mode, absl::StrCat(number).c_str(),
                                          num_prompt));
        };
        if (has_turn) {
          submit(0, 41);
          driver.Drain();
        }
        const uint64_t before = driver.scheduler().stats().num_computed_tokens;
        std::vector<RequestId> ids;
        for (int32_t i = 1; i <= count; ++i) ids.push_back(submit(i, 101));
        driver.Drain();
        // The last token of the prompt, and all outputs but the last, are
        // everybody's own.
        EXPECT_EQ(driver.scheduler().stats().num_computed_tokens - before,
                  (has_turn ? 60u : 100u) + 9 * count);
        const CanaryEviction last{.length = 100, .cut = 96};
        for (const RequestId id : ids) {
          EXPECT_EQ(driver.served(id).recorded.back(), last);
          EXPECT_EQ(driver.served(id).recorded, driver.served(ids[0]).recorded);
          if (id == ids[0]) continue;
          EXPECT_EQ(driver.served(id).finish->num_cached_tokens, 100);
          EXPECT_THAT(driver.served(id).evictions, IsEmpty());
        }
        driver.CheckQuiescent();
      }
    }
  }
}

// A region that would leave too few tokens of the next observation window is
// not waited for: it cannot be started on.
TEST(RegionToComeTest, WhatCannotBeUsedIsNotWaitedFor) {
  SchedulerOptions options = CachingOptions();
  options.long_prefill_token_threshold = 8;
  options.min_prefix_wait_tokens = 4;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  const auto sharer = [](const char* id, int32_t num_prompt) {
    Request request = MakeRequest(id, num_prompt, 9);
    request.eviction = SnapKv(8, 8);
    request.eviction.mode = EvictionMode::kEveryChunk;
    request.eviction.compress_every = 16;
    request.eviction.share_prefix = true;
    return request;
  };
  // Compressed at 16, 32, 48 and 64; "b" at 68, too, and computes 60 to 67
  // itself.
  const RequestId a = Submit(&driver, sharer("a", 65));
  driver.RunUntil([&] { return driver.served(a).recorded.size() == 3; });
  const RequestId b = Submit(&driver, sharer("b", 70));
  driver.Step();
  EXPECT_GT(driver.CountTokensInPlan(b), 0);
  EXPECT_TRUE(driver.served(a).outputs.empty());
  driver.Finish();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 48);
  EXPECT_EQ(driver.scheduler().stats().num_prefix_waits, 0u);
}

TEST_P(SharedCompressionTest, IsReplayedWhenItIsLost) {
  Serve(Sharer("a"));
  const RequestId b = Submit(&driver_, Sharer("b", 70));
  driver_.RunUntilOutputs(b, 3);
  const std::vector<CanaryEviction> before = driver_.served(b).recorded;
  EXPECT_THAT(before, SizeIs(2));
  driver_.LoseEngine();
  driver_.Drain();
  EXPECT_EQ(driver_.served(b).recorded, before);
  // What was replayed can be found again.
  const RequestId c = Serve(Sharer("c", 70));
  EXPECT_EQ(driver_.served(c).finish->num_cached_tokens, 68);
  driver_.CheckQuiescent();
}

TEST_P(SharedCompressionTest, TheObservationWindowIsComputed) {
  const auto observer = [](const char* id, int32_t num_prompt) {
    Request request = Sharer(id, num_prompt);
    request.eviction = SnapKv(6, 8);
    request.eviction.share_prefix = true;
    return request;
  };
  Serve(observer("a", 41));
  // Less than a window behind the prefix found: it cannot be used.
  Serve(observer("b", 45));
  EXPECT_EQ(start_.region, kNoRegion);
  EXPECT_LE(start_.num_cached_tokens, 44 - 6);
  Serve(observer("c", 49));
  EXPECT_NE(start_.region, kNoRegion);
  // The very same prompt is compressed already.
  Serve(observer("d", 41));
  EXPECT_EQ(start_.num_cached_tokens, 40);
}

TEST_P(SharedCompressionTest, TheEngineHearsWhatIsDropped) {
  Serve(Sharer("a"));
  std::vector<RegionId> dropped;
  driver_.scheduler().ResetPrefixCache();
  Submit(&driver_, Sharer("b", 70));
  driver_.RunFull([&] {
    const std::vector<RegionId>& regions = driver_.plan().dropped_regions;
    dropped.insert(dropped.end(), regions.begin(), regions.end());
  });
  EXPECT_THAT(dropped, SizeIs(1));
}

// As long as its blocks are there, a preempted request goes on from them.
TEST(SharedCompressionResumeTest, APreemptedOneGoesOnFromItsRegion) {
  SchedulerDriver driver(SmallLayout(4, 24), CachingOptions());
  const RequestId a = Submit(&driver, MakeRequest("old", 4, 60, 1));
  Request sharer = Sharer("b", 57);
  sharer.max_tokens = 60;
  const RequestId b = Submit(&driver, sharer);
  int32_t most_cached = 0;
  driver.RunFull([&] {
    for (const SequenceStart& start : driver.plan().starts) {
      if (start.region == kNoRegion) continue;
      most_cached = std::max(most_cached, start.num_cached_tokens);
    }
  });
  EXPECT_EQ(driver.served(a).finish->reason, FinishReason::kLength);
  EXPECT_EQ(driver.served(b).finish->reason, FinishReason::kLength);
  EXPECT_GT(driver.served(b).finish->num_preemptions, 0);
  EXPECT_GE(most_cached, 56);
}

TEST(SharedCompressionSubmitTest, RefusesWhatCannotBeShared) {
  SchedulerOptions options = CachingOptions();
  options.engine.num_scorer_states = 8;
  SchedulerDriver driver(SmallLayout(4, 40), options);
  Request request = Sharer("a");
  request.eviction.policy.scorer.kind = ScorerKind::kH2o;
  EXPECT_THAT(driver.Submit(request),
              IsInvalid("eviction.share_prefix: expected a policy "
                        "that needs no scores accumulated"));
  EXPECT_THAT(driver.all(), IsEmpty());
}

}  // namespace
}  // namespace blockmgr
