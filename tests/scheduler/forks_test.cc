// Requests that begin with what another one has computed: n > 1, and beams.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/compression_points.h"
#include "scheduler/forks.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Prefix caching, steps in flight.
class ForkTest : public testing::TestWithParam<std::tuple<bool, int32_t>> {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions(std::get<1>(GetParam()));
    options.enable_prefix_caching = std::get<0>(GetParam());
    return options;
  }
  // A request with the prompt of another, or that and what it has output.
  static Request ForkOf(const Request& parent, const std::string& id,
                        const std::vector<int32_t>& outputs = {}) {
    Request fork = MakeRequest(id, 0, parent.max_tokens);
    fork.prompt = parent.prompt;
    fork.prompt.insert(fork.prompt.end(), outputs.begin(), outputs.end());
    fork.fork_of = parent.id;
    return fork;
  }
};

INSTANTIATE_TEST_SUITE_P(CachingAndStepsInFlight, ForkTest,
                         testing::Combine(testing::Bool(),
                                          testing::Values(1, 2, 4)));

// The step that starts the request, kept by value.
SequenceStart RunUntilStart(SchedulerDriver* driver, RequestId id,
                            std::vector<CopyOnWrite>* copies = nullptr) {
  SequenceStart start;
  driver->RunUntil([&] {
    const SequenceStart* found = driver->StartInPlan(id);
    if (found == nullptr) return false;
    start = *found;
    if (copies != nullptr) *copies = driver->plan().copies;
    return true;
  });
  return start;
}

TEST(InheritedPlanTest, HasNoPointThatTheForkDoesNotReach) {
  const ModelLayout layout = SmallLayout(4, 60);
  RequestEviction eviction = Recency(4);
  eviction.mode = EvictionMode::kEveryChunk;
  eviction.compress_every = 8;
  RequestState parent;
  parent.eviction.compressions = PlanCompressions(eviction, 48, layout);
  for (const int32_t last_length : {1, 23, 24, 48}) {
    SCOPED_TRACE(last_length);
    std::vector<int32_t> expected;
    for (const CompressionPoint& point : parent.eviction.compressions) {
      if (point.length <= last_length) expected.push_back(point.length);
    }
    std::vector<int32_t> lengths;
    for (const CompressionPoint& point :
         InheritedPlan(parent, 1, last_length, layout).compressions) {
      lengths.push_back(point.length);
    }
    EXPECT_EQ(lengths, expected);
  }
}

// Four samples of one prompt: it is computed once, to its last token but one.
TEST_P(ForkTest, OnePromptIsComputedOnceForAll) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  const Request leader = MakeRequest("leader", 26, 10);
  const RequestId id = Submit(&driver, leader);
  std::vector<RequestId> forks;
  for (int32_t i = 1; i < 4; ++i) {
    forks.push_back(
        Submit(&driver, ForkOf(leader, "sample" + std::to_string(i))));
  }
  driver.Drain();
  for (const RequestId fork : forks) {
    EXPECT_EQ(driver.served(fork).finish->num_cached_tokens, 25);
  }
  const SchedulerStats stats = driver.scheduler().stats();
  EXPECT_EQ(stats.num_forks, 3u);
  EXPECT_EQ(stats.num_computed_tokens, 26u + 3 + 4 * 9);
  EXPECT_EQ(driver.served(id).outputs, driver.served(forks[0]).outputs);
  driver.CheckQuiescent();
}

TEST_P(ForkTest, APartOfABlockIsCopiedAndTheRestShared) {
  SchedulerDriver driver(SmallLayout(4, 61), Options());
  const Request leader = MakeRequest("leader", 26, 30);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntilOutputs(id, 2);
  const int32_t used = driver.scheduler().stats().blocks.used_blocks;
  const RequestId fork = Submit(&driver, ForkOf(leader, "fork"));
  std::vector<CopyOnWrite> copies;
  const SequenceStart start = RunUntilStart(&driver, fork, &copies);
  EXPECT_EQ(start.source, driver.SlotOf(id));
  EXPECT_EQ(start.num_cached_tokens, 25);
  ASSERT_THAT(copies, SizeIs(1));
  EXPECT_EQ(copies[0].slot, driver.SlotOf(fork));
  EXPECT_EQ(copies[0].num_tokens, 1);
  EXPECT_LE(driver.scheduler().stats().blocks.used_blocks, used + 3);
  driver.Finish();
}

// Beams: the prompt and some of the outputs, then another token.
TEST_P(ForkTest, GoesOnFromTheMiddleOfTheOutputs) {
  SchedulerDriver driver(SmallLayout(4, 61), Options());
  const Request leader = MakeRequest("leader", 10, 40);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntilOutputs(id, 9);
  std::vector<int32_t> outputs = driver.served(id).outputs;
  outputs.resize(6);
  outputs.back() += 1;
  const RequestId fork = Submit(&driver, ForkOf(leader, "beam", outputs));
  EXPECT_EQ(RunUntilStart(&driver, fork).num_cached_tokens, 15);
  driver.Finish();
  EXPECT_NE(driver.served(fork).outputs, driver.served(id).outputs);
}

TEST_P(ForkTest, SharesTheRegionOfWhatItGoesOnFrom) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  Request leader = MakeRequest("leader", 26, 40);
  leader.eviction = Recency(6);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntilOutputs(id, 9);
  const RequestId fork =
      Submit(&driver, ForkOf(leader, "beam", driver.served(id).outputs));
  const SequenceStart start = RunUntilStart(&driver, fork);
  EXPECT_EQ(start.source, driver.SlotOf(id));
  EXPECT_GE(start.num_cached_tokens, 26);
  EXPECT_EQ(start.region, kNoRegion);
  const BlockManager& manager = driver.scheduler().manager();
  EXPECT_EQ(manager.sequence(driver.SlotOf(fork)).first().region,
            manager.sequence(driver.SlotOf(id)).first().region);
  // One of the two goes on evicting; the other's table stays.
  ASSERT_OK_AND_ASSIGN(const uint64_t number,
                       driver.Evict(fork, RecencyCommand(4)));
  driver.Finish();
  ASSERT_THAT(driver.served(fork).evictions, SizeIs(1));
  EXPECT_EQ(driver.served(fork).evictions[0].command, number);
  EXPECT_EQ(driver.scheduler().stats().num_forks, 1u);
}

// Its last prompt token is computed over what the leader has compressed since:
// that is not what it would compute alone.
TEST_P(ForkTest, DoesNotShareWhatACompressionCameAfter) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  Request leader = MakeRequest("leader", 26, 20);
  leader.eviction = Recency(6);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntilOutputs(id, 2);
  const RequestId fork = Submit(&driver, ForkOf(leader, "fork"));
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_forks, 0u);
  // It is compressed as the leader was.
  EXPECT_EQ(driver.served(fork).recorded, driver.served(id).recorded);
}

TEST_P(ForkTest, InheritsEveryModeOfEviction) {
  for (const EvictionMode mode :
       {EvictionMode::kEveryChunk, EvictionMode::kDecode}) {
    SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
    Request leader = MakeRequest("leader", 26, 60);
    leader.eviction = Recency(6, mode, 8);
    const RequestId id = Submit(&driver, leader);
    driver.RunUntilOutputs(id, 11);
    const RequestId fork =
        Submit(&driver, ForkOf(leader, "beam", driver.served(id).outputs));
    EXPECT_GE(RunUntilStart(&driver, fork).num_cached_tokens, 26);
    driver.Finish();
    EXPECT_EQ(driver.scheduler().stats().num_forks, 1u);
    const std::vector<CanaryEviction>& mine = driver.served(fork).recorded;
    const std::vector<CanaryEviction>& others = driver.served(id).recorded;
    ASSERT_GE(mine.size(), others.size());
    EXPECT_TRUE(std::equal(others.begin(), others.end(), mine.begin()));
  }
}

// A fork that waited has listed what the engine then refused to its parent. Its
// table would be taken for one that was compressed there.
TEST(ForkOfRefusedTest, IsNotCompressedWhereItsParentWasNot) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), PlainOptions(),
                         {.refuse_one_in = 1});
  // Seven blocks, whether it is compressed behind its prompt or not.
  Request leader = MakeRequest("leader", 25, 4);
  leader.eviction = Recency(6);
  const RequestId id = Submit(&driver, leader);
  Request sample = leader;
  sample.id = "sample";
  sample.eviction = {};
  sample.fork_of = leader.id;
  const RequestId fork = Submit(&driver, sample);
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_forks, 1u);
  EXPECT_THAT(driver.served(id).evictions, SizeIs(1));
  EXPECT_THAT(driver.served(fork).evictions, SizeIs(0));
}

// Whatever of its parent's end: a short sample compresses no less than a long
// one.
TEST_P(ForkTest, IsCompressedBeyondTheEndOfItsParent) {
  SchedulerDriver driver(SmallLayout(4, 20, 2, 2), Options());
  Request leader = MakeRequest("leader", 10, 4);
  leader.eviction = Recency(6, EvictionMode::kDecode, 8);
  Submit(&driver, leader);
  Request fork = ForkOf(leader, "fork");
  fork.max_tokens = 100;  // 27 blocks whole
  const RequestId id = Submit(&driver, fork);
  driver.Finish();
  EXPECT_GE(driver.served(id).recorded.size(), 10u);
}

// The leader ends before the point that comes after its prompt's: it is not
// among its own.
TEST_P(ForkTest, IsCompressedInTheMiddleOfALongerPrompt) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  Request leader = MakeRequest("leader", 26, 7);
  leader.eviction = Recency(6, EvictionMode::kDecode, 8);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntilOutputs(id, 2);
  std::vector<int32_t> more = driver.served(id).outputs;
  more.resize(40, 5);
  const RequestId fork = Submit(&driver, ForkOf(leader, "fork", more));
  driver.Drain();
  std::vector<int32_t> lengths;
  for (const CanaryEviction& eviction : driver.served(fork).recorded) {
    lengths.push_back(eviction.length);
  }
  EXPECT_EQ(lengths, (std::vector<int32_t>{26, 34, 42, 50, 58, 66}));
  driver.CheckQuiescent();
}

TEST_P(ForkTest, IsCompressedWhenItStartsOnACachedRegionAfterItsParentsEnd) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  options.max_num_seqs = 1;
  SchedulerDriver driver(SmallLayout(4, 20, 2, 2), options);
  Request leader = MakeRequest("leader", 26, 4);
  leader.eviction = Recency(6, EvictionMode::kDecode, 8);
  leader.eviction.share_prefix = true;
  Submit(&driver, leader);
  Request fork = ForkOf(leader, "fork");
  fork.max_tokens = 100;  // 32 blocks whole
  const RequestId id = Submit(&driver, fork);
  driver.Finish();
  EXPECT_GT(driver.scheduler().stats().num_cached_region_tokens, 0u);
  EXPECT_GE(driver.served(id).recorded.size(), 10u);
}

// What somebody ordered of the leader is about its forks as far as they go on
// from there.
TEST_P(ForkTest, InheritsCommandsUpToTheEndOfItsPrompt) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  const Request leader = MakeRequest("leader", 26, 60);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntilOutputs(id, 9);
  EXPECT_OK(driver.Evict(id, RecencyCommand(4)));
  driver.RunUntilOutputs(id, 20);
  const RequestId sample = Submit(&driver, ForkOf(leader, "sample"));
  const RequestId beam =
      Submit(&driver, ForkOf(leader, "beam", driver.served(id).outputs));
  driver.Finish();
  EXPECT_THAT(driver.served(id).recorded, SizeIs(1));
  EXPECT_THAT(driver.served(sample).recorded, SizeIs(0));
  EXPECT_EQ(driver.served(beam).recorded, driver.served(id).recorded);
}

// The leader starts on what an earlier turn has left; so do its forks, though
// they were submitted before it did.
TEST_P(ForkTest, InheritsWhatItsParentTookFromTheCache) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
  const auto shared = [](const std::string& id, int32_t num_prompt) {
    Request request = MakeRequest(id, num_prompt, 12);
    request.eviction = Recency(6);
    request.eviction.share_prefix = true;
    return request;
  };
  Submit(&driver, shared("turn", 38));
  driver.Drain();
  const Request leader = shared("leader", 50);
  const RequestId id = Submit(&driver, leader);
  const RequestId fork = Submit(&driver, ForkOf(leader, "fork"));
  driver.Finish();
  EXPECT_GE(driver.served(id).finish->num_cached_tokens, 36);
  EXPECT_GE(driver.served(fork).finish->num_cached_tokens, 36);
  EXPECT_EQ(driver.served(fork).recorded, driver.served(id).recorded);
}

// Four samples of a prompt that is compressed: each compresses it for itself,
// but for share_prefix: then the region of the first is everybody's.
TEST_P(ForkTest, SamplesShareTheRegionOfASharedPrefix) {
  for (const bool share : {false, true}) {
    SCOPED_TRACE(share);
    SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
    Request leader = MakeRequest("leader", 41, 20);
    leader.eviction = Recency(8);
    leader.eviction.share_prefix = share;
    std::vector<RequestId> ids = {Submit(&driver, leader)};
    for (int32_t i = 1; i < 4; ++i) {
      ids.push_back(Submit(&driver, ForkOf(leader, std::to_string(i))));
    }
    driver.RunUntil([&] {
      return std::ranges::none_of(
          ids, [&](RequestId id) { return driver.served(id).outputs.empty(); });
    });
    const BlockManager& manager = driver.scheduler().manager();
    std::set<RegionId> regions;
    std::set<BlockId> blocks;  // that any of them holds
    for (const RequestId id : ids) {
      const SequenceCache& sequence = manager.sequence(driver.SlotOf(id));
      ASSERT_NE(sequence.first().region, nullptr);
      regions.insert(sequence.first().region->id);
      EXPECT_THAT(sequence.first().region->blocks, SizeIs(2));  // of 8 tokens
      EXPECT_EQ(sequence.cut(), share ? 36 : 40);
      blocks.insert(sequence.first().region->blocks.begin(),
                    sequence.first().region->blocks.end());
      blocks.insert(sequence.first().tail.begin(), sequence.first().tail.end());
    }
    EXPECT_THAT(regions, SizeIs(share ? 1 : 4));
    EXPECT_EQ(driver.scheduler().stats().blocks.used_blocks,
              std::ssize(blocks));
    driver.Drain();
    const SchedulerStats stats = driver.scheduler().stats();
    EXPECT_EQ(stats.num_evictions, share ? 1u : 4u);
    if (share) {
      EXPECT_EQ(stats.num_computed_tokens, 41u + 3 + 4 * 19);
    }
    driver.CheckQuiescent();
  }
}

// A prompt of many chunks: its forks take all but the last few before it is
// compressed.
TEST_P(ForkTest, TakesWhatItCanBeforeACompression) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = false;
  options.long_prefill_token_threshold = 16;
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
  Request leader = MakeRequest("leader", 100, 4);
  leader.eviction = Recency(6);
  Submit(&driver, leader);
  const RequestId fork = Submit(&driver, ForkOf(leader, "fork"));
  driver.Finish();
  const int32_t num_chunks = options.max_steps_in_flight + 1;
  EXPECT_GE(driver.served(fork).finish->num_cached_tokens,
            100 - 16 * num_chunks - 1);
  EXPECT_EQ(driver.scheduler().stats().num_forks, 1u);
}

// A beam of a beam that still waits for the prompt to be computed.
TEST_P(ForkTest, AForkOfAWaitingForkWaitsToo) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 16;
  options.min_prefix_wait_tokens = 0;
  SchedulerDriver driver(SmallLayout(4, 61), options);
  const Request leader = MakeRequest("leader", 100, 20);
  Submit(&driver, leader);
  const Request first = ForkOf(leader, "first");
  Submit(&driver, first);
  const RequestId second = Submit(&driver, ForkOf(first, "second"));
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_forks, 2u);
  EXPECT_GE(driver.served(second).finish->num_cached_tokens, 95);
}

// Long prompts are computed one at a time; a fork has nearly all of its own.
TEST_P(ForkTest, ForksOfLongPromptsAreNoLongPrefills) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 16;
  options.long_prefill_token_threshold = 8;
  options.max_long_prefills = 1;
  SchedulerDriver driver(SmallLayout(4, 61), options);
  const Request leader = MakeRequest("leader", 40, 30);
  const RequestId id = Submit(&driver, leader);
  driver.RunUntil([&] { return !driver.served(id).outputs.empty(); });
  const RequestId other = Submit(&driver, MakeRequest("other", 90, 2, 1));
  const RequestId fork = Submit(&driver, ForkOf(leader, "fork"));
  driver.RunUntil([&] { return !driver.served(fork).outputs.empty(); });
  EXPECT_TRUE(driver.served(other).outputs.empty());
  driver.Finish();
}

// Tokens that stand for media are equal for any media. A fork of other media
// has what the prefix cache knows of the blocks before them.
TEST_P(ForkTest, TakesNothingOfOtherMedia) {
  struct Case {
    const char* what;
    uint64_t num_forks;
    int32_t num_before;  // tokens in blocks before the first other media
    std::vector<MediaItem> media;
  };
  const std::vector<Case> cases = {
      {"the same", 1, 25, {{4, 4, "a"}, {17, 4, "b"}}},
      {"another first", 0, 4, {{4, 4, "x"}, {17, 4, "b"}}},
      {"elsewhere in its block", 0, 4, {{5, 3, "a"}, {17, 4, "b"}}},
      {"another second", 0, 16, {{4, 4, "a"}, {17, 4, "x"}}},
      {"no second", 0, 16, {{4, 4, "a"}}},
      {"none", 0, 4, {}},
      {"one more", 0, 8, {{4, 4, "a"}, {9, 1, "x"}, {17, 4, "b"}}},
      {"more at the end", 1, 25, {{4, 4, "a"}, {17, 4, "b"}, {25, 1, "x"}}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    SchedulerDriver driver(SmallLayout(4, 61), Options());
    Request leader = MakeRequest("leader", 26, 30);
    leader.scope.media = {{4, 4, "a"}, {17, 4, "b"}};
    const RequestId id = Submit(&driver, leader);
    driver.RunUntilOutputs(id, 2);
    Request request = ForkOf(leader, "fork");
    request.scope.media = one.media;
    const RequestId fork = Submit(&driver, request);
    driver.Finish();
    const bool shares = one.num_forks > 0 || Options().enable_prefix_caching;
    EXPECT_EQ(driver.scheduler().stats().num_forks, one.num_forks);
    EXPECT_EQ(driver.served(fork).finish->num_cached_tokens,
              shares ? one.num_before : 0);
  }
}

TEST_P(ForkTest, AreRefusedWithAReason) {
  SchedulerDriver driver(SmallLayout(4, 61), Options());
  Request leader = MakeRequest("leader", 10, 8);
  leader.scope.tenant = "a";
  Submit(&driver, leader);
  const auto refuse = [&](Request request, absl::StatusCode code,
                          const char* message) {
    EXPECT_THAT(driver.Submit(std::move(request)).status(),
                StatusIs(code, HasSubstr(message)));
  };
  Request fork = ForkOf(leader, "fork");
  refuse(fork, absl::StatusCode::kNotFound, "same tenant");
  fork.scope.tenant = "a";
  fork.eviction = Recency(8);
  refuse(fork, absl::StatusCode::kInvalidArgument, "eviction: expected none");
  fork.eviction = {};
  fork.fork_of = "nobody";
  refuse(fork, absl::StatusCode::kNotFound, "got 'nobody'");
  driver.Finish();
}

}  // namespace
}  // namespace blockmgr
