// Compression points through the whole scheduler: every_chunk, scorer states,
// replays on cached prefixes.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

Request EveryChunkRequest(const char* id, int32_t num_prompt,
                          int32_t max_tokens, int32_t tokens, int32_t every) {
  Request request = MakeRequest(id, num_prompt, max_tokens);
  request.eviction = Recency(tokens, EvictionMode::kEveryChunk, every);
  return request;
}

class EveryChunkTest : public testing::TestWithParam<int32_t> {};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, EveryChunkTest,
                         testing::Values(1, 2, 4));

// A prompt of 25 pools fits, and never holds more than region, chunk and one
// page, wherever the token budget would cut it, however much of the pool is
// free, and whatever the policy scores by.
TEST_P(EveryChunkTest, HoldsItsBoundWhateverThePrompt) {
  for (const char* policy :
       {"streaming(sinks=0)", "keydiff | adakv", "snapkv(window=8)",
        "snapkv(window=8) | adakv | critical", "h2o | adakv", "tova",
        "expected_attention(n_sink=2) | global"}) {
    SCOPED_TRACE(policy);
    SchedulerOptions options = PlainOptions(GetParam());
    options.max_num_batched_tokens = 40;
    options.max_model_len = 1024;
    options.engine.num_scorer_states = 1;
    const ModelLayout layout = SmallLayout(4, 400, 2, 2);
    SchedulerDriver driver(layout, options);
    // 16 tokens are 4 blocks, a chunk of 32 tokens 8.
    constexpr int32_t kBound = 4 + 8 + 1;
    Request request = EveryChunkRequest("a", 1000, 20, 16, 32);
    ASSERT_OK_AND_ASSIGN(request.eviction.policy, ParsePolicy(policy));
    const RequestId id = Submit(&driver, request);
    const int32_t most = driver.MostUsedBlocks();
    EXPECT_LE(most, kBound);
    EXPECT_GE(most, kBound - 1);  // or the bound shows nothing
    EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
    // 32, 64, .. 992, and the end; the first frees blocks already.
    EXPECT_THAT(driver.served(id).evictions, SizeIs(32));
    driver.CheckQuiescent();
  }
}

// Returns the evictions of a request. It runs alone in a pool of 400 blocks, or
// in a pool of 60 that it shares with five others: steps are small there, and
// some requests are preempted.
std::vector<CanaryEviction> RecordedOf(const Request& request, bool is_crowded,
                                       int32_t steps_in_flight) {
  SchedulerOptions options = PlainOptions(steps_in_flight);
  options.max_model_len = 1024;
  options.max_num_batched_tokens = is_crowded ? 24 : 512;
  SchedulerDriver driver(SmallLayout(4, is_crowded ? 60 : 400, 2, 2), options);
  for (int32_t i = 0; is_crowded && i < 5; ++i) {
    Submit(&driver, MakeRequest(std::to_string(i), 70 + i, 60, 1 + i));
  }
  const RequestId id = Submit(&driver, request);
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions > 0, is_crowded);
  return driver.served(id).recorded;
}

TEST_P(EveryChunkTest, CompressionPointsAreTheRequestsOwn) {
  const Request request = EveryChunkRequest("a", 203, 8, 16, 32);
  const std::vector<CanaryEviction> alone =
      RecordedOf(request, false, GetParam());
  EXPECT_THAT(alone, SizeIs(7));
  EXPECT_EQ(RecordedOf(request, true, GetParam()), alone);
}

Request DecodeRequest(const char* id, int32_t num_prompt, int32_t max_tokens,
                      int32_t tokens, int32_t every, int32_t topic = 0) {
  Request request = MakeRequest(id, num_prompt, max_tokens, topic);
  request.eviction = Recency(tokens, EvictionMode::kDecode, every);
  return request;
}

class DecodeModeTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions(GetParam());
    options.max_model_len = 2048;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, DecodeModeTest,
                         testing::Values(1, 2, 4));

// An output of 23 pools fits.
TEST_P(DecodeModeTest, HoldsItsBoundHoweverLongTheOutput) {
  SchedulerOptions options = Options();
  options.compaction = CompactionPreference::kInPlace;
  SchedulerDriver driver(SmallLayout(4, 40, 2, 2), options);
  // 16 tokens are 4 blocks, an interval of 32 tokens 8.
  constexpr int32_t kBound = 4 + 8 + 1;
  const RequestId id = Submit(&driver, DecodeRequest("a", 10, 900, 16, 32));
  const int32_t most = driver.MostUsedBlocks();
  // While an order is in flight its blocks are still there.
  EXPECT_LE(most, kBound + CeilDiv(GetParam() - 1, 4));
  EXPECT_GE(most, kBound - 1);  // or the bound shows nothing
  EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
  // The prompt has nothing to give back; then at 42, 74, .. 906.
  ASSERT_THAT(driver.served(id).recorded, SizeIs(28));
  EXPECT_EQ(driver.served(id).recorded.front().length, 42);
  EXPECT_EQ(driver.served(id).recorded.front().cut, 40);
  EXPECT_EQ(driver.served(id).recorded.back().length, 906);
  driver.CheckQuiescent();
}

TEST_P(DecodeModeTest, PointsAreTheRequestsOwn) {
  const Request request = DecodeRequest("a", 60, 100, 16, 20);
  const std::vector<CanaryEviction> alone =
      RecordedOf(request, false, GetParam());
  EXPECT_THAT(alone, SizeIs(5));  // 60, 80, .. 140.
  EXPECT_EQ(RecordedOf(request, true, GetParam()), alone);
}

TEST_P(DecodeModeTest, IsReplayedAfterALossWithWhatWasCommanded) {
  SchedulerDriver driver(SmallLayout(4, 80, 2, 2), Options());
  const RequestId id = Submit(&driver, DecodeRequest("a", 50, 90, 24, 32));
  driver.RunUntilOutputs(id, 45);
  EXPECT_THAT(driver.Evict(id, RecencyCommand(8)), IsOk());
  driver.RunUntilOutputs(id, 70);
  const std::vector<CanaryEviction> before = driver.served(id).recorded;
  // 50, 82, the command's, 114.
  ASSERT_THAT(before, SizeIs(4));
  EXPECT_EQ(before[1].length, 82);
  EXPECT_GT(before[2].length, 94);
  EXPECT_EQ(before[3].length, 114);
  driver.LoseEngine();
  driver.Finish();
  EXPECT_EQ(driver.served(id).recorded, before);
}

TEST_P(DecodeModeTest, ARatioIsOfAllTokensSoFar) {
  SchedulerDriver driver(SmallLayout(4, 400, 2, 2), Options());
  Request request = DecodeRequest("a", 100, 302, 0, 100);
  request.eviction.target = EvictionTarget();
  request.eviction.target.ratio = *KeepRatio::Parse("0.2");
  const RequestId id = Submit(&driver, request);
  driver.Drain();
  std::vector<int64_t> kept;
  for (const EvictionEffect& effect : driver.served(id).evictions) {
    int64_t sum = 0;
    for (const int32_t entries : effect.kept_entries) sum += entries;
    kept.push_back(sum / 4);  // heads
  }
  // Of 100, 200, 300 and 400 tokens; the last page is not covered.
  ASSERT_THAT(kept, SizeIs(4));
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_GE(kept[i], 20 * (i + 1) - 8) << i;
    EXPECT_LE(kept[i], 20 * (i + 1)) << i;
  }
  driver.CheckQuiescent();
}

// The boundary of what fits is exact.
TEST_P(DecodeModeTest, NeverFitsIsTheBound) {
  // 4 blocks of region, 9 for the 34 tokens after its cut.
  for (const int32_t usable : {12, 13, 14}) {
    SchedulerDriver driver(SmallLayout(4, usable, 2, 2), Options());
    const auto id = driver.Submit(DecodeRequest("a", 10, 900, 16, 32));
    EXPECT_EQ(id.ok(), usable >= 13) << usable;
    if (!id.ok()) {
      EXPECT_THAT(id, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("13 blocks at its peak")));
      continue;
    }
    driver.Finish();
    EXPECT_EQ(driver.served(*id).finish->reason, FinishReason::kLength);
  }
}

TEST(EveryChunkSubmitTest, NamesTheFieldAtFault) {
  SchedulerDriver driver(SmallLayout(4, 40), PlainOptions());
  for (const int32_t every : {-4, 0, 2, 6}) {
    EXPECT_THAT(driver.Submit(EveryChunkRequest("a", 20, 2, 4, every)),
                IsInvalid("eviction.compress_every: expected a multiple of 4"));
  }
  Request request = EveryChunkRequest("a", 20, 2, 4, 8);
  request.eviction.policy = SnapKv(9, 4).policy;
  EXPECT_THAT(driver.Submit(request), IsInvalid("at least 9, got 8"));
  // Modes without an interval ignore it.
  request = EveryChunkRequest("a", 20, 2, 4, -4);
  request.eviction.mode = EvictionMode::kAfterPrefill;
  EXPECT_THAT(driver.Submit(request),
              IsInvalid("eviction.compress_every: expected 0"));
  request = EveryChunkRequest("a", 20, 2, 4, 8);
  request.eviction.share_multiple = -4;
  EXPECT_THAT(driver.Submit(request),
              IsInvalid("eviction.share_multiple: expected 0"));
}

TEST(EveryChunkSubmitTest, APromptHasAtMost4096Compressions) {
  SchedulerOptions options = PlainOptions();
  options.max_model_len = 8192;
  SchedulerDriver driver(SmallLayout(1, 40), options);
  const RequestId id = Submit(&driver, EveryChunkRequest("a", 4096, 2, 4, 1));
  EXPECT_THAT(driver.Submit(EveryChunkRequest("b", 4097, 2, 4, 1)),
              IsInvalid("eviction.compress_every: expected at most 4096 "
                        "compressions of one request, got 4097, every 1 of "
                        "4097 tokens"));
  EXPECT_OK(driver.Cancel(id));
}

// If the sizes of regions follow from a table, the points of the output are
// computed with the request, too.
TEST(EveryChunkSubmitTest, AnOutputWithATableHasAtMost4096Compressions) {
  const ModelLayout layout = SmallLayout(1, 8000, 2, 2);
  SchedulerOptions options = PlainOptions();
  options.max_model_len = 8192;
  SchedulerDriver driver(layout, options);
  Request parent = EveryChunkRequest("a", 8, 100, 4, 1);
  parent.eviction.mode = EvictionMode::kDecode;
  UseTable(SkewedTable(layout, 1), &parent.eviction);
  parent.eviction.policy.rounding = Rounding::kToken;
  Request longer = parent;
  longer.max_tokens = 4097;
  EXPECT_THAT(driver.Submit(longer),
              IsInvalid("eviction.compress_every: expected at most 4096"));
  const RequestId id = Submit(&driver, parent);
  Request fork = MakeRequest("f", 8, 1);
  fork.fork_of = "a";
  fork.max_tokens = 100 + 4097;
  EXPECT_THAT(driver.Submit(fork),
              IsInvalid("max_tokens: expected at most 4096 compressions of one "
                        "request, got 4097, every 1"));
  fork.max_tokens = 100 + 4096;
  EXPECT_OK(driver.Submit(fork));
  EXPECT_OK(driver.Cancel(id));
  // Without rounding to tokens the sizes are known.
  longer.eviction.policy.rounding = Rounding::kPage;
  const RequestId known = Submit(&driver, longer);
  EXPECT_OK(driver.Cancel(known));
}

TEST(EveryChunkSubmitTest, TablesMustComeAndFit) {
  SchedulerDriver driver(SmallLayout(4, 40, 2, 2), PlainOptions());
  Request request = MakeRequest("a", 20, 2);
  request.eviction = Recency(4);
  request.eviction.policy.budget.kind = BudgetKind::kHeadKv;
  request.eviction.policy.budget.profile = "needle";
  EXPECT_THAT(driver.Submit(request), IsInvalid("budget table 'needle'"));
  request.eviction.table = std::make_shared<const BudgetTable>(
      HeadScores{.num_layers = 1, .num_heads = 2, .scores = {3.0f, 1.0f}});
  EXPECT_FALSE(driver.Submit(request).ok());
  request.eviction.table = std::make_shared<const BudgetTable>(HeadScores{
      .num_layers = 2, .num_heads = 2, .scores = {3.0f, 1.0f, 1.0f, 1.0f}});
  EXPECT_THAT(driver.Submit(request), IsOk());
  driver.Drain();
}

Request H2oRequest(const char* id, int32_t topic) {
  Request request = MakeRequest(id, 40, 10, topic);
  request.eviction = Recency(8);
  request.eviction.policy.scorer.kind = ScorerKind::kH2o;
  return request;
}

TEST(ScorerStateTest, IsRefusedByAnEngineWithoutAny) {
  SchedulerDriver driver(SmallLayout(4, 40), PlainOptions());
  EXPECT_THAT(driver.Submit(H2oRequest("a", 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("num_scorer_states 0")));
}

// All would fit into one step, and end one after the other.
TEST(ScorerStateTest, LimitsHowManyRunAtATimeAndIsPartOfTheStart) {
  for (const int32_t num_states : {1, 2}) {
    SCOPED_TRACE(num_states);
    SchedulerOptions options = PlainOptions();
    options.engine.num_scorer_states = num_states;
    SchedulerDriver driver(SmallLayout(4, 200), options);
    for (const char* id : {"a", "b", "c", "d", "e"}) {
      Request request = H2oRequest(id, id[0]);
      request.prompt.resize(12);
      request.eviction.target.tokens = 4;
      request.max_tokens = 2 + id[0] % 3;
      Submit(&driver, request);
    }
    int32_t most = 0;
    while (driver.ok() && driver.scheduler().has_unfinished_requests()) {
      driver.Issue();
      most = std::max(most, driver.scheduler().num_running());
      EXPECT_LE(driver.scheduler().num_running(), num_states);
      for (const SequenceStart& start : driver.plan().starts) {
        EXPECT_EQ(start.scorer_state, ScorerState::kAttentionSums);
      }
      driver.Answer();
    }
    EXPECT_EQ(most, num_states);
    EXPECT_EQ(driver.scheduler().stats().num_evictions, 5u);
    driver.CheckQuiescent();
  }
}

TEST(ScorerStateTest, ExpectedAttentionSkipsItsSinks) {
  SchedulerOptions options = PlainOptions();
  options.engine.num_scorer_states = 2;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  Request request = H2oRequest("a", 0);
  request.eviction.policy.scorer.kind = ScorerKind::kExpectedAttention;
  request.eviction.policy.scorer.n_sink = 3;
  Submit(&driver, request);
  driver.Issue();
  ASSERT_THAT(driver.plan().starts, SizeIs(1));
  EXPECT_EQ(driver.plan().starts[0].scorer_state,
            ScorerState::kQueryStatistics);
  EXPECT_EQ(driver.plan().starts[0].state_begin, 3);
  driver.Drain();
}

// Its parent ends before it would be compressed, and has none.
TEST(ScorerStateTest, AForkHasOneWhereItsParentNeedsNone) {
  SchedulerOptions options = PlainOptions();
  options.engine.num_scorer_states = 1;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  Request parent = MakeRequest("parent", 4, 4);
  parent.eviction = Recency(4, EvictionMode::kDecode, 8);
  parent.eviction.policy.scorer.kind = ScorerKind::kExpectedAttention;
  parent.eviction.policy.scorer.n_sink = 3;
  parent.eviction.policy.protect.recent = 0;
  Request fork = MakeRequest("fork", 4, 20);
  fork.fork_of = parent.id;
  Submit(&driver, parent);
  const RequestId id = Submit(&driver, fork);
  std::vector<std::pair<ScorerState, int32_t>> states;  // and first queries
  while (driver.ok() && driver.scheduler().has_unfinished_requests()) {
    driver.Step();
    for (const SequenceStart& start : driver.plan().starts) {
      states.emplace_back(start.scorer_state, start.state_begin);
    }
  }
  EXPECT_THAT(states, ElementsAre(Pair(ScorerState::kNone, 0),
                                  Pair(ScorerState::kQueryStatistics, 3)));
  EXPECT_EQ(driver.scheduler().stats().num_forks, 0u);
  EXPECT_THAT(driver.served(id).recorded, Not(IsEmpty()));
  driver.CheckQuiescent();
}

// Scores are of all queries, and a cached token has none here.
TEST(ScorerStateTest, TakesNoPrefixHits) {
  SchedulerOptions options = CachingOptions();
  options.engine.num_scorer_states = 1;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  Submit(&driver, MakeRequest("a", 40, 1));
  driver.Drain();
  Submit(&driver, H2oRequest("b", 0));
  driver.Issue();
  ASSERT_THAT(driver.plan().starts, SizeIs(1));
  EXPECT_EQ(driver.plan().starts[0].num_cached_tokens, 0);
  driver.Drain();
}

Request StatsRequest(const char* id, int32_t topic) {
  Request request = MakeRequest(id, 40, 10, topic);
  request.eviction = Recency(8);
  request.eviction.policy.scorer.kind = ScorerKind::kExpectedAttention;
  request.eviction.policy.scorer.stats = "chat";
  return request;
}

SchedulerOptions StatsOptions() {
  SchedulerOptions options = CachingOptions();
  options.engine.query_stats = {{"chat", "1a2b"}, {"code", "3c4d"}};
  return options;
}

TEST(QueryStatsTest, APolicyMayNameTheTablesOfTheEngineOnly) {
  SchedulerDriver driver(SmallLayout(4, 200), StatsOptions());
  EXPECT_THAT(driver.Submit(StatsRequest("a", 0)), IsOk());
  Request other = StatsRequest("b", 1);
  other.eviction.policy.scorer.stats = "talk";
  EXPECT_THAT(driver.Submit(other),
              StatusIs(absl::StatusCode::kNotFound,
                       "eviction.policy: stats: expected the name of a table "
                       "of query statistics of the engine (chat, code), got "
                       "'talk'"));
  driver.Drain();
  SchedulerDriver without(SmallLayout(4, 200), CachingOptions());
  EXPECT_THAT(without.Submit(StatsRequest("a", 0)),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("there is none), got 'chat'")));
}

TEST(QueryStatsTest, CommandsMayNameThemWithoutAState) {
  SchedulerDriver driver(SmallLayout(4, 200), StatsOptions());
  const RequestId id = Submit(&driver, MakeRequest("a", 40, 20));
  driver.RunUntil([&] { return driver.served(id).outputs.size() >= 2; });
  EvictionCommand command = RecencyCommand(4);
  command.policy = StatsRequest("b", 0).eviction.policy;
  command.policy.scorer.stats = "talk";
  EXPECT_THAT(driver.Evict(id, command),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("policy: stats: expected the name of a table "
                                 "of query statistics of the engine (chat, "
                                 "code), got 'talk'")));
  command.policy.scorer.stats = "code";
  EXPECT_THAT(driver.Evict(id, command), IsOk());
  driver.Finish();
}

// Nothing is accumulated: hits, shared compressed prefixes and forks are as
// with keydiff, and the engine needs no states.
TEST(QueryStatsTest, RequestsTakeHitsAndShareCompressedPrefixes) {
  SchedulerDriver driver(SmallLayout(4, 200), StatsOptions());
  Submit(&driver, MakeRequest("plain", 40, 1));
  driver.Drain();
  Submit(&driver, StatsRequest("hit", 0));
  driver.Issue();
  ASSERT_THAT(driver.plan().starts, SizeIs(1));
  EXPECT_EQ(driver.plan().starts[0].scorer_state, ScorerState::kNone);
  EXPECT_EQ(driver.plan().starts[0].num_cached_tokens, 36);
  driver.Drain();
  for (const char* id : {"shares", "shared"}) {
    Request request = StatsRequest(id, 7);
    request.eviction.share_prefix = true;
    Submit(&driver, request);
    driver.Issue();
    ASSERT_THAT(driver.plan().starts, SizeIs(1));
    EXPECT_EQ(driver.plan().starts[0].region != kNoRegion,
              request.id == "shared");
    driver.Drain();
  }
}

TEST(QueryStatsTest, AForkSharesWhatItsParentComputed) {
  SchedulerDriver driver(SmallLayout(4, 200), StatsOptions());
  Request parent = StatsRequest("parent", 0);
  parent.eviction.mode = EvictionMode::kDecode;
  parent.eviction.compress_every = 16;
  const RequestId id = Submit(&driver, parent);
  driver.RunUntil([&] { return !driver.served(id).outputs.empty(); });
  Request fork = MakeRequest("fork", 40, 10);
  fork.prompt.push_back(driver.served(id).outputs[0]);
  fork.fork_of = parent.id;
  Submit(&driver, fork);
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_forks, 1u);
  driver.CheckQuiescent();
}

TEST(QueryStatsTest, WindowsMayBeEvictedFrom) {
  SchedulerOptions options = StatsOptions();
  options.engine.supports_window_evictions = true;
  ModelLayout layout = SmallLayout(4, 200);
  layout.group_windows = {32};
  RequestEviction eviction = StatsRequest("a", 0).eviction;
  eviction.target.window_keep_ratio = *KeepRatio::Parse("0.5");
  EXPECT_THAT(ValidateEviction(eviction, layout, options), IsOk());
  eviction.policy.scorer.stats.clear();
  EXPECT_THAT(ValidateEviction(eviction, layout, options),
              IsInvalid("scores accumulated from the first token"));
}

TEST(ScorerStateTest, CommandsNeedAStateThatIsKept) {
  SchedulerOptions options = PlainOptions();
  options.engine.num_scorer_states = 1;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  const RequestId plain = Submit(&driver, MakeRequest("a", 40, 20));
  const RequestId kept = Submit(&driver, H2oRequest("b", 1));
  driver.RunUntil([&] {
    return driver.served(plain).outputs.size() >= 2 &&
           driver.served(kept).outputs.size() >= 2;
  });
  EvictionCommand command = RecencyCommand(4);
  command.policy.scorer.kind = ScorerKind::kH2o;
  EXPECT_THAT(driver.Evict(plain, command),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("from the first token on")));
  EXPECT_THAT(driver.Evict(kept, command), IsOk());
  driver.Finish();
}

// The sequence is shorter than a page: there are no positions whose budgets a
// table could tell, and nothing to evict.
TEST(TableCommandTest, FindsNothingBeforeTheFirstWholePage) {
  const ModelLayout layout = SmallLayout(4, 40, 2, 2);
  for (const uint32_t seed : {1u, 2u}) {
    SchedulerDriver driver(layout, PlainOptions());
    const RequestId id = Submit(&driver, MakeRequest("a", 2, 30));
    driver.Step();
    RequestEviction eviction = Recency(4);
    UseTable(SkewedTable(layout, seed), &eviction);
    EvictionCommand command = RecencyCommand(4);
    command.policy = eviction.policy;
    command.table = eviction.table;
    ASSERT_THAT(driver.Evict(id, command), IsOk());
    driver.RunUntilOutputs(id, 24);
    ASSERT_THAT(driver.served(id).evictions, SizeIs(1));
    EXPECT_EQ(driver.served(id).evictions[0].freed_blocks, 0);
    // Later there is.
    ASSERT_THAT(driver.Evict(id, command), IsOk());
    driver.Drain();
    ASSERT_THAT(driver.served(id).evictions, SizeIs(2));
    EXPECT_GT(driver.served(id).evictions[1].freed_blocks, 0);
    driver.CheckQuiescent();
  }
}

// A cut below what the prefix cache has of the sequence: the blocks above the
// cut are not the eviction's to take, nor do they lessen what it needs.
TEST(ReplayTest, APrefixMatchMayBeLongerThanTheCut) {
  SchedulerDriver driver(SmallLayout(1, 44, 2, 2), CachingOptions());
  const RequestId old = Submit(&driver, MakeRequest("old", 20, 20));
  driver.RunUntil([&] { return !driver.served(old).outputs.empty(); });
  const RequestId young = Submit(&driver, MakeRequest("young", 20, 12));
  driver.RunUntil([&] { return !driver.served(young).outputs.empty(); });
  ASSERT_THAT(driver.Evict(young, RecencyCommand(2, 5)), IsOk());
  driver.Step();
  ASSERT_THAT(driver.served(young).recorded, SizeIs(1));
  const int32_t length = driver.served(young).recorded[0].length;
  // Somebody older needs the pool: the younger loses everything but what the
  // older and the cache hold of its prompt.
  driver.LoseEngine();
  std::vector<std::pair<int32_t, int32_t>> replays;  // cached tokens, cut
  int32_t num_cached = 0;
  while (driver.ok() && driver.scheduler().has_unfinished_requests()) {
    driver.Step();
    for (const SequenceStart& start : driver.plan().starts) {
      if (start.request == young) num_cached = start.num_cached_tokens;
    }
    for (const EvictionOrder& order : driver.plan().evictions) {
      EXPECT_EQ(order.length, length);
      replays.emplace_back(num_cached, order.cut);
    }
  }
  // It is preempted again and again; what counts is that matches were longer.
  EXPECT_THAT(replays, Each(Pair(testing::_, 5)));
  EXPECT_THAT(replays, Contains(Pair(Gt(5), 5)));
  EXPECT_EQ(driver.served(young).finish->reason, FinishReason::kLength);
  driver.CheckQuiescent();
}

TEST(CommandsTest, ObservesQueriesThatAreKept) {
  SchedulerOptions options = PlainOptions();
  options.query_window = 0;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  const RequestId plain = Submit(&driver, MakeRequest("a", 40, 20));
  Request observed = MakeRequest("b", 40, 20, 1);
  observed.eviction = Recency(20);
  ASSERT_OK_AND_ASSIGN(observed.eviction.policy,
                       ParsePolicy("snapkv(window=4)"));
  const RequestId kept = Submit(&driver, std::move(observed));
  driver.RunUntil([&] {
    return driver.served(plain).outputs.size() >= 2 &&
           driver.served(kept).outputs.size() >= 2;
  });
  EvictionCommand command = RecencyCommand(4);
  ASSERT_OK_AND_ASSIGN(command.policy, ParsePolicy("snapkv(window=2)"));
  EXPECT_THAT(driver.Evict(plain, command),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("got query_window 0")));
  EXPECT_THAT(driver.Evict(plain, RecencyCommand(4)), IsOk());
  EXPECT_THAT(driver.Evict(kept, command), IsOk());
  driver.Finish();
}

// The engine keeps what the request's own policy observes, and a command may
// use all of it.
TEST(CommandsTest, ObserveAllQueriesThatTheEngineKeeps) {
  for (const int32_t least : {0, 2, 16}) {
    SCOPED_TRACE(least);
    SchedulerOptions options = PlainOptions();
    options.query_window = least;
    SchedulerDriver driver(SmallLayout(4, 200), options);
    Request request = MakeRequest("a", 40, 40);
    request.eviction = Recency(20);
    ASSERT_OK_AND_ASSIGN(request.eviction.policy,
                         ParsePolicy("snapkv(window=8)"));
    const RequestId id = Submit(&driver, std::move(request));
    const auto num_kept = std::max(least, 8);
    driver.Step();
    ASSERT_THAT(driver.plan().starts, SizeIs(1));
    EXPECT_EQ(driver.plan().starts[0].query_window, num_kept);
    driver.RunUntilOutputs(id, 10);
    EvictionCommand command = RecencyCommand(4);
    ASSERT_OK_AND_ASSIGN(command.policy, ParsePolicy("snapkv(window=32)"));
    ASSERT_THAT(driver.Evict(id, command), IsOk());
    std::vector<int32_t> windows;
    driver.RunUntil([&] {
      for (const EvictionOrder& order : driver.plan().evictions) {
        windows.push_back(order.policy.scorer.window);
      }
      return !windows.empty();
    });
    EXPECT_THAT(windows, testing::Each(num_kept));
    driver.Finish();
  }
}

TEST(CommandsTest, AreWithdrawnUntilTheyAreOrdered) {
  SchedulerDriver driver(SmallLayout(4, 200), PlainOptions());
  const RequestId id = Submit(&driver, MakeRequest("a", 40, 20));
  driver.RunUntilOutputs(id, 2);
  ASSERT_OK_AND_ASSIGN(const uint64_t first,
                       driver.scheduler().Evict(id, RecencyCommand(4)));
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(id, first + 1));
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(RequestId{99}, first));
  EXPECT_TRUE(driver.scheduler().WithdrawEviction(id, first));
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(id, first));
  driver.Step();
  EXPECT_THAT(driver.served(id).evictions, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const uint64_t second,
                       driver.Evict(id, RecencyCommand(4)));
  driver.Issue();
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(id, second));
  driver.Finish();
  EXPECT_THAT(driver.served(id).evictions, SizeIs(1));
}

}  // namespace
}  // namespace blockmgr
